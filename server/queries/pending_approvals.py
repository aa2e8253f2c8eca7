"""Reads what waits for a person's answer: pending approvals, and questions of running tools.

Everything here blocks, and runs on threads of `ReadPool`. Approvals and questions are part of a conversation's state,
so only conversations in the two states that can have them are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from bedrock import v1
from msgspec import Struct

from actors.core.states import AwaitingToolApproval, ToolExecuting
from actors.ports.conditions import ListPosition, Order, OrderKey, Selection, StateIs
from server.contract import limits
from server.contract import resource_names as names
from server.contract.errors import ConversationNotFoundError
from server.contract.pagination import Page, position_of, size_of, token_of
from server.wire.conversations.conversation_messages import pending_approvals, pending_questions, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableSequence

    from actors.ports import ConversationReader, ConversationRecord
    from server.wire.context import ConversionContext

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
    store: ConversationReader, conversion: ConversionContext, conversation_id: str, request: v1.GetApprovalRequest
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
    store: ConversationReader, conversion: ConversionContext, conversation_id: str, request: v1.GetQuestionRequest
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
            if not page.take(question.ByteSize()):
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
