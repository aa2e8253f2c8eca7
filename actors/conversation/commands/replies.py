"""Builds the replies to commands from the unit of work that each command produced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.content import MessageType, ToolCancelled, is_tool_result
from actors.core.effects import SpawnSubAgent
from actors.core.notifications import Fate, MessageAdded, QueueChanged
from actors.core.summary import run_id, summarize
from actors.messages.commands import (
    CancelConversationResult,
    SendMessageResult,
    SpawnSubAgentsResult,
    SubmitToolResultResult,
)

if TYPE_CHECKING:
    from actors.conversation.unit_of_work import UnitOfWork


def sent(unit: UnitOfWork, message_id: str) -> SendMessageResult:
    """Return how a message was accepted: as the first message of a run, or queued."""
    after, before = unit.record, unit.before
    run = run_id(after.id, after.state.ledger.run)
    for added in unit.find(MessageAdded):
        if added.message.id == message_id:
            return SendMessageResult(message_id, "direct", run, before.last_seq, message=added.message)
    queued = next(q for q in unit.find(QueueChanged) if q.input.message_id == message_id)
    steer = queued.delivery == "steer"
    disposition = "steer_queued" if steer else "follow_up_queued"
    return SendMessageResult(message_id, disposition, run if steer else "", before.last_seq, queued=queued.input)


def answered(unit: UnitOfWork, tool_use_id: str) -> SubmitToolResultResult:
    """Return the message with the result of a tool call that a client has answered."""
    return next(
        SubmitToolResultResult(added.message)
        for added in unit.find(MessageAdded)
        if any(is_tool_result(block) and block.tool_use_id == tool_use_id for block in added.message.content)
    )


def spawned(unit: UnitOfWork, message_id: str) -> SpawnSubAgentsResult:
    """Return the result of a SpawnSubAgents command, with the ids of the sub-agents that it started."""
    after = unit.record
    root = next(added.message for added in unit.find(MessageAdded) if added.message.id == message_id)
    agents = tuple(effect.task.agent_id for effect in unit.effects if isinstance(effect, SpawnSubAgent))
    return SpawnSubAgentsResult(root, run_id(after.id, after.state.ledger.run), agents, unit.before.last_seq)


def cancelled(
    unit: UnitOfWork, *, ended: tuple[str, ...], surviving: tuple[str, ...], recorded: bool = True
) -> CancelConversationResult:
    """Return the result of a cancel: what was stopped, which background jobs survived, and whether it was stored."""
    now = unit.record if recorded else unit.before
    summary = summarize(now.state, unit.context)
    if unit.empty:
        return CancelConversationResult(
            no_op=not ended,
            state=summary,
            state_entered_at=now.state_updated_at,
            revision=unit.record.last_seq,
            ended_jobs=ended,
            surviving_jobs=surviving,
        )
    before = summarize(unit.before.state, unit.context)
    fates = unit.find(QueueChanged) if recorded else ()
    return CancelConversationResult(
        no_op=False,
        state=summary,
        state_entered_at=now.state_updated_at,
        recorded=recorded,
        run=before.run,
        revision=now.last_seq,
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
