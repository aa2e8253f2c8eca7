"""The process of a tool host, as a child of the server's process."""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress


class HostProcess:
    """A tool host that is a child of this process. Its pid stays valid until one of these methods reaps the host.

    Safe to call from any thread.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._lock = threading.Lock()
        self._reaped = False

    def ended(self) -> bool:
        """Return whether the host has ended; if so, reap it."""
        with self._lock:
            if not self._reaped:
                try:
                    self._reaped = os.waitpid(self.pid, os.WNOHANG)[0] != 0
                except ChildProcessError:
                    self._reaped = True
            return self._reaped

    def ended_within(self, seconds: float) -> bool:
        """Wait at most `seconds` for the host's end; return whether it has ended, and if so, reap it."""
        if self.ended():
            return True
        with suppress(OSError):
            descriptor = os.pidfd_open(self.pid)
            try:
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                poll.poll(seconds * 1000)
            finally:
                os.close(descriptor)
        return self.ended()

    def kill(self, *, group: bool = False) -> None:
        """Send SIGKILL to the host, or to its process group; no effect if it has ended."""
        with self._lock:
            if not self._reaped:
                with suppress(OSError):
                    (os.killpg if group else os.kill)(self.pid, signal.SIGKILL)
