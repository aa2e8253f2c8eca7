"""The part of the Store port for the audit trail: who sent which command, and what decided about tool calls.

Accepted commands are recorded in the log of their conversation, and protected by its hash chain. Refused calls are
stored separately. So are deletions, because the log is deleted together with the conversation. No entry contains
messages, arguments or results.
"""

from __future__ import annotations

from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence


class CommandOrigin(Struct, frozen=True, omit_defaults=True):
    """The sender of a command, and how the command reached the server."""

    principal: str
    role: str = ""
    token: str = ""
    """The id of the sender's access token in the token file; "" for the server's own user."""
    peer: str = ""
    """The network address of the client, without its port."""
    method: str = ""
    """The name of the RPC."""
    request_id: str = ""


class CallDecision(Struct, frozen=True, omit_defaults=True):
    """The decision about a tool call before it ran."""

    call: str
    """The id of the tool call."""
    tool: str = ""
    """The name of the tool; "" if a person decided, because the approval request names the tool."""
    verdict: str = ""
    """The decision: "run", "ask" (a person) or "deny"; if a person decided, "approved" or "denied"."""
    decided_by: str = ""
    """One of "rules" (approval rules), "policy" (the conversation's approval policy) and "person"."""
    rules: tuple[str, ...] = ()
    """The resource names of the approval rules that decided; () if no rule did."""


class LogAudit(Struct, frozen=True, omit_defaults=True):
    """The audit data that is stored in a row of a conversation's log."""

    origin: CommandOrigin | None = None
    """The sender of the command; None if the row records an event of the server, not a command."""
    decisions: tuple[CallDecision, ...] = ()


class Outcome(StrEnum):
    """Whether the server accepted a call."""

    ACCEPTED = "accepted"
    REFUSED = "refused"


class AuditEntry(Struct, frozen=True):
    """An entry of the audit trail, for one call or for several equal calls."""

    at: int
    """The time of the entry, in milliseconds since the epoch."""
    outcome: Outcome
    origin: CommandOrigin
    """Who made the call.

    The principal is "" for callers without a valid token, and for actions of the server itself.
    """
    reason: str = ""
    """Why the call was refused: a refusal reason of the gRPC API, or the name of the gRPC status."""
    conversation: str = ""
    """The id of the conversation; "" if the call concerned none, or was refused before the conversation was found."""
    count: int = 1
    """The number of calls that this entry stands for.

    They were made within one minute, with the same caller, method, conversation and reason.
    """
    decisions: tuple[CallDecision, ...] = ()
    step: int = 0
    """The number of the log row that contains the entry; 0 for an entry that is stored separately."""
    number: int = 0
    """The number of an entry that is stored separately, which the store assigns."""

    @property
    def place(self) -> AuditPlace:
        """The position of the entry in the order of all entries."""
        in_log = bool(self.step)
        return AuditPlace(self.at, int(not in_log), self.conversation if in_log else "", self.step or self.number)


class AuditPlace(Struct, frozen=True, order=True):
    """A position in the order of all audit entries: by time; at the same time, entries in logs come first."""

    at: int
    source: int
    """0 for an entry in a conversation's log, 1 for an entry that is stored separately."""
    id: str
    """The id of the conversation whose log contains the entry; "" for an entry that is stored separately."""
    number: int
    """The number of the log row, or the number of an entry that is stored separately."""


class AuditFilter(Struct, frozen=True):
    """Selects entries of the audit trail. A field that is not set excludes no entry."""

    since: int = 0
    """The beginning of the selected time range (included), in milliseconds since the epoch."""
    until: int | None = None
    """The end of the selected time range (excluded), in milliseconds since the epoch; None: no limit."""
    principal: str | None = None
    conversation: str | None = None
    outcome: Outcome | None = None


class AuditStore(Protocol):
    """The audit trail. Safe to call from any thread; every method blocks, and may raise StoreUnavailableError."""

    def audit(self, wanted: AuditFilter, *, after: AuditPlace | None = None, limit: int) -> tuple[AuditEntry, ...]:
        """Return up to `limit` entries that `wanted` selects, the oldest first, beginning after the position `after`.

        May raise StoreDamagedError.
        """
        ...

    def put_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Store audit entries that are not part of a conversation's log, and return once they are durable."""
        ...

    def prune_audit(self, *, before: int, keep: int) -> int:
        """Delete the oldest separately stored entries and return their number; 0 means that none is left to delete.

        These are the entries before the time `before` (ms since the epoch), and those beyond the latest `keep`. A call
        deletes at most a few hundred.
        """
        ...


command_origin: ContextVar[CommandOrigin | None] = ContextVar("command_origin", default=None)
"""The sender of the gRPC call that the current code carries out; None: the server acts by itself."""
