"""HTTP responses with one time limit for all headers, however slowly they arrive."""

from __future__ import annotations

import io
import time
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket


class HeaderDeadlineResponse(HTTPResponse):
    """A response whose headers must be complete within the timeout that its socket has on construction.

    Interim responses count as well: a server may send any number of `100 Continue`. Reading raises TimeoutError.
    """

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self._punctual = _DeadlineReader(sock)
        self.fp = io.BufferedReader(self._punctual)

    def begin(self) -> None:
        """Read the headers; the body has the timeout that the socket is given afterwards."""
        super().begin()
        self._punctual.deadline = None


class _DeadlineReader(io.RawIOBase):
    """Read from a socket until a deadline."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock
        self._stream = sock.makefile("rb", buffering=0)
        seconds = sock.gettimeout()
        self.deadline = None if seconds is None else time.monotonic() + seconds

    def readable(self) -> bool:
        """Return True; see io.IOBase."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Receive into `buffer`. Raises TimeoutError after the deadline."""
        if self.deadline is not None:
            seconds = self.deadline - time.monotonic()
            if seconds <= 0:
                raise TimeoutError("the headers took too long")
            self._sock.settimeout(seconds)
        return self._stream.readinto(buffer)

    def close(self) -> None:
        """Close the stream; the socket stays open."""
        self._stream.close()
        super().close()
