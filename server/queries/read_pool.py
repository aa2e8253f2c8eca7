"""Read the store from the event loop: on a thread of a small pool, never on the loop itself."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 8


class ReadPool:
    """Runs blocking reads. Called on the event loop; closed once, after the server has stopped."""

    def __init__(self, threads: int = THREADS, *, name: str = "bedrock-read") -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._start_all(threads)

    def _start_all(self, threads: int) -> None:
        """Start every thread now, since the system may refuse to start one later. Raises RuntimeError."""
        together = threading.Barrier(threads + 1)
        try:
            for _ in range(threads):
                self._pool.submit(together.wait)
            together.wait()
        except BaseException:
            together.abort()
            raise

    async def __call__(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `read` on a thread of the pool and wait for it without blocking the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: read(*args, **kwargs))

    def close(self) -> None:
        """Wait for the running reads and end the threads."""
        self._pool.shutdown(cancel_futures=True)
