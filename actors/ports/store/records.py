"""Records of the store: conversations, their log, their commands and attachments."""

from __future__ import annotations

import logging

from msgspec import Struct

from actors.core.approval.approval_rules import ApprovalRule
from actors.core.content import Message
from actors.core.context import ApprovalPolicy, Budget, FollowUpPolicy, Mode
from actors.core.notifications import Durable, QueueChanged, RunStop
from actors.core.profile import Profile
from actors.core.states import State
from actors.core.summary import run_id
from actors.ports.store.audit import LogAudit

log = logging.getLogger(__name__)


class ConversationRecord(Struct, frozen=True):
    """The row of a conversation: everything but its messages and log. Times are ms since the epoch."""

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
    """The system prompt. Fixed at creation, so that the provider can cache the prefix of every request."""
    profile: Profile = Profile()
    approval_policy: ApprovalPolicy = ApprovalPolicy.AUTO
    approval_rules: tuple[ApprovalRule, ...] = ()
    follow_up_policy: FollowUpPolicy = FollowUpPolicy.ALWAYS
    budget: Budget = Budget()
    continued_from: str = ""
    continued_by: str = ""
    node: str = ""
    epoch: int = 0
    """Epoch of the actor that owns the conversation; commits of older epochs are fenced."""
    step: int = 0
    """Number of the last log row."""
    last_seq: int = 0
    """The revision of the latest event."""
    log_hash: str = ""
    """Hash of the last log row."""
    workspace_label: str = ""
    """The directory at or above `cwd` that only some nodes have, on which the conversation has to be; "": on any."""


def live_run(record: ConversationRecord) -> str:
    """Return the id of the current run, "" if there is none."""
    ledger = record.state.ledger
    return run_id(record.id, ledger.run) if ledger.live else ""


class LogEntry(Struct, frozen=True):
    """One transition of a commit: the input event and the notifications it caused."""

    step: int
    at: int
    event: bytes
    """The input event as JSON."""
    first_revision: int
    """Revision of the first notification; those of the others follow consecutively."""
    notifications: tuple[Durable, ...]
    context: bytes | None = None
    """The context as JSON; None if it is the same as in the previous row."""
    audit: LogAudit | None = None


class CommandRecord(Struct, frozen=True):
    """An accepted command, kept by its request id to make repeats idempotent."""

    request_id: str
    body_hash: str
    answer: bytes
    """The answer as JSON, returned if the command is repeated."""
    at: int


class ForkedHistory(Struct, frozen=True):
    """What a fork takes over from its origin, beside its messages and its record."""

    origin: str
    """The id of the origin, which must still exist when the fork is written."""
    revision: int
    """The revision of the origin at the end of the last cycle that is taken over; the fork's own log begins after it,
    like a log from which all events up to it were pruned."""
    runs: tuple[StoppedRun, ...]
    """The outcomes of the cycles, with the fork's ids and the origin's revisions."""
    attachments: tuple[str, ...]
    """The ids of the attachments to copy; those that the origin does not have are omitted."""


class Spending(Struct, frozen=True):
    """What model requests of a principal spent on a day."""

    principal: str
    day: int
    """The day, UTC, counted from the epoch."""
    tokens: int
    cost_micros: int
    """Millionths of a dollar."""


def day_of(at: int) -> int:
    """Return the day, UTC, of a time in milliseconds, both counted from the epoch."""
    return at // 86_400_000


class Commit(Struct, frozen=True):
    """The atomic write of one chain of transitions of one conversation."""

    record: ConversationRecord
    """The new row; the store fills in `log_hash`."""
    expected_step: int
    """`step` of the present row; 0 with `create`."""
    messages: tuple[Message, ...] = ()
    log: tuple[LogEntry, ...] = ()
    command: CommandRecord | None = None
    profile_changed: bool = False
    """Whether the record's profile differs from the stored one; only then is it written. Ignored with `create`."""
    create: bool = False
    create_command: bool = False
    """Whether `command` is identified by (principal, request id), not by (conversation, request id)."""
    fork: ForkedHistory | None = None
    """With `create`: what is copied from another conversation. `messages` are in no event of the log then."""
    spending: Spending | None = None
    """What is added to the sums of the principal; None: nothing, or nobody counts it."""

    @property
    def begins_after(self) -> int:
        """The revision after which a new conversation begins: 0, or that of its origin if it is a fork."""
        return self.fork.revision if self.fork else 0


class StoredTransition(Struct, frozen=True):
    """One logged transition as stored, for replay and audit."""

    step: int
    epoch: int
    at: int
    event: bytes
    context: bytes | None
    """The context as JSON; None if it is the same as in the previous row."""
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
    """A run that has ended; kept as long as the conversation, pruning included."""

    revision: int
    """Revision of the event that recorded it."""
    at: int
    stop: RunStop
    last_sequence: int
    """Sequence of the last message before its end. The messages after the previous run's last one that have this run's
    id belong to it."""


class SettledInput(Struct, frozen=True):
    """A steer or follow-up that has left the queue; kept as long as the conversation."""

    revision: int
    """Revision of the event that recorded it."""
    at: int
    outcome: QueueChanged
    run: str
    """Id of the run in whose history it is; "" if it is in none."""


class Snapshot(Struct, frozen=True):
    """Record and messages, read in one transaction."""

    record: ConversationRecord
    messages: tuple[Message, ...]


class Attachment(Struct, frozen=True):
    """Bytes, identified by their content hash."""

    id: str
    media_type: str
    data: bytes
    width: int
    height: int
