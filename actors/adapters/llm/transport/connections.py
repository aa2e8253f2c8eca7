"""Opens connections to a model's server that a cancel can shut down at any time, even before the first packet.

Only `shutdown(SHUT_RDWR)` wakes a thread that is blocked in connect, handshake or recv; closing the socket from another
thread does not. So every socket is given to an abort handle before it connects.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
import struct
import threading
import time
from typing import Any

from actors.core.errors import ErrorKind
from actors.ports.machine.resources import file_descriptor_limit_text, out_of_file_descriptors

#: SO_LINGER value that makes close() send a TCP RST. After a normal close, a server that is blocked on a full receive
#: window would notice only after about a minute.
_RESET = struct.pack("ii", 1, 0)


class TransportError(Exception):
    """The request got no response, or an incomplete one. The text contains no header, key or body."""

    def __init__(self, kind: ErrorKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class TransportTimeoutError(TransportError):
    """A time limit was exceeded; the text says which one."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorKind.NETWORK, text)


class LocalResourcesExhaustedError(TransportError):
    """This process, not the provider, lacked resources for the request; the text says which ones."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorKind.RESOURCE_EXHAUSTED, text)


class AbortHandle:
    """Owns the socket of one connection, so that a cancel can shut it down."""

    def __init__(self) -> None:
        # This lock is held while sockets are closed or shut down: a cancel must not affect a descriptor that was closed
        # and is in use again for something else.
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._aborted = False

    def abort(self) -> None:
        """Shut down the present socket, and every socket that is passed to `publish` later.

        Safe to call from any thread; never blocks or raises.
        """
        with self._lock:
            self._aborted = True
            self._shutdown()

    def _shutdown(self) -> None:
        if self._socket is not None:
            # This fails if the socket is not connected; then the connecting thread notices `is_aborted`. The method of
            # socket.socket is called, because that of ssl.SSLSocket would discard TLS state that the reader still uses.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def publish(self, sock: socket.socket) -> None:
        """Take ownership of `sock`, so that `abort` shuts it down. The previous socket is closed."""
        with self._lock:
            former, self._socket = self._socket, sock
            if self._aborted:
                self._shutdown()
        if former is not None:
            former.close()

    @property
    def is_aborted(self) -> bool:
        """Whether `abort` was called."""
        with self._lock:
            return self._aborted

    def close(self) -> None:
        """Close the socket. Idempotent. Called by the request's own thread, or while no request uses the connection."""
        with self._lock:
            sock, self._socket = self._socket, None
            if sock is None:
                return
            if self._aborted:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            sock.close()


def open_socket(host: str, port: int, timeout: float, abort_handle: AbortHandle) -> socket.socket:
    """Resolve `host`, connect to the first of its addresses that accepts, and return the socket.

    Connecting may take `timeout` seconds in all, in addition to the time of name resolution. A cancel cannot interrupt
    name resolution, so it takes effect only afterwards; until then this thread is blocked, but no other thread
    waits for it. Raises TransportError.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        if out_of_file_descriptors():  # the resolver's error does not tell that this was the cause
            raise LocalResourcesExhaustedError(file_descriptor_limit_text()) from None
        raise TransportError(ErrorKind.NETWORK, f"cannot resolve the host name {host}") from None
    deadline = time.monotonic() + timeout
    failure = TransportError(ErrorKind.NETWORK, f"{host} has no address")
    for left, (family, kind, protocol, _, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        sock = socket.socket(family, kind, protocol)
        abort_handle.publish(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Keep-alive probes detect a server that disappeared without closing the connection, before the idle time limit.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        error = _connect(sock, address, (deadline - time.monotonic()) / left, abort_handle)
        if not error:
            return sock
        failure = _not_connected(host, port, error, timeout)
    raise failure


def _not_connected(host: str, port: int, error: int, timeout: float) -> TransportError:
    if error == errno.ETIMEDOUT:
        return TransportTimeoutError(f"cannot connect to {host}:{port} within {timeout:g} s")
    return TransportError(ErrorKind.NETWORK, f"cannot connect to {host}:{port}: {os.strerror(error)}")


def _connect(sock: socket.socket, address: Any, seconds: float, abort_handle: AbortHandle) -> int:
    """Connect, waiting for at most `seconds`; return the error number, 0 for success.

    A cancel cannot shut down a socket that is not connecting yet. So the socket is non-blocking: connecting begins,
    then `is_aborted` shows whether a cancel came too early. A cancel after this check shuts the socket down.
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


def start_tls(
    sock: socket.socket, host: str, context: ssl.SSLContext, seconds: float, abort_handle: AbortHandle
) -> ssl.SSLSocket:
    """Start TLS on `sock`, verify the certificate for `host`, and return the TLS socket.

    Raises TransportError.
    """
    sock.settimeout(seconds)
    try:
        tls = context.wrap_socket(sock, server_hostname=host.rstrip("."), do_handshake_on_connect=False)
        abort_handle.publish(tls)
        tls.do_handshake()
    except ssl.SSLCertVerificationError as error:
        text = f"the certificate of {host} is not trusted ({error.verify_message}); set ca_bundle if it should be"
        raise TransportError(ErrorKind.INVALID_REQUEST, text) from None  # another attempt would not change it
    except TimeoutError:
        raise TransportTimeoutError(f"the TLS handshake with {host} took longer than {seconds:g} s") from None
    except OSError as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise TransportError(ErrorKind.NETWORK, f"the TLS handshake with {host} failed: {reason}") from None
    return tls
