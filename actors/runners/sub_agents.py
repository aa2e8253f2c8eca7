"""The sub-agents that run now, and what passes between them and their parents (REQ-BED-008; C27 to C32).

A sub-agent is a conversation with an actor like any other. Nobody waits for it: its end, its time-out and its failure
to start all reach the parent as events, of which the first one counts. What is said here may be said twice, or too
late; the machine ignores what it does not wait for.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from actors.core.content import Usage
from actors.core.errors import ErrorKind, Reason, Rejected
from actors.core.events import SubAgentResult, UsageReported
from actors.core.states import AgentFailed, AgentOutcome, AgentSucceeded, AgentTask, Completed, Failed, State
from actors.core.summary import run_id
from actors.messages.commands import CancelConversationCommand
from actors.messages.outcomes import CreateSubAgent, EffectOutcome, SubAgentStopped
from actors.runtime.actor import AskEnvelope

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

    from actors.ports import Clock, ConversationDirectory, ConversationRecord

log = logging.getLogger(__name__)


class SubAgents:
    """Any thread; nothing here blocks.

    Args:
        clock: When what is told has happened.
        limit: How many there may be in the process at a time.
        directory: The conversations of this process.
    """

    def __init__(self, clock: Clock, limit: int, directory: ConversationDirectory) -> None:
        self._clock = clock
        self._limit = limit
        self._directory = directory
        self._lock = threading.Lock()
        self._parents: dict[str, str] = {}
        """Of those that have an actor, or are just getting one."""
        self._runs: dict[str, str] = {}
        """The parents' runs that started them."""

    def start(self, parent: ConversationRecord, task: AgentTask) -> None:
        """Create a sub-agent and give it its task. If that fails, now or later, its parent hears of it as its end."""
        asked = AskEnvelope(CreateSubAgent(parent, task), urgent=True)  # as its cancel is, so that it comes first
        asked.answer.add_done_callback(lambda answer: self._born(parent.id, task.agent_id, answer))
        if not self._enter(parent, task.agent_id):
            text = f"{self._limit} sub-agents are running on this server, which is as many as may: try again later"
            asked.fail(Rejected(Reason.AGENT_BUSY, text))
            self._tell_left(parent.id, task.agent_id)
            return
        try:
            if self._directory.deliver(task.agent_id, asked):
                return
            asked.fail(Rejected(Reason.SHUTTING_DOWN))
        except RuntimeError as error:  # the machine has no thread left
            asked.fail(error)
        self.left(task.agent_id)

    def cancel(self, agent_ids: Iterable[str], reason: str) -> None:
        """Stop these: what they have under way ends at once, and nothing begins any more; they fail."""
        for agent_id in agent_ids:
            try:
                self._directory.deliver(agent_id, _cancel(reason))
            except RuntimeError:
                log.warning("sub-agent %s has no actor, and there is no thread left for one", agent_id)
            self._pull(agent_id)

    def abandon(self, agent_ids: Iterable[str]) -> None:
        """Stop those of these that still have an actor: nobody waits for them any more."""
        for agent_id in agent_ids:
            actor = self._directory.live(agent_id)
            if actor is not None and actor.deliver(_cancel("its parent is at rest")):
                self._pull(agent_id)

    def ended(self, parent_id: str, agent_id: str, outcome: AgentOutcome, usage: Usage) -> None:
        """Tell a sub-agent's parent how it ended, and what it has used, which counts for the parent's budget too."""
        at = self._clock.now_ms()
        with self._lock:
            run = self._runs.get(agent_id, "")
        try:
            if usage != Usage():
                self._directory.deliver(parent_id, EffectOutcome(UsageReported(at, usage, aside=False, run=run)))
            self._directory.deliver(parent_id, EffectOutcome(SubAgentResult(at, agent_id, outcome)))
        except RuntimeError:
            log.warning("the parent of sub-agent %s has no actor, and there is no thread left for one", agent_id)

    def last_text(self, agent_id: str) -> str:
        """What a sub-agent has said last until now."""
        actor = self._directory.live(agent_id)
        ledger = actor.ledger if actor is not None else None
        return ledger.last_text if ledger is not None else ""

    def left(self, conversation_id: str) -> None:
        """This conversation's actor has ended. Nothing happens if it was none of a sub-agent."""
        with self._lock:
            parent_id = self._parents.pop(conversation_id, None)
            self._runs.pop(conversation_id, None)
        if parent_id is not None:
            self._tell_left(parent_id, conversation_id)

    def _enter(self, parent: ConversationRecord, agent_id: str) -> bool:
        with self._lock:
            if len(self._parents) >= self._limit:
                return False
            self._parents[agent_id] = parent.id
            self._runs[agent_id] = run_id(parent.id, parent.state.ledger.run)
            return True

    def _born(self, parent_id: str, agent_id: str, answer: Future[object]) -> None:
        """It runs, or why it does not (whatever thread has answered)."""
        error = answer.exception()
        if error is None:
            return
        reason = error.reason if isinstance(error, Rejected) else None
        kind = ErrorKind.BUDGET if reason is Reason.BUDGET_REACHED else ErrorKind.SUB_AGENT_ERROR
        text = str(error) if reason is not None else "the server itself failed; its log tells more"
        self.ended(parent_id, agent_id, AgentFailed(kind, f"it could not be started: {text}"), Usage())

    def _pull(self, agent_id: str) -> None:
        """Only once the cancel is in the mailbox: what this ends must not be taken for a failure before."""
        actor = self._directory.live(agent_id)
        if actor is not None:
            actor.cancel_run_now(run_id(agent_id, 1))  # its only one

    def _tell_left(self, parent_id: str, agent_id: str) -> None:
        parent = self._directory.live(parent_id)
        if parent is not None:
            parent.deliver(SubAgentStopped(agent_id))


def outcome_of(state: State) -> AgentOutcome:
    """How a sub-agent has ended whose actor is gone."""
    match state:
        case Completed(result=result):
            return AgentSucceeded(result)
        case Failed(kind=kind, error=error, partial_result=partial):
            return AgentFailed(kind, error, partial)
        case _:
            return AgentFailed(ErrorKind.UNKNOWN, "the server itself failed; its log tells more")


def _cancel(reason: str) -> AskEnvelope[CancelConversationCommand]:
    return AskEnvelope(CancelConversationCommand(reason=reason), urgent=True)
