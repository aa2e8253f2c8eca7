"""One HTTP/1.1 connection: sends a request, and receives the bytes of its response."""

from __future__ import annotations

import fcntl
import re
import socket
import ssl
import struct
import termios
import time
from typing import TYPE_CHECKING

from actors.adapters.llm.transport.response_parser import MalformedResponseError, ResponseParser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.adapters.llm.transport.connections import AbortHandle

#: Maximum seconds that an idle connection is kept; servers keep idle connections longer.
IDLE_SECONDS = 15.0
#: If a server announces when it closes an idle connection, Bedrock closes the connection this many seconds earlier.
_MARGIN_SECONDS = 1.0
_ANNOUNCED = re.compile(r"timeout\s*=\s*(\d{1,9})", re.IGNORECASE)
#: Maximum bytes of one read.
_READ_BYTES = 65536


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
        self._plain = not isinstance(sock, ssl.SSLSocket)
        self._limit = -1.0
        self._response = ResponseParser()
        if self._plain:
            sock.settimeout(None)

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
        self._limit_to(seconds)
        try:
            return self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            raise TimeoutError from None

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
            while (piece := self._receive_now()) and not response.complete:
                response.feed(piece)
                if response.take():
                    break
        except (BlockingIOError, ssl.SSLWantReadError):
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
        waiting = [memoryview(piece) for piece in (pieces if self._plain else [b"".join(pieces)]) if piece]
        sent = 0
        while waiting:
            self._limit_to(seconds)
            try:
                accepted = self._sock.sendmsg(waiting) if self._plain else self._sock.send(waiting[0])
            except (BlockingIOError, TimeoutError):
                raise TimeoutError from None
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

    def _receive_now(self) -> bytes:
        """Return the bytes that were received already; b"" at the end of the stream.

        Raises BlockingIOError or ssl.SSLWantReadError if there are none yet.
        """
        if self._plain:
            return self._sock.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        self._limit = 0.0
        self._sock.settimeout(0)
        return self._sock.recv(_READ_BYTES)

    def _limit_to(self, seconds: float) -> None:
        """Limit the time of each send and receive. Raises TimeoutError if `seconds` is not positive.

        On a socket without TLS the kernel enforces the limit, because with a timeout of Python each read would take two
        system calls, and wait for the interpreter lock twice.
        """
        if seconds == self._limit:
            return
        if seconds <= 0:
            raise TimeoutError
        self._limit = seconds
        if self._plain:
            limit = struct.pack("ll", *divmod(max(int(seconds * 1e6), 1), 10**6))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        else:
            self._sock.settimeout(seconds)


def rest_of(pieces: Sequence[memoryview], count: int) -> list[memoryview]:
    """Return the pieces without their first `count` bytes."""
    rest: list[memoryview] = []
    for piece in pieces:
        if count < len(piece):
            rest.append(piece[count:])
        count = max(0, count - len(piece))
    return rest
