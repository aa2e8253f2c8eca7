"""A view that grows with its history, held at every step against the view that is built of the whole (C48)."""

from collections.abc import Sequence

from actors.core.content import Image, Message, Reasoning, tool_uses
from actors.core.history import UNLIMITED, GrowingView, Prefix, Room, Turn, provider_view

FORMS = (("", ""), ("demo", "demo"), ("anthropic", "a-1"))
"""Protocols and models; drive.py writes reasoning of the demo model."""
TIGHT = Room(usable=900, fixed=100)
"""A window in which results of tools are cut."""


class Growing:
    """Views of some forms over one history, each compared with the view of the whole."""

    def __init__(self, *forms: tuple[str, str]) -> None:
        """`forms`: all if none is given."""
        self.views = {form: GrowingView(*form) for form in forms or FORMS}
        self.tight = {form: GrowingView(*form, TIGHT) for form in forms or FORMS}
        self.length = 0
        self.settled: dict[Prefix, tuple[Turn, ...]] = {}

    def follow(self, history: Sequence[Message]) -> None:
        """Compare the views after each message that is new."""
        for length in range(self.length + 1, len(history) + 1):
            for room, views in ((UNLIMITED, self.views), (TIGHT, self.tight)):
                for form, growing in views.items():
                    self._compare(history[:length], growing, form, room)
        self.length = len(history)

    def _compare(self, history: Sequence[Message], growing: GrowingView, form: tuple[str, str], room: Room) -> None:
        for message in history[growing.sequence :]:
            growing.add(message)
        view = growing.view()
        assert view.turns == provider_view(history, len(history), protocol=form[0], model=form[1], room=room)
        beginning = view.turns[: view.settled]
        assert self.settled.setdefault(view.prefix, beginning) == beginning
        assert view.settled_calls == {call.id for turn in beginning for call in tool_uses(turn.content)}


def kinds_of(history: Sequence[Message]) -> set[str]:
    """Return what the messages of a history are, and what is in them."""
    blocks = [block for message in history for block in message.content]
    kinds: set[str] = {message.type for message in history} | {message.delivery for message in history}
    kinds |= {"image"} if any(isinstance(block, Image) for block in blocks) else set()
    kinds |= {"reasoning"} if any(isinstance(block, Reasoning) for block in blocks) else set()
    kinds |= {"cancelled"} if any(type(block).__name__ == "ToolCancelled" for block in blocks) else set()
    late = any(0 < message.through_sequence < message.sequence - 1 for message in history)
    return kinds | ({"late"} if late else set())
