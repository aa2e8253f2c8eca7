"""The port for the store, which keeps conversations durably, and the filters and orders for lists of them.

A class that needs only a part of the store can depend on the port of that part, such as StoreReader.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from actors.core.content import Message
from actors.core.states import NAMES
from actors.ports import records
from actors.ports.records import ConversationRecord

# A filter is data: the stores translate it to SQL, `matches` applies it to a record, and both give the same result.


class TextField(StrEnum):
    """The fields of a record, or of its profile, that contain text and can be filtered."""

    MODE = "mode"
    MODEL = "model"
    TITLE = "title"
    SLUG = "slug"
    DIRECTORY = "cwd"
    PARENT = "parent_conversation_id"
    FORKED_FROM = "forked_from"
    """This field is stored in the record's profile; the others are columns of the conversations' table."""


class TimeField(StrEnum):
    """The fields of a record that contain a time. The database columns have the same names."""

    CREATED = "created_at"
    UPDATED = "updated_at"
    ARCHIVED = "archived_at"


class Comparison(StrEnum):
    EQUAL = "="
    BEFORE = "<"
    UP_TO = "<="
    AFTER = ">"
    FROM = ">="


class Every(Struct, frozen=True):
    """A condition that holds if all of `parts` hold, or there are no parts."""

    parts: tuple[Condition, ...] = ()


class AnyOf(Struct, frozen=True):
    """A condition that holds if at least one of `parts` holds."""

    parts: tuple[Condition, ...]


class Negation(Struct, frozen=True):
    """A condition that holds if `part` does not hold."""

    part: Condition


class StateIs(Struct, frozen=True):
    """A condition on the conversation's state: it has one of these names, as in `core.states.NAMES`."""

    kinds: frozenset[str]


class IsArchived(Struct, frozen=True):
    """A condition: the conversation is archived or, if `archived` is False, is not archived."""

    archived: bool


class TextEquals(Struct, frozen=True):
    """A condition: the text field equals this value; an unset field counts as ""."""

    field: TextField
    value: str


class TextContains(Struct, frozen=True):
    """A condition: the text field contains this text, regardless of case."""

    field: TextField
    folded: str
    """The text to look for, already folded with `str.casefold`."""


class IsWithin(Struct, frozen=True):
    """A condition: the conversation's working directory is this directory, or is beneath it."""

    directory: str


class TimeCompares(Struct, frozen=True):
    """A condition: the time field is set, and `comparison` holds between it and `ms` (milliseconds since the epoch)."""

    field: TimeField
    comparison: Comparison
    ms: int


class HasLabel(Struct, frozen=True):
    """A condition: the conversation has a label with this key and, unless `value` is None, with this value."""

    key: str
    value: str | None = None


Condition: TypeAlias = (
    Every | AnyOf | Negation | StateIs | IsArchived | TextEquals | TextContains | IsWithin | TimeCompares | HasLabel
)

EVERYTHING = Every()
UNARCHIVED = IsArchived(archived=False)


class OrderKey(StrEnum):
    """The fields of a record that can order a list. The database columns have the same names."""

    UPDATED = "updated_at"
    CREATED = "created_at"
    TITLE = "title"
    STATE_ENTERED = "state_updated_at"


class Order(Struct, frozen=True):
    """The order of a list. Conversations with equal keys are ordered by their ids, in the same direction."""

    key: OrderKey = OrderKey.UPDATED
    descending: bool = True


LATEST_FIRST = Order()


class Selection(Struct, frozen=True):
    """Which conversations a list contains, and in which order."""

    principal: str
    where: Condition = EVERYTHING
    order: Order = LATEST_FIRST
    parent: str | None = None
    """Only sub-agents of this conversation; None: only conversations that are not sub-agents."""
    sub_agents: bool = False
    """Whether the list contains the sub-agents of all conversations as well, in which case `parent` is None."""


class ListPosition(Struct, frozen=True):
    """A position in an ordered list: directly after the conversation with this key and id."""

    key: int | str
    id: str


class Listed(Struct, frozen=True):
    """A page of a list of conversations."""

    records: tuple[ConversationRecord, ...]
    more: ListPosition | None
    """The position at which the next page begins; None at the end of the list."""


COMPARE: dict[Comparison, Callable[[Any, Any], Any]] = {
    Comparison.EQUAL: operator.eq,
    Comparison.BEFORE: operator.lt,
    Comparison.UP_TO: operator.le,
    Comparison.AFTER: operator.gt,
    Comparison.FROM: operator.ge,
}


def matches(condition: Condition, record: ConversationRecord) -> bool:
    match condition:
        case Every(parts):
            return all(matches(part, record) for part in parts)
        case AnyOf(parts):
            return any(matches(part, record) for part in parts)
        case Negation(part):
            return not matches(part, record)
        case StateIs(kinds):
            return NAMES[type(record.state)] in kinds
        case IsArchived(archived):
            return (record.archived_at is not None) == archived
        case TextEquals(field, value):
            return _text(record, field) == value
        case TextContains(field, folded):
            return folded in _text(record, field).casefold()
        case IsWithin(directory):
            return record.cwd == directory or record.cwd.startswith(beneath(directory))
        case TimeCompares(field, comparison, ms):
            at: int | None = getattr(record, field)
            return at is not None and bool(COMPARE[comparison](at, ms))
        case HasLabel(key, value):
            return key in record.labels if value is None else record.labels.get(key) == value


def place_of(record: ConversationRecord, order: Order) -> ListPosition:
    return ListPosition(getattr(record, order.key), record.id)


def rewritten(condition: Condition, change: Callable[[Condition], Condition]) -> Condition:
    """The condition with each leaf replaced by the result of `change`."""
    match condition:
        case Every(parts):
            return Every(tuple(rewritten(part, change) for part in parts))
        case AnyOf(parts):
            return AnyOf(tuple(rewritten(part, change) for part in parts))
        case Negation(part):
            return Negation(rewritten(part, change))
        case _:
            return change(condition)


def leaves(condition: Condition) -> Iterator[Condition]:
    """Yield the leaves of a condition: the conditions in it that have no parts."""
    match condition:
        case Every(parts) | AnyOf(parts):
            for part in parts:
                yield from leaves(part)
        case Negation(part):
            yield from leaves(part)
        case _:
            yield condition


def conjuncts(condition: Condition) -> tuple[Condition, ...]:
    """The conditions that must all hold: the parts of `Every`, also of nested ones, or else the condition itself."""
    if isinstance(condition, Every):
        return tuple(part for each in condition.parts for part in conjuncts(each))
    return (condition,)


def beneath(directory: str) -> str:
    """The prefix of all paths beneath a directory: the directory and a slash."""
    return directory.rstrip("/") + "/"


def _text(record: ConversationRecord, field: TextField) -> str:
    return getattr(record.profile if field is TextField.FORKED_FROM else record, field) or ""


class StoreError(Exception):
    """The base class of the store's errors."""


class StoreUnavailableError(StoreError):
    """The disk is full, an I/O error occurred, or the store is closed; a later attempt may succeed."""


class DatabaseAwayError(StoreUnavailableError):
    """The database does not answer. The store logs the outage's beginning and end; callers need not."""


class FencedError(StoreError):
    """The stored conversation has changed since it was read, or was deleted: the state in memory is out of date."""


class SlugTakenError(StoreError):
    """Another conversation of the principal has this slug."""


class CommandExistsError(StoreError):
    """A command with this request id was accepted before, for the same conversation or principal."""


class RevisionTooOldError(StoreError):
    """Events after the requested revision were pruned from the log."""

    def __init__(self, text: str = "", *, oldest: int = 0) -> None:
        super().__init__(text)
        self.oldest = oldest


class StoreDamagedError(StoreError):
    """Stored data cannot be read: the file is corrupt, or a row differs from what was written."""


class StoreUnusableError(StoreError):
    """The store cannot be opened; the message says why, for example because it is read-only or has a newer schema."""


class DataDirectoryBusyError(StoreError):
    """Another process has locked the data directory."""

    def __init__(self, path: Path, pid: int) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(f"the data directory {path} is in use by {holder}")
        self.path = path
        self.pid = pid
        """The id of the process that has locked the data directory; 0 if unknown."""


class ConversationReader(Protocol):
    """Reads conversations as they were last committed. Thread-safe; blocks briefly.

    Every method may raise StoreUnavailableError or StoreDamagedError.
    """

    def load(self, conversation_id: str) -> records.ConversationRecord | None:
        """The row; None if the conversation does not exist."""
        ...

    def owner(self, conversation_id: str) -> str | None:
        """The conversation's principal, even if the rest of its row is unreadable; None if there is no row."""
        ...

    def find_slug(self, principal: str, slug: str) -> str | None:
        """The id of the principal's conversation with this slug (short name); None if there is none."""
        ...

    def list(
        self,
        selection: Selection,
        *,
        after: ListPosition | None = None,
        limit: int,
        skipped: Callable[[str], object] = lambda _: None,
    ) -> Listed:
        """The next page of a list.

        A call looks at a limited number of rows, so a page may have fewer than `limit` conversations although more
        follow. (This does not apply to lists ordered by title or with all sub-agents.) `after` is the `more` of the
        previous page; `skipped` gets the id of each conversation whose row is unreadable.
        """
        ...

    def children(self, conversation_id: str) -> tuple[str, ...]:
        """The ids of all sub-agents of a conversation."""
        ...

    def messages(
        self, conversation_id: str, *, after: int = 0, before: int | None = None, limit: int, descending: bool = False
    ) -> tuple[Message, ...]:
        """The messages between two sequence numbers, both excluded; latest first with `descending`."""
        ...

    def message(self, conversation_id: str, message_id: str) -> Message | None: ...

    def history(self, conversation_id: str, through: int) -> tuple[Message, ...]:
        """All messages up to and including this sequence number, in order."""
        ...

    def snapshot(self, conversation_id: str, recent_messages: int) -> records.Snapshot | None:
        """The conversation's row and latest messages, read in one transaction; None if there is no such row."""
        ...

    def command(self, conversation_id: str, request_id: str) -> records.CommandRecord | None:
        """The accepted command of a conversation with this request id, or None."""
        ...

    def spendings(self, since: int) -> tuple[records.Spending, ...]:
        """The spending of each principal per day, from the day `since` (days since the epoch) on, in any order."""
        ...

    def stored_bytes(self, principal: str) -> int:
        """The bytes of a principal's messages, attachments and profiles; for "": of the database. May take seconds."""
        ...

    def create_command(self, principal: str, request_id: str) -> records.CommandRecord | None:
        """The principal's accepted command to create a conversation, with this request id, or None."""
        ...


class LogReader(Protocol):
    """Reads the log of committed state changes. Thread-safe; blocks briefly.

    Every method may raise StoreUnavailableError or StoreDamagedError.
    """

    def events(self, conversation_id: str, *, after: int, limit: int) -> tuple[records.StoredEvent, ...]:
        """The durable events after this revision, without gaps. Raises RevisionTooOldError if some were pruned."""
        ...

    def transitions(self, conversation_id: str, *, after_step: int, limit: int) -> tuple[records.StoredTransition, ...]:
        """The logged transitions (state changes) with a step number above `after_step`, in order."""
        ...

    def stopped_runs(
        self, conversation_id: str, *, after: int = 0, before: int | None = None, limit: int, descending: bool = False
    ) -> tuple[records.StoppedRun, ...]:
        """The runs that ended between two revisions (both excluded), even if their events have been pruned."""
        ...

    def stopped_run(self, conversation_id: str, run: str) -> records.StoppedRun | None:
        """How a run ended; None if it has not ended or does not exist."""
        ...

    def settled_inputs(
        self, conversation_id: str, *, after: int = 0, before: int | None = None, limit: int, descending: bool = False
    ) -> tuple[records.SettledInput, ...]:
        """The inputs that left the queue between two revisions (both excluded), even if their events are pruned."""
        ...

    def verify(self, conversation_id: str) -> tuple[str, ...]:
        """One sentence for each fault in the stored data; () if there are none. Repairs nothing.

        Checks the log's hash chain, the numbers of steps, revisions and messages, and whether the messages are the
        logged ones.
        """
        ...


class ConversationWriter(Protocol):
    """Atomic, durable writes. Thread-safe; every method blocks until the data is on disk."""

    def commit(self, *parts: records.Commit, urgent: bool = False) -> None:
        """Write all parts in one transaction; return once it is durable. Urgent writes overtake queued ones.

        Raises StoreUnavailableError, NotOwnerError, FencedError, SlugTakenError, CommandExistsError, or ValueError if
        the parts contradict each other. This server becomes the owner of the conversations that it creates.
        """
        ...

    def put_spending(self, spending: records.Spending) -> None:
        """Record spending by a deleted conversation, which has no more commits. Raises StoreUnavailableError."""
        ...

    def delete(self, conversation_id: str, audit: records.AuditEntry | None = None) -> None:
        """Delete a conversation with everything that belongs to it, and store `audit`.

        Raises StoreUnavailableError or NotOwnerError.
        """
        ...


class Owner(Struct, frozen=True):
    """A server process that can own conversations, from its start to its end."""

    incarnation: int
    """A number that is never reused: a restarted server is a different owner."""
    name: str = ""
    address: str = ""
    """The address of the gRPC listener for other servers, "host:port"; "" if unknown."""


class NotOwnerError(StoreError):
    """Another server owns the conversation, so this server may neither change the conversation nor act for it."""

    def __init__(self, text: str = "", *, owner: Owner | None = None) -> None:
        super().__init__(text)
        self.owner = owner
        """The owner. None if no living server owns the conversation, or while it is being taken over; a retry may then
        succeed."""


class ConversationOwnership(Protocol):
    """Ownership of conversations. Thread-safe; blocks; may raise StoreUnavailableError.

    Where only one process uses the store, every claim succeeds.
    """

    def claim(
        self, conversation_id: str, taken: Callable[[tuple[str, ...]], object] = lambda _: None
    ) -> records.ConversationRecord | None:
        """Make this server the owner of a whole tree of conversations; None if the conversation does not exist.

        This succeeds if the tree has no owner, or a dead one. If the owner changes, `taken` gets the ids of interrupted
        conversations, which the caller must recover. Raises StoreDamagedError, or NotOwnerError if there is another
        owner or this server is dead or about to stop.
        """
        ...

    def unsettled(self) -> tuple[str, ...]:
        """The conversations of this server that a restart must recover: not idle, or sub-agents without an outcome."""
        ...


class AttachmentStore(Protocol):
    """The attachments of conversations. Thread-safe. Reads block briefly, writes until the data is on disk."""

    def put_attachment(self, conversation_id: str, attachment: records.Attachment) -> None:
        """Store an attachment. Idempotent.

        Raises StoreUnavailableError, NotOwnerError, or FencedError if the conversation does not exist.
        """
        ...

    def attachment(self, conversation_id: str, attachment_id: str) -> records.Attachment | None:
        """The attachment with this id; None if there is none. Raises StoreUnavailableError or StoreDamagedError."""
        ...


class StoreMaintenance(Protocol):
    """Deletes old data and frees space, each call in one short transaction. Thread-safe.

    May raise StoreUnavailableError.
    """

    def load(self, conversation_id: str) -> records.ConversationRecord | None: ...

    def prunable(self, *, before: int, keep: int, after: str = "", limit: int) -> tuple[str, ...]:
        """The ids after `after` of conversations with more than `keep` events and rows older than `before` (ms)."""
        ...

    def prune_log(self, conversation_id: str, before_revision: int, *, older_than: int | None = None) -> int:
        """Delete a few hundred of the oldest transitions; return their number, 0 if none is left to delete.

        Deletes only transitions that are older than `older_than` (ms since the epoch) and whose events precede
        `before_revision`; the transition with the latest event is always kept. Raises StoreUnavailableError,
        NotOwnerError, or StoreDamagedError: transitions that fail verification are kept.
        """
        ...

    def archived(self, *, before: int, after: str = "", limit: int) -> tuple[str, ...]:
        """The ids after `after`, in order, of conversations (except sub-agents) archived before `before` (ms)."""
        ...

    def prune_audit(self, *, before: int, keep: int) -> int:
        """Delete the oldest audit entries that are not part of a conversation's log. See `AuditStore.prune_audit`."""
        ...

    def compact(self, max_bytes: int, *, spare_bytes: int) -> bool:
        """Return up to `max_bytes` of free space to the file system, but keep `spare_bytes`; False if none is left."""
        ...


class StoreReader(ConversationReader, LogReader, Protocol):
    """All methods that read conversations, their messages and their logs, but not their attachments."""


class Store(
    StoreReader,
    ConversationWriter,
    ConversationOwnership,
    AttachmentStore,
    records.AuditStore,
    StoreMaintenance,
    Protocol,
):
    """The whole store. Thread-safe. Reads see only committed data; reads and writes block."""

    @property
    def sqlite_version(self) -> str:
        """The version of SQLite; "" for any other database."""
        ...

    def close(self) -> None:
        """Finish accepted writes, then close every connection. Idempotent."""
        ...
