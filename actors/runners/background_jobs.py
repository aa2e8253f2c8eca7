"""Kills the background jobs of one conversation, and counts those that have not exited yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.messages.outcomes import JobExited
from actors.runtime.actor import tell

if TYPE_CHECKING:
    from pykka import ActorRef

    from actors.core.context import Mode
    from actors.core.tool_run import KillReceipt
    from actors.ports import Toolbox


class BackgroundJobs:
    """Kills the jobs of one conversation and counts their exits. Only the conversation's thread may use it."""

    def __init__(self, toolbox: Toolbox, owner: ActorRef[Any]) -> None:
        self._toolbox = toolbox
        self._owner = owner
        self._exits_due = 0
        self._exited: set[str] = set()
        """The ids of the tool calls that started the exited jobs; cleared when no further exits are expected."""

    @property
    def all_exited(self) -> bool:
        """Whether all killed jobs have exited."""
        return not self._exits_due

    def end(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        """Kill the jobs of a conversation; return the handles of those that still ran, and were not being killed.

        With `wider_than`, kill only jobs with more rights than this permission mode gives. The conversation's actor
        gets a JobExited for each job; a job that is killed twice reports its exit twice.
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
        """Stop waiting for the exits of killed jobs."""
        self._exits_due = 0
        self._exited.clear()

    def _on_exit(self, receipt: KillReceipt) -> None:
        """Report an exit to the conversation's actor. Runs on a thread of the job."""
        tell(self._owner, JobExited(receipt))
