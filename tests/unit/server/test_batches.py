"""What waits for a watcher goes into few responses, and a commit is not torn apart without need."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from bedrock import v1

from actors.core.notifications import StreamDiscarded
from actors.ports import StoredEvent
from server.streams import encoding as batches
from server.streams.encoding import Outbox, commits, frame, start_of_last_commit

if TYPE_CHECKING:
    from collections.abc import Coroutine


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def stored(*times: int) -> list[StoredEvent]:
    return [StoredEvent(index + 1, at, StreamDiscarded("r", index)) for index, at in enumerate(times)]


def sizes(*times: int) -> list[int]:
    return [len(group) for group in commits(stored(*times), [b"x"] * len(times))]


def test_events_of_one_time_are_one_group() -> None:
    assert sizes(5, 5, 6, 7, 7, 7) == [2, 1, 3]


def test_a_clock_that_goes_back_mixes_nothing_up() -> None:
    assert sizes(5, 5, 4, 5) == [2, 1, 1]
    assert start_of_last_commit(stored(5, 4, 5)) == 2


def test_no_events_are_no_group() -> None:
    assert sizes() == []


def test_the_last_commit_begins_where_its_time_does() -> None:
    assert start_of_last_commit(stored(1, 1, 2, 2)) == 2
    assert start_of_last_commit(stored(2, 2)) == 0


class Reader:
    def __init__(self) -> None:
        self.got: list[bytes] = []

    async def write(self, response: bytes) -> None:
        self.got.append(response)


def test_everything_that_waits_goes_into_one_response() -> None:
    async def work() -> None:
        reader = Reader()
        out = Outbox(reader.write)
        await out.add([b"a", b"b"])
        await out.add([b"c"])
        await out.flush()
        assert reader.got == [b"abc"]
        await out.flush()
        assert len(reader.got) == 1

    run(work())


def test_a_commit_that_does_not_fit_any_more_begins_a_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 10)

    async def work() -> None:
        reader = Reader()
        out = Outbox(reader.write)
        await out.add([b"aaaa", b"bbbb"])
        await out.add([b"cc", b"dd"])
        await out.flush()
        assert reader.got == [b"aaaabbbb", b"ccdd"]

    run(work())


def test_a_commit_too_large_for_one_response_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 10)

    async def work() -> None:
        reader = Reader()
        out = Outbox(reader.write)
        await out.add([b"aaaa", b"bbbb", b"cccc", b"d" * 20, b"ee"])
        await out.flush()
        assert reader.got == [b"aaaabbbb", b"cccc", b"d" * 20, b"ee"]

    run(work())


def test_a_commit_moves_to_the_next_response_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_EVENTS", 4)

    async def work() -> None:
        reader = Reader()
        out = Outbox(reader.write)
        await out.add_events(stored(1, 1, 2, 2, 2, 3), [b"a", b"b", b"c", b"d", b"e", b"f"])
        await out.flush()
        assert reader.got == [b"ab", b"cdef"]

    run(work())


def test_responses_are_bounded_in_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_EVENTS", 2)

    async def work() -> None:
        reader = Reader()
        out = Outbox(reader.write)
        await out.add([b"a"])
        await out.add([b"b", b"c"])
        await out.flush()
        assert reader.got == [b"a", b"bc"]

    run(work())


def test_it_is_known_since_when_a_reader_takes_nothing() -> None:
    async def work() -> None:
        took = asyncio.Event()

        async def slow(_: bytes) -> None:
            await took.wait()

        out = Outbox(slow)
        await out.add([b"a"])
        assert out.writing_since is None
        writing = asyncio.create_task(out.flush())
        await asyncio.sleep(0)
        assert out.writing_since is not None
        took.set()
        await writing
        assert out.writing_since is None
        assert out.sent_at > 0

    run(work())


@pytest.mark.parametrize("length", [0, 1, 100, 127, 128, 300, 16_383, 16_384, 3_000_000])
def test_joined_frames_are_a_response(length: int) -> None:
    first = v1.Event(revision=1, text_delta=v1.Event.TextDelta(text="x" * length))
    second = v1.Event(revision=2, caught_up=v1.Event.CaughtUp(head_revision=2))
    joined = frame(first) + frame(second)
    assert v1.SubscribeResponse.FromString(joined) == v1.SubscribeResponse(events=[first, second])
    assert joined == v1.SubscribeResponse(events=[first, second]).SerializeToString()
