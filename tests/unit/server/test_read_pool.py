"""Reads of the store: principals take turns at the threads, and what nobody waits for any more takes none."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from server.auth.authentication import caller
from server.auth.principals import Caller, Role
from server.queries.read_pool import ReadPool

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

PATIENCE = 60.0


@pytest.fixture
def pool() -> Iterator[ReadPool]:
    made = ReadPool(1)
    yield made
    made.close()


class Reads:
    """Reads of several principals, the first of which holds the only thread until `open`."""

    def __init__(self, pool: ReadPool) -> None:
        self._pool = pool
        self._gate, self._held = threading.Event(), threading.Event()
        self.order: list[str] = []

    def _read(self, name: str) -> str:
        self._held.set()
        assert self._gate.wait(PATIENCE)
        self.order.append(name)
        return name

    def begin(self, name: str, *, long: bool = False) -> asyncio.Task[str]:
        async def read() -> str:
            caller.set(Caller(name[0], Role.USER))
            return await (self._pool.long if long else self._pool)(self._read, name)

        return asyncio.get_running_loop().create_task(read())

    async def held(self) -> None:
        assert await asyncio.to_thread(self._held.wait, PATIENCE)

    def open(self) -> None:
        self._gate.set()


def test_a_principal_with_many_reads_delays_another_by_one(pool: ReadPool) -> None:
    async def run() -> list[str]:
        reads = Reads(pool)
        tasks = [reads.begin(f"a{number}") for number in range(100)]
        await reads.held()
        tasks += [reads.begin("b0"), reads.begin("b1")]
        await asyncio.sleep(0)
        reads.open()
        assert await asyncio.gather(*tasks) == [*(f"a{number}" for number in range(100)), "b0", "b1"]
        return reads.order

    order = asyncio.run(run())
    assert order[:5] == ["a0", "a1", "b0", "a2", "b1"]


def test_a_read_that_is_given_up_takes_no_turn(pool: ReadPool) -> None:
    async def run() -> list[str]:
        reads = Reads(pool)
        running, waiting, last = (reads.begin(name) for name in ("a0", "a1", "b0"))
        await reads.held()
        for task in (running, waiting):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        reads.open()
        await last
        return reads.order

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE)) == ["a0", "b0"]


def test_a_read_that_fails_gives_its_thread_back(pool: ReadPool) -> None:
    async def fails() -> None:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await pool(divmod, 1, 0)

    work: Coroutine[None, None, None] = asyncio.wait_for(fails(), PATIENCE)
    asyncio.run(work)


def test_reads_of_one_principal_that_take_long_leave_a_thread_to_others() -> None:
    async def run() -> None:
        pool = ReadPool(4)
        reads, other = Reads(pool), Reads(pool)
        other.open()
        try:
            tasks = [reads.begin(f"a{number}") for number in range(100)]
            await reads.held()
            assert await asyncio.wait_for(other.begin("b0"), PATIENCE) == "b0"
            reads.open()
            await asyncio.gather(*tasks)
        finally:
            reads.open()
            await asyncio.to_thread(pool.close)

    asyncio.run(run())


def test_long_reads_of_however_many_principals_leave_threads_to_what_is_quick() -> None:
    async def run() -> None:
        pool = ReadPool(4)
        reads, quick = Reads(pool), Reads(pool)
        quick.open()
        try:
            tasks = [reads.begin(f"{name}{number}", long=True) for number in range(5) for name in "abcdef"]
            given_up = reads.begin("g0", long=True)
            await reads.held()
            given_up.cancel()
            for name in ("a9", "z0"):
                assert await asyncio.wait_for(quick.begin(name), PATIENCE) == name
            reads.open()
            await asyncio.gather(*tasks)
            last = [quick.begin(f"h{number}", long=True) for number in range(5)]
            await asyncio.wait_for(asyncio.gather(*last), PATIENCE)  # no slot was lost
        finally:
            reads.open()
            await asyncio.to_thread(pool.close)

    asyncio.run(run())
