"""Threads for blocking work."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def run_in_thread(job: Callable[[], object], name: str) -> None:
    """Run `job` on a new daemon thread with this name; do not wait for its end. Safe to call from any thread.

    Raises RuntimeError if no thread can be started.
    """
    threading.Thread(target=job, name=name, daemon=True).start()
