"""Sends and receives with a time limit on a connected socket: unencrypted, or through TLS.

Both receive as much as has arrived: while many answers stream, connections are read seldom, and a pause follows each
read.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import struct
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Maximum bytes of one read.
READ_BYTES = 65536

Result = TypeVar("Result")


class SocketIo(Protocol):
    """Sends and receives on one socket. Not thread-safe."""

    @property
    def sends_many(self) -> bool:
        """Whether `send` sends all pieces that it is given, not only the first."""
        ...

    def send(self, pieces: Sequence[memoryview], seconds: float) -> int:
        """Send data; return how many bytes were accepted. Raises TimeoutError or another OSError."""
        ...

    def receive(self, seconds: float) -> bytes:
        """Wait for data; return what has arrived, b"" at the stream's end. Raises TimeoutError or another OSError."""
        ...

    def receive_now(self) -> bytes:
        """Return data that has arrived, b"" at the stream's end. Raises BlockingIOError if there is none yet."""
        ...


def socket_io(sock: socket.socket) -> SocketIo:
    """Return what sends and receives on `sock`, which is used by nothing else from now on."""
    return _Tls(sock) if isinstance(sock, ssl.SSLSocket) else _Unencrypted(sock)


class _Unencrypted:
    """Uses a blocking socket, whose time limits the kernel enforces.

    With Python's timeout each read would take two system calls, and wait for the interpreter lock twice.
    """

    sends_many = True

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._limit = 0.0
        sock.settimeout(None)

    def send(self, pieces: Sequence[memoryview], seconds: float) -> int:
        self._limit_to(seconds)
        try:
            return self._sock.sendmsg(pieces)
        except BlockingIOError:
            raise TimeoutError from None

    def receive(self, seconds: float) -> bytes:
        self._limit_to(seconds)
        try:
            return self._sock.recv(READ_BYTES)
        except BlockingIOError:
            raise TimeoutError from None

    def receive_now(self) -> bytes:
        return self._sock.recv(READ_BYTES, socket.MSG_DONTWAIT)

    def _limit_to(self, seconds: float) -> None:
        if seconds <= 0:
            raise TimeoutError
        if seconds == self._limit:
            return
        self._limit = seconds
        limit = struct.pack("ll", *divmod(max(int(seconds * 1e6), 1), 10**6))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


class _Tls:
    """Uses a non-blocking socket, because one read returns one TLS record at most.

    Providers send a record for each event of a stream. If each of them took a read, a stream would fall ever further
    behind. So `receive` goes on until nothing more has arrived.
    """

    sends_many = False

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        sock.settimeout(0)

    def send(self, pieces: Sequence[memoryview], seconds: float) -> int:
        return self._when_ready(lambda: self._sock.send(pieces[0]), seconds)

    def receive(self, seconds: float) -> bytes:
        records = [self._when_ready(lambda: self._sock.recv(READ_BYTES), seconds)]
        size = len(records[0])
        while records[-1] and size < READ_BYTES:
            try:
                records.append(self._sock.recv(READ_BYTES - size))
            except OSError:  # nothing more yet; if the connection broke, the next call finds out
                break
            size += len(records[-1])
        return b"".join(records)

    def receive_now(self) -> bytes:
        try:
            return self._sock.recv(READ_BYTES)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None

    def _when_ready(self, operation: Callable[[], Result], seconds: float) -> Result:
        """Do an operation as soon as the socket allows it. Raises TimeoutError or another OSError.

        Reading may need the socket to be writable, and the other way round, because TLS exchanges keys meanwhile.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                return operation()
            except ssl.SSLWantReadError:
                wanted = select.POLLIN
            except ssl.SSLWantWriteError:
                wanted = select.POLLOUT
            poll = select.poll()
            poll.register(self._sock, wanted)
            poll.poll(math.ceil(left * 1000))
        raise TimeoutError
