"""Returns freed memory to the operating system, because glibc keeps the memory of past peaks."""

from __future__ import annotations

import ctypes
import logging
import resource
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
RISE_BYTES = 8 << 20
"""The heap is trimmed when resident memory is this many bytes above its lowest value since the last trimming.

Trimming takes some milliseconds.
"""
_RESIDENT = Path("/proc/self/statm")
_PAGE_BYTES = resource.getpagesize()
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


class MallocTrimmer:
    """Trims the heap when this process has grown. A thread checks the size every LOOK_SECONDS.

    Args:
        resident: Returns the resident memory in bytes; 0 if unknown.
        give_back: Makes the C library return free memory to the system.
    """

    def __init__(self, resident: Callable[[], int], give_back: Callable[[], object]) -> None:
        self._resident, self._give_back = resident, give_back
        self._lowest = resident()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bedrock-freed-memory", daemon=True)

    def start(self) -> None:
        """Start the thread that checks periodically."""
        self._thread.start()

    def look(self) -> bool:
        """Give free memory back to the system if the process has grown by RISE_BYTES. Return whether that was done."""
        now = self._resident()
        self._lowest = min(self._lowest, now)
        if now - self._lowest < RISE_BYTES:
            return False
        self._give_back()
        self._lowest = self._resident()
        log.debug(
            "resident memory: %d MiB, and %d MiB once the free part was given back", now >> 20, self._lowest >> 20
        )
        return True

    def close(self) -> None:
        """Wait for a check that is in progress, and end the thread. May be called more than once."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self.look()


def of_this_process() -> MallocTrimmer | None:
    """Return a trimmer for this process; None if the C library is not glibc: only glibc needs trimming."""
    return MallocTrimmer(_resident, trim) if _malloc_trim is not None and _RESIDENT.exists() else None


def trim() -> None:
    """Return the free memory of this process to the system now. Does nothing unless the C library is glibc."""
    if _malloc_trim is not None:
        _malloc_trim(0)


def _resident() -> int:
    return int(_RESIDENT.read_bytes().split()[1]) * _PAGE_BYTES
