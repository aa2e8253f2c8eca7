"""Connections whose socket a cancel can shut down, from before the first packet on.

Only `shutdown(SHUT_RDWR)` wakes a thread that is blocked in connect, handshake or recv; closing the socket from another
thread does not. So each socket is duplicated and the duplicate published before it connects: a duplicate stays valid
when TLS takes the original over, and its descriptor cannot be reused for another file by a close.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
import threading
import time
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection

from actors.adapters.llm.transport.header_deadline import HeaderDeadlineResponse
from actors.core.errors import ErrorKind
from actors.ports.resources import file_descriptor_limit_text, out_of_file_descriptors


class TransportError(Exception):
    """The request got no answer, or an incomplete one. The text contains no header, key or body."""

    def __init__(self, kind: ErrorKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class TransportTimeoutError(TransportError):
    """A time limit was exceeded; the text names it."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorKind.NETWORK, text)


class LocalResourcesExhaustedError(TransportError):
    """This process, not the provider, lacked resources for the request; the text says which."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorKind.RESOURCE_EXHAUSTED, text)


class AbortHandle:
    """The handle through which a cancel reaches the socket of one request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a cancel must not shut down a descriptor that was closed and reused
        self._handle: socket.socket | None = None
        self._aborted = False
        self.stream: socket.socket | None = None
        """The socket to read from; after a TLS handshake the wrapped one."""

    def abort(self) -> None:
        """Shut the socket down, and every socket published later. Any thread; never blocks, never raises."""
        with self._lock:
            self._aborted = True
            self._shutdown()

    def _shutdown(self) -> None:
        if self._handle is not None:
            # Fails if not connected: the connecting thread checks `is_aborted` once the connect has begun.
            with contextlib.suppress(OSError):
                self._handle.shutdown(socket.SHUT_RDWR)

    def publish(self, sock: socket.socket) -> None:
        """Make `sock` the socket that `abort` shuts down."""
        handle = sock.dup()
        with self._lock:
            former, self._handle = self._handle, handle
        self.stream = sock
        if former is not None:
            former.close()

    @property
    def is_aborted(self) -> bool:
        """Return whether `abort` was called."""
        with self._lock:
            return self._aborted

    def close(self) -> None:
        """Close all sockets. Called by the request's own thread."""
        with self._lock:
            handle, self._handle = self._handle, None
        stream, self.stream = self.stream, None
        for sock in (handle, stream):
            if sock is not None:
                sock.close()


def open_socket(host: str, port: int, timeout: float, abort_handle: AbortHandle) -> socket.socket:
    """Connect to the first address of `host` that answers, within `timeout` seconds in all.

    Name resolution cannot be interrupted: a cancel during it takes effect when it returns; until then this thread is
    left behind without anything waiting for it. Raises TransportError.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        if out_of_file_descriptors():  # the resolver's errors do not say
            raise LocalResourcesExhaustedError(file_descriptor_limit_text()) from None
        raise TransportError(ErrorKind.NETWORK, f"cannot resolve the host name {host}") from None
    deadline = time.monotonic() + timeout
    failure = TransportError(ErrorKind.NETWORK, f"{host} has no address")
    for left, (family, kind, protocol, _, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A peer that vanished without a FIN would otherwise be noticed only by the idle time limit.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            abort_handle.publish(sock)
            error = _connect(sock, address, (deadline - time.monotonic()) / left, abort_handle)
            if not error:
                return sock
            failure = _not_connected(host, port, error, timeout)
        except BaseException:
            sock.close()
            raise
        sock.close()
    raise failure


def _not_connected(host: str, port: int, error: int, timeout: float) -> TransportError:
    if error == errno.ETIMEDOUT:
        return TransportTimeoutError(f"cannot connect to {host}:{port} within {timeout:g} s")
    return TransportError(ErrorKind.NETWORK, f"cannot connect to {host}:{port}: {os.strerror(error)}")


def _connect(sock: socket.socket, address: Any, seconds: float, abort_handle: AbortHandle) -> int:
    """Connect and return the errno, 0 for success.

    Non-blocking, so that `is_aborted` is checked while connecting: a cancel before that moment found no socket, or one
    whose shutdown had no effect since it was not connecting yet. A later cancel shuts the socket down.
    """
    error = _begin_connect(sock, address)
    if abort_handle.is_aborted:
        return errno.ECONNABORTED
    if error == errno.EINPROGRESS:
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        if not poll.poll(max(seconds, 0) * 1000):
            return errno.ETIMEDOUT
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return error


def _begin_connect(sock: socket.socket, address: Any) -> int:
    sock.setblocking(False)
    return sock.connect_ex(address)


class AbortableConnection(HTTPConnection):
    """An HTTP connection with an abort handle."""

    response_class = HeaderDeadlineResponse

    def __init__(self, *args: Any, abort_handle: AbortHandle, send_timeout: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._abort_handle = abort_handle
        self._send_timeout = send_timeout

    def _new_conn(self) -> socket.socket:
        seconds = float(self.timeout or 0)
        sock = open_socket(self._dns_host.strip("[]"), self.port, seconds, self._abort_handle)
        sock.settimeout(seconds)
        return sock

    def connect(self) -> None:
        """Connect, then allow the longer time limit of sending: a large body takes longer than a handshake."""
        super().connect()
        self.timeout = self._send_timeout
        self.sock.settimeout(self._send_timeout)


class AbortableTlsConnection(HTTPSConnection):
    """An HTTPS connection with an abort handle.

    It wraps the socket itself: urllib3 would change the shared context for each connection, which is not thread-safe,
    or load the authorities for each connection, which takes 20 ms.
    """

    response_class = HeaderDeadlineResponse

    def __init__(
        self, *args: Any, abort_handle: AbortHandle, send_timeout: float, tls: ssl.SSLContext, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._abort_handle = abort_handle
        self._send_timeout = send_timeout
        self._tls = tls

    def connect(self) -> None:
        """Connect, through the proxy if there is one, and do the TLS handshake. Raises TransportError."""
        seconds = float(self.timeout or 0)
        sock = open_socket(self._dns_host.strip("[]"), self.port, seconds, self._abort_handle)
        sock.settimeout(seconds)
        self.sock = sock
        name = self.host
        if self._tunnel_host:
            self._has_connected_to_proxy = True
            self._tunnel()
            sock.settimeout(seconds)
            name = self._tunnel_host
        try:
            tls = self._tls.wrap_socket(sock, server_hostname=name.strip("[]").rstrip("."))
        except ssl.SSLCertVerificationError as error:
            text = f"the certificate of {name} is not trusted ({error.verify_message}); set ca_bundle if it should be"
            raise TransportError(ErrorKind.NETWORK, text) from None
        except TimeoutError:
            raise TransportTimeoutError(f"the TLS handshake with {name} took longer than {seconds:g} s") from None
        except OSError as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            raise TransportError(ErrorKind.NETWORK, f"the TLS handshake with {name} failed: {reason}") from None
        self.sock = self._abort_handle.stream = tls
        self.is_verified = True
        self.timeout = self._send_timeout
        tls.settimeout(self._send_timeout)
