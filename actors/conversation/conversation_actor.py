"""The conversation actor: the one thread that changes a conversation, one message at a time.

A message is a command (a Request, whose sender waits for the answer), an outcome of an effect that this actor
started, or a timer that it set. Each message goes through the pipeline: load, transition, commit, publish, act. The
commit is the only thing that the actor waits for; models, tools and other conversations answer with messages.

The mailbox has two lanes. Cancels, mode changes, the creation of a sub-agent, the timers that limit a cancel, and the
shutdown go into the urgent lane, which is handled before the normal one. A cancel also stops the work in flight on the
caller's thread, before the actor handles the cancel; the outcome of the stopped work arrives after the cancel.

If the store is unavailable, commands are refused immediately. Outcomes and cancels cannot be refused, because they have
already happened: they wait in the retry queue, which is flushed before any further command.

Where several servers share the store, loading a conversation claims its ownership. When the store reports that another
server owns the conversation, the actor stops its work, drops its copy and ends; waiting callers get NotOwnerError.

The actor stops at shutdown, and when no tool process is left and its conversation has been idle for a while or has
ended. It closes its mailbox only while the mailbox is empty; a later message starts a new actor.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from actors import messages, ports
from actors.conversation import creation
from actors.conversation.command_dispatch import CommandDispatch, cancel_event
from actors.conversation.pipeline import (
    CommitRetries,
    ConversationPipeline,
    Recovery,
    ReloadFromStore,
    Retry,
    Uncommitted,
    VerifyUncertainCommit,
    covers_cancel,
    may_share_commit,
    recovering,
)
from actors.core.errors import Reason, Rejected
from actors.core.events import UserCancel
from actors.core.states import TERMINAL, AwaitingToolApproval, Idle, Ledger
from actors.core.summary import run_id
from actors.core.tool_run import QUIESCE_MS, KillReceipt
from actors.ports.cluster import LEASE_EXPIRED
from actors.ports.records import CommandOrigin
from actors.runners.effect_executor import EffectExecutor, InFlightWork
from actors.runners.side_queries import Titles
from actors.runners.sub_agents import SubAgentRunner, outcome_of
from actors.runtime.actor import Actor, Request, failed, tell
from actors.runtime.admission import Admission
from actors.runtime.services import Services

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IdleCheck:
    """Timer message: stop the actor if its idle timeout has passed."""


@dataclass(frozen=True)
class Shutdown:
    """Message from the supervisor: end the run and stop the actor; `done` is completed once the actor has stopped."""

    done: Future[None]
    urgent: bool = True


@dataclass(frozen=True)
class SharedRunners:
    """The objects that all conversations of one process share."""

    admission: Admission
    sub_agents: SubAgentRunner
    titles: Titles


class ConversationActor(Actor):
    """The actor that owns one conversation: while it runs, only it changes the conversation."""

    def __init__(
        self, services: Services, directory: ports.ConversationDirectory, shared: SharedRunners, conversation_id: str
    ) -> None:
        super().__init__()
        self.conversation_id = conversation_id
        self._services = services
        self._directory = directory
        self._executor = EffectExecutor(services, shared.admission, self.actor_ref, shared.sub_agents)
        self._pipeline = ConversationPipeline(services, self._executor, conversation_id)
        self._pipeline.perform_exhausting = functools.partial(creation.perform_exhausting, self._pipeline)
        self._commands = CommandDispatch(self._pipeline, shared.titles)
        self._recovery = Recovery(self._pipeline, functools.partial(self._remind, Retry()))
        self._commit_retries = self._recovery.commit_retries
        self._deletion = ConversationDeletion(self._commands, self._executor, self._commit_retries, self._remind)
        self._sub_agents = shared.sub_agents
        # The command that created this conversation as a sub-agent in this process; None for other conversations.
        self._sub_agent: messages.CreateSubAgent | None = None
        # The error with which the store reported that another server owns the conversation; None until then.
        self._lost: ports.NotOwnerError | None = None
        self._last_activity = -math.inf
        self._idle_check_due = False
        self._jobs_killed = False
        self._shutdown: Future[None] | None = None

    def _start_actor_loop(self) -> None:
        super()._start_actor_loop()
        self._directory.on_started(self)

    # --- state for other threads ------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether all changes and deletions are stored, and no run is active except one that waits for a person."""
        loaded = self._pipeline.loaded
        waits_for_people = loaded is not None and isinstance(loaded.state, AwaitingToolApproval)
        return self._stored and (self._pipeline.idle or waits_for_people)

    @property
    def idle(self) -> bool:
        """Whether no run is open, all changes are stored and no deletion is pending."""
        return self._stored and self._pipeline.idle

    @property
    def _stored(self) -> bool:
        return not self._commit_retries and not self._deletion.pending

    @property
    def ledger(self) -> Ledger | None:
        loaded = self._pipeline.loaded
        return loaded.state.ledger if loaded is not None else None

    def in_flight(self, run: str) -> InFlightWork | None:
        """The work that a cancel of this run ("": any run) would stop; None if there is none. Thread-safe."""
        work = self._executor.in_flight
        return work if work is not None and run in ("", work.run) else None

    def cancel_now(self, work: InFlightWork) -> None:
        """Stop `work` on the caller's thread. The mailbox must already contain the cancel. Thread-safe."""
        self._executor.cancel_now(work)

    def cancel_run_now(self, run: str) -> None:
        self._executor.cancel_run_now(run)

    def deliver(self, message: object) -> bool:
        return tell(self.actor_ref, message)

    # --- messages ---------------------------------------------------------------------------------------------

    def receive(self, message: Any) -> Any:
        if not (isinstance(message, IdleCheck) or _is_wake(message)):
            self._last_activity = self._services.clock.monotonic()
        answer = self._handle(message)
        self._deletion.finish_if_quiesced()
        self._stop_if_idle()
        return answer

    def _handle(self, message: Any) -> Any:
        match message:
            case Request():
                return self._answer_observed(message) if self._services.telemetry.on else self._answer(message)
            case messages.EffectOutcome():
                self._commit_outcomes(message)
            case KillReceipt():
                self._record_kill(message)
            case messages.JobExited(receipt=receipt):
                self._on_job_exited(receipt)
            case Retry():
                self._commit_retries.retry()
            case messages.ToolsEnded(call=call):
                self._executor.tools_ended(call)
            case messages.ModelRequestOverdue(request=request):
                self._executor.replace_llm_runner(request)
            case messages.SubAgentStopped(agent_id=agent_id):
                self._executor.sub_agent_stopped(agent_id)
            case IdleCheck():
                self._idle_check_due = False
            case DeletionOverdue():
                self._deletion.expire()
            case Shutdown(done=done):
                self._shut_down(done)
            case _:
                raise TypeError(f"unexpected message: {type(message).__name__}")
        return None

    def _answer_observed(self, asked: Request) -> Any:
        telemetry, kind = self._services.telemetry, type(asked.command).__name__
        telemetry.command_began(self.conversation_id, kind, asked.asked_at, asked.trace_parent)
        try:
            return self._answer(asked)
        finally:
            telemetry.command_ended(self.conversation_id)

    def _answer(self, asked: Request) -> Any:
        if refusal := self._refusal(asked):
            return failed(refusal)
        try:
            answer = self._carry_out(asked.command, asked.origin)
        except Rejected as refused:
            refused.run = self._run_under_way()
            return failed(refused)
        except (
            messages.UnknownConversationError,
            messages.UnknownApprovalRuleError,
            messages.InvalidFieldError,
            messages.EtagMismatchError,
        ) as refused:
            return failed(refused)
        except ports.SlugTakenError:
            given = getattr(asked.command, "slug", "")
            return failed(Rejected(Reason.SLUG_TAKEN, f"slug {given} is already taken" if given else ""))
        except ports.StoreUnavailableError as error:
            # If the failed creation has been stored nevertheless, the sub-agent must not remain without a run.
            self._commit_retries.requeue(
                ReloadFromStore(1) if isinstance(asked.command, messages.CreateSubAgent) else VerifyUncertainCommit(),
                why=error,
            )
            return failed(Rejected(Reason.STORE_UNAVAILABLE))
        if isinstance(asked.command, messages.CreateSubAgent):
            self._sub_agent = asked.command
        if isinstance(asked.command, messages.DeleteConversationCommand):
            return self._deletion.begin(asked.origin)
        return answer

    def _run_under_way(self) -> tuple[str, str] | None:
        loaded = self._pipeline.loaded
        if loaded is None or not loaded.state.ledger.live:
            return None
        return loaded.record.id, run_id(loaded.record.id, loaded.state.ledger.run)

    def _refusal(self, asked: Request) -> Exception | None:
        if self._lost is not None:
            return self._lost
        if self._shutdown is not None:
            return Rejected(Reason.SHUTTING_DOWN)
        if not (self._services.cluster.lease.valid() or isinstance(asked.command, messages.CancelConversationCommand)):
            return Rejected(Reason.STORE_UNAVAILABLE, LEASE_EXPIRED)  # The copy in memory may be out of date.
        if asked.deadline is not None and self._services.clock.monotonic() > asked.deadline:
            return messages.DeadlineExceededError()
        if not self._deletion.admits(asked.command):
            return messages.UnknownConversationError("the conversation is being deleted")
        return None

    def _carry_out(self, request: Any, origin: CommandOrigin | None) -> object:
        """Carry out a command once the retry queue is committed.

        A cancel and a forced deletion do not wait for that, because they stop the work. If the store fails now, the
        same cancel is retried before everything else; otherwise the aborted work would count as a failure and be
        retried.
        """
        match request:
            case messages.CancelConversationCommand():
                event = cancel_event(request, self._pipeline.now())
                with self._pipeline.attributed_to(origin):
                    receipt = self._commands.cancel_conversation(request, event)
                if not receipt.recorded:
                    self._cancel_later(event, origin)
                return receipt
            case messages.DeleteConversationCommand(force=True):
                self._commit_retries.flush()
            case _:
                if not self._commit_retries.flush():
                    raise Rejected(Reason.STORE_UNAVAILABLE)
        with self._pipeline.attributed_to(origin):
            answer = self._commands.carry_out(request)
        if isinstance(answer, UserCancel):
            self._cancel_later(answer, origin)
        return answer

    def _cancel_later(self, event: UserCancel, origin: CommandOrigin | None) -> None:
        if not any(covers_cancel(entry, event) for entry in self._commit_retries):
            self._commit_retries.requeue(messages.EffectOutcome(event, origin=origin), first=True)

    # --- commits that no caller awaits ------------------------------------------------------------------------

    def _commit_outcomes(self, outcome: messages.EffectOutcome) -> None:
        """Commit an outcome together with those behind it in the mailbox; then handle sub-agents that have stopped."""
        outcomes = [outcome]
        stopped: list[str] = []
        while may_share_commit(outcome) and (envelope := self.mailbox.get_if(_may_follow)) is not None:
            if isinstance(envelope.message, messages.SubAgentStopped):
                stopped.append(envelope.message.agent_id)
            else:
                outcomes.append(envelope.message)
        try:
            self._commit_retries.enqueue(*outcomes)
        finally:
            for agent_id in stopped:
                self._executor.sub_agent_stopped(agent_id)

    def _on_job_exited(self, receipt: KillReceipt) -> None:
        if self._executor.job_exited(receipt):
            self._record_kill(receipt)

    def _record_kill(self, receipt: KillReceipt) -> None:
        self._deletion.note_leak(receipt)
        self._commit_retries.enqueue(receipt)

    # --- faults -----------------------------------------------------------------------------------------------

    def on_fault(self, message: Any, error: BaseException) -> BaseException:
        """Handle a bug or a failure of the store. The message was applied either completely or not at all."""
        if isinstance(error, ports.NotOwnerError):
            return self._lose(error)
        if isinstance(error, ports.StoreDamagedError):
            log.error("the conversation is damaged in the store", extra={"conversation": self.conversation_id})
        if not isinstance(error, ports.DatabaseAwayError):
            super().on_fault(message, error)
        try:
            if isinstance(error, ports.FencedError):
                self._recovery.reload()
            elif not isinstance(error, ports.StoreError):
                self._recovery.record_fault()
        except ports.NotOwnerError as lost:
            self._lose(lost)
        else:
            self._stop_if_idle()
        if isinstance(error, ports.StoreError) and not isinstance(error, ports.StoreDamagedError):
            return Rejected(Reason.STORE_UNAVAILABLE)
        return error

    def _lose(self, lost: ports.NotOwnerError) -> ports.NotOwnerError:
        """Stop all work and drop the copy, because another server owns the conversation.

        Callers get this error and can ask the owner. The actor ends once its tools have ended.
        """
        if self._pipeline.loaded is not None:
            log.warning("another node owns this conversation; stopping", extra={"conversation": self.conversation_id})
        self._lost = lost
        self._deletion.fail(lost)
        self._commit_retries.clear()
        self._commands.stop_everything()
        self._pipeline.drop()
        self._stop_if_idle()
        return lost

    # --- stop -------------------------------------------------------------------------------------------------

    def _stop_if_idle(self) -> None:
        """If the conversation is inactive, cancel its remaining calls and sub-agents, and stop the actor if it is due.

        Called after every message.
        """
        if self.mailbox.closed:
            return
        if self._shutdown is None and (self._commit_retries or not self._pipeline.idle):
            return
        self._executor.on_idle()
        if self._has_ended and not self._jobs_killed:
            self._jobs_killed = True
            self._executor.end_jobs(self.conversation_id)
        self._directory.on_idle()
        if self._executor.all_stopped:
            self._stop_when_due()

    @property
    def _has_ended(self) -> bool:
        loaded = self._pipeline.loaded
        return loaded is not None and not loaded.record.user_initiated and isinstance(loaded.state, TERMINAL)

    def _stop_when_due(self) -> None:
        """Stop the actor at once at shutdown, or if the conversation is not loaded or has ended; else after a timeout.

        Except at shutdown, the actor never stops while a background job runs.
        """
        loaded = self._pipeline.loaded
        left = self._last_activity + self._services.idle_seconds - self._services.clock.monotonic()
        if self._shutdown is not None:
            self.stop()
        elif loaded is not None and loaded.state.ledger.running_jobs:
            return
        elif loaded is None or isinstance(loaded.state, TERMINAL) or left <= 0:
            self.mailbox.close_if_empty()
        elif not self._idle_check_due:
            self._idle_check_due = True
            self._remind(IdleCheck(), math.ceil(left * 1000))

    def _shut_down(self, done: Future[None]) -> None:
        """End the run. The actor stops after its tools and sub-agents have stopped, and then completes `done`."""
        self._shutdown = done
        self._executor.stop_everything()
        self._commit_retries.clear()
        loaded = self._pipeline.loaded
        try:
            if loaded is not None and (unit := recovering(loaded, self._pipeline.now())) is not None:
                self._pipeline.perform(loaded, unit)
        except ports.NotOwnerError:
            log.info("not recovered: another node owns this conversation", extra={"conversation": self.conversation_id})
        except ports.StoreError:
            log.error("cannot store the run's end; a restart recovers it", extra={"conversation": self.conversation_id})

    def _report_end(self) -> None:
        """If the conversation has ended or has another owner, drop its tools' state; report the end of a sub-agent.

        The end is not reported if the last commit has reported it, or if another server owns the parent.
        """
        if self._has_ended or self._lost:
            self._services.toolbox.forget(self.conversation_id)
        self._services.mcp.release(self.conversation_id)
        if self._sub_agent is None or self._lost or self._executor.parent_notified:
            return
        loaded = self._pipeline.loaded
        state = loaded.state if loaded is not None else Idle()
        parent, usage = self._sub_agent.parent.id, state.ledger.total_usage
        self._sub_agents.report_end(parent, self.conversation_id, outcome_of(state), usage)

    def on_stop(self) -> None:
        try:
            self._executor.stop_runners()
        finally:
            self._deletion.fail(Rejected(Reason.SHUTTING_DOWN))
            self._report_end()
            self._directory.on_stopped(self)
            if self._shutdown is not None and not self._shutdown.done():
                self._shutdown.set_result(None)

    def _remind(self, message: object, milliseconds: int) -> None:
        self._services.timers.after(milliseconds, functools.partial(tell, self.actor_ref, message))


def _is_wake(message: object) -> bool:
    return isinstance(message, Request) and isinstance(message.command, messages.Wake)


def _may_follow(message: object) -> bool:
    return isinstance(message, messages.SubAgentStopped) or may_share_commit(message)


# --- deletion ---------------------------------------------------------------------------------------------------------

# How long a deletion waits for processes to exit, in milliseconds.
DELETE_WAIT_MS = QUIESCE_MS

LEFTOVER_PROCESSES = (
    f"Some of the conversation's tool processes could not be confirmed dead within {DELETE_WAIT_MS // 1000} s; "
    "see the server log for their process ids."
)


@dataclass(frozen=True)
class DeletionOverdue:
    """Timer message: delete the conversation now, even if some processes could not be confirmed dead."""


@dataclass
class _PendingDeletion:
    origin: CommandOrigin | None
    """Who requested the deletion first."""
    answer: Future[tuple[str, ...]] = field(default_factory=Future)
    """The answer to all Delete commands, which consists of warnings."""
    overdue: bool = False
    leaked: bool = False


class ConversationDeletion:
    """Deletes one conversation after its processes have exited. Call only on the actor's thread, except `pending`.

    `commands` deletes rows and tools' state, `commit_retries` gets a VerifyUncertainCommit if the store fails, and
    `remind` sends the actor a message after a number of milliseconds.
    """

    def __init__(
        self,
        commands: CommandDispatch,
        executor: EffectExecutor,
        commit_retries: CommitRetries[Uncommitted],
        remind: Callable[[object, int], None],
    ) -> None:
        self._commands = commands
        self._executor = executor
        self._commit_retries = commit_retries
        self._remind = remind
        self._pending: _PendingDeletion | None = None

    @property
    def pending(self) -> bool:
        """Whether a deletion waits for processes to exit. Thread-safe."""
        return self._pending is not None

    def admits(self, command: object) -> bool:
        """Whether a command may be carried out now: during a deletion, only commands that start nothing may."""
        return self._pending is None or isinstance(
            command, (messages.CancelConversationCommand, messages.DeleteConversationCommand)
        )

    def begin(self, origin: CommandOrigin | None) -> Future[tuple[str, ...]]:
        """Begin the deletion if it has not begun; return the future of its answer, set once the rows are deleted."""
        if self._pending is None:
            self._pending = _PendingDeletion(origin)
            self._remind(DeletionOverdue(), DELETE_WAIT_MS)
        return self._pending.answer

    def expire(self) -> None:
        """Stop waiting for the killed processes; call `finish_if_quiesced` next."""
        if self._pending is not None:
            self._pending.overdue = True

    def note_leak(self, receipt: KillReceipt) -> None:
        """If `receipt` reports processes that may still run, let the answer to the Delete command warn of them."""
        if self._pending is not None and receipt.leaked:
            self._pending.leaked = True

    def finish_if_quiesced(self) -> None:
        """Delete and answer if a deletion is pending and all processes have exited. Raises NotOwnerError."""
        pending = self._pending
        if pending is None:
            return
        self._executor.on_idle()
        if not (self._executor.all_stopped or pending.overdue):
            return
        self._pending = None
        try:
            self._commands.delete(pending.origin)
        except ports.NotOwnerError as lost:
            pending.answer.set_exception(lost)
            raise
        except ports.StoreError as error:
            pending.answer.set_exception(Rejected(Reason.STORE_UNAVAILABLE))
            self._commit_retries.requeue(VerifyUncertainCommit(), why=error)
        except BaseException as error:
            pending.answer.set_exception(error)
            raise
        else:
            self._executor.stop_waiting_for_jobs()
            pending.answer.set_result((LEFTOVER_PROCESSES,) if pending.overdue or pending.leaked else ())

    def fail(self, error: BaseException) -> None:
        """Answer every waiting Delete command with an error and forget the deletion, because the actor stops."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.answer.set_exception(error)
