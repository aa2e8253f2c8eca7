"""How a piece of work is told to stop, from any thread."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class CancelToken:
    """One piece of work that somebody may stop. Any thread; cancelling twice is cancelling once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Run the callbacks on the caller's thread. They must not block, and should not raise: that is logged, and
        the others still run."""
        with self._lock:
            if self._cancelled.is_set():
                return
            self._cancelled.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                log.exception("a piece of work could not be stopped")

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Run `callback` when cancelled; at once if that has happened already."""
        with self._lock:
            if not self._cancelled.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def forget(self, callback: Callable[[], None]) -> bool:
        """Undo on_cancel, so that a finished step holds no resources; False if a cancel has taken it already."""
        with self._lock:
            if callback not in self._callbacks:
                return False
            self._callbacks.remove(callback)
            return True

    def wait(self, seconds: float) -> bool:
        """Wait until cancelled, `seconds` at most; returns whether it is."""
        return self._cancelled.wait(seconds)
