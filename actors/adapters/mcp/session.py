"""One connection to an MCP server: its program, what it offers, its calls, its end."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

from actors.adapters.mcp import tool_listing
from actors.adapters.mcp.bounded_messages import bounded_transport
from actors.adapters.mcp.elicitation import TimedCall, put_to_person
from actors.ports import Launch, ProcessLimits, ProcessStartError, SandboxUnavailableError, ServiceStreams
from actors.ports.mcp import McpState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    import anyio
    from mcp import Client
    from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, ErrorData

    from actors.adapters.mcp.login.kept_logins import KeptLogins
    from actors.adapters.mcp.loop_thread import LoopThread
    from actors.adapters.mcp.server_settings import McpServer
    from actors.core.context import Mode
    from actors.ports import RunningProcess, Sandbox, ToolContext
    from actors.ports.models import ToolSpec

log = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0
"""Seconds for saying goodbye to a server that ends."""

GRACE_SECONDS = 0.5
"""Seconds in which a program may end by itself once its stdin is closed; then its tree is killed."""

LISTEN_SECONDS = 30.0
"""Seconds after which a server that stopped telling of changes is asked for them again."""

ERROR_BYTES = 2048
"""How much is kept of what a program last wrote to stderr, to say why it failed; in bytes."""

ENDED = frozenset({McpState.FAILED, McpState.NEEDS_LOGIN, McpState.STOPPED})
"""The states in which a connection is over."""

MAX_QUESTIONS = 100
"""More than a call can ask a person: the library's own time limit must not come before that of the call."""

REASON_CHARACTERS = 500
"""Maximum characters of why a call or a server failed."""

LIMITS = ProcessLimits()
"""Those of a tool call, without a wall clock."""


class ServerError(Exception):
    """A server cannot be used, or a call failed; the text is for the model and for people."""


class McpSession:
    """A connection for one conversation. Created, called and stopped from any thread; the rest is the loop's.

    It connects at once, in the background. Its calls wait for that. `changed` is called on the loop's thread after each
    change of `state`, `error` or `tools`.
    """

    def __init__(
        self,
        server: McpServer,
        *,
        loop: LoopThread,
        sandbox: Sandbox,
        environment: Mapping[str, str],
        cwd: str,
        mode: Mode,
        idle_seconds: float,
        changed: Callable[[McpSession], None],
        logins: KeptLogins | None = None,
    ) -> None:
        """Start to connect. Raises RuntimeError if no thread can be started, or at shutdown."""
        self.server = server
        self.mode = mode
        """The mode that its program has been started in."""
        self.state = McpState.CONNECTING
        self.error = ""
        """Why it failed."""
        self.failed_at = 0.0
        """When it failed, in monotonic seconds."""
        self.served = False
        """Whether it was ever connected."""
        self.tools: tuple[ToolSpec, ...] = ()
        self.note = ""
        """What the model is told with the result of the next call."""
        self._loop = loop
        self._sandbox = sandbox
        self._environment = environment
        self._cwd = cwd
        self._idle_seconds = idle_seconds
        self._changed = changed
        self._logins = logins
        self._needs_login = False
        self._process: RunningProcess | None = None
        self._stopping = self._killing = False
        self._client: Client | None = None
        self._calls: list[TimedCall] = []
        """Calls that have begun and not ended: one, and those before it that were cancelled only just now."""
        self._activity = 0
        """Counts the begin and the end of each call, so that time without one can be told."""
        self._words = b""
        """The last words of its program, or the last refusal of its URL."""
        self._over: anyio.Event | None = None
        self._settled: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        loop.run(self._live())

    @property
    def over(self) -> bool:
        """Whether it has ended or failed, so that a call needs another one. Any thread."""
        return self._stopping or self.state in ENDED

    def unreachable_since(self, when: float) -> bool:
        """Return whether it could not connect, and learned that after `when`, in monotonic seconds. Any thread."""
        return bool(self.error) and not self.served and self.failed_at > when

    def call(self, tool: str, arguments: dict[str, Any], context: ToolContext) -> Future[CallToolResult]:
        """Call a tool. Cancelling the future cancels the call at the server, which goes on. Any thread.

        `context` is told what the server says meanwhile, and asked what the server wants to know from a person. The
        future raises ServerError. Raises RuntimeError at shutdown.
        """
        return self._loop.run(self._call(tool, arguments, context))

    def stop(self) -> None:
        """End the connection; what a program has started is killed now. Any thread; never blocks; idempotent."""
        self._stopping = self._killing = True
        if (process := self._process) is not None:
            process.kill()
        with suppress(RuntimeError):
            self._loop.run(self._end())

    # --- on the loop's thread ----------------------------------------------------------------------------------------

    async def _end(self) -> None:
        if self._over is not None:
            self._over.set()
        if self.state is McpState.CONNECTING and self._task is not None:
            self._task.cancel()

    async def _live(self) -> None:
        """Connect, list the tools, and stay until the end."""
        import anyio  # noqa: PLC0415 -- a second of imports, for those who use MCP

        self._task = asyncio.current_task()
        self._over = anyio.Event()
        self._settled = asyncio.get_running_loop().create_future()
        stack, why = AsyncExitStack(), ""
        try:
            async with asyncio.timeout(self.server.connect_seconds):
                await self._connect(stack)
            self.served = True
            self._become(McpState.READY)
            await self._until_over()
            if not self._stopping:
                why = "it ended the connection"
        except asyncio.CancelledError:  # stopped while it connected, or the loop is closed
            why = ""
        except TimeoutError:
            why = f"it did not answer within {self.server.connect_seconds:g} s"
        except Exception as error:  # noqa: BLE001 -- whatever a library raises, the server is down
            why = reason_of(error)
        finally:
            self._client, self._stopping = None, True
            with anyio.CancelScope(shield=True):
                await self._close(stack)
            if why:  # told last, because the last words of its program may come after its end
                self._fail(why)
            else:
                self._become(McpState.STOPPED)

    async def _connect(self, stack: AsyncExitStack) -> None:
        from mcp import Client  # noqa: PLC0415 -- see _live
        from mcp_types import Implementation, ToolListChangedNotification  # noqa: PLC0415 -- see _live

        async def on_message(message: object) -> None:
            if isinstance(message, ToolListChangedNotification):
                relist.set()

        relist = asyncio.Event()
        transport = await self._http(stack) if self.server.url else await self._program(stack)
        client = Client(
            bounded_transport(transport),
            client_info=Implementation(name="bedrock", version="1"),
            read_timeout_seconds=self.server.connect_seconds,
            message_handler=on_message,
            mode="auto" if self.server.protocol == "auto" else "legacy",
            elicitation_callback=self._asked if self.server.question_seconds else None,
        )
        self._client = await stack.enter_async_context(client)
        self.tools = await tool_listing.tools_of(self._client, self.server)
        stack.callback(asyncio.ensure_future(self._relist_when(relist)).cancel)
        stack.callback(asyncio.ensure_future(self._listen(self._client, relist)).cancel)

    async def _http(self, stack: AsyncExitStack) -> Any:
        from actors.adapters.mcp.web_transport import http_transport  # noqa: PLC0415 -- see _live

        def refused(words: str) -> None:
            self._words = words.encode()

        def needs_login() -> None:
            self._needs_login = True
            if self._over is not None:
                self._over.set()

        return await http_transport(self.server, stack, self._logins, refused, needs_login)

    async def _program(self, stack: AsyncExitStack) -> Any:
        """Start the server's program in a tool host, and return the transport over its pipes."""
        from actors.adapters.mcp.pipes import pipe_transport  # noqa: PLC0415 -- see _live

        theirs_in, ours_in = os.pipe()
        stack.callback(os.close, ours_in)
        ours_out, theirs_out = os.pipe()
        stack.callback(os.close, ours_out)
        launch = Launch(
            argv=self.server.command,
            cwd=self._cwd,
            env={**self._environment, **self.server.environment},
            mode=self.mode,
            limits=LIMITS,
            output_bytes=ERROR_BYTES,
            service=ServiceStreams(theirs_in, theirs_out),
        )
        starting = asyncio.ensure_future(self._loop.blocking(functools.partial(self._start, launch)))
        try:
            await asyncio.shield(starting)
        finally:
            await asyncio.wait({starting})  # a start cannot be interrupted, and it uses these pipes
            os.close(theirs_in)
            os.close(theirs_out)
        os.set_blocking(ours_in, False)
        os.set_blocking(ours_out, False)
        assert self._over is not None  # noqa: S101 -- set by _live
        return pipe_transport(ours_in, ours_out, self._over)

    def _start(self, launch: Launch) -> None:
        """Start the program (thread of its own). Raises ServerError."""
        if not os.path.isdir(launch.cwd):
            raise ServerError(f"the working directory {launch.cwd} no longer exists")
        try:
            self._process = self._sandbox.start(launch, self._hear)
        except (ProcessStartError, SandboxUnavailableError) as error:
            raise ServerError(f"{launch.argv[0]} was not started: {error}") from None
        if self._killing:
            self._process.kill()

    def _hear(self, output: bytes) -> None:
        """Keep the last words of the program (thread of the sandbox)."""
        self._words = (self._words + output)[-ERROR_BYTES:]

    async def _listen(self, client: Client, relist: asyncio.Event) -> None:
        """Ask to be told of changes of the tools, as protocols from 2026-07-28 on want it; others tell without.

        What changed before, or while nobody listened, is not told: the tools are listed again whenever this begins.
        """
        from mcp.client.subscriptions import ListenNotSupportedError  # noqa: PLC0415 -- see _live

        offered = client.server_capabilities.tools
        while offered is not None and offered.list_changed:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    relist.set()
                    async for _ in changes:
                        relist.set()
            except ListenNotSupportedError:
                return
            except Exception as error:  # noqa: BLE001 -- whatever a library raises, there are no news
                log.debug("MCP server %s: it does not tell of changes: %s", self.server.name, reason_of(error))
            await asyncio.sleep(LISTEN_SECONDS)

    async def _relist_when(self, wanted: asyncio.Event) -> None:
        """List the tools again whenever the server has said that they have changed, once however often it says so."""
        while await wanted.wait():
            wanted.clear()
            await self._relist()

    async def _relist(self) -> None:
        """List the tools again, since the server says that they have changed."""
        client = self._client
        if client is None:
            return
        try:
            self.tools = await tool_listing.tools_of(client, self.server)
        except Exception as error:  # noqa: BLE001 -- the earlier list stays
            log.warning("MCP server %s: its tools could not be listed again: %s", self.server.name, reason_of(error))
        else:
            self._changed(self)

    async def _until_over(self) -> None:
        """Wait for the end: by `stop`, of the program, or because no tool was called for a long time."""
        assert self._over is not None  # noqa: S101 -- set by _live
        while not self._over.is_set():
            activity = self._activity
            try:
                async with asyncio.timeout(self._idle_seconds):
                    await self._over.wait()
            except TimeoutError:
                if activity == self._activity and not self._calls:
                    self._stopping = True
                    return

    async def _close(self, stack: AsyncExitStack) -> None:
        """End the connection and the program. The stack closes the pipes, and with them stdin, first."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await stack.aclose()
        except BaseException as error:  # noqa: BLE001 -- it is over in any case
            log.debug("MCP server %s: its connection was not closed in order: %s", self.server.name, error)
        process, self._process = self._process, None
        if process is None:
            return
        if self._killing:
            process.kill()
        ending = asyncio.ensure_future(self._loop.blocking(process.wait))
        await asyncio.wait({ending}, timeout=GRACE_SECONDS)
        process.kill()
        await ending

    def _fail(self, why: str) -> None:
        words = " ".join(self._words.decode(errors="replace").split())
        if self._needs_login:
            why = needs_login(self.server.name)
        elif words:
            why = f"{why} ({words})" if self.server.url else f"{why}; the last it wrote: {last_words(words)}"
        for secret in self.server.secrets:
            why = why.replace(secret, "***")
        self.error, self.failed_at = why, time.monotonic()
        log.warning("MCP server %s: %s", self.server.name, why)
        self._become(McpState.NEEDS_LOGIN if self._needs_login else McpState.FAILED)

    def _become(self, state: McpState) -> None:
        self.state = state
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
        self._changed(self)

    async def _asked(self, context: object, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Put what the server asks to a person. It does not say by which call: tools run one at a time."""
        del context  # the library's signature

        return await put_to_person(self.server, self._calls[-1] if self._calls else None, params)

    async def _call(self, tool: str, arguments: dict[str, Any], context: ToolContext) -> CallToolResult:
        from mcp import MCPError  # noqa: PLC0415 -- see _live

        assert self._settled is not None  # noqa: S101 -- tasks begin in order, and _live before any call
        await asyncio.shield(self._settled)
        client = self._client
        if client is None:
            raise ServerError(f"The MCP server {self.server.name} is down: {self.error or 'it was stopped'}.")

        async def show(progress: float, total: float | None, message: str | None) -> None:
            context.on_output(message or (f"{progress:g} of {total:g}" if total else f"{progress:g}"))

        call = TimedCall(context.ask, self.server.call_seconds)
        self._calls.append(call)
        self._activity += 1
        try:
            async with call.limit:
                beyond = 2 * self.server.call_seconds + MAX_QUESTIONS * self.server.question_seconds
                meta: Any = {"traceparent": context.trace_parent} if context.trace_parent else None
                return await client.call_tool(tool, arguments, beyond, show, meta=meta)
        except TimeoutError:
            raise ServerError(
                f"The MCP server {self.server.name} did not answer within {self.server.call_seconds:g} s."
            ) from None
        except MCPError as error:
            if self._needs_login:
                raise ServerError(f"The MCP server {self.server.name} {needs_login(self.server.name)}.") from None
            raise ServerError(f"The MCP server {self.server.name} failed the call: {reason_of(error)}") from None
        except Exception as error:  # noqa: BLE001 -- e.g. an answer that is none
            raise ServerError(f"The MCP server {self.server.name} failed: {reason_of(error)}.") from None
        finally:
            self._calls.remove(call)
            self._activity += 1


def needs_login(name: str) -> str:
    """Return what an operator has to do for a server."""
    return f"needs login: bedrock mcp login {name}"


_NOT_FOR_PEOPLE = re.compile(r" \[type=\w+, input_value=.*?, input_type=\w+\]| For further information visit \S+")
"""What the library of the protocol adds to what is wrong with an answer."""


def reason_of(error: BaseException) -> str:
    """Return what happened in one line, for people; of several errors the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = _NOT_FOR_PEOPLE.sub("", " ".join(str(error).split()))
    return first_words(text) or type(error).__name__


def first_words(text: str) -> str:
    """Return the beginning of a text in one line, of bounded length, to the end of a word if there is one."""
    if len(text) <= REASON_CHARACTERS:
        return text
    begin = text[:REASON_CHARACTERS]
    return (begin.rpartition(" ")[0] or begin) + " […]"


def last_words(text: str) -> str:
    """Return the end of a text in one line, of bounded length, from the beginning of a word on if there is one."""
    if len(text) <= REASON_CHARACTERS:
        return text
    end = text[-REASON_CHARACTERS:]
    return "[…] " + (end.partition(" ")[2] or end)
