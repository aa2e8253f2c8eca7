"""The state that the three processes of a call share: the launch, the pipes, and the time until which it may run."""

import errno
import os
import sys
import time

from actors.adapters.sandbox.host import call_limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class LeaseFile:
    """The time until which tools may run, read from a file that the server writes; without a file (-1), no limit."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.until = sys.maxsize if file < 0 else 0
        """The time that was last read, in nanoseconds of CLOCK_MONOTONIC."""

    def over(self) -> bool:
        """Return whether tools must be ended; read the file again if the time that was last read has passed."""
        if self.passed() and self.file >= 0:
            self.read()
        return self.passed()

    def passed(self) -> bool:
        """Return whether the time that was last read has passed."""
        return time.monotonic_ns() >= self.until

    def read(self) -> None:
        """Read the file until two results in a row are equal, because the server may be writing it. Raises OSError."""
        before = b""
        while (found := os.pread(self.file, 8, 0)) != before:
            before = found
        self.until = int.from_bytes(found, sys.byteorder)

    def check(self) -> None:
        """Raise OSError if the time that was last read has passed."""
        if self.passed():
            raise OSError(errno.ETIME, "the lease is over")

    def leave(self) -> None:
        """Read the time once more, and close the file, so that the program does not inherit it."""
        if self.file >= 0:
            self.read()
            os.close(self.file)


class Pipes:
    """The pipes between the three processes; all are closed on exec."""

    def __init__(self) -> None:
        self.output, self.output_end = os.pipe()
        self.status, self.status_end = os.pipe()
        self.report, self.report_end = os.pipe()
        self.life, self.life_end = os.pipe()
        """Written by the host: the first byte lets init continue, later bytes are signals for the main process.

        The pipe closes when the host ends.
        """


class HostedCall:
    """The state of one call in each of its three processes: a process gets a copy from the one that forked it."""

    groups: call_limits.Groups
    """The control groups of the call, which the host creates in `begin`."""

    def __init__(self, control: int, launch: "dict[str, Any]", lease: LeaseFile) -> None:
        self.control = control
        self.launch = launch
        self.lease = lease
        self.pipes = Pipes()
        self.namespace = False
        """Whether init is the first process of a PID namespace."""
        self.behind = 0
        """The nice value that init sets for the tree; 0 for no change."""
