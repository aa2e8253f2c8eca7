"""Tracks the running sub-agents, and carries messages between them and their parents.

A sub-agent is a conversation with an actor like any other. No thread waits for it: its end, its timeout and its failure
to start are reported to the parent as events, of which only the first one counts. An event may arrive twice or too
late; the parent ignores events that it does not wait for.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

from actors.core.content import Usage
from actors.core.errors import ErrorKind, Reason, Rejected
from actors.core.events import SubAgentResult, SubAgentTimeout, UsageReported
from actors.core.states import AgentFailed, AgentOutcome, AgentSucceeded, AgentTask, Completed, Failed, State
from actors.core.summary import run_id
from actors.messages.commands import CancelConversationCommand
from actors.messages.outcomes import CreateSubAgent, EffectOutcome, SubAgentStopped
from actors.runtime.actor import Request, failed, tell

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

    from pykka import ActorRef

    from actors.core.effects import SpawnSubAgent
    from actors.ports import Clock, ConversationDirectory, ConversationRecord
    from actors.runtime.services import Services

log = logging.getLogger(__name__)


class SubAgentRunner:
    """All sub-agents of this process. Safe to call from any thread; nothing here blocks for long.

    Args:
        clock: Provides the time for events to parents.
        limit: The maximum number of running sub-agents.
        directory: The conversations of this process.
    """

    def __init__(self, clock: Clock, limit: int, directory: ConversationDirectory) -> None:
        self._clock = clock
        self._limit = limit
        self._directory = directory
        self._lock = threading.Lock()
        self._parents: dict[str, str] = {}
        """The parent's id by sub-agent id, for sub-agents that have an actor or are being created."""
        self._runs: dict[str, str] = {}
        """The id of the parent's run that started the sub-agent, by sub-agent id."""

    def start(self, parent: ConversationRecord, task: AgentTask) -> None:
        """Create a sub-agent and start its task.

        If this fails, now or later, the failure is reported to the parent as the sub-agent's end.
        """
        refusal: Exception
        agent_id = task.agent_id
        # urgent, because a cancel is also urgent and must not be delivered first
        command = Request(CreateSubAgent(parent, task), urgent=True)
        if self._register(parent, agent_id):
            try:
                if (created := self._directory.deliver(agent_id, command)) is not None:
                    created.add_done_callback(functools.partial(self._on_created, parent.id, agent_id))
                    return
                refusal = Rejected(Reason.SHUTTING_DOWN)
            except RuntimeError as error:  # the system cannot start another thread
                refusal = error
        else:
            text = f"{self._limit} sub-agents are running on this server, which is as many as may: try again later"
            refusal = Rejected(Reason.AGENT_BUSY, text)
        self._on_created(parent.id, agent_id, failed(refusal))
        self._unregister(agent_id)
        self._notify_stopped(parent.id, agent_id)

    def cancel(self, agent_ids: Iterable[str], reason: str) -> None:
        """Cancel these sub-agents: their work in flight is stopped at once, and they start nothing more."""
        for agent_id in agent_ids:
            try:
                self._directory.deliver(agent_id, _cancel(reason))
            except RuntimeError:
                log.warning("there is no thread left for a sub-agent", extra={"conversation": agent_id})
            self._cancel_run_now(agent_id)

    def abandon(self, agent_ids: Iterable[str]) -> None:
        """Cancel these sub-agents, because their parent no longer waits for them; skip those that have no actor."""
        for agent_id in agent_ids:
            actor = self._directory.live(agent_id)
            if actor is not None and actor.deliver(_cancel("its parent is at rest")):
                self._cancel_run_now(agent_id)

    def report_end(self, parent_id: str, agent_id: str, outcome: AgentOutcome, usage: Usage) -> None:
        """Report to the parent how a sub-agent ended and how many tokens it used (they also count for the parent)."""
        at = self._clock.now_ms()
        with self._lock:
            run = self._runs.get(agent_id, "")
        try:
            if usage != Usage():
                self._directory.deliver(parent_id, EffectOutcome(UsageReported(at, usage, aside=False, run=run)))
            self._directory.deliver(parent_id, EffectOutcome(SubAgentResult(at, agent_id, outcome)))
        except RuntimeError:
            log.warning("there is no thread left for the parent of a sub-agent", extra={"conversation": agent_id})

    def last_text(self, agent_id: str) -> str:
        """Return the last text that a sub-agent has written so far; "" if unknown."""
        actor = self._directory.live(agent_id)
        ledger = actor.ledger if actor is not None else None
        return ledger.last_text if ledger is not None else ""

    def on_stopped(self, conversation_id: str) -> None:
        """Release the slot of a sub-agent whose actor has stopped and notify its parent; ignore other conversations."""
        parent_id = self._unregister(conversation_id)
        if parent_id is not None:
            self._notify_stopped(parent_id, conversation_id)

    def _register(self, parent: ConversationRecord, agent_id: str) -> bool:
        with self._lock:
            if len(self._parents) >= self._limit:
                return False
            self._parents[agent_id] = parent.id
            self._runs[agent_id] = run_id(parent.id, parent.state.ledger.run)
            return True

    def _unregister(self, agent_id: str) -> str | None:
        """Release the slot of a sub-agent, and return the id of its parent; None if it has no slot."""
        with self._lock:
            self._runs.pop(agent_id, None)
            return self._parents.pop(agent_id, None)

    def _on_created(self, parent_id: str, agent_id: str, answer: Future[object]) -> None:
        """If a sub-agent could not be created, report the reason to its parent. Safe to call from any thread."""
        error = answer.exception()
        if error is None:
            return
        reason = error.reason if isinstance(error, Rejected) else None
        kind = ErrorKind.BUDGET if reason is Reason.BUDGET_REACHED else ErrorKind.SUB_AGENT_ERROR
        text = str(error) if reason is not None else "the server itself failed; its log tells more"
        self.report_end(parent_id, agent_id, AgentFailed(kind, f"it could not be started: {text}"), Usage())

    def _cancel_run_now(self, agent_id: str) -> None:
        """Stop the sub-agent's run without waiting for its mailbox.

        The mailbox must already contain the cancel, so that the stopped work does not count as a failure.
        """
        actor = self._directory.live(agent_id)
        if actor is not None:
            actor.cancel_run_now(run_id(agent_id, 1))  # a sub-agent has only one run

    def _notify_stopped(self, parent_id: str, agent_id: str) -> None:
        parent = self._directory.live(parent_id)
        if parent is not None:
            parent.deliver(SubAgentStopped(agent_id))


class ChildSubAgents:
    """The sub-agents that one conversation has started and whose actors have not stopped.

    Only the conversation's thread may use this object.
    """

    def __init__(self, services: Services, sub_agents: SubAgentRunner, owner: ActorRef[Any]) -> None:
        self._services = services
        self._sub_agents = sub_agents
        self._owner = owner
        self._running: set[str] = set()
        """The ids of the sub-agents whose actors have not stopped."""
        self._cancelled: set[str] = set()
        """The ids of those running sub-agents that have been cancelled."""

    @property
    def all_stopped(self) -> bool:
        """Whether the actors of all started sub-agents have stopped."""
        return not self._running

    def start(self, effect: SpawnSubAgent, record: ConversationRecord) -> None:
        """Start a sub-agent. Its time limit begins now, even if its start is delayed."""
        agent_id = effect.task.agent_id
        self._running.add(agent_id)
        owner = weakref.ref(self._owner)  # the timer, which may run for hours, must not keep the actor in memory
        clock, sub_agents = self._services.clock, self._sub_agents

        def report_timeout() -> None:
            if (ref := owner()) is not None:
                event = SubAgentTimeout(clock.now_ms(), agent_id, sub_agents.last_text(agent_id))
                tell(ref, EffectOutcome(event))

        self._services.timers.after(max(0, effect.deadline - clock.now_ms()), report_timeout)
        sub_agents.start(record, effect.task)

    def cancel(self, agent_ids: Iterable[str], reason: str) -> None:
        """Cancel these sub-agents."""
        self._cancelled.update(agent_ids)
        self._sub_agents.cancel(agent_ids, reason)

    def stop_abandoned(self) -> None:
        """Cancel the sub-agents that have not been cancelled yet, because their parent is idle. Idempotent."""
        if abandoned := self._running - self._cancelled:
            self._cancelled |= abandoned
            self._sub_agents.abandon(abandoned)

    def stopped(self, agent_id: str) -> None:
        """Stop tracking a sub-agent whose actor has stopped."""
        self._running.discard(agent_id)
        self._cancelled.discard(agent_id)

    def notify_parent(self, record: ConversationRecord, outcome: AgentOutcome) -> None:
        """Report the end of this conversation to its parent, if it is a sub-agent."""
        if record.parent_conversation_id is not None:
            usage = record.state.ledger.total_usage
            self._sub_agents.report_end(record.parent_conversation_id, record.id, outcome, usage)


def outcome_of(state: State) -> AgentOutcome:
    """Return the outcome of a sub-agent that ended in this state."""
    match state:
        case Completed(result=result):
            return AgentSucceeded(result)
        case Failed(kind=kind, error=error, partial_result=partial):
            return AgentFailed(kind, error, partial)
        case _:
            return AgentFailed(ErrorKind.UNKNOWN, "the server itself failed; its log tells more")


def _cancel(reason: str) -> Request:
    return Request(CancelConversationCommand(reason=reason), urgent=True)
