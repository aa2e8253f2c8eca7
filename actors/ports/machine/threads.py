"""Threads for blocking work of adapters."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Threads(Protocol):
    """Runs blocking work, each job at once on a separate thread. Any thread."""

    def run(self, job: Callable[[], object], name: str) -> None:
        """Start `job` on a thread that is named `name` meanwhile. Raises RuntimeError if no thread can be started."""
        ...


class NewThreads:
    """Implements Threads with a new thread for each job."""

    def run(self, job: Callable[[], object], name: str) -> None:
        """Start a daemon thread; see Threads."""
        threading.Thread(target=job, name=name, daemon=True).start()
