"""Waiting with a limit: a test that waits for what never comes says so instead of hanging."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

PATIENCE = 45.0
"""Longest wait, in seconds, for what should happen at once. Generous: machines are busy."""


def within(call: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Make a blocking call on a thread of its own; AssertionError if it does not return in time."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 -- it is raised where the call was made
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        if answer.done():
            raise
        raise AssertionError(f"no answer within {seconds:.0f} s") from None


def together(*calls: Callable[[], T]) -> list[T | BaseException]:
    """Make calls at the same moment, each on a thread; what each returned or raised, in their order."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T | BaseException:
        barrier.wait(PATIENCE)
        try:
            return call()
        except BaseException as error:  # noqa: BLE001 -- the test looks at it
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls, timeout=PATIENCE))


def eventually(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Wait for something outside of this process that no event tells of."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


def only(items: Sequence[T]) -> T:
    """The one item that there is."""
    assert len(items) == 1, f"{len(items)} instead of one: {items}"
    return items[0]
