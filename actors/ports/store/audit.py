"""Who did what: the origin of accepted commands, what decided about tool calls, and the entries of the audit trail.

What was accepted is part of the log of its conversation, and of the hash chain there. What is in no log (refused calls,
and commands whose log is deleted with them) is kept apart. No entry holds contents.
"""

from __future__ import annotations

from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence


class CommandOrigin(Struct, frozen=True, omit_defaults=True):
    """Who sent a command, and how."""

    principal: str
    role: str = ""
    token: str = ""
    """The id of the token in the token file; "" for the server's own user."""
    peer: str = ""
    """The address of the other end, without its port."""
    method: str = ""
    """The name of the RPC."""
    request_id: str = ""


class CallDecision(Struct, frozen=True, omit_defaults=True):
    """What was decided about a tool call before it ran."""

    call: str
    """The id of the call, as the model has it."""
    tool: str = ""
    """"" where a person decided: the question names the tool."""
    verdict: str = ""
    """"run", "ask" or "deny"; "approved" or "denied" by a person."""
    decided_by: str = ""
    """"rules", "policy" or "person"."""
    rules: tuple[str, ...] = ()
    """The resource names of the rules that decided."""


class LogAudit(Struct, frozen=True, omit_defaults=True):
    """What a row of the log holds for the audit trail."""

    origin: CommandOrigin | None = None
    """Who sent the command; None for what nobody sent."""
    decisions: tuple[CallDecision, ...] = ()


class Outcome(StrEnum):
    """What became of a call."""

    ACCEPTED = "accepted"
    REFUSED = "refused"


class AuditEntry(Struct, frozen=True):
    """An entry of the audit trail."""

    at: int
    """In milliseconds since the epoch."""
    outcome: Outcome
    origin: CommandOrigin
    """Its principal is "" for callers without a valid token, and for what no caller asked for."""
    reason: str = ""
    """Why it was refused: a reason of the contract, or the name of the status."""
    conversation: str = ""
    """The id; "" if it is about none, or was refused before it was found."""
    count: int = 1
    """How many calls the entry stands for: the same caller, method, conversation and reason within a minute."""
    decisions: tuple[CallDecision, ...] = ()
    step: int = 0
    """The step in the log of the conversation; 0 for an entry of no log."""
    number: int = 0
    """The number of an entry of no log, which the store gives."""

    @property
    def place(self) -> AuditPlace:
        """Where it is in the order of all entries."""
        in_log = bool(self.step)
        return AuditPlace(self.at, int(not in_log), self.conversation if in_log else "", self.step or self.number)


class AuditPlace(Struct, frozen=True, order=True):
    """A position in the order of all entries: by time, those of logs first."""

    at: int
    source: int
    """0: a log; 1: no log."""
    id: str
    """The conversation, for an entry of its log."""
    number: int
    """The step, or the number of an entry of no log."""


class AuditFilter(Struct, frozen=True):
    """Which entries are wanted. What is not set narrows nothing."""

    since: int = 0
    """In milliseconds since the epoch, like `until`, which is excluded."""
    until: int | None = None
    principal: str | None = None
    conversation: str | None = None
    outcome: Outcome | None = None

    def admits(self, entry: AuditEntry) -> bool:
        """Whether an entry is wanted."""
        return (
            self.since <= entry.at
            and (self.until is None or entry.at < self.until)
            and self.principal in (None, entry.origin.principal)
            and self.conversation in (None, entry.conversation)
            and self.outcome in (None, entry.outcome)
        )


class AuditStore(Protocol):
    """The audit trail. Any thread; every method blocks, and may raise StoreUnavailableError."""

    def audit(self, wanted: AuditFilter, *, after: AuditPlace | None = None, limit: int) -> tuple[AuditEntry, ...]:
        """Return the next entries, the oldest first. May raise StoreDamagedError."""
        ...

    def put_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Store entries of no log, and return once they are durable."""
        ...

    def prune_audit(self, *, before: int, keep: int) -> int:
        """Delete the oldest entries of no log and return how many; 0 means that there are no more to delete.

        Those before the time `before` (ms since the epoch), and those beyond the latest `keep`. A call deletes a few
        hundred at most.
        """
        ...


command_origin: ContextVar[CommandOrigin | None] = ContextVar("command_origin", default=None)
"""Who sends the commands that are asked of conversations in this context; None: nobody, the server itself."""
