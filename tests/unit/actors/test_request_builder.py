"""Messages for model requests are read once."""

from __future__ import annotations

import pytest

from actors.core.content import Message, MessageType, Text
from actors.ports import StoreDamagedError
from actors.runners import request_builder
from actors.runners.request_builder import HistoryCache


def message(sequence: int) -> Message:
    return Message(f"m{sequence}", sequence, MessageType.USER, (Text(str(sequence)),), sequence)


class Shelf:
    """A store that only has messages, and remembers what was read."""

    def __init__(self, count: int) -> None:
        self.messages_there = [message(n) for n in range(1, count + 1)]
        self.reads: list[int] = []

    def messages(self, conversation_id: str, *, after: int, limit: int) -> tuple[Message, ...]:
        self.reads.append(after)
        return tuple(self.messages_there[after : after + limit])


def test_each_message_is_read_once_and_later_ones_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_builder, "PAGE", 2)
    shelf = Shelf(5)
    history = HistoryCache(shelf, "c")  # type: ignore[arg-type]
    assert [m.sequence for m in history.through(3)] == [1, 2, 3]
    assert [m.sequence for m in history.through(3)] == [1, 2, 3]
    assert shelf.reads == [0, 2]
    shelf.messages_there.append(message(6))
    assert [m.sequence for m in history.through(6)] == [1, 2, 3, 4, 5, 6]
    assert shelf.reads == [0, 2, 4]


def test_a_history_that_is_shorter_than_asked_is_never_shown_to_a_model() -> None:
    with pytest.raises(StoreDamagedError, match="message 3 of conversation c"):
        HistoryCache(Shelf(2), "c").through(9)  # type: ignore[arg-type]
