"""Answers whose headers have one time limit as a whole, however slowly they drip in."""

from __future__ import annotations

import io
import time
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket


class HeaderDeadlineResponse(HTTPResponse):
    """An answer whose headers must be complete within the time-out that its socket has when it is made.

    What comes before them counts: `100 Continue` may be sent any number of times. Reading raises TimeoutError.
    """

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self._punctual = _DeadlineReader(sock)
        self.fp = io.BufferedReader(self._punctual)

    def begin(self) -> None:
        """Read the headers. The body has the time-out that the socket is given later."""
        super().begin()
        self._punctual.deadline = None


class _DeadlineReader(io.RawIOBase):
    """What a socket receives, until a deadline."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock
        self._stream = sock.makefile("rb", buffering=0)
        seconds = sock.gettimeout()
        self.deadline = None if seconds is None else time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self.deadline is not None:
            seconds = self.deadline - time.monotonic()
            if seconds <= 0:
                raise TimeoutError("the headers took too long")
            self._sock.settimeout(seconds)
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()
