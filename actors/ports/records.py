"""What the store keeps: the records of conversations, their log, their commands."""

from __future__ import annotations

import logging

from msgspec import Struct

from actors.core.content import Message
from actors.core.context import ApprovalPolicy, Budget, FollowUpPolicy, Mode
from actors.core.notifications import Durable, QueueChanged, RunStop
from actors.core.states import State

log = logging.getLogger(__name__)


class ConversationRecord(Struct, frozen=True):
    """A conversation's row: everything about it but its messages and log."""

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
    """Frozen at creation: the provider's prefix never changes."""
    approval_policy: ApprovalPolicy = ApprovalPolicy.AUTO
    always_approved: tuple[str, ...] = ()
    follow_up_policy: FollowUpPolicy = FollowUpPolicy.ALWAYS
    budget: Budget = Budget()
    continued_from: str = ""
    continued_by: str = ""
    node: str = ""
    epoch: int = 0
    """Of the actor that owns it; a commit with another epoch is fenced."""
    step: int = 0
    """Number of the last log row."""
    last_seq: int = 0
    """The last revision."""
    log_hash: str = ""
    """Hash of the last log row."""
    workspace_label: str = ""


class LogEntry(Struct, frozen=True):
    """One transition: journal, audit and the events it gave rise to."""

    step: int
    at: int
    event: bytes
    """The input event as JSON."""
    first_revision: int
    """Revision of the first notification; they count up by one."""
    notifications: tuple[Durable, ...]
    context: bytes | None = None
    """The context as JSON, whenever it is not that of the row before."""


class CommandRecord(Struct, frozen=True):
    """An accepted command, remembered for ever by its request id."""

    request_id: str
    body_hash: str
    answer: bytes
    """The answer as JSON, to give again."""
    at: int


class Commit(Struct, frozen=True):
    """What one chain of transitions writes for one conversation, atomically."""

    record: ConversationRecord
    """The row as it will be; log_hash is filled in by the store."""
    expected_step: int
    """`step` of the row as it is; 0 with `create`."""
    messages: tuple[Message, ...] = ()
    log: tuple[LogEntry, ...] = ()
    command: CommandRecord | None = None
    create: bool = False
    create_command: bool = False
    """`command` belongs to (principal, request id) instead of (conversation, request id)."""


class StoredTransition(Struct, frozen=True):
    """One transition as it was stored, for replay and export."""

    step: int
    epoch: int
    at: int
    event: bytes
    context: bytes | None
    """None: that of the row before."""
    first_revision: int
    notifications: tuple[Durable, ...]
    prev_hash: str
    hash: str


class StoredEvent(Struct, frozen=True):
    """A durable event as watchers read it."""

    revision: int
    at: int
    notification: Durable


class StoppedRun(Struct, frozen=True):
    """A run that has ended; kept as long as the conversation."""

    revision: int
    """Of the event that told it."""
    at: int
    stop: RunStop
    last_sequence: int
    """Of the last message before its end. Its messages come after that of the run before, and bear its id."""


class SettledInput(Struct, frozen=True):
    """A steer or follow-up that waits no more; kept as long as the conversation."""

    revision: int
    """Of the event that told it."""
    at: int
    outcome: QueueChanged
    run: str
    """The run whose history it is in; "" if it is in none."""


class Snapshot(Struct, frozen=True):
    """One consistent view: record, messages and head revision of the same moment."""

    record: ConversationRecord
    messages: tuple[Message, ...]


class Attachment(Struct, frozen=True):
    """Stored bytes by content hash."""

    id: str
    media_type: str
    data: bytes
    width: int
    height: int
