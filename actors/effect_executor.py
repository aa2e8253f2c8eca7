"""Performs effects: the only place where the machine's wishes meet the ports.

Every effect ends in an outcome. One that cannot be performed reports its failure; silence would hold the
conversation for ever.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pykka import ActorRef

from actors.actor import tell
from actors.core.context import ConvContext
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
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.events import (
    CancelTimeout,
    Event,
    LlmError,
    RetryTimeout,
    SubAgentResult,
    ToolRetryTimeout,
)
from actors.core.history import provider_view, summary_view
from actors.core.states import AgentFailed
from actors.llm_runner import LlmRequest, LlmRunner, Outcome
from actors.ports import CancelToken, ConversationRecord, Model, ModelRequest
from actors.runtime import Runtime
from actors.tool_runner import Abort, Retire, Run, ToolRunner


@dataclass(frozen=True)
class Work:
    """What is under way, for a cancel that does not wait for the mailbox."""

    run: str
    token: CancelToken


@dataclass
class Admission:
    """How many model requests are in flight in the whole process. Any thread."""

    limit: int
    _tickets: itertools.count[int] = field(default_factory=itertools.count)
    _open: dict[int, None] = field(default_factory=dict)

    def enter(self) -> int | None:
        """A ticket to give back with `leave`, or None if the house is full."""
        if len(self._open) >= self.limit:
            return None
        ticket = next(self._tickets)
        self._open[ticket] = None
        return ticket

    def leave(self, ticket: int) -> None:
        self._open.pop(ticket, None)


class EffectExecutor:
    """The effects of one conversation. Actor's thread only, but for `work`, which anybody may read."""

    def __init__(
        self, runtime: Runtime, admission: Admission, owner: ActorRef[Any], notify_parent: Callable[..., None]
    ) -> None:
        self._runtime = runtime
        self._admission = admission
        self._owner = owner
        self._notify_parent = notify_parent
        self._tools: ActorRef[ToolRunner] | None = None
        self._llm: LlmRequest | None = None
        self.work: Work | None = None

    def perform(self, effect: ActEffect, record: ConversationRecord, context: ConvContext) -> None:
        """Start, stop or schedule; never blocks."""
        point = type(effect).__name__
        self._runtime.faults.hit(f"effect.before.{point}")
        match effect:
            case RequestLlm() | RequestContinuation():
                self._request(effect, record)
            case AbortLlm():
                self._abort_llm()
            case ExecuteTool():
                self._execute(effect, record, context)
            case AbortTool(tool_use_id=tool_use_id, execution_id=execution_id):
                if self._tools is not None:
                    tell(self._tools, Abort(tool_use_id, execution_id))
            case ScheduleRetry():
                self._schedule(effect)
            case StartTimer(delay_ms=delay_ms, run_id=run_id):
                self._later(delay_ms, lambda: CancelTimeout(self._now(), run_id), urgent=True)
            case SpawnSubAgent(task=task):
                refusal = AgentFailed(ErrorKind.SUB_AGENT_ERROR, "this server does not run sub-agents")
                self._tell(SubAgentResult(self._now(), task.agent_id, refusal))
            case CancelSubAgents():
                """Each pending agent was answered when it was spawned: nothing is left to cancel."""
            case NotifyParent(result=result):
                self._notify_parent(record, result)
        self._runtime.faults.hit(f"effect.after.{point}")

    def stop_everything(self) -> None:
        """Abandon the model request and kill the running tool; idempotent."""
        self._abort_llm()
        if self.work is not None:
            self.work.token.cancel()
            self.work = None
        self.retire()

    def retire(self) -> None:
        """Let the tool runner end once its last process tree is gone."""
        if self._tools is not None:
            tell(self._tools, Retire())
            self._tools = None

    def _request(self, effect: RequestLlm | RequestContinuation, record: ConversationRecord) -> None:
        model = self._runtime.models.get(effect.model)
        if model is None:
            text = f"The model {effect.model!r} is not available on this server: choose another one."
            self._refuse(effect, LlmFailure(ErrorKind.INVALID_REQUEST, text))
            return
        ticket = self._admission.enter()
        if ticket is None:
            text = f"{self._admission.limit} model requests are in flight on this server."
            self._refuse(effect, LlmFailure(ErrorKind.SERVER_ERROR, text))
            return
        build = functools.partial(_model_request, self._runtime, record, model, effect)
        self._llm = LlmRequest(effect.request_id, effect.attempt, model, build)
        self.work = Work(_run_of(record), self._llm.cancel)
        ended = functools.partial(self._admission.leave, ticket)
        LlmRunner(self._llm, self._owner, self._runtime.clock, ended).launch()

    def _refuse(self, effect: RequestLlm | RequestContinuation, failure: LlmFailure) -> None:
        self._tell(LlmError(self._now(), effect.request_id, effect.attempt, failure))

    def _abort_llm(self) -> None:
        if self._llm is not None:
            self._llm.cancel.cancel()
            self._llm = None

    def _execute(self, effect: ExecuteTool, record: ConversationRecord, context: ConvContext) -> None:
        cancel = CancelToken()
        self.work = Work(_run_of(record), cancel)
        if self._tools is None:
            self._tools = ToolRunner(self._runtime, self._owner).launch().actor_ref
        tell(self._tools, Run(effect, context, cancel))

    def _schedule(self, effect: ScheduleRetry) -> None:
        attempt = effect.attempt
        if effect.of is RetryOf.LLM:
            self._later(effect.delay_ms, lambda: RetryTimeout(self._now(), effect.request_id, attempt))
        else:
            identity = effect.tool_use_id, effect.execution_id
            self._later(effect.delay_ms, lambda: ToolRetryTimeout(self._now(), *identity, attempt))

    def _later(self, delay_ms: int, event: Callable[[], Event], *, urgent: bool = False) -> None:
        self._runtime.timers.after(delay_ms, lambda: self._tell(event(), urgent=urgent))

    def _tell(self, event: Event, *, urgent: bool = False) -> None:
        tell(self._owner, Outcome(event, urgent))

    def _now(self) -> int:
        return self._runtime.clock.now_ms()


def _run_of(record: ConversationRecord) -> str:
    ledger = record.state.ledger
    return f"{record.id}:{ledger.run}" if ledger.live else ""


def _model_request(
    runtime: Runtime, record: ConversationRecord, model: Model, effect: RequestLlm | RequestContinuation
) -> ModelRequest:
    messages = runtime.store.history(record.id, effect.through_sequence)
    summary = isinstance(effect, RequestContinuation)
    info = model.info
    return ModelRequest(
        conversation_id=record.id,
        request_id=effect.request_id,
        attempt=effect.attempt,
        system=record.system_prompt,
        tools=() if summary else runtime.toolbox.specs(sub_agent=not record.user_initiated),
        turns=summary_view(messages, effect.through_sequence, effect.rejected)
        if isinstance(effect, RequestContinuation)
        else provider_view(messages, effect.through_sequence, protocol=info.protocol, model=info.name),
    )
