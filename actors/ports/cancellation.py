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
        self.cancelled = False
        """Whether the work was cancelled; set by `cancel` alone. A plain attribute, because loops ask for it often."""
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._waited_for: threading.Event | None = None
        """Set when it is cancelled; made by the first `wait`, because few tokens are waited for."""

    def cancel(self) -> None:
        """Cancel, and run the callbacks on the caller's thread.

        They must not block. One that raises is logged, and the others still run.
        """
        # Callbacks run without the lock, because they may register or forget other callbacks.
        with self._lock:
            if self.cancelled:
                return
            self.cancelled = True
            callbacks, self._callbacks = self._callbacks, []
            waited_for = self._waited_for
        if waited_for is not None:
            waited_for.set()
        for callback in callbacks:
            try:
                callback()
            except Exception:
                log.exception("a piece of work could not be stopped")

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Register `callback` to run when cancelled; runs it at once if that has already happened."""
        with self._lock:
            if not self.cancelled:
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
        with self._lock:
            if self.cancelled:
                return True
            waited_for = self._waited_for = self._waited_for or threading.Event()
        return waited_for.wait(seconds)
