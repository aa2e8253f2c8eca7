"""Threads for blocking work of adapters."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Threads(Protocol):
    """Run blocking work, each job at once on a thread of its own. Any thread."""

    def run(self, job: Callable[[], object], name: str) -> None:
        """Start `job`; its thread is called `name` meanwhile. Raises RuntimeError if no thread can be started."""
        ...


class NewThreads:
    """Start a thread for each job (Threads)."""

    def run(self, job: Callable[[], object], name: str) -> None:
        """Start a daemon thread; see Threads."""
        threading.Thread(target=job, name=name, daemon=True).start()
