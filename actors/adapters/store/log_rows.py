"""Encodes and hashes the rows of the log.

A row's hash is SHA-256 over the row, then over the hash of the row before it. The row comes first so that the
committing thread can digest it; the thread that writes, which alone knows the previous row, adds 64 bytes.
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
"""The columns of the log, in the order of the digest."""


class LogRow(NamedTuple):
    """A row of the table `log`."""

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
    """An encoded and digested row that lacks only the hash of the previous row."""

    numbers: tuple[str, int, int, int, int, int]
    """The columns of LOG up to the count."""
    texts: tuple[str, str, str, str]
    """The columns of LOG from the notifications on; "" if there is no context, or nothing for the audit trail."""
    digest: hashlib._Hash

    def after(self, prev_hash: str) -> tuple[str, tuple[str | int, ...]]:
        """Return the row's hash, which continues the chain from `prev_hash`, and the complete row."""
        link = _link(self.digest, prev_hash)
        return link, (*self.numbers, prev_hash, link, *self.texts)


def seal(conversation_id: str, epoch: int, entry: LogEntry) -> Sealed:
    """Encode and digest a transition. Called on the committing thread, to keep this work off the writer."""
    numbers = (conversation_id, entry.step, epoch, entry.at, entry.first_revision, len(entry.notifications))
    notifications = _encode(entry.notifications)
    context = entry.context or b""
    audit = b"" if entry.audit is None else _encode(entry.audit)
    texts = (notifications.decode(), entry.event.decode(), context.decode(), audit.decode())
    return Sealed(numbers, texts, _digest(numbers, notifications, entry.event, context, audit))


def _digest(
    numbers: tuple[str, int, int, int, int, int], notifications: bytes, event: bytes, context: bytes, audit: bytes
) -> hashlib._Hash:
    """Digest all columns except the hashes, one per line; without `audit` if it is empty, as in old rows.

    JSON contains no raw line breaks, so different rows never give the same bytes.
    """
    head = "%s\n%d\n%d\n%d\n%d\n%d" % numbers  # noqa: UP031 -- takes the tuple as it is
    lines = (head.encode(), notifications, event, context)
    return hashlib.sha256(b"\n".join((*lines, audit) if audit else lines))


def hash_of(row: LogRow) -> str:
    """Return the hash that a row must have. Raises TypeError if a numeric column is not a number."""
    texts = (row.notifications, row.event, row.context or "", row.audit or "")
    digest = _digest(row[:6], *(text.encode() for text in texts))
    return _link(digest, row.prev_hash)


def _link(digest: hashlib._Hash, prev_hash: str) -> str:
    link = digest.copy()
    link.update(prev_hash.encode())
    return link.hexdigest()


def check_shape(part: Commit) -> None:
    """Raise ValueError unless the steps and revisions of `part` are gap-free and end where its record says."""
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
    """Return the revision at which `part` begins. A store accepts it only if its newest revision is the one before."""
    return part.log[0].first_revision if part.log else part.record.last_seq + 1


def notifications_of(row: LogRow) -> tuple[Durable, ...]:
    """Decode the durable events of a transition. Raises msgspec.DecodeError."""
    return _NOTIFICATIONS.decode(row.notifications)


def events_of(rows: Iterable[tuple[int, int, str]], after: int, limit: int) -> Iterator[StoredEvent]:
    """Yield at most `limit` events after revision `after` from (first revision, at, notifications) rows in order.

    Raises msgspec.DecodeError or ValueError.
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
    """Return `events_of` these rows. Raises RevisionTooOldError too, if the first of them has been pruned."""
    found = tuple(events_of(rows, after, limit))
    if found and found[0].revision != after + 1:
        first = found[0].revision
        raise RevisionTooOldError(f"the events of {conversation_id} begin at revision {first}", oldest=first - 1)
    return found


def refuse_before(begins: int, conversation_id: str, after: int) -> None:
    """Raise RevisionTooOldError if events after revision `after` were pruned: the log begins after `begins`."""
    if after < begins:
        raise RevisionTooOldError(f"the events of {conversation_id} begin after revision {begins}", oldest=begins)


def stored_transition(row: LogRow) -> StoredTransition:
    """Return the row as the port's StoredTransition. Raises msgspec.DecodeError or ValueError."""
    refuse_non_numbers(row.step, row.epoch, row.at, row.first_revision)
    context = None if row.context is None else row.context.encode()
    return StoredTransition(
        row.step, row.epoch, row.at, row.event.encode(), context, row.first_revision, notifications_of(row),
        row.prev_hash, row.hash,
    )  # fmt: skip
