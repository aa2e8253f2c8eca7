"""One HTTP/1.1 connection: sends a request, and receives the bytes of its response."""

from __future__ import annotations

import fcntl
import re
import struct
import termios
import time
from typing import TYPE_CHECKING

from actors.adapters.llm.transport.response_parser import MalformedResponseError, ResponseParser
from actors.adapters.llm.transport.socket_io import socket_io

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from actors.adapters.llm.transport.connections import AbortHandle

#: Maximum seconds that an idle connection is kept; servers keep idle connections longer.
IDLE_SECONDS = 15.0
#: If a server announces when it closes an idle connection, Bedrock closes the connection this many seconds earlier.
_MARGIN_SECONDS = 1.0
_ANNOUNCED = re.compile(r"timeout\s*=\s*(\d{1,9})", re.IGNORECASE)


class ConnectionLostError(Exception):
    """The connection ended before a response began."""


class NotDeliveredError(ConnectionLostError):
    """The connection ended before the server received any byte of the request, so the request can be sent again."""


class HttpConnection:
    """An open connection. Used by the thread of one request at a time; only `abort` is safe to call from any thread."""

    def __init__(self, sock: socket.socket, abort_handle: AbortHandle) -> None:
        self.abort = abort_handle.abort
        self.idle_until = 0.0
        """The time, in monotonic seconds, until which the idle connection can be used again."""
        self._sock = sock
        self._handle = abort_handle
        self._io = socket_io(sock)
        self._response = ResponseParser()

    def request(self, pieces: Sequence[bytes], seconds: float) -> ResponseParser:
        """Send a request, given in pieces, and read the head of its response.

        Sending and reading may take `seconds` each. Raises ConnectionLostError, MalformedResponseError, TimeoutError or
        another OSError.
        """
        sent = self._send(pieces, seconds)
        deadline = time.monotonic() + seconds
        response = self._response = ResponseParser()
        response.feed(self._first_bytes(sent, seconds))
        while not response.head_complete:
            piece = self.receive(deadline - time.monotonic())
            if not piece:
                raise ConnectionLostError
            response.feed(piece)
        return response

    def receive(self, seconds: float) -> bytes:
        """Wait for the next bytes and return them; b"" at the stream's end. Raises TimeoutError or another OSError."""
        return self._io.receive(seconds)

    def release(self) -> bool:
        """End the request; return whether the connection can be reused, now or once the response has arrived whole."""
        announced = _ANNOUNCED.search(self._response.headers.get("keep-alive", ""))
        seconds = min(IDLE_SECONDS, int(announced[1]) - _MARGIN_SECONDS) if announced else IDLE_SECONDS
        self.idle_until = time.monotonic() + seconds
        return self._response.keeps_alive and (self._response.complete or self._catch_up())

    def is_reusable(self) -> bool:
        """Return whether a request can be sent now: the last response is complete, and no data follows it."""
        return self._catch_up() and self._response.complete

    @property
    def is_open(self) -> bool:
        """Whether the connection can be reused, now or once the end of its response has arrived."""
        return self._response.keeps_alive and time.monotonic() < self.idle_until

    def _catch_up(self) -> bool:
        """Read the bytes that have arrived, without blocking; return whether the connection can still be reused.

        A connection cannot be reused if the server has closed it, or has sent more than the rest of the last response.
        """
        response = self._response
        if not self.is_open:
            return False
        try:
            while (piece := self._io.receive_now()) and not response.complete:
                response.feed(piece)
                if response.take():
                    break
        except BlockingIOError:
            return response.keeps_alive
        except (OSError, MalformedResponseError):
            pass
        response.keeps_alive = False
        return False

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._handle.close()

    def _send(self, pieces: Sequence[bytes], seconds: float) -> int:
        """Send all pieces; return how many bytes the kernel accepted: not all if the server closed the connection.

        A server that closes it early may have sent a response before, for example that the body is too large. Raises
        TimeoutError.
        """
        deadline = time.monotonic() + seconds
        pieces = pieces if self._io.sends_many else [b"".join(pieces)]
        waiting = [memoryview(piece) for piece in pieces if piece]
        sent = 0
        while waiting:
            try:
                accepted = self._io.send(waiting, seconds)
            except TimeoutError:
                raise
            except OSError:
                break
            sent += accepted
            waiting = rest_of(waiting, accepted)
            seconds = deadline - time.monotonic()
        return sent

    def _first_bytes(self, sent: int, seconds: float) -> bytes:
        try:
            piece = self.receive(seconds)
        except TimeoutError:
            raise
        except OSError:
            raise self._lost(sent, orderly=False) from None
        if not piece:
            raise self._lost(sent, orderly=True)
        return piece

    def _lost(self, sent: int, *, orderly: bool) -> ConnectionLostError:
        """Return the error for a connection that the server ended: properly if `orderly`, else by a TCP reset.

        A proper end acknowledges all bytes received before it. So if the server's kernel has acknowledged none of the
        `sent` bytes, no program has read them, and the error is NotDeliveredError. A reset proves nothing, because
        bytes may have been read, but not acknowledged yet.
        """
        if self._handle.is_aborted:
            return ConnectionLostError()
        if sent == 0 or (orderly and self._unacknowledged() >= sent):
            return NotDeliveredError()
        return ConnectionLostError()

    def _unacknowledged(self) -> int:
        """Return how many sent bytes the peer's kernel has not acknowledged; 0 if this kernel cannot report it."""
        try:
            count: int = struct.unpack("i", fcntl.ioctl(self._sock, termios.TIOCOUTQ, bytes(4)))[0]
        except OSError:
            return 0
        return count


def rest_of(pieces: Sequence[memoryview], count: int) -> list[memoryview]:
    """Return the pieces without their first `count` bytes."""
    rest: list[memoryview] = []
    for piece in pieces:
        if count < len(piece):
            rest.append(piece[count:])
        count = max(0, count - len(piece))
    return rest
