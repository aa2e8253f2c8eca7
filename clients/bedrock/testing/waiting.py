"""Waits with a time limit: a test that would wait forever fails with a message instead of hanging."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

# Maximum seconds to wait for immediate effects. The limit is generous because machines may be busy.
PATIENCE = 45.0


def within(call: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Call a blocking function on a thread. Raises what the function raises, or AssertionError after `seconds`."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 -- `answer.result` raises it again
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        if answer.done():
            raise
        raise AssertionError(f"no answer within {seconds:.0f} s") from None


def eventually(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Poll a condition that no event reports. Raises AssertionError, with `what`, after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"never: {what}")
        time.sleep(0.01)
