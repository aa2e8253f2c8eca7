"""One connection to an MCP server: starts its program or opens its URL, lists its tools, and calls them."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from actors.adapters.mcp import tools
from actors.adapters.mcp.bounded_messages import FORGOTTEN_SESSION, bounded_transport
from actors.adapters.mcp.elicitation import TimedCall, ask_person
from actors.adapters.mcp.logins import LoginTokens
from actors.adapters.mcp.server_settings import McpServer
from actors.common.machine import run_in_thread
from actors.core.context import Mode
from actors.ports import (
    Launch,
    ProcessLimits,
    ProcessStartError,
    RunningProcess,
    Sandbox,
    SandboxUnavailableError,
    ServiceStreams,
    ToolContext,
)
from actors.ports.models import ToolSpec
from actors.ports.tools import McpState, McpToolLeftOut

if TYPE_CHECKING:
    import anyio
    from mcp import Client
    from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, ErrorData

Found = TypeVar("Found")

END_SECONDS = 3.0


class LoopThread:
    """Runs coroutines on one thread, which starts with the first coroutine. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, work: Coroutine[object, object, Found]) -> Future[Found]:
        """Start a coroutine. Raises RuntimeError if this object is closed or no thread can be started."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._running())
        except BaseException:
            work.close()
            raise

    async def blocking(self, work: Callable[[], Found]) -> Found:
        """Run blocking work on another thread and return its result. If the caller is cancelled, the work continues."""
        done: Future[Found] = Future()
        done.set_running_or_notify_cancel()  # so that cancelling the coroutine does not cancel this future

        def job() -> None:
            try:
                done.set_result(work())
            except BaseException as raised:  # noqa: BLE001 -- raised again in the coroutine that waits
                done.set_exception(raised)

        run_in_thread(job, "bedrock-mcp-work")
        return await asyncio.wrap_future(done)

    def close(self) -> None:
        """Wait a few seconds for all coroutines, cancel those still running, and end the thread. Idempotent."""
        with self._lock:
            self._closed = True
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise RuntimeError("the server is shutting down")
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_serve, args=(loop,), name="bedrock-mcp", daemon=True)
                thread.start()
                self._loop, self._thread = loop, thread
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        _finish(loop)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        _finish(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _finish(loop: asyncio.AbstractEventLoop) -> None:
    if tasks := asyncio.all_tasks(loop):
        loop.run_until_complete(asyncio.wait(tasks, timeout=END_SECONDS))


log = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0

# Seconds that a program has to exit after its stdin is closed, before its processes are killed.
GRACE_SECONDS = 0.5

# Seconds between the end of a subscription to changes in a server's tools and the next attempt to subscribe.
LISTEN_SECONDS = 30.0

DOWNLOADERS = frozenset({"npx", "bunx", "pnpx", "uvx", "pipx"})

# How many bytes at the end of a program's stderr output are kept, to explain why the program failed.
ERROR_BYTES = 2048

ENDED = frozenset({McpState.FAILED, McpState.NEEDS_LOGIN, McpState.STOPPED})

# The MCP library's time limit for a call leaves time for this many questions, so that Bedrock's own limit for the call
# expires first.
MAX_QUESTIONS = 100

REASON_CHARACTERS = 500

# The resource limits of a server's program: those of a tool call, but without a limit on running time.
LIMITS = ProcessLimits()


class ServerError(Exception):
    """A server cannot be used, or a call failed; the message is for the model and for users."""


class SessionForgottenError(ServerError):
    """The server no longer knows the session in which the call was made, so it has not carried out the call."""


class McpSession:
    """One connection to a server, for one conversation.

    The connection is opened in the background, and calls wait until it is open. `changed` is called after each change
    of `state`, `error` or `tools`. `__init__`, `call` and `stop` are thread-safe; use everything else only on the event
    loop's thread, except where noted.
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
        logins: LoginTokens | None = None,
    ) -> None:
        """Begin to connect. Raises RuntimeError at shutdown, or if no thread can be started.

        `environment`, `cwd` and `mode` are for the program. The connection ends after `idle_seconds` without a call.
        """
        self.server = server
        self.mode = mode
        self.state = McpState.CONNECTING
        self.error = ""
        self.failed_at = 0.0
        self.served = False
        self.tools: tuple[ToolSpec, ...] = ()
        self.left_out: tuple[McpToolLeftOut, ...] = ()
        self.note = ""
        """A note for the model that is added to the result of the next call; "" for none."""
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
        self._activity = 0
        """A counter that is incremented when a call begins and when it ends, to notice that no tool was called for a
        while."""
        # The last bytes that the program wrote to stderr, or the last error returned by the URL.
        self._words = b""
        self._over: anyio.Event | None = None
        self._settled: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        loop.run(self._live())

    @property
    def over(self) -> bool:
        """Whether the connection has ended or failed, so that a call needs a new one. Thread-safe."""
        return self._stopping or self.state in ENDED

    def unreachable_since(self, when: float) -> bool:
        """Whether connecting failed after `when` (monotonic seconds). Thread-safe."""
        return bool(self.error) and not self.served and self.failed_at > when

    def call(self, tool: str, arguments: dict[str, Any], context: ToolContext) -> Future[CallToolResult]:
        """Call a tool. Thread-safe. Raises RuntimeError at shutdown.

        `context` gets the server's progress reports and questions. Cancelling the future cancels only the call. The
        future raises ServerError, or SessionForgottenError if the call has to be made over a new connection.
        """
        return self._loop.run(self._call(tool, arguments, context))

    def stop(self) -> None:
        """End the connection and kill the program with all that it started. Thread-safe; never blocks; idempotent."""
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
        import anyio  # noqa: PLC0415 -- loading this takes a second; only users of MCP should pay for it

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
                why = "it closed the connection"
        except asyncio.CancelledError:  # `stop` was called while connecting, or the loop is closed
            why = ""
        except TimeoutError:
            why = f"it did not respond within {self.server.connect_seconds:g} s"
        except Exception as error:  # noqa: BLE001 -- whatever a library raises, the server cannot be used
            why = reason_of(error)
        finally:
            self._client, self._stopping = None, True
            with anyio.CancelScope(shield=True):
                await self._close(stack)
            if why:  # reported only now, because a program's last error output may arrive after its end
                self._fail(why)
            else:
                self._become(McpState.STOPPED)

    async def _connect(self, stack: AsyncExitStack) -> None:
        from mcp import Client  # noqa: PLC0415 -- slow to import
        from mcp_types import Implementation, ToolListChangedNotification  # noqa: PLC0415 -- slow to import

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
        self.tools, self.left_out = await tools.tools_of(self._client, self.server)
        stack.callback(asyncio.ensure_future(self._relist_when(relist)).cancel)
        stack.callback(asyncio.ensure_future(self._listen(self._client, relist)).cancel)

    async def _http(self, stack: AsyncExitStack) -> Any:
        from actors.adapters.mcp.transports import http_transport  # noqa: PLC0415 -- slow to import

        def refused(words: str) -> None:
            self._words = words.encode()

        def needs_login() -> None:
            self._needs_login = True
            if self._over is not None:
                self._over.set()

        return await http_transport(self.server, stack, self._logins, refused, needs_login)

    async def _program(self, stack: AsyncExitStack) -> Any:
        from actors.adapters.mcp.transports import pipe_transport  # noqa: PLC0415 -- slow to import

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
            await asyncio.wait({starting})  # starting the program cannot be interrupted, and uses these pipes
            os.close(theirs_in)
            os.close(theirs_out)
        os.set_blocking(ours_in, False)
        os.set_blocking(ours_out, False)
        assert self._over is not None  # noqa: S101 -- `_live` has set it
        return pipe_transport(ours_in, ours_out, self._over)

    def _start(self, launch: Launch) -> None:
        if not os.path.isdir(launch.cwd):
            raise ServerError(f"the working directory {launch.cwd} no longer exists")
        try:
            self._process = self._sandbox.start(launch, self._hear)
        except (ProcessStartError, SandboxUnavailableError) as error:
            raise ServerError(f"{launch.argv[0]} could not be started: {error}") from None
        if self._killing:
            self._process.kill()

    def _hear(self, output: bytes) -> None:
        """Keep the last ERROR_BYTES that the program writes to stderr. Called on one of the sandbox's threads."""
        self._words = (self._words + output)[-ERROR_BYTES:]

    async def _listen(self, client: Client, relist: asyncio.Event) -> None:
        """Subscribe to changes in the list of tools (protocol 2026-07-28 and later).

        Changes before a subscription begins are not reported, so the tools are listed again whenever one begins.
        """
        from mcp.client.subscriptions import ListenNotSupportedError  # noqa: PLC0415 -- slow to import

        offered = client.server_capabilities.tools
        while offered is not None and offered.list_changed:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    relist.set()
                    async for _ in changes:
                        relist.set()
            except ListenNotSupportedError:
                return
            except Exception as error:  # noqa: BLE001 -- after any error, subscribe again
                log.debug("cannot watch MCP server %s for new tools: %s", self.server.name, reason_of(error))
            await asyncio.sleep(LISTEN_SECONDS)

    async def _relist_when(self, wanted: asyncio.Event) -> None:
        """List the tools again whenever `wanted` is set; several reports that arrive together cause one listing."""
        while await wanted.wait():
            wanted.clear()
            await self._relist()

    async def _relist(self) -> None:
        client = self._client
        if client is None:
            return
        try:
            self.tools, self.left_out = await tools.tools_of(client, self.server)
        except Exception as error:  # noqa: BLE001 -- after any error, the earlier list is kept
            log.warning("cannot refresh the tool list of MCP server %s: %s", self.server.name, reason_of(error))
        else:
            self._changed(self)

    async def _until_over(self) -> None:
        """Wait until `stop` is called, the program ends, or no call was made for `idle_seconds`."""
        assert self._over is not None  # noqa: S101 -- `_live` has set it
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
        """Close the connection and (through `stack`) the program's stdin, so that the program can exit by itself."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await stack.aclose()
        except BaseException as error:  # noqa: BLE001 -- the connection has ended in any case
            log.debug("the connection to MCP server %s was not closed cleanly: %s", self.server.name, error)
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
            why = f"{why} ({words})" if self.server.url else f"{why}; its last output: {last_words(words)}"
        if self._cannot_download():
            why += (
                f"; in {self.mode} mode {self.server.command[0]} has neither network access nor its cache; install the"
                " server, and set its own program as the command"
            )
        for secret in self.server.secrets:
            why = why.replace(secret, "***")
        self.error, self.failed_at = why, time.monotonic()
        log.warning("MCP server %s: %s", self.server.name, why)
        self._become(McpState.NEEDS_LOGIN if self._needs_login else McpState.FAILED)

    def _cannot_download(self) -> bool:
        """Whether the program probably failed because it had to download its server without a network.

        Only unrestricted mode has a network.
        """
        name = os.path.basename(self.server.command[0]) if self.server.command else ""
        return name in DOWNLOADERS and not self.served and self.mode is not Mode.UNRESTRICTED

    def _become(self, state: McpState) -> None:
        self.state = state
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
        self._changed(self)

    async def _asked(self, context: object, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Ask a person. The question names no call, but calls run one at a time, so it belongs to the latest call."""
        del context  # the library's signature requires this argument

        return await ask_person(self.server, self._calls[-1] if self._calls else None, params)

    async def _call(self, tool: str, arguments: dict[str, Any], context: ToolContext) -> CallToolResult:
        from mcp import MCPError  # noqa: PLC0415 -- slow to import

        assert self._settled is not None  # noqa: S101 -- set by `_live`, which begins before any call
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
                own = tools.own_arguments(arguments, tools.full_name(self.server.name, tool), self.tools)
                return await client.call_tool(tool, own, beyond, show, meta=meta)
        except TimeoutError:
            raise ServerError(
                f"The MCP server {self.server.name} did not respond within {self.server.call_seconds:g} s."
            ) from None
        except MCPError as error:
            if self._needs_login:
                raise ServerError(f"The MCP server {self.server.name} {needs_login(self.server.name)}.") from None
            if error.code == FORGOTTEN_SESSION:
                self._stopping = True
                await self._end()
                raise SessionForgottenError(f"The MCP server {self.server.name} keeps losing its sessions.") from None
            raise ServerError(f"The call to the MCP server {self.server.name} failed: {reason_of(error)}") from None
        except Exception as error:  # noqa: BLE001 -- for example, the server's answer is invalid
            raise ServerError(f"The MCP server {self.server.name} failed: {reason_of(error)}.") from None
        finally:
            self._calls.remove(call)
            self._activity += 1


def needs_login(name: str) -> str:
    """A short message that says that a server needs a login, with the command to log in."""
    return f"needs login: bedrock mcp login {name}"


# Matches technical details that the validation library adds to error messages, so that they can be removed.
_NOT_FOR_PEOPLE = re.compile(r" \[type=\w+, input_value=.*?, input_type=\w+\]| For further information visit \S+")


def reason_of(error: BaseException) -> str:
    """An error as one line of readable text; of a group of errors, only the first one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = _NOT_FOR_PEOPLE.sub("", " ".join(str(error).split()))
    return first_words(text) or type(error).__name__


def first_words(text: str) -> str:
    """The beginning of a one-line text: at most REASON_CHARACTERS, cut between words if possible."""
    if len(text) <= REASON_CHARACTERS:
        return text
    begin = text[:REASON_CHARACTERS]
    return (begin.rpartition(" ")[0] or begin) + " […]"


def last_words(text: str) -> str:
    """The end of a one-line text: at most REASON_CHARACTERS, cut between words if possible."""
    if len(text) <= REASON_CHARACTERS:
        return text
    end = text[-REASON_CHARACTERS:]
    return "[…] " + (end.partition(" ")[2] or end)
