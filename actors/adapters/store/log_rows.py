"""Encodes, hashes and decodes the rows of the event log (the table with one row for each transition of a conversation).

The rows form a hash chain: a row's hash is SHA-256 over the row's content followed by the hash of the previous row. The
thread that wants to commit hashes the content in advance. The thread that writes to the database, which alone knows the
previous row, then only has to hash the 64 bytes of that row's hash.

The tables `runs` (every run that has ended) and `fates` (every message to a busy agent that no longer waits) are kept
when the log is pruned: with the messages they contain everything that clients need from a pruned log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from msgspec import json

from actors.adapters.store.models import Log, Prunings
from actors.adapters.store.query import Param, Session, Statement, of_conversation
from actors.adapters.store.rows import digest_of, refuse_non_numbers
from actors.core.notifications import Durable, Fate, MessageAdded, QueueChanged, RunStop, StopReason
from actors.core.states import QueuedInput
from actors.ports import Commit, LogEntry, SettledInput, StoppedRun, StoreDamagedError, StoredEvent, StoredTransition

_NOTIFICATIONS = json.Decoder(tuple[Durable, ...])
_INPUT = json.Decoder(QueuedInput)
_encode = json.Encoder().encode


class LogRow(NamedTuple):
    """A row of the table `log`: one transition of a conversation."""

    conversation_id: str
    step: int
    epoch: int
    at: int
    first_revision: int
    event_count: int
    prev_hash: str
    hash: str
    notifications: str
    event: str
    context: str | None
    audit: str | None = None


class Sealed(NamedTuple):
    """An encoded row of the event log and the digest of its content, still without its hash and the previous row's."""

    # The first six columns of the table, from `conversation_id` to `count`.
    numbers: tuple[str, int, int, int, int, int]
    texts: tuple[str | None, ...]  # the columns from `notifications` on, and who sent the command; "" for nobody
    digest: hashlib._Hash

    def after(self, prev_hash: str) -> tuple[str, tuple[str | int | None, ...]]:
        """Return this row's hash and the complete row, for an event log whose last row has the hash `prev_hash`."""
        link = _link(self.digest, prev_hash)
        return link, (*self.numbers, prev_hash, link, *self.texts)


def seal(conversation_id: str, epoch: int, entry: LogEntry) -> Sealed:
    """Encode an event log entry, and digest its content.

    Call this before the commit is queued, so that the thread that writes to the database need not do this work.
    """
    numbers = (conversation_id, entry.step, epoch, entry.at, entry.first_revision, len(entry.notifications))
    notifications = _encode(entry.notifications)
    context = entry.context or b""
    audit = b"" if entry.audit is None else _encode(entry.audit)
    origin = entry.audit.origin if entry.audit else None
    texts = (
        notifications.decode(), entry.event.decode(), context.decode() or None, audit.decode() or None,
        origin.principal if origin else "",
    )  # fmt: skip
    return Sealed(numbers, texts, _digest(numbers, notifications, entry.event, context, audit))


def _digest(
    numbers: tuple[str, int, int, int, int, int], notifications: bytes, event: bytes, context: bytes, audit: bytes
) -> hashlib._Hash:
    """Digest all columns except the hashes, one per line; omit an empty `audit`, which old rows do not have.

    JSON contains no raw line breaks, so different rows never give the same bytes.
    """
    head = "%s\n%d\n%d\n%d\n%d\n%d" % numbers  # noqa: UP031 -- the operator takes the tuple whole
    lines = (head.encode(), notifications, event, context)
    return hashlib.sha256(b"\n".join((*lines, audit) if audit else lines))


def hash_of(row: LogRow) -> str:
    """Compute the hash of a row from its content and `prev_hash`; in an unchanged row, `hash` has the same value.

    Raises TypeError if a numeric column is not a number.
    """
    texts = (row.notifications, row.event, row.context or "", row.audit or "")
    digest = _digest(row[:6], *(text.encode() for text in texts))
    return _link(digest, row.prev_hash)


def _link(digest: hashlib._Hash, prev_hash: str) -> str:
    link = digest.copy()
    link.update(prev_hash.encode())
    return link.hexdigest()


def check_shape(part: Commit) -> None:
    """Raise ValueError unless the commit `part` is consistent in itself.

    Its steps and revisions must have no gaps, and the last ones must be those of its record. A commit that creates a
    conversation begins with step 1, and only such a commit can create a fork.
    """
    step, revision = part.expected_step, next_revision(part)
    for entry in part.log:
        step += 1
        if entry.step != step or entry.first_revision != revision:
            raise ValueError(f"step {entry.step} of {part.record.id} does not follow")
        revision += len(entry.notifications)
    if part.record.step != step or part.record.last_seq != revision - 1:
        raise ValueError(f"the record of {part.record.id} does not end where its log ends")
    first = part.begins_after + 1
    if part.create and (part.expected_step or (part.log and part.log[0].first_revision != first)):
        raise ValueError(f"{part.record.id} does not begin at the beginning")
    if part.fork is not None and not part.create:
        raise ValueError(f"{part.record.id} exists: only a new conversation can be a fork")


def next_revision(part: Commit) -> int:
    """Return the revision (number) of the first durable event of the commit `part`.

    A store accepts the commit only if the conversation's latest revision is the one before the returned revision.
    """
    return part.log[0].first_revision if part.log else part.record.last_seq + 1


def notifications_of(row: LogRow) -> tuple[Durable, ...]:
    """Decode the durable events in a row of the event log. Raises msgspec.DecodeError."""
    return _NOTIFICATIONS.decode(row.notifications)


def events_of(rows: Iterable[tuple[int, int, str]], after: int, limit: int) -> Iterator[StoredEvent]:
    """Yield at most `limit` events after the revision `after`.

    `rows` are (first revision, time, encoded notifications) in order. Raises msgspec.DecodeError or ValueError if a row
    is not readable.
    """
    for first, at, encoded in rows:
        refuse_non_numbers(first, at)
        for revision, notification in enumerate(_NOTIFICATIONS.decode(encoded), first):
            if revision <= after:
                continue
            if limit <= 0:
                return
            limit -= 1
            yield StoredEvent(revision, at, notification)
        if limit <= 0:
            return


def stored_transition(row: LogRow) -> StoredTransition:
    """Convert a row of the event log to the port's StoredTransition. Raises msgspec.DecodeError or ValueError."""
    refuse_non_numbers(row.step, row.epoch, row.at, row.first_revision)
    context = None if row.context is None else row.context.encode()
    return StoredTransition(
        row.step, row.epoch, row.at, row.event.encode(), context, row.first_revision, notifications_of(row),
        row.prev_hash, row.hash,
    )  # fmt: skip


# --- the ends of runs and waits ---------------------------------------------------------------------------------


def stopped_runs(part: Commit) -> Iterator[StoppedRun]:
    """Yield the runs that stopped in the commit `part`, in order."""
    sequence = part.messages[0].sequence - 1 if part.messages else part.record.state.ledger.seq
    for entry in part.log:
        for revision, event in enumerate(entry.notifications, entry.first_revision):
            if isinstance(event, MessageAdded):
                sequence = event.message.sequence
            elif isinstance(event, RunStop):
                yield StoppedRun(revision, entry.at, event, sequence)


def settled_inputs(part: Commit) -> Iterator[SettledInput]:
    """Yield, in order, what became of queued messages according to the commit `part`, such as "delivered"."""
    runs = {message.id: message.run for message in part.messages}
    for entry in part.log:
        for revision, event in enumerate(entry.notifications, entry.first_revision):
            if isinstance(event, QueueChanged) and event.fate is not Fate.QUEUED:
                yield SettledInput(revision, entry.at, event, runs.get(event.input.message_id, ""))


def run_values(conversation_id: str, ended: StoppedRun) -> tuple[str | int, ...]:
    """Return the row of a stopped run.

    The column `message` contains the error message of a failed run, and the output of any other run.
    """
    stop = ended.stop
    values = (
        conversation_id, ended.revision, stop.run, stop.reason.value, stop.detail, stop.message or stop.output,
        ended.last_sequence, ended.at,
    )  # fmt: skip
    return (*values, digest_of(values))


def run_of(row: tuple[Any, ...]) -> StoppedRun:
    """Convert the row of a stopped run. Raises ValueError if the row is damaged."""
    _, revision, run, reason, detail, message, last_sequence, at, _ = row
    refuse_non_numbers(revision, last_sequence, at)
    failed = StopReason(reason) is StopReason.ERROR
    stop = RunStop(run, StopReason(reason), detail, message if failed else "", "" if failed else message)
    return StoppedRun(revision, at, stop, last_sequence)


def fate_values(conversation_id: str, settled: SettledInput) -> tuple[str | int, ...]:
    """Return the row about what became of a queued message."""
    outcome = settled.outcome
    waited = _encode(outcome.input).decode()
    values = (
        conversation_id, settled.revision, outcome.input.message_id, outcome.delivery, outcome.fate.value, waited,
        settled.run, settled.at,
    )  # fmt: skip
    return (*values, digest_of(values))


def fate_of(row: tuple[Any, ...]) -> SettledInput:
    """Convert a row to an object that describes what became of a queued message.

    Raises msgspec.DecodeError or ValueError if the row is damaged.
    """
    _, revision, _, delivery, fate, waited, run, at, _ = row
    refuse_non_numbers(revision, at)
    return SettledInput(revision, at, QueueChanged(_INPUT.decode(waited), delivery, Fate(fate)), run)


# --- the beginning of a log -------------------------------------------------------------------------------------

# The store records where a log begins, which distinguishes a pruned log from one whose beginning is missing for another
# reason. A log with rows that fail verification is not pruned, so that they are kept as evidence.

PRUNED_ROWS = 256  # maximum rows per batch. While a batch is deleted, no other change can be written.
# Approximate maximum of characters per batch.
#
# The limit is needed because a large row occupies several pages, each of which the database has to free.
CHARACTERS = 4 * 1024 * 1024


class LogPosition(NamedTuple):
    """A position between two rows of an event log: the step, last revision and hash of the row before it.

    Zeros and "" mean the beginning of a log from which nothing was pruned.
    """

    step: int = 0
    revision: int = 0
    hash: str = ""


BEGINNING = LogPosition()


# At most `limit` rows of a conversation's event log after the step `after`.
LOGGED = Statement(
    of_conversation(Log).where(Log.step > Param("after")).order_by(Log.first_revision, Log.step).limit(Param("limit"))
)
_PRUNED = Statement(of_conversation(Prunings))


def beginning(session: Session, conversation_id: str) -> LogPosition:
    """Return the position at which the stored event log of a conversation begins, which is after the pruned rows."""
    row = session.execute(_PRUNED, id=conversation_id).fetchone()
    return LogPosition(*row[1:]) if row else BEGINNING


def place_after(row: LogRow) -> LogPosition:
    """Return the position after `row`."""
    return LogPosition(row.step, row.first_revision + row.event_count - 1, row.hash)


class Bounds(NamedTuple):
    """The limits of a pruning: only rows that both limits allow may be removed."""

    before_revision: int  # rows may be removed if all their events precede this revision
    # Rows may be removed if they were written before this time, in milliseconds since 1970; None for any age.
    older_than: int | None = None

    def hold(self, row: LogRow) -> bool:
        """Return whether this row and all later ones must be kept."""
        if row.first_revision + row.event_count > self.before_revision:
            return True
        return self.older_than is not None and row.at >= self.older_than


def prunable(begins: LogPosition, rows: Iterable[LogRow], bounds: Bounds) -> list[LogRow]:
    """Return the rows to prune in the next batch, oldest first; [] if there are none.

    `rows` are the rows of the event log after the position `begins`. Raises StoreDamagedError if a row to prune does
    not follow the row before it, or does not match its hash.
    """
    going: list[LogRow] = []
    characters, place = 0, begins
    for row in rows:
        if bounds.hold(row) or len(going) == PRUNED_ROWS or characters > CHARACTERS:
            break
        if (row.step, row.first_revision, row.prev_hash) != (place.step + 1, place.revision + 1, place.hash):
            raise StoreDamagedError(f"step {row.step} of {row.conversation_id} does not follow; its log is not pruned")
        if hash_of(row) != row.hash:
            raise StoreDamagedError(f"step {row.step} of {row.conversation_id} was changed; its log is not pruned")
        going.append(row)
        characters += len(row.notifications) + len(row.event) + len(row.context or "")
        place = place_after(row)
    return going
