"""How sub-agents come to be: asked for by a client, and born (REQ-BED-008; C27, C50). Actor's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.conversation import creation
from actors.conversation import replies as answers
from actors.conversation.pipeline import LoadedConversation
from actors.core import budget
from actors.core.errors import Reason, Rejected
from actors.core.events import SpawnSubAgents, StartSubAgent
from actors.ports import ConversationRecord, SubAgentsRefusedError
from actors.runners.sub_agent_tasks import agent_task, checked, task_refusal

if TYPE_CHECKING:
    from actors.conversation.pipeline import ConversationPipeline
    from actors.conversation.unit_of_work import UnitOfWork
    from actors.messages.commands import SpawnSubAgentsCommand, SpawnSubAgentsResult
    from actors.messages.outcomes import CreateSubAgent


def by_hand(
    pipeline: ConversationPipeline, loaded: LoadedConversation, request: SpawnSubAgentsCommand, at: int
) -> tuple[UnitOfWork, SpawnSubAgentsResult]:
    """A run that begins with sub-agents, whose files were read before the conversation was asked, and the answer.

    Raises Rejected, Invalid or TaskRefused.
    """
    record = loaded.record
    try:
        tasks = checked(pipeline.services, tuple(map(agent_task, request.tasks)), record.cwd, record.model)
    except SubAgentsRefusedError as refused:
        raise task_refusal(refused) from None
    unit, message_id = loaded.begin(), pipeline.services.ids.message()
    unit.run(SpawnSubAgents(at, message_id, tasks))
    if spent := budget.spent_for_good(record.budget, record.state.ledger):
        raise Rejected(Reason.BUDGET_REACHED, f"the budget of {spent} is spent: raise it to go on")
    return unit, answers.spawned(unit, message_id)


def bear(pipeline: ConversationPipeline, birth: CreateSubAgent) -> ConversationRecord:
    """Make a sub-agent, and give it its task. Raises Rejected or StoreError."""
    services, task, at = pipeline.services, birth.task, pipeline.now()
    services.faults.hit("birth.before")
    record, commit = creation.sub_agent(services, birth.parent, task, at)
    services.store.commit(commit, urgent=True)
    pipeline.loaded = LoadedConversation(services, record)
    services.faults.hit("birth.after")
    text = f"{task.task}\n\n{task.given}" if task.given else task.task
    pipeline.advance(StartSubAgent(at, services.ids.message(), text, task.max_turns))
    return record
