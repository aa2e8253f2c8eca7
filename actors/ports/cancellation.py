"""Cancellation tokens, with which running work is cancelled from any thread."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class CancelToken:
    """Cancels one piece of work. Safe to use from any thread; cancelling again has no effect."""

    def __init__(self) -> None:
        self.cancelled = False
        """Whether the work was cancelled; only `cancel` sets it. A plain attribute, because loops read it often."""
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._waiting: list[threading.Lock] = []
        """Held locks that `cancel` releases, one for each thread in `wait`: an Event would cost more than the wait."""

    def cancel(self) -> None:
        """Cancel the work, and run the callbacks on the caller's thread.

        Callbacks must not block. If a callback raises an exception, that is logged, and the other callbacks still run.
        """
        # Callbacks run without the lock, because they may register or forget other callbacks.
        with self._lock:
            if self.cancelled:
                return
            self.cancelled = True
            callbacks, self._callbacks = self._callbacks, []
            waiting = tuple(self._waiting)
        for held in waiting:
            held.release()
        for callback in callbacks:
            try:
                callback()
            except Exception:
                log.exception("a piece of work could not be stopped")

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Register `callback` to run when the token is cancelled.

        If the token is cancelled already, run `callback` at once.
        """
        with self._lock:
            if not self.cancelled:
                self._callbacks.append(callback)
                return
        callback()

    def forget(self, callback: Callable[[], None]) -> bool:
        """Remove a callback that `on_cancel` registered, so that finished work does not keep resources alive.

        Return False if the callback is not registered, for example because the token is cancelled already.
        """
        with self._lock:
            if callback not in self._callbacks:
                return False
            self._callbacks.remove(callback)
            return True

    def wait(self, seconds: float) -> bool:
        """Block until the token is cancelled, for at most `seconds`; return whether it is cancelled."""
        held = threading.Lock()
        held.acquire()
        with self._lock:
            if self.cancelled:
                return True
            self._waiting.append(held)
        try:
            held.acquire(timeout=max(seconds, 0.0))
        finally:
            with self._lock:
                self._waiting.remove(held)
        return self.cancelled
