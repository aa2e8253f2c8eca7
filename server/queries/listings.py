"""Serves the calls that list or get parts of conversations, including waiting approvals, questions and messages.

Everything here blocks, and runs on threads of `ReadPool`. Approvals and questions are part of a conversation's state,
so only conversations in the two states that can have them are read. A steer is a message for the agent's current run; a
follow-up starts a new run after the current one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from bedrock import v1
from msgspec import Struct

from actors.core.content import Message
from actors.core.context import ApprovalRule
from actors.core.errors import Reason
from actors.core.states import AwaitingToolApproval, ToolExecuting
from actors.ports import ConversationReader, ConversationRecord, SettledInput, StoreReader, Workspace
from actors.ports import store as conditions
from server.contract import limits
from server.contract import resource_names as names
from server.contract.errors import ConversationNotFoundError, MalformedRequestError
from server.contract.filters import meaning, order_of, parse
from server.contract.pagination import Page, fill_page, page_of, position_of, size_of, token_of
from server.wire import conversation_messages as states
from server.wire import messages
from server.wire.conversation_messages import approval_rule, pending_approvals, pending_questions, summary_of
from server.wire.messages import ConversionContext, Waiting, queued, waiting, waiting_message


def selection_of(
    store: ConversationReader, principal: str, text: str, order_by: str, *, parent: str | None = None
) -> conditions.Selection:
    """The selection for a valid filter and order; with `parent`, only among its sub-agents.

    Paths and names are resolved now, because a path may contain a symbolic link, and a name a slug.
    """
    where = conditions.rewritten(parse(text, meaning), partial(_looked_up, store, principal))
    order = order_of(order_by)
    if parent is not None:
        return conditions.Selection(principal, where, order, parent)
    parent = next(filter(None, map(_parent, conditions.conjuncts(where))), None)
    mixed = parent is None and any(map(_about_parent, conditions.leaves(where)))
    return conditions.Selection(principal, where, order, parent, sub_agents=mixed)


def _looked_up(store: ConversationReader, principal: str, condition: conditions.Condition) -> conditions.Condition:
    match condition:
        case conditions.TextEquals(conditions.TextField.DIRECTORY, path):
            return conditions.TextEquals(conditions.TextField.DIRECTORY, os.path.realpath(path))
        case conditions.IsWithin(path):
            return conditions.IsWithin(os.path.realpath(path))
        case conditions.TextEquals(conditions.TextField.PARENT | conditions.TextField.FORKED_FROM as field, name) if (
            name
        ):
            return conditions.TextEquals(field, store.find_slug(principal, name) or name)
        case _:
            return condition


def _about_parent(condition: conditions.Condition) -> bool:
    return isinstance(condition, conditions.TextEquals) and condition.field is conditions.TextField.PARENT


def _parent(condition: conditions.Condition) -> str:
    return (
        condition.value
        if isinstance(condition, conditions.TextEquals) and condition.field is conditions.TextField.PARENT
        else ""
    )


class NotBrowsableError(MalformedRequestError):
    """The path cannot be listed. The message says why."""

    reason = Reason.WORKING_DIRECTORY_INVALID.value

    def __init__(self, text: str) -> None:
        super().__init__(("path", text))


def browse_directory(
    workspace: Workspace, request: v1.BrowseDirectoryRequest, within: Sequence[str] | None = None
) -> v1.BrowseDirectoryResponse:
    """List a directory. If `within` is given, it must be one of those directories, or beneath one of them.

    The path "" stands for the first directory in `within` or, without any, for the home directory. Raises
    MalformedRequestError (also for a page token).
    """
    try:
        listing = workspace.list_directory(request.path, within)
    except ValueError as error:
        raise NotBrowsableError(str(error)) from None
    shown = [v1.BrowseDirectoryResponse.Entry(name=each.name, directory=each.directory) for each in listing.entries]
    entries, more = page_of(shown, _key, request, limits.CATALOG_PAGE, "entries", request.path)
    return v1.BrowseDirectoryResponse(
        path=listing.path, entries=entries, truncated=listing.truncated, next_page_token=more
    )


def _key(entry: v1.BrowseDirectoryResponse.Entry) -> str:
    return f"{0 if entry.directory else 1}{entry.name}"


# How many rows are read at a time. If a page reaches its byte limit, the rows read beyond it are wasted.
CHUNK = 100
# The maximum number of reads for one page: enough for the largest page, but limited for filters that match few
# conversations.
READS = 20


class _Messages(Struct):
    sequence: int


class _Rules(Struct):
    place: int


class Listings:
    """Reads pages of lists, and single items, from the store."""

    def __init__(
        self, store: StoreReader, conversion: ConversionContext, operator_rules: Sequence[ApprovalRule] = ()
    ) -> None:
        self._store = store
        self._conversion = conversion
        self._operator_rules = operator_rules

    def conversations(
        self, request: v1.ListConversationsRequest, principal: str, parent: str | None
    ) -> v1.ListConversationsResponse:
        """A page of conversations, or of the sub-agents of `parent`. Raises MalformedRequestError (page token)."""
        listing = ("conversations", principal, parent, request.filter, request.order_by)
        place = position_of(request.page_token, conditions.ListPosition, *listing)
        selection = selection_of(self._store, principal, request.filter, request.order_by, parent=parent)
        page = Page(size_of(request.page_size, limits.CONVERSATIONS_PAGE), limits.PAGE_BYTES)
        answer = v1.ListConversationsResponse()
        for _ in range(READS):
            found = self._store.list(
                selection,
                after=place,
                limit=CHUNK,
                skipped=lambda conversation_id: answer.unreadable.append(names.conversation(conversation_id)),
            )
            for record in found.records:
                shown = states.conversation(self._conversion, record)
                if not page.admit(shown.ByteSize()):
                    assert place is not None  # noqa: S101 -- the first conversation always fits
                    answer.next_page_token = token_of(place, *listing)
                    return answer
                answer.conversations.append(shown)
                place = conditions.place_of(record, selection.order)
            if found.more is None:
                answer.next_page_token = ""
                return answer
            place, answer.next_page_token = found.more, token_of(found.more, *listing)
        return answer

    def messages(self, request: v1.ListMessagesRequest, conversation_id: str) -> v1.ListMessagesResponse:
        """A page of messages, and the revision before the read: a subscriber that resumes there misses nothing.

        Raises ConversationNotFoundError or MalformedRequestError (page token).
        """
        record = self._store.load(conversation_id)
        if record is None:
            raise ConversationNotFoundError(request.parent)
        listing = ("messages", conversation_id, request.after_sequence, request.descending)
        answer = v1.ListMessagesResponse(revision=record.revision)

        def entries(last: _Messages | None) -> Iterator[tuple[v1.Message, _Messages]]:
            place = last.sequence if last else 0
            while stored := self._messages_from(conversation_id, request, place):
                for message in stored:
                    place = message.sequence
                    yield messages.message(self._conversion, conversation_id, message), _Messages(place)
                if len(stored) < CHUNK:
                    return

        answer.next_page_token = fill_page(answer.messages, request, limits.MESSAGES_PAGE, entries, _Messages, *listing)
        return answer

    def _messages_from(self, conversation_id: str, request: v1.ListMessagesRequest, place: int) -> tuple[Message, ...]:
        if request.descending:
            return self._store.messages(
                conversation_id, after=request.after_sequence, before=place or None, limit=CHUNK, descending=True
            )
        return self._store.messages(conversation_id, after=max(place, request.after_sequence), limit=CHUNK)

    def message(self, name: str, conversation_id: str, message_id: str) -> v1.Message:
        """A message of the history or the queue. Raises ConversationNotFoundError."""
        # The record, with the queue, is read first: a message that leaves the queue in between is found in the history.
        record = self._store.load(conversation_id)
        stored = self._store.message(conversation_id, message_id)
        if stored is not None:
            return messages.message(self._conversion, conversation_id, stored)
        for each, delivery, run in waiting(record) if record else ():
            if each.message_id == message_id:
                return messages.queued_message(conversation_id, each, delivery, run)
        raise ConversationNotFoundError(name)

    def approval_rules(
        self, request: v1.ListApprovalRulesRequest, record: ConversationRecord
    ) -> v1.ListApprovalRulesResponse:
        """A page of the operator's approval rules, followed by those of the conversation. Does not block."""
        rules, answer = (*self._operator_rules, *record.approval_rules), v1.ListApprovalRulesResponse()

        def entries(last: _Rules | None) -> Iterator[tuple[v1.ApprovalRule, _Rules]]:
            first = last.place if last else 0
            return ((approval_rule(record.id, rule), _Rules(at)) for at, rule in enumerate(rules[first:], first + 1))

        answer.next_page_token = fill_page(
            answer.approval_rules, request, limits.RULES_PAGE, entries, _Rules, "approvalRules", record.id
        )
        return answer

    def approval_rule(self, name: str, rule_id: str, record: ConversationRecord | None) -> v1.ApprovalRule:
        """A rule of a conversation, or of the operator if `record` is None. Does not block.

        Raises ConversationNotFoundError.
        """
        for rule in record.approval_rules if record else self._operator_rules:
            if rule.id == rule_id:
                return approval_rule(record.id if record else "", rule)
        raise ConversationNotFoundError(name)


Shown = TypeVar("Shown", v1.PendingApproval, v1.Question)

LONGEST_WAITING_FIRST = conditions.Order(conditions.OrderKey.STATE_ENTERED, descending=False)
APPROVALS_IN = conditions.StateIs(frozenset({str(AwaitingToolApproval.__struct_config__.tag)}))
QUESTIONS_IN = conditions.StateIs(frozenset({str(ToolExecuting.__struct_config__.tag)}))


class _Position(Struct):
    entered: int
    id: str
    call: int
    """For an approval, the index of its tool call in the model's answer; for a question, its number."""

    def is_after(self, last: _Position | None) -> bool:
        """Whether this item comes after the previous page; `call` orders the items of one conversation."""
        return last is None or (last.entered, last.id) != (self.entered, self.id) or self.call > last.call


@dataclass(frozen=True, slots=True)
class _List:
    """One list of pending approvals or questions: which items are on it, and where they are found."""

    kind: str
    states: conditions.StateIs
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
    """A page of pending approvals in one conversation or, if `conversation_id` is None, in all of the principal's.

    The response names unreadable conversations. Raises MalformedRequestError (page token).
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
    """A page of open questions in one conversation or, if `conversation_id` is None, in all of the principal's.

    The response names unreadable conversations. Raises MalformedRequestError (page token).
    """
    answer = v1.ListQuestionsResponse()
    wanted = _List("questions", QUESTIONS_IN, principal, conversation_id)
    _fill(answer, store, request, wanted, into=answer.questions, found_in=lambda record: _questions(conversion, record))
    return answer


def find_approval(
    store: ConversationReader, conversion: ConversionContext, request: v1.GetApprovalRequest, conversation_id: str
) -> v1.PendingApproval:
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
    """An unanswered question of a running tool. Raises ConversationNotFoundError if there is none."""
    record, (_, wanted) = store.load(conversation_id), names.parse_child(request.name, "questions") or ("", "")
    if record is not None:
        for question in pending_questions(conversation_id, summary_of(conversion, record.id, record.state)):
            if question.name.rpartition("/")[2] == wanted:
                return question
    raise ConversationNotFoundError(request.name)


def _waiting(
    store: ConversationReader, wanted: _List, last: _Position | None, unreadable: MutableSequence[str]
) -> Iterator[ConversationRecord]:
    """Yield the conversations that may have items after `last`. The first may contain `last` itself.

    The names of unreadable conversations are appended to `unreadable`.
    """
    only = wanted.conversation_id
    record = store.load(only or (last.id if last else ""))
    if record is not None and (only or last is None or record.state_updated_at == last.entered):
        yield record
    if only:
        return
    selection = conditions.Selection(wanted.principal, wanted.states, LONGEST_WAITING_FIRST)
    position = conditions.ListPosition(last.entered, last.id) if last else None
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
    def entries(last: _Position | None) -> Iterator[tuple[Shown, _Position]]:
        for record in _waiting(store, wanted, last, answer.unreadable):
            yield from ((shown, position) for shown, position in found_in(record) if position.is_after(last))

    answer.next_page_token = fill_page(into, request, limits.APPROVALS_PAGE, entries, _Position, *wanted.scope)


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


class _Place(Struct):
    revision: int = 0
    at: int = 0
    message_id: str = ""
    """The id of a waiting message, with its time of acceptance in `at`; "" for one that has left the queue."""


def _after(entries: Sequence[Waiting], last: _Place, *, descending: bool = False) -> Sequence[Waiting]:
    """The messages after `last`.

    If `last` has left the queue, those accepted since then (`descending`: before then).
    """
    for index, (each, _, _) in enumerate(entries):
        if each.message_id == last.message_id:
            return entries[index + 1 :]
    if descending:
        return [entry for entry in entries if entry[0].at <= last.at]
    return [entry for entry in entries if entry[0].at >= last.at]


def list_queue(store: StoreReader, request: v1.ListQueueRequest, conversation_id: str) -> v1.ListQueueResponse:
    """A page of the queue. Raises ConversationNotFoundError or MalformedRequestError (page token).

    A message that leaves the queue between two pages is on one of them, possibly on both.
    """
    record = store.load(conversation_id)
    if record is None:
        raise ConversationNotFoundError(request.parent)
    listing = ("queue", conversation_id, request.include_settled, request.descending)
    answer = v1.ListQueueResponse()
    entries = partial(_backwards if request.descending else _forwards, store, record, request)
    answer.next_page_token = fill_page(answer.messages, request, limits.QUEUE_PAGE, entries, _Place, *listing)
    return answer


_Entries = Iterator[tuple[v1.QueuedMessage, _Place]]


def _forwards(
    store: StoreReader, record: ConversationRecord, request: v1.ListQueueRequest, last: _Place | None
) -> _Entries:
    last = last or _Place()
    while request.include_settled:
        found = store.settled_inputs(record.id, after=last.revision, before=record.revision + 1, limit=CHUNK)
        for settled in found:
            last = _Place(settled.revision)
            yield _settled(record.id, settled), last
        if len(found) < CHUNK:
            break
    for each, delivery, run in _after(waiting(record), last):
        yield waiting_message(record.id, each, delivery, run), _Place(record.revision, each.at, each.message_id)


def _backwards(
    store: StoreReader, record: ConversationRecord, request: v1.ListQueueRequest, last: _Place | None
) -> _Entries:
    if last is None or last.message_id:
        entries = waiting(record)[::-1]
        for each, delivery, run in _after(entries, last, descending=True) if last else entries:
            yield waiting_message(record.id, each, delivery, run), _Place(0, each.at, each.message_id)
    before = last.revision if last and last.revision else record.revision + 1
    while request.include_settled:
        found = store.settled_inputs(record.id, before=before, limit=CHUNK, descending=True)
        for settled in found:
            before = settled.revision
            yield _settled(record.id, settled), _Place(before)
        if len(found) < CHUNK:
            break


def _settled(conversation_id: str, settled: SettledInput) -> v1.QueuedMessage:
    return queued(conversation_id, settled.outcome, run=settled.run, at=settled.at)
