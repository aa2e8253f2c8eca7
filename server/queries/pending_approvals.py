"""Read the questions that wait for a person. Blocks, on a reading thread.

They are part of the states, so a list of them is a list of the conversations that wait, and costs nothing otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock import v1
from msgspec import Struct

from actors.core.states import AwaitingToolApproval
from actors.ports.store.conditions import Order, OrderKey, Place, Selection, StateIs
from server.contract import limits
from server.contract import resource_names as names
from server.contract.errors import ConversationNotFoundError
from server.contract.pagination import Page, position_of, size_of, token_of
from server.wire.conversation_messages import pending_approvals, pending_questions, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from actors.ports import ConversationReader, ConversationRecord
    from server.wire.context import ConversionContext

CHUNK = 100
"""Conversations read at a time."""
LONGEST_WAITING_FIRST = Order(OrderKey.STATE_ENTERED, descending=False)
WAITING = StateIs(frozenset({str(AwaitingToolApproval.__struct_config__.tag)}))


class _Position(Struct):
    """Page token: continue after this question."""

    entered: int
    """When its conversation began to wait, ms since the epoch."""
    id: str
    """Its conversation."""
    call: int
    """The index of its tool call in the model's response."""


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
    page, answer = (
        Page(size_of(request.page_size, limits.APPROVALS_PAGE), limits.PAGE_BYTES),
        v1.ListApprovalsResponse(),
    )

    def skipped(unreadable: str) -> None:
        answer.unreadable.append(names.conversation(unreadable))

    for record in _waiting(store, principal, conversation_id, last, skipped):
        for question, position in _questions(conversion, record, last):
            if not page.take(question.ByteSize()):
                assert last is not None  # noqa: S101 -- the first one always fits
                answer.next_page_token = token_of(last, *listing)
                return answer
            answer.approvals.append(question)
            last = position
    return answer


def find_approval(
    store: ConversationReader, conversion: ConversionContext, conversation_id: str, request: v1.GetApprovalRequest
) -> v1.PendingApproval:
    """Return an open question. Raises ConversationNotFoundError."""
    record = store.load(conversation_id)
    if record is not None:
        _, tool_use_id = names.parse_child(request.name, "approvals") or ("", "")
        wanted = names.approval(conversation_id, tool_use_id)
        for question, _ in _questions(conversion, record, None):
            if question.name == wanted:
                return question
    raise ConversationNotFoundError(request.name)


def find_question(
    store: ConversationReader, conversion: ConversionContext, conversation_id: str, request: v1.GetQuestionRequest
) -> v1.Question:
    """Return what a running tool asks a person. Raises ConversationNotFoundError."""
    record, (_, wanted) = store.load(conversation_id), names.parse_child(request.name, "questions") or ("", "")
    if record is not None:
        for question in pending_questions(conversation_id, summary_of(conversion, record.id, record.state)):
            if question.name.rpartition("/")[2] == wanted:
                return question
    raise ConversationNotFoundError(request.name)


def _waiting(
    store: ConversationReader,
    principal: str,
    conversation_id: str | None,
    last: _Position | None,
    skipped: Callable[[str], object],
) -> Iterator[ConversationRecord]:
    """Yield the conversations that may have questions after a position: first the one that is there.

    `skipped` is called with the id of each that cannot be read.
    """
    record = store.load(conversation_id or (last.id if last else ""))
    if record is not None and (conversation_id or last is None or record.state_updated_at == last.entered):
        yield record
    if conversation_id:
        return
    selection = Selection(principal, WAITING, LONGEST_WAITING_FIRST)
    place = Place(last.entered, last.id) if last else None
    while True:
        found = store.list(selection, after=place, limit=CHUNK, skipped=skipped)
        yield from found.records
        if found.more is None:
            return
        place = found.more


def _questions(
    conversion: ConversionContext, record: ConversationRecord, last: _Position | None
) -> Iterator[tuple[v1.PendingApproval, _Position]]:
    """Yield the open questions of a conversation after a position, each with its own."""
    state = record.state
    if not isinstance(state, AwaitingToolApproval):
        return
    numbers = {call.id: number for number, call in enumerate(state.calls)}
    summary = summary_of(conversion, record.id, state)
    shown = pending_approvals(conversion, record.id, summary)
    entered = record.state_updated_at
    for call, question in zip(summary.undecided, shown, strict=True):
        if last is None or (last.entered, last.id) != (entered, record.id) or numbers[call.id] > last.call:
            yield question, _Position(entered, record.id, numbers[call.id])
