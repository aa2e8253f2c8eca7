"""Idempotency of commands: an accepted command is recorded, so that a repeated request is recognised."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from actors.core.errors import Reason, Rejected
from actors.messages.refusals import UnknownConversationError
from actors.ports import CommandRecord, ConversationRecord

if TYPE_CHECKING:
    from actors.messages.commands import (
        AnswerQuestionCommand,
        ContinueConversationCommand,
        CreateApprovalRuleCommand,
        CreatingCommand,
        SendMessageCommand,
        SpawnSubAgentsCommand,
        SubmitToolResultCommand,
    )
    from actors.ports import Store

    RepeatableCommand: TypeAlias = (
        SendMessageCommand
        | ContinueConversationCommand
        | SpawnSubAgentsCommand
        | SubmitToolResultCommand
        | AnswerQuestionCommand
        | CreateApprovalRuleCommand
    )
    """A command to an existing conversation that may have a request id."""


def known_command(
    store: Store,
    conversation_id: str,
    request: RepeatableCommand,
) -> CommandRecord | None:
    """Return the stored record of this command if it was accepted before; None otherwise, or without a request id.

    Raises Rejected if the request id was used for a different command, or StoreError.
    """
    known = store.command(conversation_id, request.request_id) if request.request_id else None
    return _same(known, request.body_hash)


def known_create(store: Store, request: CreatingCommand) -> CommandRecord | None:
    """Return the stored record of this Create or Fork command if it was accepted before; see `known_command`."""
    known = store.create_command(request.principal, request.request_id) if request.request_id else None
    return _same(known, request.body_hash)


def created_by(store: Store, known: CommandRecord) -> ConversationRecord:
    """Return the conversation that an accepted command created. Raises UnknownConversationError or StoreError."""
    record = store.load(known.answer.decode())
    if record is None:
        raise UnknownConversationError("the conversation that this request_id created has been deleted")
    return record


def command_record(request: RepeatableCommand, answer: bytes, at: int) -> CommandRecord | None:
    """Return the record to store for an accepted command; None without a request id."""
    return CommandRecord(request.request_id, request.body_hash, answer, at) if request.request_id else None


def _same(known: CommandRecord | None, body_hash: str) -> CommandRecord | None:
    if known is not None and known.body_hash != body_hash:
        raise Rejected(Reason.REQUEST_ID_REUSED)
    return known
