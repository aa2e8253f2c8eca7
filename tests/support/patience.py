"""Waiting with a limit: a test that waits for what never comes says so instead of hanging."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from bedrock.testing.waiting import PATIENCE, eventually, within

T = TypeVar("T")

__all__ = ["PATIENCE", "eventually", "only", "together", "within"]


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


def only(items: Sequence[T]) -> T:
    """The one item that there is."""
    assert len(items) == 1, f"{len(items)} instead of one: {items}"
    return items[0]
