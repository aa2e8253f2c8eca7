"""Verifies the stored rows of a conversation: every row is unchanged, and none is missing.

Reads every row once, in order, and reports unreadable rows as violations. Whether the logged transitions follow the
rules of the state machine is verified elsewhere, by `actors.core.invariants`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec import DecodeError

from actors.adapters.store import rows
from actors.adapters.store.listing import RECORD_COLUMNS
from actors.adapters.store.models import Attachments, Commands, Fates, Messages, Profiles, Prompts, Records, Runs
from actors.adapters.store.query import ALL, Param, Session, Statement, of_conversation, undeleted
from actors.core.content import Message
from actors.core.notifications import Durable, Fate, MessageAdded, QueueChanged, RunStop

UNREADABLE = (DecodeError, TypeError, ValueError, KeyError)
MAX_FINDINGS = 100  # maximum number of violations that are returned for one conversation

_IDS = Records.select(Records.id).where(undeleted(Records.id))
_ALL_IDS = Statement(_IDS.order_by(Records.id))
_RECORD = Statement(_IDS.select(*RECORD_COLUMNS).where(Records.id == Param("id")))
_PROMPT = Statement(of_conversation(Prompts))
_MESSAGES = Statement(of_conversation(Messages).order_by(Messages.sequence_id))
_RUNS, _FATES = Statement(of_conversation(Runs)), Statement(of_conversation(Fates))
_OTHERS = [Statement(of_conversation(each)) for each in (Profiles, Commands, Attachments)]
_CREATED = Statement(Commands.select().where(Commands.conversation_id.is_null()))


def check(session: Session, conversation_id: str) -> tuple[str, ...]:
    """The violations of a conversation as texts; () if there are none, or it is unknown.

    Raises what the database raises.

    Call it in one transaction, on a connection that replaces invalid UTF-8.
    """
    conversation = session.execute(_RECORD, id=conversation_id).fetchone()
    if conversation is None:
        return ()
    return tuple(islice(_violations(session, conversation_id, conversation), MAX_FINDINGS))


def check_all(session: Session) -> Iterator[tuple[str, str]]:
    """Yield each damaged conversation, or create command, with its first violation. Raises what the database raises.

    Call it on a connection that replaces invalid UTF-8.
    """
    for (conversation_id,) in session.execute(_ALL_IDS).fetchall():
        for finding in check(session, conversation_id)[:1]:
            yield f"conversation {conversation_id}", finding
    if not all(map(rows.is_as_written, session.execute(_CREATED))):
        yield "the remembered calls of CreateConversation", "one of them has been modified"


def _violations(session: Session, id_: str, row: rows.Row) -> Iterator[str]:
    conversation: dict[str, object] = dict(zip(rows.RECORD, row, strict=True))
    yield from _conversation(conversation, session.execute(_PROMPT, id=id_).fetchone())
    begins = rows.beginning(session, id_)
    log = _Log(begins, session.execute(_MESSAGES, id=id_))
    for logged in session.execute(rows.LOGGED, id=id_, after=0, limit=ALL):
        yield from log.check(rows.LogRow._make(logged))
    yield from log.messages.remaining()
    yield from _ends("the end of a run", session.execute(_RUNS, id=id_), log.stops, begins)
    yield from _ends("the end of a wait", session.execute(_FATES, id=id_), log.fates, begins)
    if not all(rows.is_as_written(other) for each in _OTHERS for other in session.execute(each, id=id_)):
        yield "an image, the profile or a remembered command has been modified"
    if log.place != (conversation["step"], conversation["last_seq"], conversation["log_hash"]):
        yield f"the log ends at step {log.place.step}, but the conversation's row does not"


class _Log:
    """Verifies the rows of the event log one by one, and compares the messages in them with the stored messages."""

    def __init__(self, begins: rows.LogPosition, messages: Iterable[rows.Row]) -> None:
        self.place = begins
        self.messages = _Messages(messages)
        self.stops: set[int] = set()  # the revisions at which runs ended, according to the event log
        # The revisions at which queued messages were delivered, returned or withdrawn, according to the event log.
        self.fates: set[int] = set()

    def check(self, row: rows.LogRow) -> Iterator[str]:
        try:
            yield from _follows(self.place, row)
            for revision, notification in enumerate(rows.notifications_of(row), row.first_revision):
                yield from self._notified(revision, notification)
            self.place = rows.place_after(row)
        except UNREADABLE:
            yield f"step {row.step} cannot be read"
            self.place = rows.LogPosition(self.place.step + 1, row.first_revision, row.hash)

    def _notified(self, revision: int, notification: Durable) -> Iterator[str]:
        match notification:
            case MessageAdded(message=message):
                yield from self.messages.logged(message)
            case RunStop():
                self.stops.add(revision)
            case QueueChanged(fate=fate) if fate is not Fate.QUEUED:
                self.fates.add(revision)
            case _:
                pass


def _conversation(values: dict[str, object], prompt: rows.Row | None) -> Iterator[str]:
    state = values["state_data"]
    if isinstance(state, bytes):
        values["state_data"] = state = state.decode(errors="replace")
    if not rows.is_as_written(tuple(values[name] for name in (*rows.FIXED, *rows.CHANGING[:-1], "slug", "digest"))):
        yield "the conversation's row has been modified"
    if rows.state_of(str(state).encode()) is None:
        yield "the conversation's state cannot be read; idle is assumed"
    if prompt is not None and not rows.is_as_written(prompt):
        yield "the system prompt has been modified"


def _follows(place: rows.LogPosition, row: rows.LogRow) -> Iterator[str]:
    if rows.hash_of(row) != row.hash:
        yield f"step {row.step} has been modified"
    if len(rows.notifications_of(row)) != row.event_count:
        yield f"step {row.step} records {row.event_count} events, but the stored ones differ"
    if row.step != place.step + 1:
        yield f"steps are missing between {place.step} and {row.step}"
    elif row.prev_hash != place.hash:
        yield f"step {row.step} does not follow step {place.step}" if place.step else "the log begins elsewhere"
    if row.first_revision != place.revision + 1:
        yield f"revisions are missing before {row.first_revision}"


def _ends(what: str, stored: Iterable[rows.Row], logged: set[int], begins: rows.LogPosition) -> Iterator[str]:
    """Compare the rows about ends of runs or queued messages (`what`) with the log; yield each violation.

    `logged` are the revisions of the ends in the log, which is pruned up to `begins`.
    """
    kept: set[int] = set()
    for row in stored:
        revision = row[1]
        if not rows.is_as_written(row):
            yield f"{what}, revision {revision}, has been modified"
        if not isinstance(revision, int) or revision > begins.revision:
            kept.add(revision)
    yield from (f"{what}, revision {revision}, is only in the log" for revision in sorted(logged - kept))
    yield from (f"{what}, revision {revision}, is missing from the log" for revision in sorted(kept - logged, key=str))


class _Messages:
    """Verifies the stored messages in order, and compares them with the messages that `_Log` finds in the event log."""

    def __init__(self, stored: Iterable[rows.Row]) -> None:
        self._stored = iter(stored)
        self._next = next(self._stored, None)
        self._sequence = 0  # the sequence number of the last message that was checked

    def logged(self, message: Message) -> Iterator[str]:
        yield from self._until(message.sequence)
        row = self._next
        if row is None or row[2] != message.sequence:
            yield f"message {message.sequence} is only in the log"
            return
        self._next = next(self._stored, None)
        yield from self._look(row, message)

    def remaining(self) -> Iterator[str]:
        yield from self._until(None)

    def _until(self, sequence: int | None) -> Iterator[str]:
        while self._next is not None and (sequence is None or self._next[2] < sequence):
            row, self._next = self._next, next(self._stored, None)
            yield from self._look(row, None)

    def _look(self, row: rows.Row, logged: Message | None) -> Iterator[str]:
        sequence = row[2]
        if sequence != self._sequence + 1:
            yield f"messages are missing between {self._sequence} and {sequence}"
        self._sequence = sequence
        if not rows.is_as_written(row):
            yield f"message {sequence} has been modified"
        try:
            if logged not in (None, rows.message_of(row)):
                yield f"message {sequence} differs from the log"
        except UNREADABLE:
            yield f"message {sequence} cannot be read"
