"""Read the questions that wait for a person: approvals, and questions of running tools. Blocks, on a reading thread.

They are part of the conversations' states, so only the conversations that wait for a person are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from bedrock import v1
from msgspec import Struct

from actors.core.states import AwaitingToolApproval, ToolExecuting
from actors.ports.store.conditions import ListPosition, Order, OrderKey, Selection, StateIs
from server.contract import limits
from server.contract import resource_names as names
from server.contract.errors import ConversationNotFoundError
from server.contract.pagination import Page, position_of, size_of, token_of
from server.wire.conversations.conversation_messages import pending_approvals, pending_questions, summary_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, MutableSequence

    from actors.ports import ConversationReader, ConversationRecord
    from server.wire.context import ConversionContext

Shown = TypeVar("Shown", v1.PendingApproval, v1.Question)

CHUNK = 100
"""Conversations read at a time."""
LONGEST_WAITING_FIRST = Order(OrderKey.STATE_ENTERED, descending=False)
APPROVALS_IN = StateIs(frozenset({str(AwaitingToolApproval.__struct_config__.tag)}))
QUESTIONS_IN = StateIs(frozenset({str(ToolExecuting.__struct_config__.tag)}))


class _Position(Struct):
    """Page token: continue after this question."""

    entered: int
    """When its conversation entered its state, ms since the epoch."""
    id: str
    """Its conversation."""
    call: int
    """The index of its tool call in the model's response; of what a tool asks, its number."""

    def is_after(self, last: _Position | None) -> bool:
        """Return whether a list that has come to `last` still has to show what is here, in the same conversation."""
        return last is None or (last.entered, last.id) != (self.entered, self.id) or self.call > last.call


def list_approvals(
    store: ConversationReader,
    conversion: ConversionContext,
    request: v1.ListApprovalsRequest,
    principal: str,
    conversation_id: str | None,
) -> v1.ListApprovalsResponse:
    """Return a page of questions, of one conversation or of all that the principal has that can be read."""
    listing = ("approvals", principal, conversation_id)
    last = position_of(request.page_token, _Position, *listing)
    answer = v1.ListApprovalsResponse()
    where = _Where(principal, conversation_id, last, APPROVALS_IN)
    found = (
        each for record in _waiting(store, where, answer.unreadable) for each in _approvals(conversion, record, last)
    )
    answer.next_page_token = _fill(answer.approvals, found, request.page_size, listing)
    return answer


def list_questions(
    store: ConversationReader,
    conversion: ConversionContext,
    request: v1.ListQuestionsRequest,
    principal: str,
    conversation_id: str | None,
) -> v1.ListQuestionsResponse:
    """Return a page of what running tools ask, in one conversation or in all of the principal that can be read."""
    listing = ("questions", principal, conversation_id)
    last = position_of(request.page_token, _Position, *listing)
    answer = v1.ListQuestionsResponse()
    where = _Where(principal, conversation_id, last, QUESTIONS_IN)
    found = (
        each for record in _waiting(store, where, answer.unreadable) for each in _questions(conversion, record, last)
    )
    answer.next_page_token = _fill(answer.questions, found, request.page_size, listing)
    return answer


def find_approval(
    store: ConversationReader, conversion: ConversionContext, conversation_id: str, request: v1.GetApprovalRequest
) -> v1.PendingApproval:
    """Return an open question. Raises ConversationNotFoundError."""
    record = store.load(conversation_id)
    if record is not None:
        _, tool_use_id = names.parse_child(request.name, "approvals") or ("", "")
        wanted = names.approval(conversation_id, tool_use_id)
        for question, _ in _approvals(conversion, record, None):
            if question.name == wanted:
                return question
    raise ConversationNotFoundError(request.name)


def find_question(
    store: ConversationReader, conversion: ConversionContext, conversation_id: str, request: v1.GetQuestionRequest
) -> v1.Question:
    """Return a question that a running tool asks. Raises ConversationNotFoundError."""
    record, (_, wanted) = store.load(conversation_id), names.parse_child(request.name, "questions") or ("", "")
    if record is not None:
        for question in pending_questions(conversation_id, summary_of(conversion, record.id, record.state)):
            if question.name.rpartition("/")[2] == wanted:
                return question
    raise ConversationNotFoundError(request.name)


@dataclass(frozen=True, slots=True)
class _Where:
    """The conversations of a list."""

    principal: str
    conversation_id: str | None
    """The only conversation; None: all conversations of the principal."""
    last: _Position | None
    """The position where the previous page ended."""
    states: StateIs


def _waiting(
    store: ConversationReader, where: _Where, unreadable: MutableSequence[str]
) -> Iterator[ConversationRecord]:
    """Yield the conversations that may have questions after a position, beginning with the one at the position.

    The names of unreadable conversations are added to `unreadable`.
    """
    last, only = where.last, where.conversation_id
    record = store.load(only or (last.id if last else ""))
    if record is not None and (only or last is None or record.state_updated_at == last.entered):
        yield record
    if only:
        return
    selection = Selection(where.principal, where.states, LONGEST_WAITING_FIRST)
    place = ListPosition(last.entered, last.id) if last else None
    while True:
        found = store.list(
            selection, after=place, limit=CHUNK, skipped=lambda id_: unreadable.append(names.conversation(id_))
        )
        yield from found.records
        if found.more is None:
            return
        place = found.more


def _fill(
    into: MutableSequence[Shown],
    found: Iterable[tuple[Shown, _Position]],
    page_size: int,
    listing: tuple[str, str, str | None],
) -> str:
    """Fill a page with the questions found; return the next page's token, "" for the last page."""
    page, last = Page(size_of(page_size, limits.APPROVALS_PAGE), limits.PAGE_BYTES), None
    for question, position in found:
        if not page.take(question.ByteSize()):
            assert last is not None  # noqa: S101 -- the first one always fits
            return token_of(last, *listing)
        into.append(question)
        last = position
    return ""


def _approvals(
    conversion: ConversionContext, record: ConversationRecord, last: _Position | None
) -> Iterator[tuple[v1.PendingApproval, _Position]]:
    """Yield the open approvals of a conversation after a position, each with its own position."""
    state = record.state
    if not isinstance(state, AwaitingToolApproval):
        return
    numbers = {call.id: number for number, call in enumerate(state.calls)}
    summary = summary_of(conversion, record.id, state)
    shown = pending_approvals(conversion, record.id, summary)
    for call, question in zip(summary.undecided, shown, strict=True):
        position = _Position(record.state_updated_at, record.id, numbers[call.id])
        if position.is_after(last):
            yield question, position


def _questions(
    conversion: ConversionContext, record: ConversationRecord, last: _Position | None
) -> Iterator[tuple[v1.Question, _Position]]:
    """Yield the questions of a conversation's running tool after a position, each with its own position."""
    if not isinstance(record.state, ToolExecuting):
        return
    summary = summary_of(conversion, record.id, record.state)
    for asked, question in zip(summary.questions, pending_questions(record.id, summary), strict=True):
        position = _Position(record.state_updated_at, record.id, asked.number)
        if position.is_after(last):
            yield question, position
