"""Cancellation of running work from any thread."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class CancelToken:
    """Cancels one piece of work. Any thread; cancelling is idempotent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """Whether the work was cancelled."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Cancel, and run the callbacks on the caller's thread.

        They must not block. One that raises is logged, and the others still run.
        """
        # Callbacks run without the lock, because they may register or forget other callbacks.
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
        """Register `callback` to run when cancelled; runs it at once if that has already happened."""
        with self._lock:
            if not self._cancelled.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def forget(self, callback: Callable[[], None]) -> bool:
        """Undo `on_cancel`, so that a finished step holds no resources; return False if it is already cancelled."""
        with self._lock:
            if callback not in self._callbacks:
                return False
            self._callbacks.remove(callback)
            return True

    def wait(self, seconds: float) -> bool:
        """Block until cancelled, at most `seconds`; returns whether it was."""
        return self._cancelled.wait(seconds)
