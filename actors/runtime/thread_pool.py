"""A pool of threads for actors and blocking work, because starting a thread takes longer than most of these jobs.

concurrent.futures.ThreadPoolExecutor does not fit: beyond a fixed size it queues work instead of raising when the
system has no thread left, its threads stay until it shuts down, and the interpreter waits for them at exit.
"""

from __future__ import annotations

import logging
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

IDLE_SECONDS = 10.0
"""How long a thread waits for its next job before it ends."""
IDLE_NAME = "bedrock-idle"
STOP_SECONDS = 1.0

_Job: TypeAlias = "tuple[Callable[[], object], str]"


class ThreadPool:
    """Runs each job at once on a separate thread: on the most recently used idle one, or on a new one.

    Safe to call from any thread.
    """

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._idle: list[_PooledThread] = []
        self._closed = False

    def run(self, job: Callable[[], object], name: str) -> None:
        """Start `job` on a thread, which is called `name` until the job ends.

        Raises RuntimeError if no thread can be started.
        """
        with self._lock:
            thread = self._idle.pop() if self._idle else None
        if thread is None:
            thread = _PooledThread(self, name)
            thread.start()
        thread.jobs.put((job, name))

    def close(self) -> None:
        """End the idle threads now, and every other thread after its job. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.jobs.put(None)
        for thread in idle:
            thread.join(STOP_SECONDS)

    def next_job(self, thread: _PooledThread) -> _Job | None:
        """Wait for the next job of an idle thread; return None when the thread has to end. Runs on that thread."""
        with self._lock:
            thread.name = IDLE_NAME
            if self._closed:
                return None
            self._idle.append(thread)
        try:
            return thread.jobs.get(timeout=self._idle_seconds)
        except Empty:
            with self._lock:
                if thread in self._idle:
                    self._idle.remove(thread)
                    return None
        return thread.jobs.get()  # `run` or `close` took this thread off the idle list, and now sends a job or None


class _PooledThread(threading.Thread):
    """A thread that runs one job after the other."""

    def __init__(self, pool: ThreadPool, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._pool = pool

    def run(self) -> None:
        job = self.jobs.get()
        while job is not None:
            work, self.name = job
            try:
                work()
            except BaseException:  # a failing job must not end the thread
                log.exception("a job of thread %s failed", self.name)
            del job, work  # an idle thread must not keep a job's objects in memory
            job = self._pool.next_job(self)
