"""Encodes, hashes and decodes the rows of the event log (the table with one row for each transition of a conversation).

The rows form a hash chain: a row's hash is SHA-256 over the row's content followed by the hash of the previous row. The
thread that wants to commit hashes the content in advance. The thread that writes to the database, which alone knows the
previous row, then only has to hash the 64 bytes of that row's hash.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from msgspec import json

from actors.adapters.store.rows import refuse_non_numbers
from actors.core.notifications import Durable
from actors.ports import Commit, LogEntry, RevisionTooOldError, StoredEvent, StoredTransition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NOTIFICATIONS = json.Decoder(tuple[Durable, ...])
_encode = json.Encoder().encode


LOG = (
    "conversation_id", "step", "epoch", "at", "first_revision", "count", "prev_hash", "hash", "notifications",
    "event", "context", "audit",
)  # fmt: skip
"""The columns of the table `log`. The digest covers them in this order, except for the two hashes."""


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

    numbers: tuple[str, int, int, int, int, int]
    """The first six columns of LOG, from `conversation_id` to `count`."""
    texts: tuple[str, str, str, str]
    """The columns of LOG from `notifications` on; "" for a missing `context` or `audit`."""
    digest: hashlib._Hash

    def after(self, prev_hash: str) -> tuple[str, tuple[str | int, ...]]:
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
    texts = (notifications.decode(), entry.event.decode(), context.decode(), audit.decode())
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


def events_after(
    rows: Iterable[tuple[int, int, str]], conversation_id: str, after: int, limit: int
) -> tuple[StoredEvent, ...]:
    """Return at most `limit` events after the revision `after`; `rows` are as in `events_of`.

    Raises RevisionTooOldError if the event after revision `after` is pruned, and the errors of `events_of`.
    """
    found = tuple(events_of(rows, after, limit))
    if found and found[0].revision != after + 1:
        first = found[0].revision
        raise RevisionTooOldError(f"the events of {conversation_id} begin at revision {first}", oldest=first - 1)
    return found


def refuse_before(begins: int, conversation_id: str, after: int) -> None:
    """Raise RevisionTooOldError if `after` is less than `begins`, the last revision pruned from the event log."""
    if after < begins:
        raise RevisionTooOldError(f"the events of {conversation_id} begin after revision {begins}", oldest=begins)


def stored_transition(row: LogRow) -> StoredTransition:
    """Convert a row of the event log to the port's StoredTransition. Raises msgspec.DecodeError or ValueError."""
    refuse_non_numbers(row.step, row.epoch, row.at, row.first_revision)
    context = None if row.context is None else row.context.encode()
    return StoredTransition(
        row.step, row.epoch, row.at, row.event.encode(), context, row.first_revision, notifications_of(row),
        row.prev_hash, row.hash,
    )  # fmt: skip
