"""Serves the calls that list or get parts of conversations. Everything here blocks, and runs in a `ReadPool`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from bedrock import v1
from msgspec import Struct

from actors.core.content import Message
from actors.core.context import ApprovalRule
from actors.core.errors import Reason
from actors.messages import UnknownApprovalRuleError
from actors.ports import ConversationReader, ConversationRecord, StoreReader, Workspace
from actors.ports.conditions import (
    Condition,
    IsWithin,
    ListPosition,
    Selection,
    TextEquals,
    TextField,
    conjuncts,
    leaves,
    place_of,
    rewritten,
)
from server.contract import limits
from server.contract import resource_names as names
from server.contract.errors import ConversationNotFoundError, MalformedRequestError
from server.contract.filters import meaning, order_of, parse
from server.contract.pagination import Page, page_of, position_of, size_of, token_of
from server.queries.pending import find_approval, find_question, list_approvals, list_questions, list_queue, waiting
from server.queries.request_cycles import find_cycle, list_cycles
from server.wire import conversation_messages as states
from server.wire import messages
from server.wire.conversation_messages import approval_rule
from server.wire.cycles import View
from server.wire.values import ConversionContext


def selection_of(
    store: ConversationReader, principal: str, text: str, order_by: str, *, parent: str | None = None
) -> Selection:
    """Return the selection of conversations for a filter (`text`) and an order, which must be valid.

    If `parent`, the id of a conversation, is given, only its sub-agents are selected; otherwise the filter alone
    decides. Paths and names of conversations in the filter are resolved now, because a path may contain a symbolic
    link, and a name may contain a slug.
    """
    where = rewritten(parse(text, meaning), partial(_looked_up, store, principal))
    order = order_of(order_by)
    if parent is not None:
        return Selection(principal, where, order, parent)
    parent = next(filter(None, map(_parent, conjuncts(where))), None)
    mixed = parent is None and any(map(_about_parent, leaves(where)))
    return Selection(principal, where, order, parent, sub_agents=mixed)


def _looked_up(store: ConversationReader, principal: str, condition: Condition) -> Condition:
    match condition:
        case TextEquals(TextField.DIRECTORY, path):
            return TextEquals(TextField.DIRECTORY, os.path.realpath(path))
        case IsWithin(path):
            return IsWithin(os.path.realpath(path))
        case TextEquals(TextField.PARENT | TextField.FORKED_FROM as field, name) if name:
            return TextEquals(field, store.find_slug(principal, name) or name)
        case _:
            return condition


def _about_parent(condition: Condition) -> bool:
    return isinstance(condition, TextEquals) and condition.field is TextField.PARENT


def _parent(condition: Condition) -> str:
    """Return the id of the parent conversation that a condition demands; "" if the condition demands none."""
    return condition.value if isinstance(condition, TextEquals) and condition.field is TextField.PARENT else ""


class NotBrowsableError(MalformedRequestError):
    """The path cannot be listed. The text says why."""

    reason = Reason.WORKING_DIRECTORY_INVALID.value

    def __init__(self, text: str) -> None:
        super().__init__(("path", text))


def browse_directory(
    workspace: Workspace, request: v1.BrowseDirectoryRequest, within: Sequence[str] | None = None
) -> v1.BrowseDirectoryResponse:
    """List a directory. The path "" means the home directory of the server's user, or the first directory of `within`.

    Only the directories in `within`, and those beneath them, can be listed; None allows all. Raises
    MalformedRequestError for another path, and for a wrong page token.
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
    """Return the key that sorts the entries of a directory: directories first, then by name."""
    return f"{0 if entry.directory else 1}{entry.name}"


CHUNK = 100
"""How many rows are read at a time. If a page reaches its limit of bytes, the rows read beyond it are wasted."""
READS = 20
"""The most reads for one page: enough for the largest page, but limited for filters that match few conversations."""


class _Messages(Struct):
    """The content of a page token: the next page begins after this message, in the requested order."""

    sequence: int


class _Rules(Struct):
    """The content of a page token: the next page begins with the rule at this index."""

    place: int


class Listings:
    """Reads pages of lists, and single items, from the store."""

    def __init__(
        self, store: StoreReader, conversion: ConversionContext, operator_rules: Sequence[ApprovalRule] = ()
    ) -> None:
        self._store = store
        self._conversion = conversion
        self._operator_rules = operator_rules
        self.queue = partial(list_queue, store)
        self.approvals = partial(list_approvals, store, conversion)
        self.approval = partial(find_approval, store, conversion)
        self.questions = partial(list_questions, store, conversion)
        self.question = partial(find_question, store, conversion)

    def conversations(
        self, request: v1.ListConversationsRequest, principal: str, parent: str | None
    ) -> v1.ListConversationsResponse:
        """Return a page of conversations; if `parent` is given, only sub-agents of the conversation with this id.

        Raises MalformedRequestError for a wrong page token.
        """
        listing = ("conversations", principal, parent, request.filter, request.order_by)
        place = position_of(request.page_token, ListPosition, *listing)
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
                place = place_of(record, selection.order)
            if found.more is None:
                answer.next_page_token = ""
                return answer
            place, answer.next_page_token = found.more, token_of(found.more, *listing)
        return answer

    def messages(self, request: v1.ListMessagesRequest, conversation_id: str) -> v1.ListMessagesResponse:
        """Return a page of messages, and the revision that the conversation had before they were read.

        A client that subscribes to events after this revision misses nothing. Raises ConversationNotFoundError, and
        MalformedRequestError for a wrong page token.
        """
        record = self._store.load(conversation_id)
        if record is None:
            raise ConversationNotFoundError(request.parent)
        listing = ("messages", conversation_id, request.after_sequence, request.descending)
        start = position_of(request.page_token, _Messages, *listing)
        size = size_of(request.page_size, limits.MESSAGES_PAGE)
        page, answer = Page(size, limits.PAGE_BYTES), v1.ListMessagesResponse(revision=record.last_seq)
        place = start.sequence if start else 0
        while stored := self._messages_from(conversation_id, request, place):
            for message in stored:
                shown = messages.message(self._conversion, conversation_id, message)
                if not page.admit(shown.ByteSize()):
                    answer.next_page_token = token_of(_Messages(place), *listing)
                    return answer
                answer.messages.append(shown)
                place = message.sequence
            if len(stored) < CHUNK:
                break
        return answer

    def _messages_from(self, conversation_id: str, request: v1.ListMessagesRequest, place: int) -> tuple[Message, ...]:
        if request.descending:
            return self._store.messages(
                conversation_id,
                after=request.after_sequence,
                before=place or None,
                limit=CHUNK,
                descending=True,
            )
        return self._store.messages(conversation_id, after=max(place, request.after_sequence), limit=CHUNK)

    def message(self, name: str, conversation_id: str, message_id: str) -> v1.Message:
        """Return a message of the history or of the queue.

        Raises ConversationNotFoundError if there is no such message.
        """
        # The record, with the queue, is read first: a message that leaves the queue in between is found in the history.
        record = self._store.load(conversation_id)
        stored = self._store.message(conversation_id, message_id)
        if stored is not None:
            return messages.message(self._conversion, conversation_id, stored)
        for queued, delivery, run in waiting(record) if record else ():
            if queued.message_id == message_id:
                return messages.queued_message(conversation_id, queued, delivery, run)
        raise ConversationNotFoundError(name)

    def cycle(self, name: str, conversation_id: str, run: str, view: View) -> v1.RequestCycle:
        """Return the request cycle of a run: the run's messages, grouped into steps.

        Raises ConversationNotFoundError.
        """
        found = find_cycle(self._store, self._conversion, conversation_id, run, view)
        if found is None:
            raise ConversationNotFoundError(name)
        return found

    def approval_rules(
        self, request: v1.ListApprovalRulesRequest, record: ConversationRecord
    ) -> v1.ListApprovalRulesResponse:
        """Return a page of the operator's approval rules, followed by those of the conversation. Does not block."""
        listing = ("approvalRules", record.id)
        start = position_of(request.page_token, _Rules, *listing)
        page = Page(size_of(request.page_size, limits.RULES_PAGE), limits.PAGE_BYTES)
        answer, first = v1.ListApprovalRulesResponse(), start.place if start else 0
        for place, rule in enumerate((*self._operator_rules, *record.approval_rules)[first:], first):
            shown = approval_rule(record.id, rule)
            if not page.admit(shown.ByteSize()):
                answer.next_page_token = token_of(_Rules(place), *listing)
                break
            answer.approval_rules.append(shown)
        return answer

    def approval_rule(self, name: str, rule_id: str, record: ConversationRecord | None) -> v1.ApprovalRule:
        """Return an approval rule of a conversation; if `record` is None, of the operator. Does not block.

        Raises UnknownApprovalRuleError if there is no such rule.
        """
        for rule in record.approval_rules if record else self._operator_rules:
            if rule.id == rule_id:
                return approval_rule(record.id if record else "", rule)
        raise UnknownApprovalRuleError(f"{name} does not exist")

    def cycles(self, request: v1.ListRequestCyclesRequest, conversation_id: str) -> v1.ListRequestCyclesResponse:
        """Return a page of request cycles: the runs of a conversation with their messages.

        Raises ConversationNotFoundError, and MalformedRequestError for a wrong page token.
        """
        return list_cycles(self._store, self._conversion, request, conversation_id)
