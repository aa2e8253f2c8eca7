"""Lists the messages that users have sent to a busy agent: those in the queue, and those that have left it.

A steer is a message for the agent's present run; a follow-up starts a new run after the present one. Everything here
blocks, and runs in a `ReadPool`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bedrock import v1
from msgspec import Struct

from actors.core.notifications import Fate, QueueChanged
from actors.core.states import QueuedInput
from actors.core.summary import run_id
from server.contract import limits
from server.contract.errors import ConversationNotFoundError
from server.contract.pagination import Page, position_of, size_of, token_of
from server.wire.messages import queued

if TYPE_CHECKING:
    from actors.ports import ConversationRecord, SettledInput, StoreReader

CHUNK = 100
"""How many messages that have left the queue are read from the store at a time."""


class _Place(Struct):
    """The content of a page token: the next page begins after this message, in the requested order."""

    revision: int = 0
    """The revision at which the message left the queue; 0 while the message waits."""
    at: int = 0
    message_id: str = ""
    """The id of a message that still waits, for which `at` is the time of acceptance; "" if it has left the queue."""


_Waiting = tuple[QueuedInput, str, str]


def waiting(record: ConversationRecord) -> list[_Waiting]:
    """Return (input, delivery, run id) for each waiting message, the oldest first; the run id of a follow-up is "".

    Steers, which join the present run, and follow-ups, which start a new one, are merged by time. The steers stay in
    the order in which they were accepted, even if the clock was set back, and so do the follow-ups.
    """
    ledger = record.state.ledger
    run = run_id(record.id, ledger.run) if ledger.live else ""
    steers: list[_Waiting] = [(each, "steer", run) for each in ledger.steers]
    follows: list[_Waiting] = [(each, "follow_up", "") for each in ledger.follows]
    return list(heapq.merge(steers, follows, key=lambda entry: entry[0].at))


def _behind(entries: Sequence[_Waiting], last: _Place, *, descending: bool = False) -> Sequence[_Waiting]:
    """Return the waiting messages after the position `last`.

    If the message at this position no longer waits, return the messages that were accepted at the same time or later,
    or, if `descending`, at the same time or earlier.
    """
    for index, (each, _, _) in enumerate(entries):
        if each.message_id == last.message_id:
            return entries[index + 1 :]
    if descending:
        return [entry for entry in entries if entry[0].at <= last.at]
    return [entry for entry in entries if entry[0].at >= last.at]


def list_queue(store: StoreReader, request: v1.ListQueueRequest, conversation_id: str) -> v1.ListQueueResponse:
    """Return a page of the queue. Raises ConversationNotFoundError, and MalformedRequestError for a wrong page token.

    A message that leaves the queue between the reads of two pages is on one of the pages, and may be on both.
    """
    record = store.load(conversation_id)
    if record is None:
        raise ConversationNotFoundError(request.parent)
    listing = ("queue", conversation_id, request.include_settled, request.descending)
    last = position_of(request.page_token, _Place, *listing)
    page, answer = Page(size_of(request.page_size, limits.QUEUE_PAGE), limits.PAGE_BYTES), v1.ListQueueResponse()
    entries = _backwards if request.descending else _forwards
    for shown, place in entries(store, record, request, last):
        if not page.take(shown.ByteSize()):
            assert last is not None  # noqa: S101 -- the first message always fits
            answer.next_page_token = token_of(last, *listing)
            break
        answer.messages.append(shown)
        last = place
    return answer


_Entries = Iterator[tuple[v1.QueuedMessage, _Place]]


def _forwards(
    store: StoreReader, record: ConversationRecord, request: v1.ListQueueRequest, last: _Place | None
) -> _Entries:
    last = last or _Place()
    while request.include_settled:
        found = store.settled_inputs(record.id, after=last.revision, before=record.last_seq + 1, limit=CHUNK)
        for settled in found:
            last = _Place(settled.revision)
            yield _settled(record.id, settled), last
        if len(found) < CHUNK:
            break
    for each, delivery, run in _behind(waiting(record), last):
        yield waiting_message(record.id, each, delivery, run), _Place(record.last_seq, each.at, each.message_id)


def _backwards(
    store: StoreReader, record: ConversationRecord, request: v1.ListQueueRequest, last: _Place | None
) -> _Entries:
    if last is None or last.message_id:
        entries = waiting(record)[::-1]
        for each, delivery, run in _behind(entries, last, descending=True) if last else entries:
            yield waiting_message(record.id, each, delivery, run), _Place(0, each.at, each.message_id)
    before = last.revision if last and last.revision else record.last_seq + 1
    while request.include_settled:
        found = store.settled_inputs(record.id, before=before, limit=CHUNK, descending=True)
        for settled in found:
            before = settled.revision
            yield _settled(record.id, settled), _Place(before)
        if len(found) < CHUNK:
            break


def waiting_message(conversation_id: str, queued_input: QueuedInput, delivery: str, run: str) -> v1.QueuedMessage:
    """Convert a message that waits in the queue to an API message."""
    return queued(conversation_id, QueueChanged(queued_input, delivery, Fate.QUEUED), run=run)


def _settled(conversation_id: str, settled: SettledInput) -> v1.QueuedMessage:
    return queued(conversation_id, settled.outcome, run=settled.run, at=settled.at)
