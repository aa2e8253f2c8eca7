"""The results of commands: built from their units of work, or read if a command is repeated; and late answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec.structs import replace

from actors import messages
from actors.common.json_schema import JsonSchema, parse_json
from actors.conversation.unit_of_work import UnitOfWork
from actors.core.content import (
    Message,
    MessageType,
    ToolCancelled,
    ToolError,
    ToolOutcome,
    ToolSuccess,
    ToolUse,
    is_tool_result,
)
from actors.core.effects import SpawnSubAgent
from actors.core.errors import Reason, Rejected
from actors.core.notifications import Fate, MessageAdded, QueueChanged
from actors.core.states import Question
from actors.core.summary import run_id, summarize
from actors.ports import CommandRecord, ConversationRecord, Store, live_run

RepeatableCommand: TypeAlias = (
    messages.SendMessageCommand | messages.ContinueConversationCommand | messages.SpawnSubAgentsCommand
    | messages.SubmitToolResultCommand | messages.AnswerQuestionCommand | messages.CreateApprovalRuleCommand
)  # fmt: skip


def send_result(unit: UnitOfWork, message_id: str) -> messages.SendMessageResult:
    """How a message was accepted: as the first message of a run, or queued."""
    for added in unit.find(MessageAdded):
        if (message := added.message).id == message_id:
            return messages.SendMessageResult(message_id, "direct", message.run, unit.before.revision, message=message)
    queued = next(q for q in unit.find(QueueChanged) if q.input.message_id == message_id)
    steer = queued.delivery == "steer"
    disposition, run = ("steer_queued", live_run(unit.record)) if steer else ("follow_up_queued", "")
    return messages.SendMessageResult(message_id, disposition, run, unit.before.revision, queued=queued.input)


def tool_result_result(unit: UnitOfWork, tool_use_id: str) -> messages.SubmitToolResultResult:
    return next(
        messages.SubmitToolResultResult(added.message)
        for added in unit.find(MessageAdded)
        if any(is_tool_result(block) and block.tool_use_id == tool_use_id for block in added.message.content)
    )


def spawn_result(unit: UnitOfWork, message_id: str) -> messages.SpawnSubAgentsResult:
    after = unit.record
    root = next(added.message for added in unit.find(MessageAdded) if added.message.id == message_id)
    agents = tuple(effect.task.agent_id for effect in unit.effects if isinstance(effect, SpawnSubAgent))
    return messages.SpawnSubAgentsResult(root, run_id(after.id, after.state.ledger.run), agents, unit.before.revision)


def cancel_result(
    unit: UnitOfWork, *, ended: tuple[str, ...], surviving: tuple[str, ...], recorded: bool = True
) -> messages.CancelConversationResult:
    """The result of a cancel: the stopped work, the surviving background jobs, and whether the cancel was stored."""
    now = unit.record if recorded else unit.before
    summary = summarize(now.state, unit.context)
    if not unit.entries:
        return messages.CancelConversationResult(
            no_op=not ended,
            state=summary,
            state_entered_at=now.state_updated_at,
            revision=unit.record.revision,
            ended_jobs=ended,
            surviving_jobs=surviving,
        )
    before = summarize(unit.before.state, unit.context)
    fates = unit.find(QueueChanged) if recorded else ()
    return messages.CancelConversationResult(
        no_op=False,
        state=summary,
        state_entered_at=now.state_updated_at,
        recorded=recorded,
        run=before.run,
        revision=now.revision,
        llm_request_id=before.request_id,
        tool_use_ids=tuple(
            result.tool_use_id
            for added in unit.find(MessageAdded)
            if added.message.type is MessageType.TOOL
            for result in added.message.content
            if isinstance(result, ToolCancelled)
        ),
        sub_agents=tuple(agent.id for agent in before.pending_agents),
        settled=tuple(q for q in fates if q.fate in (Fate.RETURNED, Fate.DISCARDED)),
        settled_at=now.updated_at,
        ended_jobs=ended,
        surviving_jobs=surviving,
    )


# The machine-readable cause and the message with which a late answer is refused, by the outcome of the tool call.
_LATE_ANSWER_REFUSALS = {
    ToolOutcome.OK: ("answered", "a client has already answered this call"),
    ToolOutcome.ERROR: ("answered", "this call already has a result"),
    ToolOutcome.TIMED_OUT: ("timed_out", "the time limit for answering this call has passed"),
    ToolOutcome.CANCELLED: ("withdrawn", "this call was withdrawn"),
    ToolOutcome.SKIPPED: ("withdrawn", "this call was skipped"),
    ToolOutcome.DENIED: ("withdrawn", "this call was denied"),
}


def late_answer(
    history: Sequence[Message], request: messages.SubmitToolResultCommand
) -> messages.SubmitToolResultResult:
    """The stored result of a finished call, if the client has sent the same result again. Raises Rejected otherwise."""
    for message in reversed(history):
        for block in message.content:
            if isinstance(block, ToolUse) and block.id == request.tool_use_id:
                raise _unknown()
            if not (is_tool_result(block) and block.tool_use_id == request.tool_use_id):
                continue
            if not _is_client_tool_call(history, request.tool_use_id):
                raise _unknown()
            if isinstance(block, (ToolSuccess, ToolError)) and _same(block, request.result):
                return messages.SubmitToolResultResult(message, duplicate=True)
            cause, text = _LATE_ANSWER_REFUSALS[block.outcome]
            raise Rejected(Reason.UNKNOWN_OR_DECIDED, text, cause)
    raise _unknown()


def _unknown() -> Rejected:
    return Rejected(Reason.UNKNOWN_OR_DECIDED, "no call with this id is waiting for a client's answer", "unknown")


def _is_client_tool_call(history: Sequence[Message], tool_use_id: str) -> bool:
    calls = (block for message in history for block in message.content if isinstance(block, ToolUse))
    return any(call.id == tool_use_id and call.group is not None for call in calls)


def _same(stored: ToolSuccess | ToolError, answer: ToolSuccess | ToolError) -> bool:
    """Whether the stored result equals the client's answer, apart from the fields that the server adds."""
    return replace(stored, duration_ms=0) == replace(answer, tool_use_id=stored.tool_use_id, duration_ms=0)


MAX_CONTENT_BYTES = 64 << 10

CONTENT = "content"


def checked_form(question: Question, request: messages.AnswerQuestionCommand) -> str:
    """The values of an answered form, as JSON; "" for none. Raises InvalidFieldError if they do not match the form."""
    if not request.accept:
        return ""
    if question.url:
        if request.content:
            raise messages.InvalidFieldError(CONTENT, "must be empty, because this question has a URL and no form")
        return ""
    content = request.content or "{}"
    if len(content.encode()) > MAX_CONTENT_BYTES:
        raise messages.InvalidFieldError(CONTENT, f"must be at most {MAX_CONTENT_BYTES} bytes of JSON")
    if problem := JsonSchema(parse_json(question.schema)).problem(parse_json(content)):
        raise messages.InvalidFieldError(CONTENT, f"does not match the question's form: {problem}")
    return content


def known_command(store: Store, conversation_id: str, request: RepeatableCommand) -> CommandRecord | None:
    """The stored record of this command if it was accepted before; None otherwise, or without a request id.

    Raises Rejected if the request id was used for a different command, or StoreError.
    """
    known = store.command(conversation_id, request.request_id) if request.request_id else None
    return known and _same_command(known, request.body_hash)


def known_create(store: Store, request: messages.CreatingCommand) -> CommandRecord | None:
    """The stored record of this Create or Fork command if it was accepted before; see `known_command`."""
    known = store.create_command(request.principal, request.request_id) if request.request_id else None
    return known and _same_command(known, request.body_hash)


def created_by(store: Store, known: CommandRecord) -> ConversationRecord:
    """The conversation that an accepted command created. Raises UnknownConversationError or StoreError."""
    record = store.load(known.answer.decode())
    if record is None:
        raise messages.UnknownConversationError("the conversation created with this request_id has been deleted")
    return record


def command_record(request: RepeatableCommand, answer: bytes, at: int) -> CommandRecord | None:
    """The record to store for an accepted command; None without a request id."""
    return CommandRecord(request.request_id, request.body_hash, answer, at) if request.request_id else None


def _same_command(known: CommandRecord, body_hash: str) -> CommandRecord:
    if known.body_hash != body_hash:
        text = f"request_id {known.request_id} was used before with different content"
        raise Rejected(Reason.REQUEST_ID_REUSED, text)
    return known
