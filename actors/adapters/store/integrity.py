"""Verifies that every stored row of a conversation is unchanged, and that none is missing.

Reads every row once, and reports unreadable rows as violations. `actors.core.invariants` verifies that the logged
transitions follow the rules of the state machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from actors.adapters.store import rows
from actors.adapters.store.listing import RECORD_COLUMNS
from actors.adapters.store.models import Attachments, Commands, Fates, Messages, Profiles, Prompts, Records, Runs
from actors.adapters.store.query import ALL, Param, Session, Statement, of_conversation, undeleted
from actors.core.content import Message
from actors.core.notifications import Fate, MessageAdded, QueueChanged, RunStop

MAX_FINDINGS = 100  # maximum number of violations returned for one conversation

_IDS = Records.select(Records.id).where(undeleted(Records.id))
_ALL_IDS = Statement(_IDS.order_by(Records.id))
_RECORD = Statement(_IDS.select(*RECORD_COLUMNS).where(Records.id == Param("id")))
_PROMPT = Statement(of_conversation(Prompts))
_MESSAGES = Statement(of_conversation(Messages).order_by(Messages.sequence_id))
_RUNS, _FATES = Statement(of_conversation(Runs)), Statement(of_conversation(Fates))
_OTHERS = [Statement(of_conversation(each)) for each in (Profiles, Commands, Attachments)]
_CREATED = Statement(Commands.select().where(Commands.conversation_id.is_null()))


def check(session: Session, conversation_id: str) -> tuple[str, ...]:
    """Describe a conversation's violations; () if there are none, or if the conversation is unknown.

    Call this within a transaction, on a connection that replaces invalid UTF-8. Raises what the database raises.
    """
    conversation = session.execute(_RECORD, id=conversation_id).fetchone()
    if conversation is None:
        return ()
    return tuple(islice(_violations(session, conversation_id, conversation), MAX_FINDINGS))


def check_all(session: Session) -> Iterator[tuple[str, str]]:
    """Yield each damaged conversation or create command with its first violation.

    Call this on a connection that replaces invalid UTF-8. Raises what the database raises.
    """
    for (conversation_id,) in session.execute(_ALL_IDS).fetchall():
        for finding in check(session, conversation_id)[:1]:
            yield f"conversation {conversation_id}", finding
    if not all(map(rows.is_as_written, session.execute(_CREATED))):
        yield "the remembered calls of CreateConversation", "one of them has been modified"


def _violations(session: Session, id_: str, row: rows.Row) -> Iterator[str]:
    conversation: dict[str, object] = dict(zip(rows.RECORD, row, strict=True))
    yield from _conversation(conversation, session.execute(_PROMPT, id=id_).fetchone())
    begins = place = rows.beginning(session, id_)
    # What the log contains: messages by number, and the revisions at which runs ended and at which messages left the
    # queue.
    messages: dict[int, Message] = {}
    stops, fates = set[int](), set[int]()
    for logged in map(rows.LogRow._make, session.execute(rows.LOGGED, id=id_, after=0, limit=ALL)):
        try:
            yield from _follows(place, logged)
            for revision, notification in enumerate(rows.notifications_of(logged), logged.first_revision):
                match notification:
                    case MessageAdded(message=message):
                        if messages.setdefault(message.sequence, message) is not message:
                            yield f"message {message.sequence} appears twice in the log"
                    case RunStop():
                        stops.add(revision)
                    case QueueChanged(fate=fate) if fate is not Fate.QUEUED:
                        fates.add(revision)
                    case _:
                        pass
            place = rows.place_after(logged)
        except rows.UNREADABLE:
            yield f"step {logged.step} cannot be read"
            place = rows.LogPosition(place.step + 1, logged.first_revision, logged.hash)
    yield from _messages(session.execute(_MESSAGES, id=id_), messages)
    yield from _ends("the end of a run", session.execute(_RUNS, id=id_), stops, begins)
    yield from _ends("the end of a wait", session.execute(_FATES, id=id_), fates, begins)
    if not all(rows.is_as_written(other) for each in _OTHERS for other in session.execute(each, id=id_)):
        yield "an image, the profile or a remembered command has been modified"
    if place != (conversation["step"], conversation["revision"], conversation["log_hash"]):
        yield f"the log ends at step {place.step}, but the conversation's row does not"


def _conversation(values: dict[str, object], prompt: rows.Row | None) -> Iterator[str]:
    state = values["state_data"]
    if isinstance(state, bytes):
        values["state_data"] = state = state.decode(errors="replace")
    if not rows.is_as_written(tuple(values[name] for name in (*rows.FIXED, *rows.CHANGING[:-1], "slug", "digest"))):
        yield "the conversation's row has been modified"
    if rows.state_of(str(state).encode()) is None:
        yield "the conversation's state cannot be read; assuming it is idle"
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
    """Compare rows with the log; yield each violation. `what` names their subject: ended runs or settled messages.

    `logged` contains the revisions at which these ended according to the log, which is pruned up to `begins`.
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


def _messages(stored: Iterable[rows.Row], logged: dict[int, Message]) -> Iterator[str]:
    """Verify the stored messages, in order, and compare them with those in the log, which may be pruned."""
    last = 0
    for row in stored:
        sequence = row[2]
        if sequence != last + 1:
            yield f"messages are missing between {last} and {sequence}"
        if not rows.is_as_written(row):
            yield f"message {sequence} has been modified"
        try:
            last = int(sequence)
            if logged.pop(sequence, None) not in (None, rows.message_of(row)):
                yield f"message {sequence} differs from the log"
        except rows.UNREADABLE:
            yield f"message {sequence} cannot be read"
    yield from (f"message {sequence} is only in the log" for sequence in logged)
