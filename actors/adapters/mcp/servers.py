"""All MCP servers, and their connections by conversation (ports.McpServers)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from actors.adapters.mcp.loop_thread import LoopThread
from actors.adapters.mcp.session import ServerError, Session
from actors.adapters.mcp.tool_listing import full_name, parted
from actors.core.context import Mode, ToolGroup, ToolTraits, wider
from actors.ports import ToolOutput
from actors.ports.mcp import McpServerStatus, McpState
from actors.ports.models import ToolSpec
from actors.ports.permissions import PermissionsOf, everything

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from actors.adapters.mcp.server_settings import McpServer
    from actors.ports import ConversationRecord, Sandbox, Tool, ToolContext
    from actors.ports.threads import Threads

IDLE_SECONDS = 30 * 60.0
"""Seconds without a call after which a connection is ended."""

AGAIN_SECONDS = 30.0
"""Seconds after which a server that failed is asked for its tools again when a run begins."""

PAUSE_SECONDS = 5.0
"""Seconds after a failed attempt to connect in which calls fail at once."""

RESTARTED = "(The MCP server was started again since the last call: what it kept in memory is lost.)"


class McpServerHub:
    """Implements McpServers. Any thread. `start` asks all servers for their tools; `close` ends everything.

    A connection belongs to one conversation and one server. Connections of no conversation, with the key "", only learn
    which tools there are.
    """

    def __init__(
        self,
        servers: Iterable[McpServer],
        sandbox: Sandbox,
        threads: Threads,
        environment: Mapping[str, str],
        *,
        permissions: PermissionsOf = everything,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Connect to nothing yet. `environment`: the variables of every program."""
        self._permissions = permissions
        self._servers = {server.name: server for server in servers}
        self._sandbox = sandbox
        self._environment = environment
        self._idle_seconds = idle_seconds
        self._loop = LoopThread(threads)
        self._lock = threading.Lock()  # guards everything below; nothing blocks under it
        self._sessions: dict[tuple[str, str], Session] = {}
        self._states: dict[str, tuple[McpState, str]] = dict.fromkeys(self._servers, (McpState.STOPPED, ""))
        self._tools: dict[str, tuple[ToolSpec, ...]] = {}
        self._tried: dict[str, float] = {}
        self._all: tuple[ToolSpec, ...] = ()
        self._offered: dict[str, tuple[ToolSpec, ...]] = {}

    # --- what there is -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to ask all servers for their tools, in the background."""
        mode = Mode.RESTRICTED if self._sandbox.report.restriction_available else Mode.UNRESTRICTED
        for name in self._servers:
            self._learn(name, "/", mode)

    def close(self) -> None:
        """End all connections and kill their programs; idempotent."""
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.stop()
        self._loop.close()

    def offer(self, record: ConversationRecord) -> tuple[ToolSpec, ...]:
        """Decide which tools the next run is offered; see ports.McpServers."""
        if not record.user_initiated:
            return ()
        allowed = self._permissions(record.principal).mcp_servers
        with self._lock:
            offered = self._all if allowed is None else self._tools_of(allowed)
            self._offered[record.id] = offered
            unknown = [name for name in self._servers if name not in self._tools]
        for name in unknown:
            self._learn(name, record.cwd, record.mode)
        return offered

    def _tools_of(self, names: Iterable[str]) -> tuple[ToolSpec, ...]:
        """Return the known tools of these servers, in the order of the settings (under the lock)."""
        wanted = set(names)
        return tuple(tool for name in self._servers if name in wanted for tool in self._tools.get(name, ()))

    def offered(self, conversation_id: str) -> tuple[ToolSpec, ...]:
        """Return what `offer` returned last."""
        return self._offered.get(conversation_id, ())

    def release(self, conversation_id: str) -> None:
        """Forget what a conversation was offered."""
        with self._lock:
            self._offered.pop(conversation_id, None)

    def statuses(self) -> tuple[McpServerStatus, ...]:
        """Return the servers, in the order of the settings."""
        with self._lock:
            return tuple(self._status(server) for server in self._servers.values())

    def _status(self, server: McpServer) -> McpServerStatus:
        state, error = self._states[server.name]
        return McpServerStatus(server.name, state, server.command, server.url, error, self._tools.get(server.name, ()))

    def _learn(self, name: str, cwd: str, mode: Mode) -> None:
        """Ask a server for its tools, unless that has failed only just now or is under way."""
        with self._lock:
            if time.monotonic() - self._tried.get(name, float("-inf")) < AGAIN_SECONDS or ("", name) in self._sessions:
                return
            self._tried[name] = time.monotonic()
            with suppress(ServerError):
                self._open("", self._servers[name], self._sandbox, cwd, mode)

    # --- connections -----------------------------------------------------------------------------------------------

    def session(self, server: McpServer, context: ToolContext) -> Session:
        """Return the connection of a conversation, a new one if there is none. Raises ServerError."""
        key = context.conversation_id, server.name
        with self._lock:
            session = before = self._sessions.get(key)
            if before is not None and before.unreachable_since(time.monotonic() - PAUSE_SECONDS):
                raise ServerError(f"The MCP server {server.name} is down: {before.error}.")
            if session is None or session.over:
                where = context.working_directory, context.mode
                session = self._open(context.conversation_id, server, context.sandbox, *where)
                session.note = RESTARTED if before is not None and (before.served or before.note) else ""
        if not server.url and wider(session.mode, context.mode):
            raise ServerError(
                f"The MCP server {server.name} runs with more rights than the mode {context.mode} gives. It is started"
                " again in this mode when the next message begins a run."
            )
        return session

    def _open(self, conversation_id: str, server: McpServer, sandbox: Sandbox, cwd: str, mode: Mode) -> Session:
        """Connect in the background (under the lock). Raises ServerError."""
        try:
            session = Session(
                server,
                loop=self._loop,
                sandbox=sandbox,
                environment=self._environment,
                cwd=cwd,
                mode=mode,
                idle_seconds=self._idle_seconds,
                changed=lambda changed: self._changed(conversation_id, changed),
            )
        except RuntimeError as error:
            raise ServerError(f"The MCP server {server.name} cannot be connected to now: {error}.") from None
        self._sessions[conversation_id, server.name] = session
        if server.name not in self._tools:
            self._states[server.name] = McpState.CONNECTING, ""
        return session

    def _changed(self, conversation_id: str, session: Session) -> None:
        """Note what a connection has become (thread of the loop)."""
        name = session.server.name
        with self._lock:
            if session.state is not McpState.STOPPED:
                self._states[name] = session.state, session.error
            if session.state is McpState.READY:
                self._tools[name] = session.tools
                self._all = self._tools_of(self._servers)
            ended = session.state in {McpState.STOPPED, McpState.FAILED}
            if not conversation_id and ended and self._sessions.get(("", name)) is session:
                del self._sessions["", name]
        if not conversation_id and session.state is McpState.READY:
            session.stop()

    def restart_for(self, record: ConversationRecord) -> tuple[str, ...]:
        """End the programs that run in another mode than the conversation; see ports.McpServers."""
        with self._lock:
            ended = [session for session in self._of(record.id) if session.mode is not record.mode]
            ended = [session for session in ended if not session.server.url and not session.over]
            for session in ended:
                del self._sessions[record.id, session.server.name]
        for session in ended:
            session.stop()
        return tuple(session.server.name for session in ended)

    def stop(self, conversation_id: str, wider_than: Mode | None = None) -> None:
        """End the connections of a conversation; see ports.McpServers."""
        with self._lock:
            ended = self._of(conversation_id)
            if wider_than is None:
                for session in ended:
                    del self._sessions[conversation_id, session.server.name]
            else:  # they are kept as ended ones, so that the next call tells the model
                ended = [each for each in ended if not each.server.url and wider(each.mode, wider_than)]
        for session in ended:
            session.stop()

    def _of(self, conversation_id: str) -> list[Session]:
        return [session for (owner, _), session in self._sessions.items() if owner == conversation_id]

    # --- tools -----------------------------------------------------------------------------------------------------

    def tool(self, name: str) -> Tool | None:
        """Return the tool of this name; None for tools of no server."""
        parts = parted(name)
        return McpTool(self, self._servers.get(parts[0]), *parts) if parts else None


class McpTool:
    """A tool of an MCP server (ports.Tool)."""

    def __init__(self, hub: McpServerHub, server: McpServer | None, server_name: str, tool: str) -> None:
        self._hub = hub
        self._server = server
        self._server_name = server_name
        self._tool = tool

    @property
    def spec(self) -> ToolSpec:
        """Return the tool's specification as it was listed last; a bare one if it was not."""
        name = full_name(self._server_name, self._tool)
        listed = [tool for status in self._hub.statuses() for tool in status.tools if tool.name == name]
        return listed[0] if listed else ToolSpec("", {"type": "object"}, ToolTraits(name, ToolGroup.OTHER, writes=True))

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Call the tool at its server, connecting if necessary. A cancel cancels the call; the server goes on."""
        if self._server is None:
            return _error(f"There is no MCP server {self._server_name} any more. Tell the person.")
        if refusal := self._refusal(self._server, context.mode):
            return _error(refusal)
        try:
            session = self._hub.session(self._server, context)
            calling = session.call(self._tool, dict(arguments), context.on_output, context.trace_parent)
        except (ServerError, RuntimeError) as error:
            return _error(str(error))

        def cancel() -> None:
            calling.cancel()

        context.cancel.on_cancel(cancel)
        try:
            result = calling.result()
        except CancelledError:
            return _error("The call was cancelled.")
        except ServerError as error:
            return _error(str(error))
        finally:
            context.cancel.forget(cancel)
        from actors.adapters.mcp.results import output_of  # noqa: PLC0415 -- loaded by the connection already

        note, session.note = session.note, ""
        return output_of(result, context.keep_image, note)

    def _refusal(self, server: McpServer, mode: Mode) -> str:
        """Return why the mode does not allow this tool; "" if it does."""
        held = mode is Mode.WORKSPACE and not server.url  # a program changes nothing but the working directory
        if mode is Mode.UNRESTRICTED or held or server.changes_nothing(self._tool):
            return ""
        return (
            f"Not run: in the mode {mode} only those tools of {'URLs' if server.url else 'MCP servers'} run that the "
            "operator calls read-only. If the task needs this one, call request_mode_upgrade and say why."
        )


def _error(text: str) -> ToolOutput:
    return ToolOutput(text, is_error=True)
