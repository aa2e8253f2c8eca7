"""Sockets that a cancel can shut down at any time, even before the first packet; and the errors of requests.

Only `shutdown(SHUT_RDWR)` wakes a thread that is blocked in connect, handshake or recv; closing the socket from another
thread does not. Every socket is therefore given to its exchange before it connects.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import socket
import ssl
import struct
import termios
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from actors.adapters.llm.provider import Timeouts
from actors.common.machine import exhausted_resource, file_descriptor_limit_text, out_of_file_descriptors
from actors.core.errors import ErrorKind

Result = TypeVar("Result")

# SO_LINGER value that makes close() send a TCP RST. After a normal close, a server that is blocked because this side's
# receive window is full would notice only after about a minute.
_RESET = struct.pack("ii", 1, 0)


class TransportError(Exception):
    """The request got no response, or an incomplete one. The text contains no header, key or body."""

    def __init__(self, text: str, kind: ErrorKind = ErrorKind.NETWORK) -> None:
        super().__init__(text)
        self.text = text
        self.kind = kind


class TransportTimeoutError(TransportError):
    """A time limit was exceeded; the text says which one."""


class LocalResourcesExhaustedError(TransportError):
    """This process, not the provider, lacked resources for the request; the text says which ones."""


class NotDeliveredError(TransportError):
    """The connection ended before the server received any byte of the request, so the request can be sent again."""


class Exchange:
    """One attempt at a request: the socket that a cancel shuts down, and the time limit of the current phase.

    It holds a duplicate of the socket, because TLS replaces the socket that it wraps; a shutdown of the duplicate still
    works. Only `abort` is thread-safe.
    """

    def __init__(self, timeouts: Timeouts, *, fresh: bool) -> None:
        self.timeouts = timeouts
        self.fresh = fresh
        """Whether the request must not be sent on a kept connection."""
        self.sent = 0
        self.overhead = 0
        """How many bytes without content, such as headers, have arrived in succession."""
        self.idle = math.inf
        # This lock is held while the duplicate is closed or shut down, because a cancel must not affect a descriptor
        # that was closed and is already in use for something else.
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.aborted = False

    def abort(self) -> None:
        """Shut down the current socket, and every socket that is passed to `publish` later. Never blocks or raises."""
        with self._lock:
            self.aborted = True
            self._shutdown()

    def _shutdown(self) -> None:
        if self._socket is not None:
            # This fails if the socket is not connected yet; then the connecting thread notices `aborted`.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def publish(self, sock: socket.socket) -> None:
        """Let `abort` shut down `sock` instead of the previous socket."""
        duplicate = socket.socket(sock.family, sock.type, sock.proto, fileno=os.dup(sock.fileno()))
        with self._lock:
            former, self._socket = self._socket, duplicate
            if self.aborted:
                self._shutdown()
        if former is not None:
            former.close()

    def close(self) -> bool:
        """Close the duplicate, which disables `abort`; return whether `abort` was never called. Idempotent."""
        with self._lock:
            sock, self._socket = self._socket, None
            if sock is not None:
                if self.aborted:
                    with contextlib.suppress(OSError):
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                sock.close()
            return not self.aborted

    @property
    def unacknowledged(self) -> int:
        """How many sent bytes the peer's kernel has not acknowledged; 0 if this kernel cannot report it."""
        try:
            count: int = struct.unpack("i", fcntl.ioctl(self._socket or -1, termios.TIOCOUTQ, bytes(4)))[0]
        except (OSError, ValueError):
            return 0
        return count

    def begin(self, seconds: float, late: str) -> None:
        """Begin a phase that may take `seconds`, after which TransportTimeoutError(`late`) is raised."""
        self._deadline, self._late = time.monotonic() + seconds, late

    def within(self, sock: socket.socket, event: int, operation: Callable[[], Result]) -> Result:
        """Perform an operation on a non-blocking socket, waiting for `event` if needed, within the phase's time limit.

        Raises TransportTimeoutError or OSError.
        """
        # A socket with a timeout would make three system calls for each operation, even if it need not wait.
        while (left := self._deadline - time.monotonic()) > 0:
            try:
                return operation()
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as wait:
                if self.aborted:  # the shutdown had no effect if the socket had not begun to connect
                    raise ConnectionAbortedError from None
                poll = select.poll()
                poll.register(sock, select.POLLOUT if isinstance(wait, ssl.SSLWantWriteError) else event)
            if not poll.poll(min(left, self.idle) * 1000) and self.idle < left:
                raise TransportTimeoutError(f"no data received for {self.idle:g} s")
        raise TransportTimeoutError(self._late)


def open_socket(host: str, port: int, exchange: Exchange) -> socket.socket:
    """Connect to the first address of `host` that accepts. Raises TransportError.

    The limit `timeouts.connect` applies after name resolution. A cancel cannot interrupt name resolution, which blocks
    this thread; but no other thread waits for it.
    """
    failure = TransportError(f"cannot resolve the host name {host}")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        if out_of_file_descriptors():  # the resolver's error does not say so
            raise LocalResourcesExhaustedError(file_descriptor_limit_text()) from None
        raise failure from None
    timeout = exchange.timeouts.connect
    deadline = time.monotonic() + timeout
    for left, (family, kind, protocol, _, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        sock = socket.socket(family, kind, protocol)
        try:
            exchange.publish(sock)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Keep-alive probes detect a server that disappeared without closing the connection, before the idle limit.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setblocking(False)
            late = f"cannot connect to {host}:{port} within {timeout:g} s"
            exchange.begin((deadline - time.monotonic()) / left, late)
            exchange.within(sock, select.POLLOUT, partial(sock.connect, address))
        except TransportTimeoutError as late_one:
            failure = late_one
        except OSError as error:
            if exhausted_resource(error):
                sock.close()
                raise
            failure = TransportError(f"cannot connect to {host}:{port}: {error.strerror}")
        else:
            return sock
        sock.close()
    raise failure
