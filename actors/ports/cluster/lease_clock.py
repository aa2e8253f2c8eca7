"""The lease of a node that shares its store: a time that each good heartbeat moves on, and that tool hosts read."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time

NANOSECONDS = 1_000_000_000
_BYTES = 8
_F_SEAL_FUTURE_WRITE = 0x10
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | _F_SEAL_FUTURE_WRITE
"""The file keeps its size, and only the memory that is mapped already can be written: by nobody but this object."""


class LeaseClock:
    """Implements Lease with a file in memory. It is over until it is renewed for the first time."""

    def __init__(self, seconds: float) -> None:
        """Make the file (Linux 5.1). Raises OSError.

        `seconds`: how long after a heartbeat was sent tools may start and live. That is less than it keeps the node
        alive in the database, by the time that tool hosts take to end what runs.
        """
        self._seconds = seconds
        self._lock = threading.Lock()  # guards the fields below
        self._until = 0
        self._renewed = time.monotonic_ns()
        self._fd: int | None = os.memfd_create("bedrock-lease", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, _BYTES)
        try:
            self._map = mmap.mmap(self._fd, _BYTES)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(self._fd)
            raise
        self._word = memoryview(self._map).cast("q")

    @property
    def fd(self) -> int | None:
        """The descriptor of the file, which nothing can be written to; None once it is closed. See Lease."""
        return self._fd

    def young(self) -> bool:
        """Return whether tools may be started and modes be changed now; see Lease."""
        return time.monotonic_ns() < self._until

    def age(self) -> float:
        """Return the seconds since the last heartbeat that the database has taken was sent; see Lease."""
        return (time.monotonic_ns() - self._renewed) / NANOSECONDS

    def renew(self, sent: int) -> None:
        """Move the time on for a heartbeat that the database has taken.

        `sent`: when it was sent, in nanoseconds of CLOCK_MONOTONIC (`time.monotonic_ns`), not when it was answered: how
        long the answer took is known to nobody. An earlier heartbeat than the last one changes nothing.
        """
        with self._lock:
            until = sent + int(self._seconds * NANOSECONDS)
            if self._fd is not None and until > self._until:
                self._word[0] = self._until = until
                self._renewed = sent

    def close(self) -> None:
        """End the lease, for tool hosts when they look next, and free the file; idempotent."""
        with self._lock:
            if self._fd is None:
                return
            self._word[0] = self._until = 0
            self._word.release()
            self._map.close()
            os.close(self._fd)
            self._fd = None
