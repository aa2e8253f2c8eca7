"""The laws of a watch, held over many streams of a conversation that its author writes: every commit is known exactly.

BEDROCK_RESUMES and BEDROCK_COMMIT_RACES say how many streams there are; `make fault PARTS=watch` has many.
"""

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable

import pytest

from actors.core.content import MessageType, Text
from actors.core.notifications import Durable, StreamDiscarded
from actors.core.states import Idle, State
from actors.ports import RevisionTooOldError, Store, StoredEvent
from tests.integration.server.watch_harness import ID, Author, Stream, WatchHarness, changed, watch_harness
from tests.support.stores import new_store
from tests.support.watch_laws import Recorded, Violation, log_of, violations

RESUMES = int(os.environ.get("BEDROCK_RESUMES", "100"))
RACES = int(os.environ.get("BEDROCK_COMMIT_RACES", "100"))
SHORT = 10
"""Events of commits that may come in the same millisecond: all of these count as one."""
ROUND = 200
"""Streams that are checked together."""


class Novelist:
    """An author who remembers every commit, and writes whatever comes to mind: texts, discarded texts, long commits."""

    def __init__(self, author: Author, chance: random.Random) -> None:
        self.commits: list[tuple[StoredEvent, ...]] = []
        self._author = author
        self._chance = chance
        self._slot: tuple[str, int] | None = None
        self._said = ""
        self._requests = 0

    @property
    def head(self) -> int:
        return self._author.head

    def write(self, *notifications: Durable, state: State | None = None) -> None:
        """One commit, in the next millisecond or, a short one, perhaps in that of the one before."""
        soon = len(notifications) < SHORT and len(self.commits[-1] if self.commits else ()) < SHORT
        at = self._author.record.updated_at + (self._chance.randrange(2) if soon else 1)
        events = self._author.store_only(*notifications, at=at, state=state)
        self.commits.append(events)
        self._author.publish(events)

    def go_on(self) -> None:
        """Some commit, or a few words."""
        if self._slot is None:
            self._chance.choice((self._begin, self._chat, self._chat))()
        else:
            self._chance.choice((*[self._speak] * 12, self._finish, self._discard))()

    def settle(self) -> None:
        """End the answer that is under way."""
        if self._slot is not None:
            self._finish()

    def _chat(self) -> None:
        count = self._chance.choice((*[1, 2, 3] * 8, 40))
        self.write(*(self._author.says("x" * self._chance.choice((1, 100, 20_000))) for _ in range(count)))

    def _begin(self) -> None:
        self._requests += 1
        self._slot, self._said = (f"r{self._requests}", self._chance.randrange(1, 4)), ""
        self._author.streams(*self._slot)
        self.commits.append(self._author.store.events(ID, after=self.head - 1, limit=1))

    def _speak(self) -> None:
        assert self._slot is not None
        text = self._chance.choice(("a", "word ", "ä€😀", "many words " * 50))
        self._said += text
        self._author.token(text, *self._slot)

    def _finish(self) -> None:
        assert self._slot is not None
        request_id, attempt = self._slot
        whole = self._author.says(
            type=MessageType.AGENT, content=(Text(self._said + "."),), request_id=request_id, attempt=attempt
        )
        self._slot = None
        self.write(whole, changed("idle"), state=Idle())

    def _discard(self) -> None:
        assert self._slot is not None
        slot, self._slot = self._slot, None
        self.write(StreamDiscarded(*slot), changed("idle"), state=Idle())


def recorded(name: str, after: int | None, stream: Stream) -> Recorded:
    """What a stream brought, and how it ended if it did by itself."""
    made = Recorded(name, after, stream.responses)
    error = stream.task.exception() if stream.task.done() and not stream.task.cancelled() else None
    if isinstance(error, RevisionTooOldError):
        made.code, made.oldest = "OUT_OF_RANGE", error.oldest
    elif error is not None:
        raise error
    return made


@pytest.fixture
def store() -> Store:
    return new_store()


# --- whatever happens to streams --------------------------------------------------------------------------------------


class Readers:
    """Streams of one conversation that come and go, read fast, slowly or not at all for a while."""

    def __init__(self, made: WatchHarness, chance: random.Random) -> None:
        self._stage = made
        self._chance = chance
        self.open: list[tuple[int | None, Stream]] = []
        self.done: list[tuple[int | None, Stream]] = []

    def come(self, head: int) -> None:
        """Somebody begins afresh, or resumes somewhere, as a rule not far back."""
        after: int | None = max(0, head - int(self._chance.expovariate(0.03)))
        if self._chance.random() < 0.2:
            after = None
        stream = self._stage.watch(**({} if after is None else {"after_revision": after}))
        self.open.append((after, stream))

    async def read(self) -> None:
        """Somebody gets as far as being caught up."""
        reading = [stream for _, stream in self.open if stream.gate.is_set()]
        if reading:
            stream = self._chance.choice(reading)
            await stream.until(lambda: stream.task.done() or "caught_up" in stream.kinds)

    def change_pace(self) -> None:
        """Somebody stops reading, or goes on."""
        if self.open:
            gate = self._chance.choice(self.open)[1].gate
            gate.clear() if gate.is_set() else gate.set()

    def go(self) -> None:
        """Somebody leaves, wherever the stream is."""
        if self.open:
            leaving = self.open.pop(self._chance.randrange(len(self.open)))
            leaving[1].task.cancel()
            self.done.append(leaving)

    async def catch_up(self, head: int) -> None:
        """Everybody who is still here reads to the end."""
        for after, stream in self.open:
            stream.gate.set()
            await stream.until(lambda stream=stream: stream.task.done() or up_to(stream) == head)  # type: ignore[misc]
            self.done.append((after, stream))
            stream.task.cancel()
        self.open.clear()


def up_to(stream: Stream) -> int:
    """The last revision that a stream has told, in whatever way."""
    if stream.revisions:
        return stream.revisions[-1]
    return max((event.caught_up.head_revision for event in stream.events), default=0)


async def many_streams(store: Store, seed: int, count: int) -> list[Violation]:
    """Open so many streams while a conversation goes on and its log is pruned; what was wrong with them."""
    chance = random.Random(seed)
    async with watch_harness(store, store_page=chance.choice((64, 256))) as made:
        writes, readers, came = Novelist(made.author, chance), Readers(made, chance), 0
        while came < count:
            kind = chance.random()
            if kind < 0.55:
                writes.go_on()
            elif kind < 0.65:
                readers.come(writes.head)
                came += 1
            elif kind < 0.7:
                readers.change_pace()
            elif kind < 0.78:
                readers.go()
            elif kind < 0.8:
                store.prune_log(ID, writes.head - 100)
            else:
                await readers.read()
        writes.settle()
        await readers.catch_up(writes.head)
        await asyncio.gather(*(stream.task for _, stream in readers.done), return_exceptions=True)
        streams = [recorded(f"{seed}/{n}", *each) for n, each in enumerate(readers.done)]
        found = violations(log_of(writes.commits), streams)
    store.delete(ID)
    return found


def test_streams_keep_the_laws_while_watchers_join_leave_and_read_slowly(store: Store) -> None:
    for seed in range(max(1, RESUMES // ROUND)):
        assert asyncio.run(many_streams(store, seed, min(ROUND, RESUMES))) == []


# --- at the very moment of a commit -----------------------------------------------------------------------------------


class Racer:
    """Writes on a thread of its own, when it is told to and a random moment later."""

    def __init__(self, write: Callable[[], None], chance: random.Random) -> None:
        self._write = write
        self._chance = chance
        self._go = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def go(self) -> None:
        self._go.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        self._go.wait()
        until = time.perf_counter() + self._chance.random() * 0.002
        while time.perf_counter() < until:
            pass
        self._write()


async def late_subscribers(store: Store, seed: int, races: int) -> list[Violation]:
    """Open each stream while a commit is being written; what was wrong with them."""
    chance = random.Random(seed)
    streams: list[tuple[int | None, Stream]] = []
    async with watch_harness(store) as made:
        writes = Novelist(made.author, chance)
        for _ in range(races):
            after = chance.choice((None, writes.head))
            racer = Racer(lambda: writes.write(*(made.author.says() for _ in range(3))), chance)
            racer.go()
            stream = made.watch(**({} if after is None else {"after_revision": after}))
            await stream.kind("caught_up")
            await asyncio.to_thread(racer.join)
            await stream.until(lambda stream=stream: up_to(stream) == writes.head)  # type: ignore[misc]
            stream.task.cancel()
            streams.append((after, stream))
        await asyncio.gather(*(stream.task for _, stream in streams), return_exceptions=True)
        found = violations(log_of(writes.commits), [recorded(f"{n}", *each) for n, each in enumerate(streams)])
    store.delete(ID)
    return found


def test_a_watcher_that_joins_during_a_commit_misses_nothing(store: Store) -> None:
    for seed in range(max(1, RACES // ROUND)):
        assert asyncio.run(late_subscribers(store, seed, min(ROUND, RACES))) == []
