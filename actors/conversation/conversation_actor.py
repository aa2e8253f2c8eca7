"""The conversation actor: the one thread that changes a conversation, one message at a time.

A message is a command (an AskEnvelope, which a caller awaits), an outcome of an effect that this actor has started, or
a reminder that it has sent to itself. Each goes through the pipeline: load, transition, commit, publish, act. The
commit is the only thing that the actor waits for; models, tools and other conversations answer with messages.

The mailbox has two lanes. Cancels, changes of mode, the creation of a sub-agent, the timers that bound a cancel and
the shutdown go into the urgent one, so that nothing in the normal lane is handled before them. A cancel moreover stops
the work in flight on the caller's thread, before its turn comes: the outcome of the stopped work then finds the cancel
handled already.

If the store is unavailable, commands are refused at once. What has happened anyway, outcomes and cancels, waits in the
retry queue, which is flushed before any further command.

The actor stops when its conversation has been idle for a while, or has ended, and no process of a tool is left; and at
shutdown. It closes its mailbox only while that is empty: a message that comes later starts its successor.
"""

from __future__ import annotations

import functools
import logging
import math
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors.conversation.command_dispatch import CommandDispatch, cancel_event
from actors.conversation.deletion import DELETE_WAIT_MS, Deletion
from actors.conversation.pipeline import ConversationPipeline, needs_recovery
from actors.conversation.retry_queue import RetryQueue
from actors.core.errors import Reason, Rejected
from actors.core.events import (
    Event,
    InternalFault,
    LlmAborted,
    LlmError,
    LlmResponse,
    Restart,
    UsageReported,
    UserCancel,
)
from actors.core.notifications import ToolTreeReaped
from actors.core.states import TERMINAL, AwaitingToolApproval, Idle, Ledger
from actors.core.tool_run import KillReceipt
from actors.messages.commands import CancelConversationCommand, DeleteConversationCommand
from actors.messages.log_entries import TreeReaped
from actors.messages.outcomes import (
    CreateSubAgent,
    EffectOutcome,
    JobExited,
    SubAgentStopped,
    TextDeltaReady,
    ToolRunnerStopped,
)
from actors.messages.refusals import (
    DeadlineExceededError,
    EtagMismatchError,
    InvalidFieldError,
    UnknownConversationError,
)
from actors.ports import (
    ConversationDirectory,
    FencedError,
    SlugTakenError,
    StoreDamagedError,
    StoreError,
    StoreUnavailableError,
)
from actors.runners.effect_executor import EffectExecutor, InFlightWork
from actors.runners.sub_agents import SubAgents, outcome_of
from actors.runners.titles import Titles
from actors.runtime.actor import Actor, AskEnvelope, tell
from actors.runtime.admission import Admission

if TYPE_CHECKING:
    from actors.runtime.services import Services

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IdleCheck:
    """Stop if nothing has happened for a while."""


@dataclass(frozen=True)
class Retry:
    """Flush the retry queue: the pause is over."""


@dataclass(frozen=True)
class VerifyUncertainCommit:
    """Compare memory with the store: a commit that was reported as failed may have succeeded."""


@dataclass(frozen=True)
class ReloadFromStore:
    """Drop what is in memory and load what the store has; `epoch` is that of the owner in memory."""

    epoch: int


@dataclass(frozen=True)
class DeletionOverdue:
    """Delete now, even if some processes could not be confirmed dead."""


@dataclass(frozen=True)
class Shutdown:
    """End the run and stop; `done` gets its result once the actor has stopped."""

    done: Future[None]
    urgent: bool = True


Uncommitted = EffectOutcome | TextDeltaReady | KillReceipt | VerifyUncertainCommit | ReloadFromStore
"""Entries that are committed without a caller that waits for the result."""


@dataclass(frozen=True)
class SharedRunners:
    """The runners that all conversations of one process share."""

    admission: Admission
    sub_agents: SubAgents
    titles: Titles


class ConversationActor(Actor):
    """Owns one conversation while it is active."""

    def __init__(
        self, services: Services, directory: ConversationDirectory, shared: SharedRunners, conversation_id: str
    ) -> None:
        super().__init__()
        self.conversation_id = conversation_id
        self._services = services
        self._directory = directory
        self._sub_agents = shared.sub_agents
        self._executor = EffectExecutor(services, shared.admission, self.actor_ref, shared.sub_agents)
        self._pipeline = ConversationPipeline(services, self._executor, conversation_id)
        self._commands = CommandDispatch(self._pipeline, shared.titles)
        self._retry_queue: RetryQueue[Uncommitted] = RetryQueue(
            conversation_id, self._settle, functools.partial(self._remind, Retry())
        )
        self._touched = services.clock.monotonic()
        self._idle_check_due = False
        self._deletion: Deletion | None = None
        self._ending: Future[None] | None = None
        self._birth: CreateSubAgent | None = None
        """The command that created this conversation as a sub-agent, if this actor handled it."""
        self._jobs_told = False

    # --- what others may see (any thread) ---------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether no work is in flight that would end by itself."""
        machine = self._pipeline.loaded
        waits_for_people = machine is not None and isinstance(machine.state, AwaitingToolApproval)
        return not self._retry_queue and not self._deletion and (self._pipeline.idle or waits_for_people)

    @property
    def ledger(self) -> Ledger | None:
        """The ledger as last committed (any thread)."""
        machine = self._pipeline.loaded
        return machine.state.ledger if machine is not None else None

    def in_flight(self, run: str) -> InFlightWork | None:
        """Return what a cancel of this run, or of any run if it is "", would stop now (any thread)."""
        work = self._executor.in_flight
        return work if work is not None and run in ("", work.run) else None

    def cancel_now(self, work: InFlightWork) -> None:
        """Stop the work without waiting for the mailbox, which must already contain its cancel (any thread)."""
        self._executor.cancel_now(work)

    def cancel_run_now(self, run: str) -> None:
        """Stop all work of a run likewise, and prevent what it would still start (any thread)."""
        self._executor.cancel_run_now(run)

    def deliver(self, message: object) -> bool:
        """Put a message into the mailbox; False if this actor has stopped (any thread)."""
        return tell(self.actor_ref, message)

    # --- messages ---------------------------------------------------------------------------------------------

    def receive(self, message: Any) -> None:
        if not isinstance(message, IdleCheck):
            self._touched = self._services.clock.monotonic()
        match message:
            case AskEnvelope():
                self._answer(message)
            case EffectOutcome() | TextDeltaReady():
                self._retry_queue.add(message)
                self._retry_queue.flush()
            case KillReceipt():
                self._reaped(message)
            case JobExited(receipt=receipt):
                self._job_gone(receipt)
            case Retry():
                self._retry_queue.retry()
            case ToolRunnerStopped(runner=runner):
                self._executor.tool_runner_stopped(runner)
            case SubAgentStopped(agent_id=agent_id):
                self._executor.sub_agent_stopped(agent_id)
            case IdleCheck():
                self._idle_check_due = False
            case DeletionOverdue():
                self._hurry_deletion()
            case Shutdown(done=done):
                self._shut_down(done)
            case _:
                raise TypeError(f"no such message: {type(message).__name__}")
        self._delete_what_is_dead()
        self._rest()

    def _answer(self, asked: AskEnvelope[Any]) -> None:
        """Handle a command; drop it if its caller has timed out, unless it is a cancel, which has taken effect."""
        if not asked.claim() and not isinstance(asked.request, CancelConversationCommand):
            return
        if self._ending is not None:
            asked.fail(Rejected(Reason.SHUTTING_DOWN))
            return
        if asked.deadline is not None and self._services.clock.monotonic() > asked.deadline:
            asked.fail(DeadlineExceededError())
            return
        if self._deletion is not None and not self._deletion.admits(asked):
            asked.fail(UnknownConversationError("the conversation is being deleted"))
            return
        try:
            answer = self._carry_out(asked.request)
            if isinstance(asked.request, CreateSubAgent):
                self._birth = asked.request
            if isinstance(asked.request, DeleteConversationCommand):
                self._delete_once_dead(asked)
            else:
                asked.succeed(answer)
        except (Rejected, UnknownConversationError, InvalidFieldError, EtagMismatchError) as refusal:
            asked.fail(refusal)
        except SlugTakenError:
            asked.fail(Rejected(Reason.SLUG_TAKEN))
        except StoreUnavailableError:
            asked.fail(Rejected(Reason.STORE_UNAVAILABLE))
            # A sub-agent whose creation failed must not stay in memory half-created.
            self._retry_queue.requeue(
                ReloadFromStore(1) if isinstance(asked.request, CreateSubAgent) else VerifyUncertainCommit()
            )

    def _carry_out(self, request: Any) -> object:
        """Flush the retry queue, then handle the command; a cancel does not wait for the queue.

        The work that a cancel stops is stopped already. If the store fails now, the same cancel is put first in the
        retry queue; otherwise the aborted work would be handled as a failure and retried.
        """
        if not isinstance(request, CancelConversationCommand):
            if not self._retry_queue.flush():
                raise Rejected(Reason.STORE_UNAVAILABLE)
            return self._commands.carry_out(request)
        event = cancel_event(request, self._pipeline.now())
        receipt = self._commands.cancel(request, event)
        if not receipt.recorded and not any(_covers(entry, event) for entry in self._retry_queue):
            self._retry_queue.requeue(EffectOutcome(event), first=True)
        return receipt

    # --- deletion ---------------------------------------------------------------------------------------------

    def _delete_once_dead(self, asked: AskEnvelope[Any]) -> None:
        """Register a deletion, which is answered once all processes have exited; until then nothing new is admitted."""
        if self._deletion is None:
            self._deletion = Deletion()
            self._remind(DeletionOverdue(), DELETE_WAIT_MS)
        self._deletion.asked.append(asked)

    def _hurry_deletion(self) -> None:
        if self._deletion is not None:
            self._deletion.overdue = True

    def _delete_what_is_dead(self) -> None:
        """Finish a pending deletion once all processes have exited or its time limit has passed."""
        deletion = self._deletion
        if deletion is None:
            return
        self._executor.on_idle()
        if not (self._executor.all_stopped or deletion.overdue):
            return
        self._deletion = None
        try:
            self._commands.delete()
        except StoreError:
            deletion.fail(Rejected(Reason.STORE_UNAVAILABLE))
            self._retry_queue.requeue(VerifyUncertainCommit())
        except BaseException as error:
            deletion.fail(error)
            raise
        else:
            self._executor.stop_waiting_for_jobs()
            deletion.succeed()

    # --- outcomes ---------------------------------------------------------------------------------------------

    def _settle(self, entry: Uncommitted) -> None:
        """Apply an entry that has no caller; dropped if the conversation is not in memory. Raises StoreError."""
        if isinstance(entry, ReloadFromStore):
            self._pipeline.reload(entry.epoch)
        elif self._pipeline.loaded is None:
            log.info("conversation %s is over; nobody asks for this %s", self.conversation_id, type(entry).__name__)
        else:
            self._apply(entry)

    def _apply(self, entry: EffectOutcome | TextDeltaReady | KillReceipt | VerifyUncertainCommit) -> None:
        match entry:
            case EffectOutcome(event=event):
                self._take(event)
            case TextDeltaReady(source=source):
                for chunk in source.take():
                    self._pipeline.advance(chunk)
            case KillReceipt():
                self._record(entry)
            case VerifyUncertainCommit():
                self._look_again()

    def _take(self, event: Event) -> None:
        """Apply an outcome. The usage of an outcome that is no longer awaited is counted all the same."""
        ignored = self._pipeline.advance(event).empty
        if ignored and isinstance(event, (LlmResponse, LlmError, LlmAborted)) and event.usage is not None:
            self._pipeline.advance(UsageReported(event.at, event.usage, aside=False))

    def _job_gone(self, receipt: KillReceipt) -> None:
        if self._executor.job_exited(receipt):
            self._reaped(receipt)

    def _reaped(self, receipt: KillReceipt) -> None:
        if self._deletion is not None and receipt.leaked:
            self._deletion.leaked = True
        self._retry_queue.add(receipt)
        self._retry_queue.flush()

    def _record(self, receipt: KillReceipt) -> None:
        machine, at = self._pipeline.load(), self._pipeline.now()
        reaped = ToolTreeReaped(receipt.tool_use_id, receipt.pids, receipt.milliseconds, receipt.leaked)
        unit = machine.begin()
        unit.change(TreeReaped(at, receipt.tool_use_id), at, (reaped,))
        self._pipeline.perform(machine, unit)

    def _look_again(self) -> None:
        """Reload if the store differs from memory: then a commit that was reported as failed has succeeded."""
        stored, machine = self._services.store.load(self.conversation_id), self._pipeline.loaded
        if stored is None:
            self._services.bus.deleted(self.conversation_id, machine.record if machine else None)
        if machine is None or stored is None or stored.step != machine.record.step:
            self._start_over()

    # --- faults -----------------------------------------------------------------------------------------------

    def on_fault(self, message: Any, error: BaseException) -> None:
        """Handle a bug or a store failure; the message was applied as a whole or not at all."""
        if isinstance(error, StoreDamagedError):
            log.error("conversation %s is damaged in the store", self.conversation_id)
        elif isinstance(message, AskEnvelope) and isinstance(error, StoreError):
            message.fail(Rejected(Reason.STORE_UNAVAILABLE))
        super().on_fault(message, error)
        if isinstance(error, FencedError):
            self._start_over()
        elif not isinstance(error, StoreError):
            self._contain()
        self._rest()

    def _contain(self) -> None:
        """End the run with an error; if that fails too, reload from the store."""
        self._executor.stop_everything()
        if self._pipeline.loaded is None:
            return
        fault = InternalFault(self._pipeline.now(), "Bedrock itself failed; its log tells more.")
        try:
            self._pipeline.advance(fault)
        except StoreUnavailableError:
            self._retry_queue.requeue(EffectOutcome(fault), first=True)
        except BaseException:
            log.exception("conversation %s could not record its fault", self.conversation_id)
            self._start_over()

    def _start_over(self) -> None:
        """Discard memory and reload from the store; retried if the store is unavailable."""
        epoch = self._pipeline.loaded.record.epoch if self._pipeline.loaded else 0
        self._retry_queue.clear()
        self._retry_queue.add(ReloadFromStore(epoch))
        self._retry_queue.flush()

    # --- rest and end -----------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """After every message: release the tool runner if the conversation is idle, and schedule this actor's stop."""
        if self.stopped or not (self._ending or (self._pipeline.idle and not self._retry_queue)):
            return
        self._executor.on_idle()
        if self._over and not self._jobs_told:
            self._jobs_told = True
            self._executor.end_jobs(self.conversation_id)
        self._directory.on_idle()
        if self._executor.all_stopped:
            self._leave_in_time()

    @property
    def _over(self) -> bool:
        """Whether this is a sub-agent that has ended; the state that its tools keep is then useless."""
        machine = self._pipeline.loaded
        return machine is not None and not machine.record.user_initiated and isinstance(machine.state, TERMINAL)

    def _leave_in_time(self) -> None:
        """Stop now if the conversation has ended or the server shuts down, else after `idle_seconds` of inactivity."""
        machine = self._pipeline.loaded
        left = self._touched + self._services.idle_seconds - self._services.clock.monotonic()
        if self._ending is not None:
            self.terminate()
        elif machine is None or isinstance(machine.state, TERMINAL) or left <= 0:
            if self.mailbox.close_if_empty():
                self.terminate()
        elif not self._idle_check_due:
            self._idle_check_due = True
            self._remind(IdleCheck(), math.ceil(left * 1000))

    def _shut_down(self, done: Future[None]) -> None:
        self._ending = done
        self._executor.stop_everything()
        self._retry_queue.clear()
        machine = self._pipeline.loaded
        try:
            if machine is not None and needs_recovery(machine.record):
                self._pipeline.advance(Restart(self._pipeline.now()))
        except StoreError:
            log.error("conversation %s is brought to rest at the next start", self.conversation_id)

    def terminate(self, refusal: Exception | None = None) -> None:
        """End this actor and all work in flight (actor's thread)."""
        try:
            self._executor.stop_everything()
        finally:
            if self._deletion is not None:
                self._deletion.fail(refusal or Rejected(Reason.SHUTTING_DOWN))
            super().terminate(refusal or (Rejected(Reason.SHUTTING_DOWN) if self._ending else None))
            self._say_last_word()
            self._directory.on_stopped(self)
            if self._ending is not None and not self._ending.done():
                self._ending.set_result(None)

    def _say_last_word(self) -> None:
        """Report the sub-agent's end to its parent if that has not been done, for example because of a fault."""
        if self._over:
            self._services.toolbox.forget(self.conversation_id)
        if self._birth is None or self._executor.parent_notified:
            return
        machine = self._pipeline.loaded
        state = machine.state if machine is not None else Idle()
        usage = state.ledger.total_usage
        self._sub_agents.report_end(self._birth.parent.id, self.conversation_id, outcome_of(state), usage)

    def _remind(self, message: object, milliseconds: int) -> None:
        """Send this actor a message later; the timer does not keep it alive."""
        self._services.timers.after(milliseconds, functools.partial(tell, self.actor_ref, message))


def _covers(entry: object, cancel: UserCancel) -> bool:
    """Whether `entry` is a cancel that already does all that `cancel` would."""
    return (
        isinstance(entry, EffectOutcome)
        and isinstance(entry.event, UserCancel)
        and entry.event.discard_queued >= cancel.discard_queued
        and entry.event.kill_jobs >= cancel.kill_jobs
    )
