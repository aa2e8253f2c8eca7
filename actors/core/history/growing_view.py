"""The provider's view of a growing history, updated incrementally: each request processes only new messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.content import MessageType, ToolUse
from actors.core.history.provider_view import ProviderOrder, ProviderView, answer_content, is_blank, turns_of
from actors.core.history.result_budget import UNLIMITED, Room, bounded

if TYPE_CHECKING:
    from actors.core.content import Message
    from actors.core.history.provider_view import Turn


class GrowingView:
    """The turns of a history that grows message by message: `view` returns what `provider_view` would return.

    An answer begins a new turn, and no later answer is placed before it. So the turns before the last answer are
    settled: they no longer change, and are built only once. The history must be valid.
    """

    def __init__(self, protocol: str = "", model: str = "", room: Room = UNLIMITED) -> None:
        self._protocol = protocol
        self._model = model
        self._room = room
        self._used = room.fixed
        """The tokens of the settled turns, and of what precedes them in a request."""
        self._lineage = object()
        self._order = ProviderOrder()
        """Orders the messages from the last answer on, whose turns may still change."""
        self._settled: list[Turn] = []
        self._calls: set[str] = set()
        """Ids of the tool calls in the settled turns (those that no longer change)."""
        self.sequence = 0
        """The number of the last added message in its conversation; 0 before the first one."""

    def add(self, message: Message) -> None:
        """Add the next message of the history."""
        self._order.add(message)
        self.sequence = message.sequence
        if message.type is MessageType.AGENT and self._is_shown(message):
            self._settle()

    def view(self) -> ProviderView:
        """Return the view of all messages added so far."""
        placed, _ = bounded(self._order.placed, self._room, self._used)
        tail = turns_of(placed, self._protocol, self._model)
        return ProviderView((*self._settled, *tail), len(self._settled), self._lineage, self._calls)

    def _is_shown(self, answer: Message) -> bool:
        """Return whether any part of the answer is in the view, so that the answer begins a turn."""
        return not all(map(is_blank, answer_content(answer, self._protocol, self._model)))

    def _settle(self) -> None:
        placed, self._used = bounded(self._order.take_settled(), self._room, self._used)
        turns = turns_of(placed, self._protocol, self._model)
        self._settled += turns
        self._calls.update(block.id for turn in turns for block in turn.content if isinstance(block, ToolUse))
