"""The pending deletion of a conversation: it is carried out once all its processes have exited.

The actor does not block. It goes on handling messages, but admits only those that cannot start anything; exits of
processes and the time limit of the deletion arrive as messages too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.core.tool_run import QUIESCE_MS
from actors.messages.commands import CancelConversationCommand, DeleteConversationCommand

if TYPE_CHECKING:
    from actors.runtime.actor import AskEnvelope

DELETE_WAIT_MS = QUIESCE_MS
"""How long a deletion waits for processes to exit, milliseconds."""

LEFT_BEHIND = (
    f"Some processes of its tools could not be confirmed dead within {DELETE_WAIT_MS // 1000} s; "
    "the log of the server names what it knows of them."
)


class Deletion:
    """The callers that wait for a deletion, and whether any process was left. Actor's thread only."""

    def __init__(self) -> None:
        self.asked: list[AskEnvelope[Any]] = []
        self.overdue = False
        """Whether the time limit has passed."""
        self.leaked = False
        """Whether some process could not be confirmed dead."""

    def admits(self, asked: AskEnvelope[Any]) -> bool:
        """Return whether a command is admitted during the deletion, since it starts nothing."""
        return isinstance(asked.request, (CancelConversationCommand, DeleteConversationCommand))

    def succeed(self) -> None:
        """Answer all callers that the conversation is deleted, with a warning if a process may still run."""
        warnings = (LEFT_BEHIND,) if self.overdue or self.leaked else ()
        for asked in self.asked:
            asked.succeed(warnings)

    def fail(self, error: BaseException) -> None:
        """Answer all callers that the deletion failed."""
        for asked in self.asked:
            asked.fail(error)
