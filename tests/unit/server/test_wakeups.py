"""Many wake-ups from many threads cross to the loop, few at a time, and none is lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

from server.wakeups import Wakeups

WATCHERS = 100
THREADS = 4
ROUNDS = 500


def test_all_that_wait_cross_together() -> None:
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
        await asyncio.sleep(0)
        assert woken == list(range(WATCHERS))
        assert crossings == 1

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


def test_waking_after_the_loop_has_closed_does_no_harm() -> None:
    loop = asyncio.new_event_loop()
    wakeups = Wakeups(loop)
    loop.close()
    wakeups.wake(lambda: None)
