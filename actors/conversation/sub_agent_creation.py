"""How sub-agents come to be: asked for by a client, and born (REQ-BED-008; C27, C50). Actor's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.conversation import replies as answers
from actors.conversation import settings
from actors.conversation.pipeline import Draft, Machine
from actors.core import budget
from actors.core.errors import Reason, Rejected
from actors.core.events import SpawnSubAgents, StartSubAgent
from actors.ports import ConversationRecord, SubAgentsRefusedError
from actors.runners.sub_agent_tasks import agent_task, checked, task_refusal

if TYPE_CHECKING:
    from actors.messages.commands import SpawnSubAgentsCommand, SpawnSubAgentsResult
    from actors.messages.outcomes import CreateSubAgent
    from actors.road import Road


def by_hand(
    road: Road, machine: Machine, request: SpawnSubAgentsCommand, at: int
) -> tuple[Draft, SpawnSubAgentsResult]:
    """A run that begins with sub-agents, whose files were read before the conversation was asked, and the answer.

    Raises Rejected, Invalid or TaskRefused.
    """
    record = machine.record
    try:
        tasks = checked(road.runtime, tuple(map(agent_task, request.tasks)), record.cwd, record.model)
    except SubAgentsRefusedError as refused:
        raise task_refusal(refused) from None
    draft, message_id = machine.draft(), road.runtime.ids.message()
    draft.run(SpawnSubAgents(at, message_id, tasks))
    if spent := budget.spent_for_good(record.budget, record.state.ledger):
        raise Rejected(Reason.BUDGET_REACHED, f"the budget of {spent} is spent: raise it to go on")
    return draft, answers.spawned(draft, message_id)


def bear(road: Road, birth: CreateSubAgent) -> ConversationRecord:
    """Make a sub-agent, and give it its task. Raises Rejected or StoreError."""
    runtime, task, at = road.runtime, birth.task, road.now()
    runtime.faults.hit("birth.before")
    record, commit = settings.sub_agent(runtime, birth.parent, task, at)
    runtime.store.commit(commit, urgent=True)
    road.machine = Machine(runtime, record)
    runtime.faults.hit("birth.after")
    text = f"{task.task}\n\n{task.given}" if task.given else task.task
    road.advance(StartSubAgent(at, runtime.ids.message(), text, task.max_turns))
    return record
