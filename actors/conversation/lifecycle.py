"""Stops a conversation's actor after an idle timeout, when a sub-agent has ended, or at shutdown.

The actor stops only when no tool process and no sub-agent is left. An idle actor closes its mailbox only while the
mailbox is empty, so that no message is lost; a later message starts a new actor.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from actors.conversation.command_dispatch import CommandDispatch
from actors.conversation.commit_retries import CommitRetries, Uncommitted, VerifyUncertainCommit
from actors.conversation.pipeline import ConversationPipeline, recovering
from actors.core.errors import Reason, Rejected
from actors.core.states import TERMINAL, Idle
from actors.core.tool_run import QUIESCE_MS, KillReceipt
from actors.messages import CancelConversationCommand, CreateSubAgent, DeleteConversationCommand
from actors.ports import ConversationDirectory, NotOwnerError, StoreError
from actors.ports.records import CommandOrigin
from actors.runners.effect_executor import EffectExecutor
from actors.runners.sub_agents import SubAgentRunner, outcome_of
from actors.runtime.actor import Actor

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IdleCheck:
    """Timer message: stop the actor if its idle timeout has passed."""


@dataclass(frozen=True)
class Shutdown:
    """Message from the supervisor: end the run and stop the actor; `done` is completed once the actor has stopped."""

    done: Future[None]
    urgent: bool = True


class Lifecycle:
    """Decides when one conversation's actor stops, and stops it. Actor's thread only."""

    def __init__(
        self,
        actor: Actor,
        pipeline: ConversationPipeline,
        *,
        directory: ConversationDirectory,
        commit_retries: CommitRetries[Uncommitted],
        sub_agents: SubAgentRunner,
        remind: Callable[[object, int], None],
    ) -> None:
        self._actor = actor
        self._directory = directory
        self._pipeline = pipeline
        self._executor = pipeline.executor
        self._services = pipeline.services
        self._commit_retries = commit_retries
        self._sub_agents = sub_agents
        self._remind = remind
        self.sub_agent: CreateSubAgent | None = None
        """The command that created this conversation as a sub-agent in this process; None for other conversations."""
        self.lost: NotOwnerError | None = None
        """The error with which the store reported that another server owns the conversation; None until then."""
        self._last_activity = -math.inf
        self._idle_check_due = False
        self._jobs_killed = False
        self._shutdown: Future[None] | None = None

    @property
    def shutting_down(self) -> bool:
        return self._shutdown is not None

    def touch(self) -> None:
        self._last_activity = self._services.clock.monotonic()

    def on_idle_check(self) -> None:
        """Note that the idle check's timer has expired; `stop_if_idle` starts it again if it is too early to stop."""
        self._idle_check_due = False

    def stop_if_idle(self) -> None:
        """End the last tools of an inactive conversation, then stop the actor when it is due.

        Called after every message.
        """
        if self._actor.mailbox.closed:
            return
        if not (self.shutting_down or (self._pipeline.idle and not self._commit_retries)):
            return
        self._executor.on_idle()
        if self._has_ended and not self._jobs_killed:
            self._jobs_killed = True
            self._executor.end_jobs(self._pipeline.conversation_id)
        self._directory.on_idle()
        if self._executor.all_stopped:
            self._stop_when_due()

    @property
    def _has_ended(self) -> bool:
        loaded = self._pipeline.loaded
        return loaded is not None and not loaded.record.user_initiated and isinstance(loaded.state, TERMINAL)

    def _stop_when_due(self) -> None:
        """Stop now if shutting down, not loaded or terminal, else after the idle timeout, but not while a job runs."""
        loaded = self._pipeline.loaded
        left = self._last_activity + self._services.idle_seconds - self._services.clock.monotonic()
        if self.shutting_down:
            self._actor.stop()
        elif loaded is not None and loaded.state.ledger.running_jobs:
            return
        elif loaded is None or isinstance(loaded.state, TERMINAL) or left <= 0:
            self._actor.mailbox.close_if_empty()
        elif not self._idle_check_due:
            self._idle_check_due = True
            self._remind(IdleCheck(), math.ceil(left * 1000))

    def shut_down(self, done: Future[None]) -> None:
        """End the run. The actor stops after its tools and sub-agents have stopped, and then completes `done`."""
        self._shutdown = done
        self._executor.stop_everything()
        self._commit_retries.clear()
        loaded = self._pipeline.loaded
        try:
            if loaded is not None and (unit := recovering(loaded, self._pipeline.now())) is not None:
                self._pipeline.perform(loaded, unit)
        except NotOwnerError:
            log.info("recovered by its owner", extra={"conversation": self._pipeline.conversation_id})
        except StoreError:
            log.error("recovered at the next start", extra={"conversation": self._pipeline.conversation_id})

    def report_end(self) -> None:
        """Drop the tools' state of a conversation that has ended or has another owner, and report a sub-agent's end.

        An end that the last commit reports, or whose parent has another owner, is not reported again.
        """
        if self._has_ended or self.lost:
            self._services.toolbox.forget(self._pipeline.conversation_id)
        self._services.mcp.release(self._pipeline.conversation_id)
        if self.sub_agent is None or self.lost or self._executor.parent_notified:
            return
        loaded = self._pipeline.loaded
        state = loaded.state if loaded is not None else Idle()
        parent, usage = self.sub_agent.parent.id, state.ledger.total_usage
        self._sub_agents.report_end(parent, self._pipeline.conversation_id, outcome_of(state), usage)

    def confirm_shutdown(self) -> None:
        if self._shutdown is not None and not self._shutdown.done():
            self._shutdown.set_result(None)


# How long a deletion waits for processes to exit, in milliseconds.
DELETE_WAIT_MS = QUIESCE_MS

LEFTOVER_PROCESSES = (
    f"Some processes of its tools could not be confirmed dead within {DELETE_WAIT_MS // 1000} s; "
    "see the server log for their ids."
)


@dataclass(frozen=True)
class DeletionOverdue:
    """Timer message: delete the conversation now, even if some processes could not be confirmed dead."""


@dataclass
class _PendingDeletion:
    origin: CommandOrigin | None
    """Who requested the deletion first."""
    answer: Future[tuple[str, ...]] = field(default_factory=Future)
    """The answer to all Delete commands: warnings."""
    overdue: bool = False
    leaked: bool = False


class ConversationDeletion:
    """Deletes one conversation once all that it runs has exited. Actor's thread only, except for `pending`.

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
        """Whether a deletion waits for processes to exit. Safe to call from any thread."""
        return self._pending is not None

    def admits(self, command: object) -> bool:
        """Whether a command may be carried out now: during a deletion, only commands that start nothing may."""
        return self._pending is None or isinstance(command, (CancelConversationCommand, DeleteConversationCommand))

    def begin(self, origin: CommandOrigin | None) -> Future[tuple[str, ...]]:
        """Begin the deletion, unless it has begun. Return its answer, which comes once the rows are deleted."""
        if self._pending is None:
            self._pending = _PendingDeletion(origin)
            self._remind(DeletionOverdue(), DELETE_WAIT_MS)
        return self._pending.answer

    def expire(self) -> None:
        """Stop waiting for the killed processes; call `finish_if_quiesced` next."""
        if self._pending is not None:
            self._pending.overdue = True

    def note_leak(self, receipt: KillReceipt) -> None:
        """If some killed processes may still run (`receipt`), make the answer to the Delete command warn about them."""
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
        except NotOwnerError as lost:
            pending.answer.set_exception(lost)
            raise
        except StoreError as error:
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
