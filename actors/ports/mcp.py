"""MCP servers, whose tools conversations use beside the built-in ones."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from actors.core.errors import REFUSAL_TEXTS, Reason
from actors.ports.models import ToolSpec

if TYPE_CHECKING:
    from actors.core.context import Mode
    from actors.core.profile import ChosenMcpServer
    from actors.ports.store.records import ConversationRecord
    from actors.ports.tools import Tool


class McpState(StrEnum):
    """What is known of an MCP server."""

    CONNECTING = "connecting"
    READY = "ready"
    """The last attempt to connect succeeded."""
    FAILED = "failed"
    STOPPED = "stopped"
    """Nobody has needed it yet."""
    NEEDS_LOGIN = "needs_login"
    """It answers only after the operator has logged in."""


class McpServerStatus(Struct, frozen=True):
    """One MCP server of the operator or of a conversation."""

    name: str
    state: McpState
    command: tuple[str, ...] = ()
    """Its program and arguments; () for a server with a URL."""
    url: str = ""
    error: str = ""
    """Why it failed, for people."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools that it listed last, as they are offered."""


class McpLogin(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A login of the operator at an MCP server: the tokens of OAuth, and how they are renewed. Never shown."""

    id: str
    """Of this login; kept when its tokens are renewed."""
    url: str
    """That of the MCP server; no other one gets the tokens."""
    resource: str
    """What the tokens are for, as the MCP server names itself."""
    token_endpoint: str
    revocation_endpoint: str = ""
    """Where the tokens are made invalid; "": nowhere."""
    issuer: str
    """The authorization server."""
    client_id: str
    client_secret: str = ""
    client_authentication: str = "none"
    """How the client proves who it is at the token endpoint."""
    access_token: str
    refresh_token: str = ""
    renew_at: int = 0
    """When the access token is to be renewed, in milliseconds since 1970; 0: when it is refused."""
    expires_at: int = 0
    """When the access token expires; 0: unknown."""
    scope: str = ""

    def __repr__(self) -> str:
        return f"McpLogin({self.id!r})"


class McpRegistration(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The client that was registered for logins at an MCP server, to be used by the next login, too. Never shown."""

    url: str
    """That of the MCP server."""
    redirect_uri: str
    """Where browsers are led back to; the registration is for this address only."""
    issuer: str
    """The authorization server that knows it."""
    client_id: str
    client_secret: str = ""
    client_authentication: str = "none"
    expires_at: int = 0
    """When the secret expires, in seconds since 1970; 0: never."""

    def __repr__(self) -> str:
        return f"McpRegistration({self.url!r}, ***)"


class McpLoginsError(Exception):
    """The stored logins cannot be read or changed; the text says why."""


class McpLogins(Protocol):
    """The stored logins, which the server and the command of the operator read and change. Any thread; blocks."""

    def read(self) -> dict[str, McpLogin]:
        """Return the logins by the names of their servers. Raises McpLoginsError."""
        ...

    def version(self) -> tuple[int, ...]:
        """Return what changes with each change of the logins. Costs one system call."""
        ...

    def put(self, name: str, login: McpLogin, /) -> None:
        """Store a login, instead of one that is there. Raises McpLoginsError."""
        ...

    def replace(self, name: str, before: McpLogin, after: McpLogin | None) -> bool:
        """Store `after`, or nothing, if `before` is what is stored; return whether it was. Raises McpLoginsError."""
        ...


class McpNotAllowedError(Exception):
    """The operator does not allow an MCP server that a client names; the text says what would be allowed."""


class McpServerInvalidError(Exception):
    """An MCP server that a client names cannot be used."""

    def __init__(self, position: int, field: str, text: str) -> None:
        super().__init__(text)
        self.position = position
        """Its place among the servers of the conversation, from 0."""
        self.field = field


class McpServers(Protocol):
    """The MCP servers of the operator and of conversations; each conversation has connections of its own.

    Any thread; only a tool's `run` blocks.
    """

    def start(self) -> None:
        """Begin to ask all servers for their tools, in the background. Call once."""
        ...

    def close(self) -> None:
        """End all connections and kill the servers' programs, within seconds; idempotent."""
        ...

    def offer(self, record: ConversationRecord) -> tuple[ToolSpec, ...]:
        """Decide which tools of MCP servers the next run of a conversation is offered, and return them.

        They are those that are known now, in the order the model sees them; () for sub-agents. What is not known yet
        is asked for in the background.
        """
        ...

    def offered(self, conversation_id: str) -> tuple[ToolSpec, ...]:
        """Return what `offer` returned last for a conversation; () before."""
        ...

    def tool(self, name: str, conversation_id: str) -> Tool | None:
        """Return the tool of an MCP server that models call by this name in a conversation; None for other tools."""
        ...

    def check(self, chosen: tuple[ChosenMcpServer, ...]) -> None:
        """Check whether a conversation may have these servers. Raises McpNotAllowedError or McpServerInvalidError."""
        ...

    def prepare(self, record: ConversationRecord) -> None:
        """Begin to connect to the servers of a conversation that is new or has chosen others, in the background.

        Connections to servers that it no longer has are ended.
        """
        ...

    def statuses_of(self, record: ConversationRecord) -> tuple[McpServerStatus, ...]:
        """Return the servers that a conversation has chosen, in its order."""
        ...

    def restart_for(self, record: ConversationRecord) -> tuple[str, ...]:
        """End the programs of a conversation that run in another mode than its own; return their servers' names.

        The next call of one of their tools starts them again.
        """
        ...

    def stop(self, conversation_id: str, wider_than: Mode | None = None) -> None:
        """End the connections of a conversation; with `wider_than`, only those with more rights than this mode gives.

        Their programs are killed without waiting. The next call connects again.
        """
        ...

    def release(self, conversation_id: str) -> None:
        """Forget what a conversation was offered: its actor has stopped. Connections stay."""
        ...

    def statuses(self, principal: str = "") -> tuple[McpServerStatus, ...]:
        """Return the servers of the operator, in the order of the settings.

        What a program has become is told to a principal that has only some directories as it was with that principal's
        conversations: it may not start among their files. To others ("") it is told as it was elsewhere.
        """
        ...


def not_allowed(chosen: ChosenMcpServer) -> McpServerStatus:
    """Return the status of a server that the operator does not, or no longer, allow."""
    error = REFUSAL_TEXTS[Reason.MCP_NOT_ALLOWED]
    return McpServerStatus(chosen.name, McpState.FAILED, chosen.command, chosen.url, error)


class NoMcpServers:
    """Implements McpServers without any server."""

    def start(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def offer(self, record: ConversationRecord) -> tuple[ToolSpec, ...]:
        return ()

    def offered(self, conversation_id: str) -> tuple[ToolSpec, ...]:
        return ()

    def tool(self, name: str, conversation_id: str) -> Tool | None:
        return None

    def check(self, chosen: tuple[ChosenMcpServer, ...]) -> None:
        if chosen:
            raise McpNotAllowedError(REFUSAL_TEXTS[Reason.MCP_NOT_ALLOWED])

    def prepare(self, record: ConversationRecord) -> None:
        """Do nothing."""

    def statuses_of(self, record: ConversationRecord) -> tuple[McpServerStatus, ...]:
        return tuple(not_allowed(chosen) for chosen in record.profile.mcp_servers)

    def restart_for(self, record: ConversationRecord) -> tuple[str, ...]:
        return ()

    def stop(self, conversation_id: str, wider_than: Mode | None = None) -> None:
        """Do nothing."""

    def release(self, conversation_id: str) -> None:
        """Do nothing."""

    def statuses(self, principal: str = "") -> tuple[McpServerStatus, ...]:
        return ()
