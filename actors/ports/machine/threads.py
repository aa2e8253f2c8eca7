"""The port for threads on which adapters run blocking work."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Threads(Protocol):
    """Runs blocking work, each job at once on a separate thread. Safe to call from any thread."""

    def run(self, job: Callable[[], object], name: str) -> None:
        """Start `job` on a thread that is called `name` until the job ends.

        Raises RuntimeError if no thread can be started.
        """
        ...


class NewThreads:
    """An implementation of Threads that starts a new thread for each job."""

    def run(self, job: Callable[[], object], name: str) -> None:
        """Start a daemon thread for the job. See `Threads.run`."""
        threading.Thread(target=job, name=name, daemon=True).start()
