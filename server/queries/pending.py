"""Reads what waits in conversations, or has waited: pending approvals, questions of running tools, queued messages.

Everything here blocks, and runs on threads of `ReadPool`. Approvals and questions are part of a conversation's state,
so only conversations in the two states that can have them are read. A steer is a message for the agent's present run;
a follow-up starts a new run after the present one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bedrock import v1
from msgspec import Struct

from actors.core.notifications import Fate, QueueChanged
from actors.core.states import AwaitingToolApproval, QueuedInput, ToolExecuting
from actors.core.summary import run_id
from actors.ports import ConversationReader, ConversationRecord, SettledInput, StoreReader
from actors.ports.conditions import ListPosition, Order, OrderKey, Selection, StateIs
from server.contract import limits
from server.contract import resource_names as names
from server.contract.errors import ConversationNotFoundError
from server.contract.pagination import Page, position_of, size_of, token_of
from server.wire.conversation_messages import pending_approvals, pending_questions, summary_of
from server.wire.messages import queued
from server.wire.values import ConversionContext

Shown = TypeVar("Shown", v1.PendingApproval, v1.Question)

CHUNK = 100
"""How many conversations are read at a time."""
LONGEST_WAITING_FIRST = Order(OrderKey.STATE_ENTERED, descending=False)
APPROVALS_IN = StateIs(frozenset({str(AwaitingToolApproval.__struct_config__.tag)}))
QUESTIONS_IN = StateIs(frozenset({str(ToolExecuting.__struct_config__.tag)}))


class _Position(Struct):
    """The content of a page token: the next page begins after this approval or question."""

    entered: int
    """When the conversation entered its present state, in milliseconds since 1970."""
    id: str
    """The id of the conversation."""
    call: int
    """For an approval, the index of its tool call in the model's answer; for a question, its number."""

    def is_after(self, last: _Position | None) -> bool:
        """Return whether this item comes after `last`, the end of the previous page; True if `last` is None.

        `call` matters only for items of the same conversation, because the store has skipped earlier conversations.
        """
        return last is None or (last.entered, last.id) != (self.entered, self.id) or self.call > last.call


@dataclass(frozen=True, slots=True)
class _List:
    """One list of pending approvals or questions: which items are on it, and where they are found."""

    kind: str
    states: StateIs
    """The states in which a conversation may have pending approvals or questions."""
    principal: str
    conversation_id: str | None
    """The only conversation to look at; None to look at all conversations of the principal."""

    @property
    def scope(self) -> tuple[str, str, str | None]:
        """The values that identify this list, so that its page tokens are not accepted for another list."""
        return self.kind, self.principal, self.conversation_id


def list_approvals(
    store: ConversationReader,
    conversion: ConversionContext,
    request: v1.ListApprovalsRequest,
    principal: str,
    conversation_id: str | None,
) -> v1.ListApprovalsResponse:
    """Return a page of pending approvals.

    If `conversation_id` is None, they are from all conversations of the principal. The response names the conversations
    that could not be read. Raises MalformedRequestError for a wrong page token.
    """
    answer = v1.ListApprovalsResponse()
    wanted = _List("approvals", APPROVALS_IN, principal, conversation_id)
    _fill(answer, store, request, wanted, into=answer.approvals, found_in=lambda record: _approvals(conversion, record))
    return answer


def list_questions(
    store: ConversationReader,
    conversion: ConversionContext,
    request: v1.ListQuestionsRequest,
    principal: str,
    conversation_id: str | None,
) -> v1.ListQuestionsResponse:
    """Return a page of tools' open questions.

    If `conversation_id` is None, they are from all conversations of the principal. The response names the conversations
    that could not be read. Raises MalformedRequestError for a wrong page token.
    """
    answer = v1.ListQuestionsResponse()
    wanted = _List("questions", QUESTIONS_IN, principal, conversation_id)
    _fill(answer, store, request, wanted, into=answer.questions, found_in=lambda record: _questions(conversion, record))
    return answer


def find_approval(
    store: ConversationReader, conversion: ConversionContext, request: v1.GetApprovalRequest, conversation_id: str
) -> v1.PendingApproval:
    """Return a pending approval. Raises ConversationNotFoundError if it does not exist or was decided."""
    record = store.load(conversation_id)
    if record is not None:
        _, tool_use_id = names.parse_child(request.name, "approvals") or ("", "")
        wanted = names.approval(conversation_id, tool_use_id)
        for question, _ in _approvals(conversion, record):
            if question.name == wanted:
                return question
    raise ConversationNotFoundError(request.name)


def find_question(
    store: ConversationReader, conversion: ConversionContext, request: v1.GetQuestionRequest, conversation_id: str
) -> v1.Question:
    """Return an unanswered question of a running tool. Raises ConversationNotFoundError if there is none."""
    record, (_, wanted) = store.load(conversation_id), names.parse_child(request.name, "questions") or ("", "")
    if record is not None:
        for question in pending_questions(conversation_id, summary_of(conversion, record.id, record.state)):
            if question.name.rpartition("/")[2] == wanted:
                return question
    raise ConversationNotFoundError(request.name)


def _waiting(
    store: ConversationReader, wanted: _List, last: _Position | None, unreadable: MutableSequence[str]
) -> Iterator[ConversationRecord]:
    """Yield the conversations that may have approvals or questions after `last`, the end of the previous page.

    The previous page may have ended within the first of these conversations. The names of conversations that cannot be
    read are added to `unreadable`.
    """
    only = wanted.conversation_id
    record = store.load(only or (last.id if last else ""))
    if record is not None and (only or last is None or record.state_updated_at == last.entered):
        yield record
    if only:
        return
    selection = Selection(wanted.principal, wanted.states, LONGEST_WAITING_FIRST)
    position = ListPosition(last.entered, last.id) if last else None
    while True:
        found = store.list(
            selection, after=position, limit=CHUNK, skipped=lambda id_: unreadable.append(names.conversation(id_))
        )
        yield from found.records
        if found.more is None:
            return
        position = found.more


def _fill(
    answer: v1.ListApprovalsResponse | v1.ListQuestionsResponse,
    store: ConversationReader,
    request: v1.ListApprovalsRequest | v1.ListQuestionsRequest,
    wanted: _List,
    *,
    into: MutableSequence[Shown],
    found_in: Callable[[ConversationRecord], Iterator[tuple[Shown, _Position]]],
) -> None:
    """Add the items of one page to `into`, a field of `answer`, and set the token of the next page."""
    begin = last = position_of(request.page_token, _Position, *wanted.scope)
    page = Page(size_of(request.page_size, limits.APPROVALS_PAGE), limits.PAGE_BYTES)
    for record in _waiting(store, wanted, begin, answer.unreadable):
        for question, position in found_in(record):
            if not position.is_after(begin):
                continue
            if not page.admit(question.ByteSize()):
                assert last is not None  # noqa: S101 -- the first item always fits
                answer.next_page_token = token_of(last, *wanted.scope)
                return
            into.append(question)
            last = position


def _approvals(
    conversion: ConversionContext, record: ConversationRecord
) -> Iterator[tuple[v1.PendingApproval, _Position]]:
    state = record.state
    if not isinstance(state, AwaitingToolApproval):
        return
    numbers = {call.id: number for number, call in enumerate(state.calls)}
    summary = summary_of(conversion, record.id, state)
    shown = pending_approvals(conversion, record.id, summary)
    for call, question in zip(summary.undecided, shown, strict=True):
        yield question, _Position(record.state_updated_at, record.id, numbers[call.id])


def _questions(conversion: ConversionContext, record: ConversationRecord) -> Iterator[tuple[v1.Question, _Position]]:
    if not isinstance(record.state, ToolExecuting):
        return
    summary = summary_of(conversion, record.id, record.state)
    for asked, question in zip(summary.questions, pending_questions(record.id, summary), strict=True):
        yield question, _Position(record.state_updated_at, record.id, asked.number)


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


def _after(entries: Sequence[_Waiting], last: _Place, *, descending: bool = False) -> Sequence[_Waiting]:
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
        if not page.admit(shown.ByteSize()):
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
    for each, delivery, run in _after(waiting(record), last):
        yield waiting_message(record.id, each, delivery, run), _Place(record.last_seq, each.at, each.message_id)


def _backwards(
    store: StoreReader, record: ConversationRecord, request: v1.ListQueueRequest, last: _Place | None
) -> _Entries:
    if last is None or last.message_id:
        entries = waiting(record)[::-1]
        for each, delivery, run in _after(entries, last, descending=True) if last else entries:
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
