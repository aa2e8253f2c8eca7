"""Calls and answers of many threads cross to the event loop together, and none is lost."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
import time
from collections import Counter
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest

from server import loop_calls
from server.loop_calls import LoopCalls, SparingLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine

ANSWERS = 500


class CountedCalls(LoopCalls):
    """Counts the crossings to the running loop."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())
        self.crossings = 0
        original = self.loop.call_soon_threadsafe

        def count(*arguments: Any) -> asyncio.Handle:
            self.crossings += 1
            return original(*arguments)

        self.loop.call_soon_threadsafe = count  # type: ignore[method-assign, assignment]


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work

    with asyncio.Runner(loop_factory=SparingLoop) as runner:
        runner.run(bounded())


def test_answers_that_come_while_the_loop_is_busy_cross_together() -> None:
    async def work() -> None:
        calls = CountedCalls()
        futures: list[Future[int]] = [Future() for _ in range(ANSWERS)]
        waiting = [asyncio.create_task(calls.result(future)) for future in futures]
        await asyncio.sleep(0)

        def answer() -> None:
            for number, future in enumerate(futures):
                future.set_result(number)

        thread = threading.Thread(target=answer)
        thread.start()
        thread.join()  # the loop runs nothing meanwhile
        assert await asyncio.gather(*waiting) == list(range(ANSWERS))
        assert calls.crossings == 0, "a loop that is awake was woken"

    run(work())


def test_any_other_loop_is_woken_once_for_all_answers() -> None:
    async def work() -> None:
        calls, ran = CountedCalls(), asyncio.Event()
        for _ in range(ANSWERS):
            calls.call(ran.set)
        await ran.wait()
        assert calls.crossings == 1

    asyncio.run(work())


def test_a_loop_at_rest_is_woken_for_each_call() -> None:
    async def work() -> None:
        calls, loop = CountedCalls(), asyncio.get_running_loop()
        for expected in range(1, 20):
            ran = asyncio.Event()
            threading.Thread(target=call_once_asleep, args=(loop, calls, ran.set)).start()
            await ran.wait()
            assert calls.crossings == expected

    run(work())


def call_once_asleep(loop: Any, calls: LoopCalls, function: Any) -> None:
    while not loop.rest.asleep:
        time.sleep(0.0001)
    calls.call(function)


def test_a_loop_at_rest_is_woken_although_it_has_taken_a_call_that_came_late() -> None:
    async def work() -> None:
        loop, ran, woken = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        calls = LoopCalls(loop)
        calls.call(lambda: calls.call(ran.set))  # found by the loop while it takes the first one
        await ran.wait()
        threading.Thread(target=call_once_asleep, args=(loop, calls, woken.set)).start()
        await woken.wait()

    run(work())


def test_a_loop_that_never_rests_takes_calls_and_input() -> None:
    async def work() -> None:
        loop, ran, read = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        calls, ending = LoopCalls(loop), False

        def again() -> None:
            if not ending:
                loop.call_soon(again)

        again()
        here, there = socket.socketpair()
        with here, there:
            loop.add_reader(here, read.set)
            there.send(b"x")
            threading.Thread(target=calls.call, args=(ran.set,)).start()
            await ran.wait()
            await read.wait()
            loop.remove_reader(here)
        ending = True

    run(work())


def test_a_loop_with_work_looks_for_input_now_and_then_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = selectors.DefaultSelector.select

    def counting(self: Any, timeout: float | None = None) -> Any:
        nonlocal looks
        looks += 1
        return look(self, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", counting)
    monkeypatch.setattr(loop_calls, "monotonic", lambda: 1_000.0)  # no time passes

    async def work() -> None:
        await asyncio.sleep(0)
        before = looks
        for _ in range(100):
            await asyncio.sleep(0)
        assert looks == before

    run(work())


def test_no_call_of_any_thread_is_lost() -> None:
    async def work() -> None:
        calls, seen, done = LoopCalls(asyncio.get_running_loop()), Counter[int](), asyncio.Event()

        def arrived(number: int) -> None:
            seen[number] += 1
            if seen.total() == 4 * ANSWERS:
                done.set()

        def call(number: int) -> None:
            for _ in range(ANSWERS):
                calls.call(lambda: arrived(number))

        threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        await done.wait()
        for thread in threads:
            thread.join()
        assert seen == dict.fromkeys(range(4), ANSWERS)

    run(work())


def fail() -> None:
    raise ValueError("broken")


def test_a_call_that_fails_keeps_no_other_from_running(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        calls, ran = LoopCalls(asyncio.get_running_loop()), asyncio.Event()
        calls.call(fail)
        calls.call(ran.set)
        await ran.wait()

    run(work())
    assert "a call on the event loop failed" in caplog.text


def test_an_error_is_raised_where_the_answer_is_awaited() -> None:
    async def work() -> None:
        calls = LoopCalls(asyncio.get_running_loop())
        failed: Future[None] = Future()
        failed.set_exception(KeyError("x"))
        with pytest.raises(KeyError):
            await calls.result(failed)
        withdrawn: Future[None] = Future()
        withdrawn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls.result(withdrawn)

    run(work())


def test_who_stops_waiting_cancels_what_has_not_begun() -> None:
    async def work() -> None:
        calls = LoopCalls(asyncio.get_running_loop())
        future: Future[None] = Future()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await calls.result(future)
        assert future.cancelled()

    run(work())


def test_a_call_after_the_loop_has_closed_does_no_harm() -> None:
    loop = asyncio.new_event_loop()
    calls = LoopCalls(loop)
    loop.close()
    calls.call(lambda: None)


def test_calls_after_the_loop_is_closed_are_dropped() -> None:
    loop = asyncio.new_event_loop()
    calls = LoopCalls(loop)
    loop.close()
    for _ in range(3):
        calls.call(pytest.fail)
    assert not calls._waiting
