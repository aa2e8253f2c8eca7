"""A conversation on its way out: what it still has running is dying, and it is deleted when that is dead.

The actor does not wait. It goes on taking messages, of which only those are admitted that cannot start anything; the
deaths arrive as messages too, and so does the end of the patience with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.core.tool_run import QUIESCE_MS
from actors.messages.commands import CancelConversationCommand, DeleteConversationCommand

if TYPE_CHECKING:
    from actors.runtime.actor import AskEnvelope

DELETE_WAIT_MS = QUIESCE_MS
"""How long a deletion waits for processes to die, milliseconds."""

LEFT_BEHIND = (
    f"Some processes of its tools could not be confirmed dead within {DELETE_WAIT_MS // 1000} s; "
    "the log of the server names what it knows of them."
)


class Deletion:
    """Who waits for it, and what is known of the dying. Actor's thread only."""

    def __init__(self) -> None:
        self.asked: list[AskEnvelope[Any]] = []
        self.overdue = False
        """They have had their time."""
        self.leaked = False
        """Some of them were given up."""

    def admits(self, asked: AskEnvelope[Any]) -> bool:
        """Whether this may be carried out meanwhile: it starts nothing."""
        return isinstance(asked.request, (CancelConversationCommand, DeleteConversationCommand))

    def succeed(self) -> None:
        """It is deleted: tell everybody who asked, with a warning if something may still run."""
        warnings = (LEFT_BEHIND,) if self.overdue or self.leaked else ()
        for asked in self.asked:
            asked.succeed(warnings)

    def fail(self, error: BaseException) -> None:
        """It is not: tell everybody who asked."""
        for asked in self.asked:
            asked.fail(error)
