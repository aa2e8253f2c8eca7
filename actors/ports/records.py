"""The records that the store keeps: conversations, their logs, accepted commands, attachments, and the audit trail.

The audit trail shows who sent which command, and what decided about tool calls. Accepted commands are recorded in the
log of their conversation, and protected by its hash chain. Refused calls are stored separately. So are deletions,
because the log is deleted together with the conversation. No entry contains messages, arguments or results.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from actors.core.content import Message
from actors.core.context import ApprovalPolicy, ApprovalRule, Budget, FollowUpPolicy, Mode, Profile
from actors.core.notifications import Durable, QueueChanged, RunStop
from actors.core.states import State
from actors.core.summary import live_run_id


class CommandOrigin(Struct, frozen=True, omit_defaults=True):
    """The sender of a command, and how the command reached the server."""

    principal: str
    role: str = ""
    token: str = ""
    """The id of the sender's access token in the token file; "" for the server's own user."""
    peer: str = ""
    method: str = ""
    request_id: str = ""


class CallDecision(Struct, frozen=True, omit_defaults=True):
    """The decision about a tool call before it ran."""

    call: str
    tool: str = ""
    verdict: str = ""
    """The decision: "run", "ask" (a person) or "deny"; if a person decided, "approved" or "denied"."""
    decided_by: str = ""
    """One of "rules" (approval rules), "policy" (the conversation's approval policy) and "person"."""
    rules: tuple[str, ...] = ()
    """The resource names of the approval rules that decided; () if no rule did."""


class LogAudit(Struct, frozen=True, omit_defaults=True):
    """The audit data that is stored in a row of a conversation's log."""

    origin: CommandOrigin | None = None
    decisions: tuple[CallDecision, ...] = ()


class Outcome(StrEnum):
    ACCEPTED = "accepted"
    REFUSED = "refused"


class AuditEntry(Struct, frozen=True):
    """An entry in the audit trail, for one call or for several identical calls."""

    at: int
    """The time of the entry, in milliseconds since the epoch."""
    outcome: Outcome
    origin: CommandOrigin
    """Who made the call. The principal is "" without a valid token, and for the server itself."""
    reason: str = ""
    """Why the call was refused: a refusal reason of the gRPC API, or the name of the gRPC status."""
    conversation: str = ""
    """The id of the conversation; "" if the call concerned none, or was refused before the conversation was found."""
    count: int = 1
    """How many identical calls within one minute this entry stands for."""
    decisions: tuple[CallDecision, ...] = ()
    step: int = 0
    """The number of the log row that contains the entry; 0 for an entry that is stored separately."""
    number: int = 0

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
    """The audit trail. Thread-safe; every method blocks, and may raise StoreUnavailableError."""

    def audit(self, wanted: AuditFilter, *, after: AuditPlace | None = None, limit: int) -> tuple[AuditEntry, ...]:
        """The selected entries, oldest first, after the position `after`. May raise StoreDamagedError."""
        ...

    def put_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Store audit entries that are not part of a conversation's log, and return once they are durable."""
        ...

    def prune_audit(self, *, before: int, keep: int) -> int:
        """Delete a few hundred of the oldest separately stored entries; return how many, 0 if none is left to delete.

        Deletes only entries that are older than `before` (ms since the epoch) or not among the latest `keep`.
        """
        ...


# The sender of the gRPC call that is being handled in this context; None if the server acts on its own.
command_origin: ContextVar[CommandOrigin | None] = ContextVar("command_origin", default=None)


log = logging.getLogger(__name__)


class ConversationRecord(Struct, frozen=True):
    """The row of a conversation: everything except its messages and its log. Times are in ms since the epoch."""

    id: str
    slug: str
    cwd: str
    state: State
    state_updated_at: int
    created_at: int
    updated_at: int
    mode: Mode
    model: str
    principal: str
    parent_conversation_id: str | None = None
    user_initiated: bool = True
    archived_at: int | None = None
    title: str = ""
    labels: dict[str, str] = {}
    system_prompt: str = ""
    """Fixed at creation, so that the provider can cache the beginning of every request."""
    profile: Profile = Profile()
    approval_policy: ApprovalPolicy = ApprovalPolicy.AUTO
    approval_rules: tuple[ApprovalRule, ...] = ()
    follow_up_policy: FollowUpPolicy = FollowUpPolicy.ALWAYS
    budget: Budget = Budget()
    continued_from: str = ""
    continued_by: str = ""
    node: str = ""
    epoch: int = 0
    """The number of times that an actor has loaded the conversation; commits with an older epoch are refused."""
    step: int = 0
    revision: int = 0
    """The revision of the latest durable event."""
    log_hash: str = ""
    workspace_label: str = ""
    """The workspace (a directory that only some nodes have) that contains `cwd`; "": any node can own it."""


def live_run(record: ConversationRecord) -> str:
    return live_run_id(record.id, record.state.ledger)


def etag_of(record: ConversationRecord) -> str:
    settings = (
        record.slug, record.title, record.model, sorted(record.labels.items()), record.approval_policy,
        record.follow_up_policy, record.budget, record.archived_at, record.mode, record.profile.client_tools,
        record.profile.generation,
        record.profile.mcp_servers,
        *(("auto_continue",) if record.profile.auto_continue else ()),
    )  # fmt: skip
    return hashlib.sha256(repr(settings).encode()).hexdigest()[:16]


class LogEntry(Struct, frozen=True):
    """A state change as it is added to the log: the input event and the notifications that it caused."""

    step: int
    at: int
    event: bytes
    """The input event as JSON."""
    first_revision: int
    """The revision of the first notification; each further notification has the next revision."""
    notifications: tuple[Durable, ...]
    context: bytes | None = None
    """The transition's context as JSON; None if it is that of the previous row."""
    audit: LogAudit | None = None


class CommandRecord(Struct, frozen=True):
    """An accepted command, stored by its request id so that a repeated request can be recognised."""

    request_id: str
    body_hash: str
    answer: bytes
    """The answer as JSON, which is returned if the command is repeated."""
    at: int


class ForkedHistory(Struct, frozen=True):
    """The data that a fork copies from its original conversation, apart from the messages and the record."""

    origin: str
    """The id of the original conversation, which must still exist when the fork is written."""
    revision: int
    """The original's revision at the end of the last copied run. The fork's own log begins after this revision, as if
    the earlier part had been pruned."""
    runs: tuple[StoppedRun, ...]
    attachments: tuple[str, ...]
    """The ids of the attachments to copy; those that the original conversation does not have are skipped."""


class Spending(Struct, frozen=True):
    """The tokens and the money that a principal's model requests used on one day."""

    principal: str
    day: int
    tokens: int
    cost_micros: int


def day_of(at: int) -> int:
    """The day (UTC) of a time in milliseconds; both are counted from the epoch."""
    return at // 86_400_000


def date_of(at: int) -> str:
    """The date (UTC) of a time in milliseconds since the epoch, as YYYY-MM-DD."""
    return f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d}"


class Commit(Struct, frozen=True):
    """The data that one transaction writes for one conversation, after one or more state changes."""

    record: ConversationRecord
    """The new row; the store sets its `log_hash`."""
    expected_step: int
    """The `step` that the stored row must have for anything to be written; 0 with `create`."""
    messages: tuple[Message, ...] = ()
    log: tuple[LogEntry, ...] = ()
    command: CommandRecord | None = None
    profile_changed: bool = False
    """Whether to write the record's profile, because it differs from the stored one. Ignored with `create`."""
    create: bool = False
    create_command: bool = False
    """Whether `command` is identified by (principal, request id) instead of (conversation, request id)."""
    fork: ForkedHistory | None = None
    """If a fork is created: the data copied from its original; `log` then has no events for `messages`."""
    spending: Spending | None = None
    """The usage to add to the principal's totals; None if nothing was used, or if there is no quota for usage."""


class StoredTransition(Struct, frozen=True):
    """A state change as it is stored in the log, for replay and audit."""

    step: int
    epoch: int
    at: int
    event: bytes
    context: bytes | None
    """The transition's context as JSON; None if it is that of the previous row."""
    first_revision: int
    notifications: tuple[Durable, ...]
    prev_hash: str
    hash: str


class StoredEvent(Struct, frozen=True):
    """A durable event with its revision."""

    revision: int
    at: int
    notification: Durable


class StoppedRun(Struct, frozen=True):
    """A run that has ended. This record is kept as long as the conversation, even if the run's events are pruned."""

    revision: int
    at: int
    stop: RunStop
    last_sequence: int
    """The number of the last message before the end of the run. The run's messages are those after the `last_sequence`
    of the previous run that have this run's id."""


class SettledInput(Struct, frozen=True):
    """A queued message that has left the queue. This record is kept as long as the conversation."""

    revision: int
    """The revision of the event that recorded how the input left the queue."""
    at: int
    outcome: QueueChanged
    run: str
    """The id of the run that got the message; "" if no run did."""


class Snapshot(Struct, frozen=True):
    """A conversation's record and messages, read in one transaction."""

    record: ConversationRecord
    messages: tuple[Message, ...]


class Attachment(Struct, frozen=True):
    """Stored bytes, such as an image, identified by their content hash."""

    id: str
    media_type: str
    data: bytes
    width: int
    height: int
