"""Performs the effects of a conversation: the work that its state machine requests to start or stop.

Every effect must lead to an event that reports its outcome, because the conversation would otherwise wait forever. If
an effect cannot be performed, this event reports the failure. An exception while an effect is started is an internal
fault of the conversation, and ends the run (the work on a user's message).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pykka import ActorDeadError, ActorRef

from actors.common.machine import exhausted_resource
from actors.core import effects, events
from actors.core.content import Message
from actors.core.context import ConvContext, Mode
from actors.core.states import Cancelling, Error
from actors.core.tool_run import KillReceipt
from actors.messages import EffectOutcome, JobExited
from actors.ports import CancelToken, ConversationRecord, Toolbox, live_run
from actors.runners.llm_runner import ModelRequests
from actors.runners.side_queries import SideQueries
from actors.runners.sub_agents import ChildSubAgents, SubAgentRunner
from actors.runners.tool_runner import EndTools, RunTool, ToolRights, ToolRunner, computed
from actors.runtime.actor import tell
from actors.runtime.admission import Admission
from actors.runtime.services import Services, Timer


@dataclass(frozen=True)
class InFlightWork:
    """A model request or tool call that a cancel can stop before the conversation's actor handles the cancel."""

    run: str
    """The id of the run that the work belongs to; "" for a summary that a user requested."""
    token: CancelToken


class EffectExecutor:
    """Performs the effects of one conversation.

    Call only on the conversation's thread, except `in_flight`, `cancel_now`, `cancel_run_now` and `rights`.
    """

    def __init__(
        self, services: Services, admission: Admission, owner: ActorRef[Any], sub_agents: SubAgentRunner
    ) -> None:
        self._services = services
        self._owner = owner
        self._requests = ModelRequests(services, admission, owner)
        self.builder = self._requests.builder
        self._side_queries = SideQueries(services, admission)
        self._tool_runner: ActorRef[ToolRunner] | None = None
        # The call that was last sent to the tool runner; None once this call and its processes have ended.
        self._last_call: RunTool | None = None
        # The timers that limit the wait for answers: to a client tool call, or to the questions of a running tool call.
        self._deadlines: list[Timer] = []
        self._jobs = BackgroundJobs(services.toolbox, owner)
        self._children = ChildSubAgents(services, sub_agents, owner)
        # The id of the cancelled run, which must start nothing more, even before the actor has handled the cancel.
        self._cancelled_run = ""
        self.rights = ToolRights()  # thread-safe; changed whenever a new mode is committed
        self.parent_notified = False
        """Whether the end of this sub-agent has been reported to its parent."""
        self.in_flight: InFlightWork | None = None
        """The model request or tool call that was started last. Thread-safe."""

    @property
    def all_stopped(self) -> bool:
        """Whether no tool call and no sub-agent is left, and all killed jobs have exited."""
        return self._last_call is None and self._jobs.all_exited and not self._children.running

    def cancel_now(self, work: InFlightWork) -> None:
        # Set before the token is cancelled, because the outcome of the cancelled work could start the run's next step.
        self._cancelled_run = work.run or self._cancelled_run
        work.token.cancel()

    def cancel_run_now(self, run: str) -> None:
        """Stop this run's work at once, and keep the run from starting anything more. Thread-safe."""
        self._cancelled_run = run
        work = self.in_flight
        if work is not None and work.run == run:
            work.token.cancel()

    def perform(self, effect: effects.ActEffect, record: ConversationRecord, context: ConvContext) -> None:
        """Perform one effect: start, stop or schedule something. Never blocks."""
        point = type(effect).__name__
        self._services.faults.hit(f"effect.before.{point}")
        match effect:
            case effects.RequestLlm() | effects.RequestContinuation():
                self._requests.start(effect, record, functools.partial(self._begin, record))
            case effects.AbortLlm():
                self._requests.abort()
            case effects.ExecuteTool():
                self._execute(effect, record, context)
            case effects.AwaitToolResult():
                self._await(effect)
            case effects.AwaitAnswer():
                self._await_answer(effect)
            case effects.AbortTool() | effects.AnswerTool():
                self._tell_runner(effect)
            case effects.ScheduleRetry():
                self._schedule_retry(effect)
            case effects.StartTimer(delay_ms=delay_ms, run_id=run_id):
                self._after(delay_ms, lambda: events.CancelTimeout(self._now(), run_id), urgent=True)
            case effects.SpawnSubAgent():
                self._children.start(effect, record)
            case effects.CancelSubAgents(agent_ids=agent_ids):
                stopped = isinstance(record.state, (Cancelling, Error))
                self._children.cancel(agent_ids, "its parent was stopped" if stopped else "its time ran out")
            case effects.NotifyParent(result=result):
                self._children.notify_parent(record, result)
                self.parent_notified = True
        self._services.faults.hit(f"effect.after.{point}")

    def compute(
        self, call: effects.ExecuteTool, record: ConversationRecord, context: ConvContext
    ) -> events.ToolComplete | None:
        """The outcome of a call to an instant tool; None if the call must be performed as an effect instead.

        Also None for calls in a cancelled run, which must end as cancelled.
        """
        return None if live_run(record) == self._cancelled_run else computed(self._services, call, record, context)

    def stop_unrecorded(
        self, unrecorded: Iterable[effects.ActEffect], record: ConversationRecord, context: ConvContext
    ) -> None:
        """Stop the work of a run whose cancel the store cannot save now.

        When the cancel is committed, its effects are performed again, which does no harm.
        """
        for effect in unrecorded:
            if isinstance(effect, (effects.AbortLlm, effects.AbortTool, effects.CancelSubAgents)):
                self.perform(effect, record, context)

    def on_idle(self) -> None:
        """Cancel the remaining sub-agents and tool calls, because the conversation has become idle. Idempotent."""
        self.in_flight = None
        self._stop_waiting()
        self._requests.forget()
        if self._children.running:
            self._children.stop_abandoned()
        if self._last_call is not None and not self._tell_runner(EndTools()):
            self._last_call = None

    def stop_everything(self) -> None:
        """Cancel the model request, the running tool and the sub-agents, without waiting for them. Idempotent."""
        self._requests.abort()
        if self.in_flight is not None:
            self.in_flight.token.cancel()
        self.on_idle()

    def stop_runners(self) -> None:
        """Stop everything, and the two runners, whose threads end when their work returns."""
        self.stop_everything()
        self._requests.stop()
        if self._tool_runner is not None:
            with suppress(ActorDeadError):
                self._tool_runner.stop(block=False)

    def committed(self, record: ConversationRecord, context: ConvContext, messages: Sequence[Message]) -> None:
        """Pass committed and published changes on to `ModelRequests`."""
        self._requests.committed(record, context, messages)

    def end_jobs(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        """Kill the background jobs or, with `wider_than`, those with more rights than that mode; return their handles.

        The conversation's actor gets a JobExited message for each of these jobs.
        """
        return self._jobs.end(conversation_id, wider_than)

    def job_exited(self, receipt: KillReceipt) -> bool:
        """Count the exit of a killed job; return False if the exit of this job was counted before."""
        return self._jobs.exited(receipt)

    def stop_waiting_for_jobs(self) -> None:
        self._jobs.stop_waiting()

    def sub_agent_stopped(self, agent_id: str) -> None:
        self._children.stopped(agent_id)

    def tools_ended(self, call: object) -> None:
        """Note that a call and all calls before it have ended, unless a later call has been sent."""
        if call is self._last_call:
            self._last_call = None

    def replace_llm_runner(self, request: object) -> None:
        """Replace the runner that is still occupied by this cancelled model request."""
        self._requests.replace_runner(request)

    def _begin(self, record: ConversationRecord) -> CancelToken:
        """Register new work and return its cancel token, already cancelled if the run is being cancelled."""
        self._stop_waiting()
        work = self.in_flight = InFlightWork(live_run(record), CancelToken())
        # Checked after `in_flight` is set, so that no cancel is lost: `cancel_now` on another thread either finds this
        # work there, or has set `_cancelled_run` before.
        if work.run and work.run == self._cancelled_run:
            work.token.cancel()
        return work.token

    def _execute(self, effect: effects.ExecuteTool, record: ConversationRecord, context: ConvContext) -> None:
        run = RunTool(effect, record.principal, context, self._begin(record), self.rights)
        try:
            if not self._tell_runner(run):
                self._tool_runner = ToolRunner.start(self._services, self._owner, self._side_queries)
                self._tell_runner(run)
            self._last_call = run
        except RuntimeError as error:  # the system cannot start another thread
            identity = effect.tool_use_id, effect.execution_id
            self._report(
                events.ToolTransient(self._now(), *identity, exhausted_resource(error) or str(error), begun=False)
            )

    def _await(self, effect: effects.AwaitToolResult) -> None:
        """Limit the time that a tool call waits for a client's answer."""
        self._stop_waiting()
        identity = effect.tool_use_id, effect.execution_id
        self._at_deadline(effect.deadline, lambda now: events.ToolDeadline(now, *identity))

    def _await_answer(self, effect: effects.AwaitAnswer) -> None:
        """Limit the time that a running tool waits for a person's answer."""
        identity = effect.tool_use_id, effect.execution_id, effect.place
        self._at_deadline(effect.deadline, lambda now: events.QuestionOver(now, *identity, timed_out=True))

    def _at_deadline(self, deadline: int, event: Callable[[int], events.Event]) -> None:
        """Send an event at `deadline` (ms since the epoch) without keeping the conversation in memory."""
        owner, clock = self._owner, self._services.clock

        def report() -> None:
            tell(owner, EffectOutcome(event(clock.now_ms())))

        self._deadlines.append(self._services.timers.after(max(0, deadline - clock.now_ms()), report))

    def _stop_waiting(self) -> None:
        """Cancel the timers of a tool call that no longer waits for an answer, so that they do not fire hours later."""
        for timer in self._deadlines:
            self._services.timers.cancel(timer)
        self._deadlines.clear()

    def _tell_runner(self, message: RunTool | effects.AbortTool | effects.AnswerTool | EndTools) -> bool:
        """Send a message to the tool runner; return False if there is none."""
        return self._tool_runner is not None and tell(self._tool_runner, message)

    def _schedule_retry(self, effect: effects.ScheduleRetry) -> None:
        attempt = effect.attempt
        if effect.of is effects.RetryOf.LLM:
            self._after(effect.delay_ms, lambda: events.RetryTimeout(self._now(), effect.request_id, attempt))
        else:
            identity = effect.tool_use_id, effect.execution_id
            self._after(effect.delay_ms, lambda: events.ToolRetryTimeout(self._now(), *identity, attempt))

    def _after(self, delay_ms: int, event: Callable[[], events.Event], *, urgent: bool = False) -> None:
        self._services.timers.after(delay_ms, lambda: self._report(event(), urgent=urgent))

    def _report(self, event: events.Event, *, urgent: bool = False) -> None:
        tell(self._owner, EffectOutcome(event, urgent))

    def _now(self) -> int:
        return self._services.clock.now_ms()


class BackgroundJobs:
    """Kills the jobs of one conversation and counts their exits. Only the conversation's thread may use it."""

    def __init__(self, toolbox: Toolbox, owner: ActorRef[Any]) -> None:
        self._toolbox = toolbox
        self._owner = owner
        self._exits_due = 0
        # The ids of the tool calls that started the exited jobs; cleared when no further exits are expected.
        self._exited: set[str] = set()

    @property
    def all_exited(self) -> bool:
        return not self._exits_due

    def end(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        """Kill jobs, or only those with more rights than `wider_than`; return the handles of those not killed before.

        The conversation's actor gets a JobExited message for each job, and a second one if a job is killed twice.
        """
        running = self._toolbox.jobs(conversation_id, wider_than)
        killed = self._toolbox.end_jobs(conversation_id, self._on_exit, wider_than)
        self._exits_due += len(killed)
        return tuple(handle for handle in killed if handle in running)

    def exited(self, receipt: KillReceipt) -> bool:
        """Count an exit; return False if the exit of this job was counted before."""
        first = receipt.tool_use_id not in self._exited
        self._exited.add(receipt.tool_use_id)
        self._exits_due -= 1
        if self._exits_due <= 0:
            self.stop_waiting()
        return first

    def stop_waiting(self) -> None:
        self._exits_due = 0
        self._exited.clear()

    def _on_exit(self, receipt: KillReceipt) -> None:
        """Report an exit to the conversation's actor. Runs on a thread of the job."""
        tell(self._owner, JobExited(receipt))
