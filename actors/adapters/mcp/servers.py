"""Manages the connections to all MCP servers, and the tools that these servers offer (implements ports.McpServers)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from actors.adapters.mcp.logins import LoginTokens
from actors.adapters.mcp.server_settings import FromClients, McpServer, server_of, servers_of
from actors.adapters.mcp.session import ENDED, LoopThread, McpSession, ServerError, SessionForgottenError, needs_login
from actors.adapters.mcp.tools import full_name, output_of, parted
from actors.core.context import ChosenMcpServer, Mode, ToolGroup, ToolTraits, wider
from actors.ports import ConversationRecord, Sandbox, Tool, ToolContext, ToolOutput
from actors.ports.models import ToolSpec
from actors.ports.sandbox import ALL_PERMISSIONS, ConfinedSandbox, PermissionsOf, everything
from actors.ports.tools import (
    McpLogins,
    McpNotAllowedError,
    McpServerInvalidError,
    McpServerStatus,
    McpState,
    McpToolLeftOut,
)

IDLE_SECONDS = 30 * 60.0

# Minimum seconds between two attempts to ask a server for its tools when a run starts.
AGAIN_SECONDS = 30.0

PAUSE_SECONDS = 5.0

# Maximum number of conversations whose servers are remembered. Beyond it, the servers of the oldest conversation
# without an open connection are forgotten until that conversation's next run.
MAX_CONVERSATIONS = 1_000

RESTARTED = "(The MCP server has restarted since the last call; its state in memory is lost.)"
NEW_SESSION = "(This is a new session with the MCP server; the state of the previous session is lost.)"


class McpServerHub:
    """Implements McpServers. Thread-safe.

    A connection belongs to one conversation and one server. A connection whose conversation is "" only lists the tools
    of an operator's server. A server is identified by its owner and its name; the owner is the conversation that chose
    the server, or "" for an operator's server.
    """

    def __init__(
        self,
        servers: Iterable[McpServer],
        sandbox: Sandbox,
        environment: Mapping[str, str],
        rules: FromClients | None = None,
        *,
        permissions: PermissionsOf = everything,
        logins: McpLogins | None = None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Programs get `environment`; `rules` apply to clients' servers; `logins` stores the operator's logins."""
        self._operators = {server.name: server for server in servers}
        self._rules = rules or FromClients()
        self._permissions = permissions
        self._sandbox = sandbox
        self._environment = environment
        self._idle_seconds = idle_seconds
        self._loop = LoopThread()
        urls = {server.name: server.url for server in self._operators.values() if server.login is not None}
        self._logins = LoginTokens(logins, self._loop.blocking, urls, self._login_changed) if logins and urls else None
        self._watching: Future[None] | None = None
        self._lock = threading.Lock()  # guards everything below; never held during blocking work
        self._servers = {("", name): server for name, server in self._operators.items()}
        self._sessions: dict[tuple[str, str], McpSession] = {}
        self._states: dict[tuple[str, str], tuple[McpState, str]] = {}
        self._tools: dict[tuple[str, str], tuple[ToolSpec, ...]] = {}
        self._left_out: dict[tuple[str, str], tuple[McpToolLeftOut, ...]] = {}
        self._tried: dict[tuple[str, str], float] = {}
        self._all: tuple[ToolSpec, ...] = ()
        self._offered: dict[str, tuple[ToolSpec, ...]] = {}
        # By principal and server: state and error of programs that access only a principal's files. Only the latest
        # MAX_CONVERSATIONS are kept.
        self._confined: dict[tuple[str, str], tuple[McpState, str]] = {}

    # --- offers and states ------------------------------------------------------------------------------------------

    def start(self) -> None:
        mode = Mode.RESTRICTED if self._sandbox.report.restriction_available else Mode.UNRESTRICTED
        for name in self._operators:
            self._learn(("", name), "/", mode)
        if self._logins is not None:
            self._watching = self._loop.run(self._logins.watch())

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.stop()
        self._loop.close()

    def check(self, chosen: tuple[ChosenMcpServer, ...]) -> None:
        servers_of(chosen, self._rules, frozenset(self._operators))

    def prepare(self, record: ConversationRecord) -> None:
        if not record.user_initiated:
            return
        own, refused = self._own(record)
        with self._lock:
            gone = [key for key in self._servers if key[0] == record.id and own.get(key) != self._servers[key]]
            ended = [session for key in gone if (session := self._sessions.pop(key, None)) is not None]
            for key in gone:
                self._forget(key)
            if own and not any(key in self._servers for key in own):
                self._evict_oldest()
            for key, server in own.items():
                self._servers.setdefault(key, server)
            self._states.update(refused)
            unknown = [key for key in own if key not in self._tools]
        for session in ended:
            session.stop()
        for key in unknown:
            self._learn(key, record.cwd, record.mode)

    def _own(
        self, record: ConversationRecord
    ) -> tuple[dict[tuple[str, str], McpServer], dict[tuple[str, str], tuple[McpState, str]]]:
        own: dict[tuple[str, str], McpServer] = {}
        refused: dict[tuple[str, str], tuple[McpState, str]] = {}
        confined = self._permissions(record.principal) != ALL_PERMISSIONS
        for chosen in record.profile.mcp_servers:
            key = record.id, chosen.name
            if confined:
                refused[key] = McpState.FAILED, "this principal can use only the operator's MCP servers"
                continue
            if chosen.name in self._operators:
                refused[key] = McpState.FAILED, "the operator's server of this name is used instead"
                continue
            try:
                own[key] = server_of(chosen, self._rules)
            except (McpNotAllowedError, McpServerInvalidError) as error:
                refused[key] = McpState.FAILED, str(error)
        return own, refused

    def _evict_oldest(self) -> None:
        """If there are too many conversations, forget the servers of the oldest unconnected one.

        The caller holds the lock.
        """
        owners = dict.fromkeys(owner for owner, _ in self._servers if owner)
        if len(owners) < MAX_CONVERSATIONS:
            return
        live = {owner for (owner, _), session in self._sessions.items() if not session.over}
        oldest = next((owner for owner in owners if owner not in live), None)
        for key in [key for key in self._servers if key[0] == oldest]:
            self._forget(key)
            self._sessions.pop(key, None)

    def _forget(self, key: tuple[str, str]) -> None:
        for kept in (self._servers, self._states, self._tools, self._left_out, self._tried):
            kept.pop(key, None)

    def offer(self, record: ConversationRecord) -> tuple[ToolSpec, ...]:
        if not record.user_initiated:
            return ()
        if record.profile.mcp_servers:
            self.prepare(record)
        permissions = self._permissions(record.principal)
        allowed = permissions.mcp_servers
        with self._lock:
            own = [(record.id, chosen.name) for chosen in record.profile.mcp_servers]
            operators = self._all if allowed is None else self._tools_of(allowed)
            tools = (*operators, *(tool for key in own for tool in self._tools.get(key, ())))
            self._offered[record.id] = tools
            unknown = [("", name) for name in self._operators if ("", name) not in self._tools]
        # For a principal that is limited to some directories, the program of an operator's server does not run in the
        # principal's directory, because files there could make it run another program. That must not happen, because
        # the server can read more than this principal may, and other principals get its tools, too.
        where = (record.cwd, record.mode) if permissions.roots is None else ("/", Mode.RESTRICTED)
        for key in unknown:
            if permissions.allows_mcp_server(key[1]):
                self._learn(key, *where)
        return tools

    def _tools_of(self, names: Iterable[str]) -> tuple[ToolSpec, ...]:
        """The known tools of the operator's servers in `names`, in the order of the settings.

        The caller holds the lock.
        """
        wanted = set(names)
        return tuple(tool for name in self._operators if name in wanted for tool in self._tools.get(("", name), ()))

    def offered(self, conversation_id: str) -> tuple[ToolSpec, ...]:
        return self._offered.get(conversation_id, ())

    def release(self, conversation_id: str) -> None:
        with self._lock:
            self._offered.pop(conversation_id, None)

    def statuses(self, principal: str = "") -> tuple[McpServerStatus, ...]:
        confined = bool(principal) and self._permissions(principal).roots is not None
        with self._lock:
            found = [self._status(("", each.name), each.command, each.url) for each in self._operators.values()]
            return tuple(self._among_files_of(principal, each) if confined else each for each in found)

    def _among_files_of(self, principal: str, status: McpServerStatus) -> McpServerStatus:
        """`status`; for a program, instead the status of the instance that is confined to this principal's files.

        The caller holds the lock.
        """
        if status.url:
            return status
        state, error = self._confined.get((principal, status.name), (McpState.STOPPED, ""))
        return replace(status, state=state, error=error)

    def statuses_of(self, record: ConversationRecord) -> tuple[McpServerStatus, ...]:
        with self._lock:
            chosen = record.profile.mcp_servers
            return tuple(self._status((record.id, each.name), each.command, each.url) for each in chosen)

    def _status(self, key: tuple[str, str], command: tuple[str, ...], url: str) -> McpServerStatus:
        state, error = self._states.get(key, (McpState.STOPPED, ""))
        tools, left_out = self._tools.get(key, ()), self._left_out.get(key, ())
        return McpServerStatus(key[1], state, command, url, error, tools, left_out)

    def _learn(self, key: tuple[str, str], cwd: str, mode: Mode) -> None:
        """Begin to ask a server for its tools, unless this is in progress or was tried in the last AGAIN_SECONDS."""
        with self._lock:
            server, session = self._servers.get(key), self._sessions.get(key)
            if server is None or (session is not None and not session.over):
                return
            if time.monotonic() - self._tried.get(key, float("-inf")) < AGAIN_SECONDS:
                return
            self._tried[key] = time.monotonic()
            with suppress(ServerError):
                self._open(key[0], key, server, self._sandbox, (cwd, mode))

    # --- connections -----------------------------------------------------------------------------------------------

    def session(self, key: tuple[str, str], server: McpServer, context: ToolContext) -> McpSession:
        """A conversation's connection to a server. If there is none, it is opened.

        Raises ServerError if connecting failed in the last PAUSE_SECONDS, or if the program has more rights than the
        current mode allows.
        """
        place = context.conversation_id, server.name
        with self._lock:
            session = before = self._sessions.get(place)
            if before is not None and before.unreachable_since(time.monotonic() - PAUSE_SECONDS):
                raise ServerError(f"The MCP server {server.name} is down: {before.error}.")
            if session is None or session.over:
                if context.cancel.cancelled:  # a mode change has ended the programs with this call's rights
                    raise ServerError("The call was cancelled.")
                where = context.working_directory, context.mode
                session = self._open(
                    context.conversation_id, key, server, context.sandbox, where, principal=context.principal
                )
                lost = before is not None and (before.served or before.note)
                session.note = (NEW_SESSION if server.url else RESTARTED) if lost else ""
        if not server.url and wider(session.mode, context.mode):
            raise ServerError(
                f"The MCP server {server.name} is running with more rights than {context.mode} mode"
                " allows. It will be restarted in this mode when the next message starts a run."
            )
        return session

    def _open(
        self,
        conversation_id: str,
        key: tuple[str, str],
        server: McpServer,
        sandbox: Sandbox,
        where: tuple[str, Mode],
        *,
        principal: str = "",
    ) -> McpSession:
        """Begin to connect. The caller holds the lock. Raises ServerError.

        `where` is the program's directory and mode. If a program is confined to a principal's files, the tools that it
        lists are not offered to other conversations.
        """
        cwd, mode = where
        shared = bool(server.url) or not isinstance(sandbox, ConfinedSandbox)
        try:
            session = McpSession(
                server,
                loop=self._loop,
                sandbox=sandbox,
                environment=self._environment,
                cwd=cwd,
                mode=mode,
                idle_seconds=self._idle_seconds,
                changed=lambda changed: (
                    self._changed(conversation_id, key, changed)
                    if shared
                    else self._changed_among_files(principal, changed)
                ),
                logins=self._logins,
            )
        except RuntimeError as error:
            raise ServerError(f"The MCP server {server.name} is currently unreachable: {error}.") from None
        self._sessions[conversation_id, server.name] = session
        if shared and key not in self._tools:
            self._states[key] = McpState.CONNECTING, ""
        return session

    def _changed(self, conversation_id: str, key: tuple[str, str], session: McpSession) -> None:
        """Record the new state of a connection. Called on the event loop's thread."""
        place = conversation_id, key[1]
        with self._lock:
            if self._servers.get(key) is session.server:
                if session.state is not McpState.STOPPED:
                    self._states[key] = session.state, session.error
                if session.state is McpState.READY:
                    self._tools[key], self._left_out[key] = session.tools, session.left_out
                    self._all = self._tools_of(self._operators)
            if not conversation_id and session.state in ENDED and self._sessions.get(place) is session:
                del self._sessions[place]
        if not conversation_id and session.state is McpState.READY:
            session.stop()

    def _changed_among_files(self, principal: str, session: McpSession) -> None:
        """Like `_changed`, for a program that accesses only a principal's files."""
        if session.state is McpState.STOPPED:
            return
        with self._lock:
            self._confined.pop((principal, session.server.name), None)
            self._confined[principal, session.server.name] = session.state, session.error
            if len(self._confined) > MAX_CONVERSATIONS:
                del self._confined[next(iter(self._confined))]

    def _login_changed(self, name: str, logged_in: bool) -> None:
        """Reconnect to a server with its new login; disconnect if it has none. Only for the event loop's thread."""
        key = "", name
        with self._lock:
            used = {place: each for place, each in self._sessions.items() if each.server is self._operators[name]}
            unused = {place for place, each in used.items() if not logged_in or each.over or place == key}
            ended = [self._sessions.pop(place) for place in unused]
            self._tried.pop(key, None)
            if not logged_in:
                self._states[key] = McpState.NEEDS_LOGIN, needs_login(name)
        for session in ended:
            session.stop()
        if logged_in:
            self._learn(key, "/", Mode.RESTRICTED)

    def outdated(self, record: ConversationRecord) -> tuple[str, ...]:
        with self._lock:
            return tuple(session.server.name for session in self._outdated(record))

    def end_outdated(self, record: ConversationRecord) -> None:
        with self._lock:
            ended = self._outdated(record)
            for session in ended:
                del self._sessions[record.id, session.server.name]
        for session in ended:
            session.stop()

    def _outdated(self, record: ConversationRecord) -> list[McpSession]:
        return [session for session in self._programs(record.id) if session.mode is not record.mode]

    def _programs(self, conversation_id: str) -> list[McpSession]:
        return [session for session in self._of(conversation_id) if not session.server.url and not session.over]

    def wider_than(self, conversation_id: str, mode: Mode) -> tuple[str, ...]:
        with self._lock:
            return tuple(session.server.name for session in self._wider(conversation_id, mode))

    def _wider(self, conversation_id: str, mode: Mode) -> list[McpSession]:
        return [session for session in self._programs(conversation_id) if wider(session.mode, mode)]

    def stop(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        with self._lock:
            if wider_than is None:
                ended = self._of(conversation_id)
                for session in ended:
                    del self._sessions[conversation_id, session.server.name]
                for key in [key for key in self._servers if key[0] == conversation_id]:
                    self._forget(key)
            else:  # the sessions are kept, so that the next call informs the model of the restart
                ended = self._wider(conversation_id, wider_than)
        for session in ended:
            session.stop()
        return tuple(session.server.name for session in ended)

    def _of(self, conversation_id: str) -> list[McpSession]:
        return [session for (owner, _), session in self._sessions.items() if owner == conversation_id]

    # --- tools -----------------------------------------------------------------------------------------------------

    def tool(self, name: str, conversation_id: str) -> Tool | None:
        parts = parted(name)
        if parts is None:
            return None
        key = ("" if parts[0] in self._operators else conversation_id, parts[0])
        return McpTool(self, key, self._servers.get(key), parts[1])

    def spec(self, key: tuple[str, str], name: str) -> ToolSpec:
        """A tool's specification as last listed by the server; a minimal specification if the tool was never listed."""
        listed = [tool for tool in self._tools.get(key, ()) if tool.name == name]
        return listed[0] if listed else ToolSpec("", {"type": "object"}, ToolTraits(name, ToolGroup.OTHER, writes=True))


class McpTool:
    """A tool of an MCP server (implements ports.Tool)."""

    def __init__(self, hub: McpServerHub, key: tuple[str, str], server: McpServer | None, tool: str) -> None:
        self._hub = hub
        self._key = key
        self._server = server
        self._tool = tool

    @property
    def spec(self) -> ToolSpec:
        return self._hub.spec(self._key, full_name(self._key[1], self._tool))

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Call the tool; connect first if necessary. A cancel affects only this call."""
        if self._server is None:
            return _error(f"The MCP server {self._key[1]} no longer exists. Tell the user.")
        if refusal := self._refusal(self._server, context.mode):
            return _error(refusal)
        try:
            try:
                return self._call(self._server, arguments, context)
            except SessionForgottenError:
                return self._call(self._server, arguments, context)
        except CancelledError:
            return _error("The call was cancelled.")
        except (ServerError, RuntimeError) as error:
            return _error(str(error))

    def _call(self, server: McpServer, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Call the tool once. Raises CancelledError, ServerError, and RuntimeError at shutdown."""
        session = self._hub.session(self._key, server, context)
        calling = session.call(self._tool, dict(arguments), context)

        def cancel() -> None:
            calling.cancel()

        context.cancel.on_cancel(cancel)
        try:
            result = calling.result()
        finally:
            context.cancel.forget(cancel)
        note, session.note = session.note, ""
        return output_of(result, context.keep_image, note)

    def _refusal(self, server: McpServer, mode: Mode) -> str:
        held = mode is Mode.WORKSPACE and not server.url  # the sandbox lets a program write only to the workspace
        if mode is Mode.UNRESTRICTED or held or server.changes_nothing(self._tool):
            return ""
        return (
            f"Not run: in {mode} mode, tools of MCP servers{' at a URL' if server.url else ''} run only if configured "
            "as read-only. If the task needs this one, call request_mode_upgrade and say why."
        )


def _error(text: str) -> ToolOutput:
    return ToolOutput(text, is_error=True)
