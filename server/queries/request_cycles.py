"""Reads request cycles page by page. A request cycle is the work from a user's message to the end of the answer.

Request cycles are made from messages and the outcomes of runs, which are never pruned (removed as too old). Everything
here blocks, and runs on threads of `ReadPool`. For a page, only the messages of the page's runs are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, repeat

from bedrock import v1
from msgspec import Struct

from actors.core import request_cycles as cycles
from actors.core.content import Message
from actors.core.notifications import Durable, MessageAdded
from actors.core.summary import run_id
from actors.ports import ConversationRecord, StoppedRun, StoreReader
from server.contract import limits
from server.contract.errors import ConversationNotFoundError
from server.contract.pagination import Page, position_of, size_of, token_of
from server.wire.cycles import CycleView, View, fit
from server.wire.values import ConversionContext


class _Place(Struct):
    """The content of a page token: the next page begins after this run, in the requested order."""

    revision: int = 0
    """The revision at which the run ended; 0 for a run in progress."""
    sequence: int = 0
    """The sequence number of the run's last message."""


class _Span(Struct):
    """A run, and the sequence numbers of its messages: greater than `after`, and up to `through`."""

    run: str
    after: int
    through: int
    ended: StoppedRun | None = None
    """The outcome of the run; None while the run is in progress."""

    @property
    def place(self) -> _Place:
        return _Place(self.ended.revision, self.through) if self.ended else _Place()


def list_cycles(
    store: StoreReader, conversion: ConversionContext, request: v1.ListRequestCyclesRequest, conversation_id: str
) -> v1.ListRequestCyclesResponse:
    """Return a page of request cycles; a run in progress is the newest one.

    Raises ConversationNotFoundError, and MalformedRequestError for a wrong page token.
    """
    record = store.load(conversation_id)
    if record is None:
        raise ConversationNotFoundError(request.parent)
    listing = ("cycles", conversation_id, request.view, request.descending)
    last = position_of(request.page_token, _Place, *listing)
    size = size_of(request.page_size, limits.CYCLES_PAGE)
    page, answer = Page(size, limits.PAGE_BYTES), v1.ListRequestCyclesResponse()
    spans = (
        _backwards(store, record, last, size + 1) if request.descending else _forwards(store, record, last, size + 1)
    )
    for span in spans:
        shown = _message(store, conversion, record.id, span, request.view)
        if shown is None:
            continue
        if not page.admit(shown.ByteSize()):
            assert last is not None  # noqa: S101 -- the first cycle always fits
            answer.next_page_token = token_of(last, *listing)
            break
        answer.request_cycles.append(shown)
        last = span.place
    return answer


def find_cycle(
    store: StoreReader, conversion: ConversionContext, conversation_id: str, run: str, view: View
) -> v1.RequestCycle | None:
    """Return the request cycle of a run; None if the conversation has no such run."""
    record = store.load(conversation_id)
    if record is None:
        return None
    # Must be read before `ended`: otherwise `newest` could be the wanted run itself, instead of the run before it.
    newest = store.stopped_runs(conversation_id, limit=1, descending=True)
    ended = store.stopped_run(conversation_id, run)
    if ended is None:
        span = next((live for live in _under_way(record, _last(newest)) if live.run == run), None)
    else:
        older = store.stopped_runs(conversation_id, before=ended.revision, limit=1, descending=True)
        span = _Span(run, _last(older), ended.last_sequence, ended)
    return None if span is None else _message(store, conversion, conversation_id, span, view)


def _last(ended: Sequence[StoppedRun]) -> int:
    return ended[0].last_sequence if ended else 0


def _message(
    store: StoreReader, conversion: ConversionContext, conversation_id: str, span: _Span, view: View
) -> v1.RequestCycle | None:
    """Read the messages of a run, and return its request cycle; None if no message started the run."""
    found = store.messages(conversation_id, after=span.after, before=span.through + 1, limit=span.through - span.after)
    own = [message for message in found if message.run == span.run]
    cycle = _fold(conversion, own, span.ended)
    if cycle is None:
        return None
    return fit(CycleView(conversion, conversation_id, cycle, own).show(view), limits.PAGE_BYTES)


def _fold(
    conversion: ConversionContext, messages: list[Message], ended: StoppedRun | None
) -> cycles.RequestCycle | None:
    notifications: list[Durable] = [MessageAdded(message) for message in messages]
    times: Iterable[int] = repeat(0)
    if ended:
        times = chain(repeat(0, len(notifications)), (ended.at,))
        notifications.append(ended.stop)
    return cycles.cycle_of(cycles.events_of(notifications, conversion.groups, times))


def _forwards(store: StoreReader, record: ConversationRecord, last: _Place | None, chunk: int) -> Iterator[_Span]:
    place = last or _Place()
    while True:
        found = store.stopped_runs(record.id, after=place.revision, limit=chunk)
        for ended in found:
            span = _Span(ended.stop.run, place.sequence, ended.last_sequence, ended)
            place = span.place
            yield span
        if len(found) < chunk:
            break
    yield from _under_way(record, place.sequence)


def _backwards(store: StoreReader, record: ConversationRecord, last: _Place | None, chunk: int) -> Iterator[_Span]:
    before = last.revision or None if last else None  # a last revision of 0 stands for the run in progress
    stopped = _stopped_backwards(store, record.id, before, chunk)
    newest = next(stopped, None)
    if last is None:
        yield from _under_way(record, newest.last_sequence if newest else 0)
    if newest is None:
        return
    for ended, older in pairwise(chain((newest,), stopped, (None,))):
        if ended is not None:
            yield _Span(ended.stop.run, older.last_sequence if older else 0, ended.last_sequence, ended)


def _stopped_backwards(
    store: StoreReader, conversation_id: str, before: int | None, chunk: int
) -> Iterator[StoppedRun]:
    while found := store.stopped_runs(conversation_id, before=before, limit=chunk, descending=True):
        yield from found
        before = found[-1].revision


def _under_way(record: ConversationRecord, after: int) -> Iterator[_Span]:
    """Yield the run that is in progress in `record`, unless it has ended since `record` was read."""
    ledger = record.state.ledger
    if ledger.live and after < ledger.seq:
        yield _Span(run_id(record.id, ledger.run), after, ledger.seq)
