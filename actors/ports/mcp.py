"""The port for MCP servers (Model Context Protocol), whose tools conversations use beside the built-in tools."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from actors.core.context import ChosenMcpServer, Mode
from actors.core.errors import REFUSAL_TEXTS, Reason
from actors.ports.models import ToolSpec
from actors.ports.records import ConversationRecord
from actors.ports.tools import Tool


class McpState(StrEnum):
    """The last known state of an MCP server."""

    CONNECTING = "connecting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"
    NEEDS_LOGIN = "needs_login"


class McpToolLeftOut(Struct, frozen=True):
    name: str
    reason: str


class McpServerStatus(Struct, frozen=True):
    """The status of one MCP server of the operator or of a conversation."""

    name: str
    state: McpState
    command: tuple[str, ...] = ()
    """The server's program and its arguments; () for a server with a URL."""
    url: str = ""
    error: str = ""
    tools: tuple[ToolSpec, ...] = ()
    left_out: tuple[McpToolLeftOut, ...] = ()


class McpLogin(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A login of the operator at an MCP server: OAuth tokens, and how they are renewed. Never shown."""

    id: str
    url: str
    """The URL of the MCP server; the tokens are sent to no other URL."""
    resource: str
    """The OAuth resource that the tokens are for, as the MCP server names it."""
    token_endpoint: str
    revocation_endpoint: str = ""
    """The URL at which the tokens are revoked; "" if there is none."""
    issuer: str
    client_id: str
    client_secret: str = ""
    client_authentication: str = "none"
    """How the client authenticates itself at the token endpoint."""
    access_token: str
    refresh_token: str = ""
    renew_at: int = 0
    """When the access token must be renewed, in milliseconds since the epoch; 0: only after a server has refused it."""
    expires_at: int = 0
    """When the access token expires, in milliseconds since the epoch; 0: unknown."""
    scope: str = ""

    def __repr__(self) -> str:
        return f"McpLogin({self.id!r})"


class McpRegistration(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An OAuth client registered at an MCP server; later logins reuse it. Never shown."""

    url: str
    redirect_uri: str
    """The address to which browsers return after a login; the registration is valid only for this address."""
    issuer: str
    client_id: str
    client_secret: str = ""
    client_authentication: str = "none"
    expires_at: int = 0
    """When the client secret expires, in seconds since the epoch; 0: never."""

    def __repr__(self) -> str:
        return f"McpRegistration({self.url!r}, ***)"


class McpLoginsError(Exception):
    """The stored logins cannot be read or changed; the text says why."""


class LoginUnavailableError(Exception):
    """No access token for an MCP server is available now; the text says why."""


class McpLogins(Protocol):
    """The stored logins, which the server and the operator's login command read and change. Any thread; blocks."""

    def read(self) -> dict[str, McpLogin]:
        """The logins by the name of their MCP server. Raises McpLoginsError."""
        ...

    def version(self) -> tuple[int, ...]:
        """A value that changes whenever the stored logins change; costs one system call."""
        ...

    def put(self, name: str, login: McpLogin, /) -> None:
        """Store or replace the login of an MCP server. Raises McpLoginsError."""
        ...

    def replace(self, name: str, before: McpLogin, after: McpLogin | None) -> bool:
        """Replace (None: remove) a server's login if it still equals `before`; return whether it did.

        Raises McpLoginsError.
        """
        ...


class McpNotAllowedError(Exception):
    """The operator does not allow an MCP server that a client configured; the text says what would be allowed."""


class McpServerInvalidError(Exception):
    """An MCP server that a client configured cannot be used."""

    def __init__(self, position: int, field: str, text: str) -> None:
        super().__init__(text)
        self.position = position
        self.field = field


class McpServers(Protocol):
    """The MCP servers of the operator and of conversations, which have their own connections. Any thread.

    No method blocks, except the `run` of a tool that `tool` returns.
    """

    def start(self) -> None:
        """Begin to ask all servers for their tools, in the background. Call this only once."""
        ...

    def close(self) -> None:
        """End all connections and kill the servers' programs, within seconds. Idempotent."""
        ...

    def offer(self, record: ConversationRecord) -> tuple[ToolSpec, ...]:
        """Choose the MCP tools of a conversation's next run, in the model's order; () for sub-agents.

        Only tools that are known now; unknown ones are asked for in the background.
        """
        ...

    def offered(self, conversation_id: str) -> tuple[ToolSpec, ...]:
        """The last result of `offer` for a conversation; () if there is none."""
        ...

    def tool(self, name: str, conversation_id: str) -> Tool | None:
        """The MCP tool that models call by this name in this conversation; None for other names."""
        ...

    def check(self, chosen: tuple[ChosenMcpServer, ...]) -> None:
        """Check that a conversation may use these servers. Raises McpNotAllowedError or McpServerInvalidError."""
        ...

    def prepare(self, record: ConversationRecord) -> None:
        """Begin to connect in the background to the servers of a new or changed conversation; end other connections."""
        ...

    def statuses_of(self, record: ConversationRecord) -> tuple[McpServerStatus, ...]:
        """The status of each server in the conversation's own list of MCP servers, in the order of that list."""
        ...

    def outdated(self, record: ConversationRecord) -> tuple[str, ...]:
        """The names of the MCP servers whose programs run in a former permission mode of the conversation."""
        ...

    def end_outdated(self, record: ConversationRecord) -> None:
        """End the programs of these servers. The next call of a server's tool starts it again, in the new mode."""
        ...

    def wider_than(self, conversation_id: str, mode: Mode) -> tuple[str, ...]:
        """The names of a conversation's MCP servers whose programs have more rights than this mode gives."""
        ...

    def stop(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        """End the connections of a conversation without waiting, and return the names of their servers.

        With `wider_than`, end only the programs with more rights than that mode. The next tool call connects again.
        """
        ...

    def release(self, conversation_id: str) -> None:
        """Drop the list of offered tools, because the actor has stopped. Connections stay open."""
        ...

    def statuses(self, principal: str = "") -> tuple[McpServerStatus, ...]:
        """The status of each server of the operator, in the order of the settings.

        For a principal who may read only some directories, in its own conversations, because a program may fail there
        and work elsewhere; otherwise, and for "", in those of unrestricted principals.
        """
        ...


def not_allowed(chosen: ChosenMcpServer) -> McpServerStatus:
    """The status of a server that a client chose, but that the operator does not allow or no longer allows."""
    error = REFUSAL_TEXTS[Reason.MCP_NOT_ALLOWED]
    return McpServerStatus(chosen.name, McpState.FAILED, chosen.command, chosen.url, error)


class NoMcpServers:
    """An implementation of McpServers that has no servers."""

    def start(self) -> None: ...
    def close(self) -> None: ...
    def offer(self, record: ConversationRecord) -> tuple[ToolSpec, ...]:
        return ()

    def offered(self, conversation_id: str) -> tuple[ToolSpec, ...]:
        return ()

    def tool(self, name: str, conversation_id: str) -> Tool | None:
        return None

    def check(self, chosen: tuple[ChosenMcpServer, ...]) -> None:
        if chosen:
            raise McpNotAllowedError(REFUSAL_TEXTS[Reason.MCP_NOT_ALLOWED])

    def prepare(self, record: ConversationRecord) -> None: ...
    def statuses_of(self, record: ConversationRecord) -> tuple[McpServerStatus, ...]:
        return tuple(not_allowed(chosen) for chosen in record.profile.mcp_servers)

    def outdated(self, record: ConversationRecord) -> tuple[str, ...]:
        return ()

    def end_outdated(self, record: ConversationRecord) -> None: ...
    def wider_than(self, conversation_id: str, mode: Mode) -> tuple[str, ...]:
        return ()

    def stop(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        return ()

    def release(self, conversation_id: str) -> None: ...
    def statuses(self, principal: str = "") -> tuple[McpServerStatus, ...]:
        return ()
