"""What can be said of a stored conversation without understanding it: rows that are as they were written, no gaps.

Whether its story makes sense is for others to judge. Everything is read once, in order; rows that cannot be read are
findings like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import DecodeError

from actors.adapters.store import rows
from actors.adapters.store.log_rows import LogRow, hash_of, notifications_of
from actors.adapters.store.pruning import Place, place_after
from actors.adapters.store.rows import CHANGING, FIXED, MESSAGE, RECORD, Row, is_as_written
from actors.adapters.store.run_outcomes import fate_values, run_values
from actors.core.notifications import Durable, Fate, MessageAdded, QueueChanged, RunStop

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from actors.core.content import Message
    from actors.ports import ConversationRecord, SettledInput, StoppedRun

UNREADABLE = (DecodeError, TypeError, ValueError, KeyError)


class StoredRows(NamedTuple):
    """A conversation as it lies in the store; every text is readable as such."""

    conversation: Row
    """The values of RECORD."""
    prompt: Row | None
    """The values of PROMPT."""
    begins: Place
    """Where the log does: after what was pruned."""
    log: Iterable[LogRow]
    """In the order of their revisions."""
    messages: Iterable[Row]
    """The values of MESSAGE in the order of their sequence."""
    runs: Iterable[Row]
    """The values of RUN."""
    fates: Iterable[Row]
    """The values of FATE."""
    others: Iterable[Row] = ()
    """Rows of whatever else there is, each with its digest at the end."""


def rows_of(
    record: ConversationRecord,
    messages: Iterable[Message],
    *,
    begins: Place,
    log: Iterable[LogRow],
    runs: Iterable[StoppedRun],
    fates: Iterable[SettledInput],
) -> StoredRows:
    """The rows that these would be."""
    conversation = (*rows.fixed_values(record), *rows.changing_values(record), record.slug, record.log_hash)
    prompt = rows.prompt_values(record.id, record.system_prompt) if record.system_prompt else None
    written = (_as_read(rows.message_values(record.id, each)) for each in messages)
    ended = [run_values(record.id, each) for each in runs]
    settled = [fate_values(record.id, each) for each in fates]
    return StoredRows(conversation, prompt, begins, log, written, ended, settled)


def _as_read(row: Row) -> Row:
    """A message's row with NULL where an empty text was handed over for it."""
    usage = MESSAGE.index("usage_data")
    return (*row[:usage], row[usage] or None, *row[usage + 1 :])


def violations(stored: StoredRows) -> Iterator[str]:
    """What is wrong with a conversation, in words. Its log begins where it says."""
    conversation: dict[str, object] = dict(zip(RECORD, stored.conversation, strict=True))
    yield from _conversation(conversation, stored.prompt)
    log = _Log(stored.begins, stored.messages)
    for row in stored.log:
        yield from log.take(row)
    yield from log.messages.rest()
    yield from _ends("the end of a run", stored.runs, log.stops, stored.begins)
    yield from _ends("the end of a wait", stored.fates, log.fates, stored.begins)
    if not all(map(is_as_written, stored.others)):
        yield "an image or a remembered command is not what was written"
    if log.place != (conversation["step"], conversation["last_seq"], conversation["log_hash"]):
        yield f"the log ends at step {log.place.step}, which is not where the conversation stands"


class _Log:
    """The log, gone through once, and what it says of the other tables."""

    def __init__(self, begins: Place, messages: Iterable[Row]) -> None:
        self.place = begins
        self.messages = _Messages(messages)
        self.stops: set[int] = set()
        """Revisions of the ends of runs."""
        self.fates: set[int] = set()
        """Revisions of the ends of waits."""

    def take(self, row: LogRow) -> Iterator[str]:
        """The next row."""
        try:
            yield from _follows(self.place, row)
            for revision, told in enumerate(notifications_of(row), row.first_revision):
                yield from self._told(revision, told)
            self.place = place_after(row)
        except UNREADABLE:
            yield f"step {row.step} cannot be read"
            self.place = Place(self.place.step + 1, row.first_revision, row.hash)

    def _told(self, revision: int, told: Durable) -> Iterator[str]:
        match told:
            case MessageAdded(message=message):
                yield from self.messages.told(message)
            case RunStop():
                self.stops.add(revision)
            case QueueChanged(fate=fate) if fate is not Fate.QUEUED:
                self.fates.add(revision)
            case _:
                pass


def _conversation(values: dict[str, object], prompt: Row | None) -> Iterator[str]:
    state = values["state_data"]
    if isinstance(state, bytes):
        values["state_data"] = state = state.decode(errors="replace")
    if not is_as_written(tuple(values[name] for name in (*FIXED, *CHANGING[:-1], "slug", "digest"))):
        yield "the conversation's row is not what was written"
    if rows.state_of(str(state).encode()) is None:
        yield "the conversation's state cannot be read; it is taken to be idle"
    if prompt is not None and not is_as_written(prompt):
        yield "the system prompt is not what was written"


def _follows(place: Place, row: LogRow) -> Iterator[str]:
    if hash_of(row) != row.hash:
        yield f"step {row.step} is not what was written"
    if len(notifications_of(row)) != row.event_count:
        yield f"step {row.step} counts {row.event_count} events but has others"
    if row.step != place.step + 1:
        yield f"steps are missing between {place.step} and {row.step}"
    elif row.prev_hash != place.hash:
        yield f"step {row.step} does not follow step {place.step}" if place.step else "the log has another beginning"
    if row.first_revision != place.revision + 1:
        yield f"revisions are missing before {row.first_revision}"


def _ends(what: str, stored: Iterable[Row], told: set[int], begins: Place) -> Iterator[str]:
    """What is kept of the ends of runs and waits: as it was written, and all that the log tells of."""
    kept: set[int] = set()
    for row in stored:
        revision = row[1]
        if not is_as_written(row):
            yield f"{what}, revision {revision}, is not what was written"
        if not isinstance(revision, int) or revision > begins.revision:
            kept.add(revision)
    yield from (f"{what}, revision {revision}, is in the log only" for revision in sorted(told - kept))
    yield from (f"{what}, revision {revision}, is not in the log" for revision in sorted(kept - told, key=str))


class _Messages:
    """The stored messages, gone through once, side by side with what the log says of them."""

    def __init__(self, stored: Iterable[Row]) -> None:
        self._stored = iter(stored)
        self._next = next(self._stored, None)
        self._sequence = 0
        """Of the last one that was looked at."""

    def told(self, message: Message) -> Iterator[str]:
        """The log has it: so must the messages, and the same."""
        yield from self._until(message.sequence)
        row = self._next
        if row is None or row[2] != message.sequence:
            yield f"message {message.sequence} is in the log only"
            return
        self._next = next(self._stored, None)
        yield from self._look(row, message)

    def rest(self) -> Iterator[str]:
        """Those that the log does not have."""
        yield from self._until(None)

    def _until(self, sequence: int | None) -> Iterator[str]:
        while self._next is not None and (sequence is None or self._next[2] < sequence):
            row, self._next = self._next, next(self._stored, None)
            yield from self._look(row, None)

    def _look(self, row: Row, told: Message | None) -> Iterator[str]:
        sequence = row[2]
        if sequence != self._sequence + 1:
            yield f"messages are missing between {self._sequence} and {sequence}"
        self._sequence = sequence
        if not is_as_written(row):
            yield f"message {sequence} is not what was written"
        try:
            if told not in (None, rows.message_of(row)):
                yield f"message {sequence} is not what the log says"
        except UNREADABLE:
            yield f"message {sequence} cannot be read"
