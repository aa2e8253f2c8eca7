"""The thread with the asyncio event loop that runs all MCP connections, because the MCP library is asynchronous."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from actors.ports.machine.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

Found = TypeVar("Found")

END_SECONDS = 3.0
"""Seconds to wait for coroutines to end when the loop is closed, and once more after they were cancelled."""


class LoopThread:
    """Runs coroutines on a thread of its own, which starts with the first coroutine. Safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, work: Coroutine[object, object, Found]) -> Future[Found]:
        """Start a coroutine and return its future.

        Raises RuntimeError if the loop is closed or no thread can be started.
        """
        try:
            return asyncio.run_coroutine_threadsafe(work, self._running())
        except BaseException:
            work.close()
            raise

    async def blocking(self, work: Callable[[], Found]) -> Found:
        """Run blocking work on another thread and return its result. The work goes on if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Found] = loop.create_future()

        def finish(result: Found | None, error: BaseException | None) -> None:
            if done.cancelled():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        def job() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001 -- raised again in the coroutine that waits
                error = raised
            with suppress(RuntimeError):  # raised if the loop is closed; nobody waits for the result then
                loop.call_soon_threadsafe(finish, result, error)

        run_in_thread(job, "bedrock-mcp-work")
        return await done

    def close(self) -> None:
        """Wait a few seconds for all coroutines, cancel those that still run, and end the thread. Idempotent."""
        with self._lock:
            self._closed = True
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise RuntimeError("the server is shutting down")
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_serve, args=(loop,), name="bedrock-mcp", daemon=True)
                thread.start()
                self._loop, self._thread = loop, thread
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        _finish(loop)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        _finish(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _finish(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until all tasks have ended, but for at most END_SECONDS."""
    if tasks := asyncio.all_tasks(loop):
        loop.run_until_complete(asyncio.wait(tasks, timeout=END_SECONDS))
