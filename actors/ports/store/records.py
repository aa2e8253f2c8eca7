"""The records that the store keeps: conversations, their logs, accepted commands and attachments."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from msgspec import Struct

from actors.core.content import Message
from actors.core.context import ApprovalPolicy, ApprovalRule, Budget, FollowUpPolicy, Mode, Profile
from actors.core.notifications import Durable, QueueChanged, RunStop
from actors.core.states import State
from actors.core.summary import run_id
from actors.ports.store.audit import LogAudit

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
    """The system prompt, which is fixed at creation so that the provider can cache the prefix of every request."""
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
    """The number of the last log row."""
    last_seq: int = 0
    """The revision of the latest durable event."""
    log_hash: str = ""
    """The hash of the last log row."""
    workspace_label: str = ""
    """The path of the workspace that contains `cwd`: a directory that only some nodes have.

    Only these nodes can own the conversation; with "", any node can.
    """


def live_run(record: ConversationRecord) -> str:
    """Return the id of the conversation's run that has not ended; "" if there is none."""
    ledger = record.state.ledger
    return run_id(record.id, ledger.run) if ledger.live else ""


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
    """The facts on which transitions depend (ConvContext), as JSON; None if they are as in the previous row."""
    audit: LogAudit | None = None


class CommandRecord(Struct, frozen=True):
    """An accepted command, stored by its request id so that a repeated request can be recognised."""

    request_id: str
    body_hash: str
    answer: bytes
    """The answer as JSON, which is returned if the command is repeated."""
    at: int


class ForkedHistory(Struct, frozen=True):
    """What is copied from the original conversation to a fork, apart from the messages and the record."""

    origin: str
    """The id of the original conversation, which must still exist when the fork is written."""
    revision: int
    """The revision of the original at the end of the last copied run.

    The fork's own log begins after this revision, like a log from which all earlier events were pruned.
    """
    runs: tuple[StoppedRun, ...]
    """The copied runs, with new run ids for the fork, but with the revisions that they have in the original."""
    attachments: tuple[str, ...]
    """The ids of the attachments to copy; those that the original conversation does not have are skipped."""


class Spending(Struct, frozen=True):
    """The tokens and the money that model requests of a principal used on one day."""

    principal: str
    day: int
    """The day (UTC), counted from the epoch."""
    tokens: int
    cost_micros: int
    """The cost in millionths of a dollar."""


def day_of(at: int) -> int:
    """Return the day (UTC) of a time in milliseconds; both are counted from the epoch."""
    return at // 86_400_000


def date_of(at: int) -> str:
    """Return the date (UTC) of a time in milliseconds since the epoch, as YYYY-MM-DD."""
    return f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d}"


class Commit(Struct, frozen=True):
    """The data that one transaction writes for one conversation, after one or more state changes."""

    record: ConversationRecord
    """The new row; the store sets its `log_hash`."""
    expected_step: int
    """The `step` that the stored row must have, otherwise nothing is written; 0 with `create`."""
    messages: tuple[Message, ...] = ()
    log: tuple[LogEntry, ...] = ()
    command: CommandRecord | None = None
    profile_changed: bool = False
    """Whether to write the record's profile, because it differs from the stored one. Ignored with `create`."""
    create: bool = False
    create_command: bool = False
    """Whether `command` is identified by (principal, request id) instead of (conversation, request id)."""
    fork: ForkedHistory | None = None
    """If a fork is created: what is copied from the original. In this case, `log` has no events for `messages`."""
    spending: Spending | None = None
    """The usage to add to the principal's totals; None if nothing was used, or if there is no quota for usage."""

    @property
    def begins_after(self) -> int:
        """The revision after which a new conversation's events begin: 0, or for a fork that of the original."""
        return self.fork.revision if self.fork else 0


class StoredTransition(Struct, frozen=True):
    """A state change as it is stored in the log, for replay and audit."""

    step: int
    epoch: int
    at: int
    event: bytes
    context: bytes | None
    """The facts on which transitions depend (ConvContext), as JSON; None if they are as in the previous row."""
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
    """A run that has ended. The record is kept as long as the conversation, even if its events are pruned."""

    revision: int
    """The revision of the event that recorded the end."""
    at: int
    stop: RunStop
    last_sequence: int
    """The sequence number of the last message before the run's end.

    The run consists of the messages after the previous run's `last_sequence`, up to this one, that have the run's id.
    """


class SettledInput(Struct, frozen=True):
    """A queued user message, for the open run (steer) or for the next run (follow-up), that has left the queue.

    The record is kept as long as the conversation.
    """

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
