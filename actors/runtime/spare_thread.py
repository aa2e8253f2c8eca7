"""Keeps an idle thread in reserve. Ending it makes room for an urgent thread when the system cannot start another."""

from __future__ import annotations

import threading

STOP_SECONDS = 1.0


class SpareThread:
    """Holds one idle thread in reserve. Safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: tuple[threading.Event, threading.Thread] | None = None
        self.keep()

    def keep(self) -> None:
        """Start the reserved thread, unless there already is one or no thread can be started now."""
        with self._lock:
            if self._held is not None:
                return
            released = threading.Event()
            thread = threading.Thread(target=released.wait, name="bedrock-spare", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return
            self._held = released, thread

    def release(self) -> bool:
        """End the reserved thread; return whether there was one."""
        with self._lock:
            held, self._held = self._held, None
        if held is None:
            return False
        released, thread = held
        released.set()
        thread.join(STOP_SECONDS)
        return True
