"""Performs effects: the only place where the machine's wishes meet the ports.

Every effect ends in an outcome. One that cannot be performed reports its failure, and one that raises is a fault of
the conversation, which ends its run: silence would hold the conversation for ever.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors.core.effects import (
    AbortLlm,
    AbortTool,
    ActEffect,
    CancelSubAgents,
    ExecuteTool,
    NotifyParent,
    RequestContinuation,
    RequestLlm,
    RetryOf,
    ScheduleRetry,
    SpawnSubAgent,
    StartTimer,
)
from actors.core.events import (
    CancelTimeout,
    Event,
    LlmError,
    RetryTimeout,
    SubAgentTimeout,
    ToolRetryTimeout,
    ToolTransient,
)
from actors.core.history import provider_view, summary_view
from actors.core.states import AgentOutcome, Cancelling, Error
from actors.core.summary import run_id
from actors.messages.outcomes import EffectOutcome, JobExited
from actors.ports import CancelToken, ConversationRecord, Model, ModelRequest, ToolSpec
from actors.ports.resources import exhausted_resource, resource_failure
from actors.runners import model_choice
from actors.runners.history_cache import StoredHistory
from actors.runners.image_budget import within_limits
from actors.runners.llm_runner import LlmRequest, LlmRunner
from actors.runners.side_queries import Asides
from actors.runners.tool_rights import Rights
from actors.runners.tool_runner import Retire, Run, ToolRunner
from actors.runtime.actor import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pykka import ActorRef

    from actors.core.context import ConvContext, Mode
    from actors.core.errors import LlmFailure
    from actors.core.tool_run import KillReceipt
    from actors.runners.sub_agents import SubAgents
    from actors.runtime.admission import Admission
    from actors.runtime.services import Services


@dataclass(frozen=True)
class InFlightWork:
    """What is under way, for a cancel that does not wait for the mailbox."""

    run: str
    """The run it belongs to; "" for a summary by request."""
    token: CancelToken


class EffectExecutor:
    """The effects of one conversation. Actor's thread only, but for `work`, `cancel_now` and `rights`."""

    def __init__(
        self,
        services: Services,
        admission: Admission,
        owner: ActorRef[Any],
        sub_agents: SubAgents,
    ) -> None:
        self._services = services
        self._admission = admission
        self._owner = owner
        self._sub_agents = sub_agents
        self._agents: set[str] = set()
        """Sub-agents that were started here and whose actors have not ended."""
        self._agents_told: set[str] = set()
        """Those that were told to stop."""
        self._asides = Asides(services, admission)
        self._tools: ActorRef[ToolRunner] | None = None
        self._llm: LlmRequest | None = None
        self._history: StoredHistory | None = None
        self._cancelled_run = ""
        self._jobs_dying = 0
        self._jobs_gone: set[str] = set()
        """The calls that had started jobs which have ended meanwhile."""
        self.rights = Rights()
        """What tools that start now may do, set when a mode is committed; any thread."""
        self.parent_told = False
        """Whether a sub-agent's end was reported."""
        self.work: InFlightWork | None = None
        """What was started last; any thread."""

    @property
    def all_gone(self) -> bool:
        """No tool and no sub-agent runs, and nothing of a killed one or of a job is left that anybody waits for."""
        return self._tools is None and not self._jobs_dying and not self._agents

    def cancel_now(self, work: InFlightWork) -> None:
        """Stop `work`, and whatever its run would still begin before its cancel is carried out (any thread)."""
        self._cancelled_run = work.run or self._cancelled_run
        work.token.cancel()

    def cancel_run_now(self, run: str) -> None:
        """Stop what this run has under way, and whatever it would still begin (any thread)."""
        self._cancelled_run = run
        work = self.work
        if work is not None and work.run == run:
            work.token.cancel()

    def perform(self, effect: ActEffect, record: ConversationRecord, context: ConvContext) -> None:
        """Start, stop or schedule; never blocks."""
        point = type(effect).__name__
        self._services.faults.hit(f"effect.before.{point}")
        match effect:
            case RequestLlm() | RequestContinuation():
                self._request(effect, record)
            case AbortLlm():
                self._abort_llm()
            case ExecuteTool():
                self._execute(effect, record, context)
            case AbortTool():
                if self._tools is not None:
                    tell(self._tools, effect)
            case ScheduleRetry():
                self._schedule(effect)
            case StartTimer(delay_ms=delay_ms, run_id=run_id):
                self._later(delay_ms, lambda: CancelTimeout(self._now(), run_id), urgent=True)
            case SpawnSubAgent():
                self._spawn(effect, record)
            case CancelSubAgents(agent_ids=agent_ids):
                self._agents_told.update(agent_ids)
                stopped = isinstance(record.state, (Cancelling, Error))
                self._sub_agents.cancel(agent_ids, "its parent was stopped" if stopped else "its time was over")
            case NotifyParent(result=result):
                self._tell_parent(record, result)
        self._services.faults.hit(f"effect.after.{point}")

    def stop_unrecorded(self, effects: Iterable[ActEffect], record: ConversationRecord, context: ConvContext) -> None:
        """Of what a cancel decided, carry out what stops something; the rest comes when the store has it. Each of
        these may be carried out twice.
        """
        for effect in effects:
            if isinstance(effect, (AbortLlm, AbortTool, CancelSubAgents)):
                self.perform(effect, record, context)

    def rest(self) -> None:
        """Nothing is under way: let the tool runner end once its last process tree is gone, and stop what sub-agents
        are left. Idempotent.
        """
        self.work = self._llm = None
        if left := self._agents - self._agents_told:
            self._agents_told |= left
            self._sub_agents.abandon(left)
        if self._tools is not None:
            tell(self._tools, Retire())

    def stop_everything(self) -> None:
        """Abandon the model request and kill the running tool; idempotent."""
        self._abort_llm()
        if self.work is not None:
            self.work.token.cancel()
        self.rest()

    def end_jobs(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        """Kill the background jobs of a conversation, or those with more rights than a mode gives; returns their
        handles. JobExited follows for each.
        """
        handles = self._services.toolbox.jobs(conversation_id, wider_than)
        self._jobs_dying += self._services.toolbox.end_jobs(conversation_id, self._job_ended, wider_than)
        return handles

    def job_gone(self, receipt: KillReceipt) -> bool:
        """A job that was told to end has ended; False if that is no news, since it was told twice."""
        news = receipt.tool_use_id not in self._jobs_gone
        self._jobs_gone.add(receipt.tool_use_id)
        self._jobs_dying -= 1
        if self._jobs_dying <= 0:
            self.give_up_jobs()
        return news

    def give_up_jobs(self) -> None:
        """Nobody waits for the end of the jobs any more."""
        self._jobs_dying = 0
        self._jobs_gone.clear()

    def agent_left(self, agent_id: str) -> None:
        """A sub-agent's actor has ended."""
        self._agents.discard(agent_id)
        self._agents_told.discard(agent_id)

    def runner_left(self, runner: ActorRef[Any]) -> None:
        """A tool runner has ended."""
        if runner is self._tools:
            self._tools = None

    def _begin(self, record: ConversationRecord) -> CancelToken:
        """A token for new work; pulled already if the run is being cancelled."""
        self.work = InFlightWork(live_run(record), CancelToken())
        if self.work.run and self.work.run == self._cancelled_run:
            self.work.token.cancel()
        return self.work.token

    def _request(self, effect: RequestLlm | RequestContinuation, record: ConversationRecord) -> None:
        if full := self._admission.enter():
            self._refuse(effect, resource_failure(full))
            return
        token = self._begin(record)
        history = self._history_of(record)
        find = functools.partial(model_choice.find, self._services, effect.model, token)
        build = functools.partial(_model_request, self._services, history, record, effect, cancel=token)
        self._llm = LlmRequest(effect.request_id, effect.attempt, find, build, token)
        runner = LlmRunner(self._llm, self._owner, self._services.clock, functools.partial(self._llm_ended, record.id))
        try:
            runner.launch()
        except RuntimeError as error:  # the machine has no thread left
            self._admission.leave()
            self._refuse(effect, resource_failure(exhausted_resource(error) or str(error)))

    def _llm_ended(self, conversation_id: str) -> None:
        """A request is over (runner's thread), perhaps long after it was abandoned: then nobody else will tell that
        nothing more of it is needed.
        """
        self._admission.leave()
        if not self._owner.is_alive():
            self._services.models.forget(conversation_id)

    def read_history(self, record: ConversationRecord) -> None:
        """Make sure that the model can be shown all that was said, before a run begins. Raises StoreError."""
        self._history_of(record).through(record.state.ledger.seq)

    def _history_of(self, record: ConversationRecord) -> StoredHistory:
        if self._history is None:
            self._history = StoredHistory(self._services.store, record.id)
        return self._history

    def _refuse(self, effect: RequestLlm | RequestContinuation, failure: LlmFailure) -> None:
        self._tell(LlmError(self._now(), effect.request_id, effect.attempt, failure))

    def _abort_llm(self) -> None:
        if self._llm is not None:
            self._llm.cancel.cancel()
            self._llm = None

    def _execute(self, effect: ExecuteTool, record: ConversationRecord, context: ConvContext) -> None:
        run = Run(effect, context, self._begin(record), self.rights)
        if self._tools is not None and tell(self._tools, run):
            return
        try:
            self._tools = ToolRunner(self._services, self._owner, self._asides).launch().actor_ref
        except RuntimeError as error:  # the machine has no thread left
            identity = effect.tool_use_id, effect.execution_id
            self._tell(ToolTransient(self._now(), *identity, exhausted_resource(error) or str(error), begun=False))
            return
        tell(self._tools, run)

    def _spawn(self, effect: SpawnSubAgent, record: ConversationRecord) -> None:
        """Its time begins now, whatever it does with it."""
        agent_id = effect.task.agent_id
        self._agents.add(agent_id)
        owner = weakref.ref(self._owner)  # the timer may outlive this actor by far
        clock, sub_agents = self._services.clock, self._sub_agents

        def overdue() -> None:
            if (ref := owner()) is not None:
                tell(ref, EffectOutcome(SubAgentTimeout(clock.now_ms(), agent_id, sub_agents.last_text(agent_id))))

        self._services.timers.after(max(0, effect.deadline - self._now()), overdue)
        sub_agents.start(record, effect.task)

    def _tell_parent(self, record: ConversationRecord, outcome: AgentOutcome) -> None:
        if record.parent_conversation_id is not None:
            usage = record.state.ledger.total_usage
            self._sub_agents.ended(record.parent_conversation_id, record.id, outcome, usage)
        self.parent_told = True

    def _job_ended(self, receipt: KillReceipt) -> None:
        """A thread of the job."""
        tell(self._owner, JobExited(receipt))

    def _schedule(self, effect: ScheduleRetry) -> None:
        attempt = effect.attempt
        if effect.of is RetryOf.LLM:
            self._later(effect.delay_ms, lambda: RetryTimeout(self._now(), effect.request_id, attempt))
        else:
            identity = effect.tool_use_id, effect.execution_id
            self._later(effect.delay_ms, lambda: ToolRetryTimeout(self._now(), *identity, attempt))

    def _later(self, delay_ms: int, event: Callable[[], Event], *, urgent: bool = False) -> None:
        self._services.timers.after(delay_ms, lambda: self._tell(event(), urgent=urgent))

    def _tell(self, event: Event, *, urgent: bool = False) -> None:
        tell(self._owner, EffectOutcome(event, urgent))

    def _now(self) -> int:
        return self._services.clock.now_ms()


def live_run(record: ConversationRecord) -> str:
    """The id of the run under way, "" if there is none."""
    ledger = record.state.ledger
    return run_id(record.id, ledger.run) if ledger.live else ""


def _model_request(
    services: Services,
    history: StoredHistory,
    record: ConversationRecord,
    effect: RequestLlm | RequestContinuation,
    model: Model,
    *,
    cancel: CancelToken,
) -> ModelRequest:
    """The request as the model sees it (runner's thread). Raises StoreError or ImagesUnavailableError."""
    messages = history.through(effect.through_sequence)
    tools: tuple[ToolSpec, ...] = ()
    if isinstance(effect, RequestContinuation):
        turns = summary_view(messages, effect.through_sequence, effect.rejected)
    else:
        protocol, name = model.info.protocol, model.info.name
        tools = services.toolbox.specs(sub_agent=not record.user_initiated)
        if model.info.lean:
            tools = tuple(spec for spec in tools if spec.essential)
        turns = provider_view(messages, effect.through_sequence, protocol=protocol, model=name)
    if model.info.images:
        turns = within_limits(turns, lambda image: services.images.view_bytes(record.id, image, cancel))
    return ModelRequest(
        conversation_id=record.id,
        request_id=effect.request_id,
        attempt=effect.attempt,
        system=record.system_prompt,
        tools=tools,
        turns=turns,
        view_of=lambda image: services.images.view(record.id, image, cancel),
    )
