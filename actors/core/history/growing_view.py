"""The provider's view of a history that grows: each request costs what is new since the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.content import MessageType, ToolUse
from actors.core.history.provider_view import ProviderOrder, ProviderView, answer_content, is_blank, turns_of

if TYPE_CHECKING:
    from actors.core.content import Message
    from actors.core.history.provider_view import Turn


class GrowingView:
    """Equal to `provider_view` after every message of a history with a valid chain.

    An answer begins a turn of its own and no later answer is placed before it, so the turns before the last answer are
    settled: they are built once.
    """

    def __init__(self, protocol: str = "", model: str = "") -> None:
        self._protocol = protocol
        self._model = model
        self._lineage = object()
        self._order = ProviderOrder()
        """Places the messages that are not settled."""
        self._settled: list[Turn] = []
        self._calls: set[str] = set()
        """Ids of the calls in settled turns."""
        self.sequence = 0
        """Of the last message that was added."""

    def add(self, message: Message) -> None:
        """Add the next message of the history."""
        self._order.add(message)
        self.sequence = message.sequence
        if message.type is MessageType.AGENT and self._is_shown(message):
            self._settle()

    def view(self) -> ProviderView:
        """Return the view of all messages that were added."""
        tail = turns_of(self._order.placed, self._protocol, self._model)
        return ProviderView((*self._settled, *tail), len(self._settled), self._lineage, self._calls)

    def _is_shown(self, answer: Message) -> bool:
        """Whether something of the answer is in the view, so that it begins a turn."""
        return not all(map(is_blank, answer_content(answer, self._protocol, self._model)))

    def _settle(self) -> None:
        turns = turns_of(self._order.take_settled(), self._protocol, self._model)
        self._settled += turns
        self._calls.update(block.id for turn in turns for block in turn.content if isinstance(block, ToolUse))
