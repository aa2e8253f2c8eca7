"""Many wake-ups from many threads cross to the loop, few at a time, and none is lost."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from server.streams.base import (
    AT_ONCE,
    EVENTS_PAUSE_SECONDS,
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    TEXT_LONGEST_SECONDS,
    TEXT_PAUSE_SECONDS,
    Wakeups,
)

if TYPE_CHECKING:
    from collections.abc import Callable

WATCHERS = 100
THREADS = 4
ROUNDS = 500


def test_all_that_wait_cross_together_and_a_request_waits_behind_a_few_of_them_only() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        wakeups, crossings = Wakeups(loop), 0
        original = loop.call_soon_threadsafe

        def count(*arguments: object) -> object:
            nonlocal crossings
            crossings += 1
            return original(*arguments)  # type: ignore[arg-type]

        loop.call_soon_threadsafe = count  # type: ignore[method-assign, assignment]
        woken: list[int] = []
        for number in range(WATCHERS):
            wakeups.wake(lambda number=number: woken.append(number))  # type: ignore[misc]
        seen = [0]
        while len(woken) < WATCHERS:
            await asyncio.sleep(0)
            seen.append(len(woken))
        assert woken == list(range(WATCHERS))
        assert crossings == 1
        assert max(later - earlier for earlier, later in itertools.pairwise(seen)) <= AT_ONCE

    asyncio.run(work())


def test_no_wake_up_of_any_thread_is_lost() -> None:
    async def work() -> None:
        wakeups, woken, done = Wakeups(asyncio.get_running_loop()), Counter[int](), asyncio.Event()

        def arrived(number: int) -> None:
            woken[number] += 1
            if woken.total() == THREADS * ROUNDS:
                done.set()

        def publish(number: int) -> None:
            for _ in range(ROUNDS):
                wakeups.wake(lambda: arrived(number))

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        async with asyncio.timeout(20):
            await done.wait()
        for thread in threads:
            thread.join()
        assert woken == dict.fromkeys(range(THREADS), ROUNDS)

    asyncio.run(work())


class Sneaky(deque[Any]):
    """Somebody queues an entry in the very moment in which the queue was found empty."""

    moment: Callable[[], None] | None = None

    def __bool__(self) -> bool:
        found = len(self) > 0
        if not found and self.moment is not None:
            moment, self.moment = self.moment, None
            moment()
        return found


def test_a_wake_up_in_the_moment_in_which_the_queue_is_found_empty_is_not_lost() -> None:
    async def work() -> None:
        wakeups, woken = Wakeups(asyncio.get_running_loop()), asyncio.Event()
        queue = Sneaky()
        queue.moment = lambda: wakeups.wake(woken.set)
        wakeups._waiting = queue
        wakeups.wake(lambda: None)
        async with asyncio.timeout(10):
            await woken.wait()

    asyncio.run(work())


class Loop:
    """A loop whose time stands still."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[float] = []

    def time(self) -> float:
        return 1_000.0

    def call_soon(self, callback: Callable[..., None], *arguments: object) -> None:
        self.soon.append(partial(callback, *arguments))

    call_soon_threadsafe = call_soon

    def run(self) -> None:
        while self.soon:
            self.soon.pop()()

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        self.later.append(when)


@pytest.mark.parametrize(
    ("each", "longest_seconds"),
    [(EVENTS_PAUSE_SECONDS, LONGEST_SECONDS), (TEXT_PAUSE_SECONDS, TEXT_LONGEST_SECONDS)],
    ids=["events", "text"],
)
@pytest.mark.parametrize(("watchers", "paused"), [(1, False), (40, True), (5_000, True)])
def test_after_many_watchers_more_gathers_for_a_while(
    watchers: int, paused: bool, each: float, longest_seconds: float
) -> None:
    loop = Loop()
    wakeups = Wakeups(loop, each, longest_seconds)  # type: ignore[arg-type]
    woken: list[int] = []
    for number in range(watchers):
        wakeups.wake(lambda number=number: woken.append(number))  # type: ignore[misc]
    loop.run()
    assert len(woken) == watchers
    wakeups.wake(lambda: woken.append(-1))
    loop.run()
    assert loop.later == ([1_000.0 + min(watchers * each, longest_seconds)] if paused else [])
    assert (woken[-1] == -1) is not paused


def test_live_text_goes_to_a_single_watcher_at_once_and_never_waits_longer_than_50_ms() -> None:
    assert TEXT_PAUSE_SECONDS < SHORTEST_SECONDS
    assert TEXT_LONGEST_SECONDS == 0.05


def test_a_flow_that_never_rests_is_paused_too() -> None:
    """Whoever is woken is there again at once, since something is always new."""
    loop = Loop()
    wakeups = Wakeups(loop)  # type: ignore[arg-type]
    woken = Counter[int]()

    def watcher(number: int) -> None:
        woken[number] += 1
        assert woken[number] < 10, "the crossing has no end"
        wakeups.wake(lambda: watcher(number))

    for number in range(WATCHERS):
        wakeups.wake(lambda number=number: watcher(number))  # type: ignore[misc]
    loop.run()
    assert woken == dict.fromkeys(range(WATCHERS), 1)
    assert loop.later == [1_000.0 + WATCHERS * EVENTS_PAUSE_SECONDS]


def test_waking_after_the_loop_has_closed_does_no_harm() -> None:
    loop = asyncio.new_event_loop()
    wakeups = Wakeups(loop)
    loop.close()
    wakeups.wake(lambda: None)
