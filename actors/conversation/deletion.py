"""Deletion of a conversation: its tools and jobs are killed first; its rows are deleted once they have exited.

The actor does not block in the meantime. It continues to handle messages, but only commands that cannot start anything.
The exits of processes, and the end of the time limit for them, also arrive as messages.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actors.conversation.retry_queue import RetryQueue, Uncommitted, VerifyUncertainCommit
from actors.core.errors import Reason, Rejected
from actors.core.tool_run import QUIESCE_MS, KillReceipt
from actors.messages.commands import CancelConversationCommand, DeleteConversationCommand
from actors.ports import NotOwnerError, StoreError
from actors.ports.store.audit import CommandOrigin

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.conversation.commands.command_dispatch import CommandDispatch
    from actors.runners.effect_executor import EffectExecutor

DELETE_WAIT_MS = QUIESCE_MS
"""How long a deletion waits for processes to exit, in milliseconds."""

LEFT_BEHIND = (
    f"Some processes of its tools could not be confirmed dead within {DELETE_WAIT_MS // 1000} s; "
    "the log of the server names what it knows of them."
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
    """Whether DELETE_WAIT_MS have passed."""
    leaked: bool = False
    """Whether some processes could not be confirmed dead."""


class ConversationDeletion:
    """Deletes one conversation once everything that it runs has exited. Actor's thread only, except for `pending`.

    Args:
        commands: Deletes the rows, and the state that tools keep for the conversation.
        executor: Reports whether anything is still running.
        retry_queue: Gets a VerifyUncertainCommit if the store fails.
        remind: Sends the actor a message after a number of milliseconds.
    """

    def __init__(
        self,
        commands: CommandDispatch,
        executor: EffectExecutor,
        retry_queue: RetryQueue[Uncommitted],
        remind: Callable[[object, int], None],
    ) -> None:
        self._commands = commands
        self._executor = executor
        self._retry_queue = retry_queue
        self._remind = remind
        self._pending: _PendingDeletion | None = None

    @property
    def pending(self) -> bool:
        """Whether a deletion waits for processes to exit. Safe to call from any thread."""
        return self._pending is not None

    def admits(self, command: object) -> bool:
        """Return whether a command may be carried out now: during a deletion, only commands that start nothing may."""
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
        """If a deletion is pending and all processes have exited, delete the conversation and answer.

        Raises NotOwnerError if another server owns the conversation.
        """
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
            self._retry_queue.requeue(VerifyUncertainCommit(), why=error)
        except BaseException as error:
            pending.answer.set_exception(error)
            raise
        else:
            self._executor.stop_waiting_for_jobs()
            pending.answer.set_result((LEFT_BEHIND,) if pending.overdue or pending.leaked else ())

    def fail(self, error: BaseException) -> None:
        """Answer every waiting Delete command with an error and forget the deletion, because the actor stops."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.answer.set_exception(error)
