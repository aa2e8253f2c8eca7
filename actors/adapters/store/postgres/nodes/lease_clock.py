"""The lease of a node: until when it may act, in a file in memory that the processes of its tools read."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time

from actors.ports.cluster import Lease

NANOSECONDS = 1_000_000_000
_BYTES = 8
_F_SEAL_FUTURE_WRITE = 0x10
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | _F_SEAL_FUTURE_WRITE
"""Seals of the memory file: its size is fixed, and only the mapping made before sealing can write to it."""


class LeaseClock(Lease):
    """A lease whose end stands in a file in memory. It counts as expired until it is renewed for the first time."""

    def __init__(self, seconds: float) -> None:
        """Create the file (needs Linux 5.1). Raises OSError.

        `seconds`: for how long after sending a heartbeat tools may start and run. The database counts the node as alive
        for longer than that after a heartbeat: the processes that run tools (tool hosts) need the difference to end
        the tools.
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
        """The descriptor of the file in memory, through which nobody can write; None after `close`. See `Lease.fd`."""
        return self._fd

    def valid(self) -> bool:
        """Return whether tools may start and commands (except cancels) be handled now. See `Lease.valid`."""
        return time.monotonic_ns() < self._until

    def age(self) -> float:
        """Return the seconds since the last successful heartbeat was sent. See `Lease.age`."""
        return (time.monotonic_ns() - self._renewed) / NANOSECONDS

    def renew(self, sent: int) -> None:
        """Extend the lease for a heartbeat that the database has accepted.

        `sent`: when the heartbeat was sent, in nanoseconds of CLOCK_MONOTONIC (`time.monotonic_ns`), not when it was
        answered, because nobody knows how long the answer took. A heartbeat sent before the latest accepted one
        changes nothing.
        """
        with self._lock:
            until = sent + int(self._seconds * NANOSECONDS)
            if self._fd is not None and until > self._until:
                self._word[0] = self._until = until
                self._renewed = sent

    def close(self) -> None:
        """End the lease and free the file. Idempotent.

        The processes that run tools notice the end when they next read the file.
        """
        with self._lock:
            if self._fd is None:
                return
            self._word[0] = self._until = 0
            self._word.release()
            self._map.close()
            os.close(self._fd)
            self._fd = None
