"""Messages for model requests are read once, or taken over as they are committed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from actors.core.content import Image, Message, MessageType, Text
from actors.core.history import Room
from actors.ports import ModelInfo, StoreDamagedError
from actors.runners import model_requests
from actors.runners.model_requests import HistoryCache


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
    monkeypatch.setattr(model_requests, "PAGE", 2)
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


def test_what_was_just_committed_is_not_read_back() -> None:
    shelf = Shelf(0)
    history = HistoryCache(shelf, "c")  # type: ignore[arg-type]
    for sequence in range(1, 5):
        history.extend([message(sequence)])
        assert history.through(sequence)[-1] == message(sequence)
    assert shelf.reads == []


def test_messages_behind_a_gap_are_read() -> None:
    """An owner that took the conversation over was not there when the first messages were committed."""
    shelf = Shelf(5)
    history = HistoryCache(shelf, "c")  # type: ignore[arg-type]
    history.extend([message(5)])
    assert [m.sequence for m in history.through(5)] == [1, 2, 3, 4, 5]
    history.extend([message(6), message(8)])
    history.extend([message(6)])
    assert [m.sequence for m in history.through(6)] == [1, 2, 3, 4, 5, 6]
    assert shelf.reads == [0]


PLAIN = ModelInfo("m", "m", "p", "anthropic", 1_000, 100, 900)
OTHER = replace(PLAIN, name="other")
SEEING = replace(PLAIN, images=True)


def history_of(count: int) -> HistoryCache:
    return HistoryCache(Shelf(count), "c")  # type: ignore[arg-type]


def test_a_view_is_what_a_new_cache_gives_whatever_was_asked_before() -> None:
    """A model changes and changes back; an abandoned request is built after the one that replaced it."""
    messages = [
        replace(message(number), type=MessageType.AGENT if number % 2 == 0 else MessageType.USER)
        for number in range(1, 10)
    ]
    used = history_of(0)
    used.extend(messages)
    wide, small = Room(), Room(usable=900)
    asked = ((PLAIN, wide, 3), (PLAIN, wide, 7), (PLAIN, small, 5), (PLAIN, wide, 7), (OTHER, wide, 8))
    for model, room, sequence in (*asked, (PLAIN, wide, 9), (SEEING, small, 9)):
        fresh = history_of(0)
        fresh.extend(messages)
        assert used.view(sequence, model, room, no_size).turns == fresh.view(sequence, model, room, no_size).turns


def no_size(_image: Image) -> int:
    return 0


def test_an_image_of_settled_turns_is_measured_once() -> None:
    measured: list[str] = []

    def size_of(image: Image) -> int:
        measured.append(image.attachment)
        return 10

    history = history_of(0)
    for number in range(1, 40, 2):
        shot = Image(f"sha256-{number}", "image/png", 1, 1)
        history.extend([replace(message(number), content=(shot,))])
        history.extend([replace(message(number + 1), type=MessageType.AGENT)])
        history.view(number + 1, SEEING, Room(), size_of)
    assert len(measured) == 20
