"""The port for threads on which adapters run blocking work."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Threads(Protocol):
    """Runs blocking jobs, each on a separate thread that starts at once. Safe to call from any thread."""

    def run(self, job: Callable[[], object], name: str) -> None:
        """Run `job` on a thread that has this name while the job runs; do not wait for the job's end.

        Raises RuntimeError if no thread can be started.
        """
        ...


class NewThreads:
    """An implementation of Threads that starts a new thread for each job."""

    def run(self, job: Callable[[], object], name: str) -> None:
        """Start a daemon thread for the job. See `Threads.run`."""
        threading.Thread(target=job, name=name, daemon=True).start()
