"""Sends HTTP requests and streams their responses.

A cancel aborts a request in any phase; idle connections are reused.
"""

from __future__ import annotations

import functools
import ssl
import time
import zlib
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from actors.adapters.llm.transport.connection_pool import ConnectionPool
from actors.adapters.llm.transport.connections import (
    AbortHandle,
    LocalResourcesExhaustedError,
    TransportError,
    TransportTimeoutError,
    open_socket,
    start_tls,
)
from actors.adapters.llm.transport.endpoint import Endpoint, Proxy, encode_head, endpoint_of, proxy_of
from actors.adapters.llm.transport.http_connection import ConnectionLostError, HttpConnection, NotDeliveredError
from actors.adapters.llm.transport.response_parser import MalformedResponseError, ResponseParser
from actors.core.errors import ErrorKind
from actors.ports.machine.resources import exhausted_resource
from actors.ports.machine.trust_store import client_tls
from actors.ports.settings.settings_checks import read_named

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator, Mapping, Sequence

    from actors.adapters.llm.provider import ProviderConfig, Timeouts
    from actors.adapters.llm.transport.connection_pool import Later
    from actors.ports import CancelToken

#: Maximum bytes of one decoded response body.
MAX_ANSWER_BYTES = 64 << 20

#: The value of zlib's parameter `wbits` that makes zlib recognise gzip and deflate data by its first bytes.
_ANY_FORMAT = 47
_COMPRESSED = frozenset({"gzip", "x-gzip", "deflate"})


def never(_milliseconds: int, _callback: object) -> None:
    """Do nothing: a scheduler (`Later`) for a Transport that does not close idle connections after a time.

    They are closed together with their pool, or when a later request finds that they are too old.
    """


class Reply:
    """A response whose headers have arrived. Not thread-safe."""

    def __init__(self, connection: HttpConnection, response: ResponseParser, timeouts: Timeouts) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        """The response headers by name, in lower case."""
        self.idle = timeouts.idle
        """Time limit in seconds for the next chunk; can be changed between two reads."""
        self._connection = connection
        self._response = response
        compressed = self.headers.get("content-encoding", "").strip().lower() in _COMPRESSED
        self._decompressor = zlib.decompressobj(_ANY_FORMAT) if compressed else None
        self._total = timeouts.total
        self._deadline = time.monotonic() + timeouts.total if timeouts.total else float("inf")
        self._received = 0

    def read(self) -> bytes:
        """Wait for the next bytes of the answer and return them; b"" at the end.

        Raises TransportError for a broken connection, an exceeded time limit, or an oversized answer.
        """
        try:
            piece = self._next_piece()
        except TransportError:
            self._response.keeps_alive = False  # the unread rest of this answer may still arrive on the connection
            raise
        except (OSError, MalformedResponseError, zlib.error):
            self._response.keeps_alive = False
            raise TransportError(ErrorKind.NETWORK, "the connection broke off in the middle of the answer") from None
        return piece

    def _next_piece(self) -> bytes:
        while not (piece := self._decoded(self._response.take())) and not self._response.complete:
            self._receive()
        self._received += len(piece)
        if self._received > MAX_ANSWER_BYTES:
            raise TransportError(ErrorKind.RESPONSE_TOO_LARGE, f"the answer has more than {MAX_ANSWER_BYTES >> 20} MiB")
        return piece

    def _receive(self) -> None:
        left = self._deadline - time.monotonic()
        seconds = min(self.idle, left)
        try:
            data = self._connection.receive(seconds)
        except TimeoutError:
            if left < self.idle:
                text = f"the answer was not complete within its total time limit of {self._total:g} s"
                raise TransportTimeoutError(text) from None
            raise TransportTimeoutError(f"nothing arrived for {seconds:g} s") from None
        if data:
            self._response.feed(data)
        else:
            self._response.end()

    def _decoded(self, content: bytes) -> bytes:
        if self._decompressor is None:
            return content
        return self._decompressor.decompress(content)

    def read_all(self, limit: int = MAX_ANSWER_BYTES) -> bytes:
        """Return the rest of the answer, or its first `limit` bytes. Raises the same errors as `read`."""
        pieces, size = [], 0
        while size < limit and (piece := self.read()):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)[:limit]


class Transport:
    """Sends requests to one provider. Safe to call from any thread; a connection serves one request at a time.

    `later` schedules the closing of idle connections.
    """

    def __init__(self, provider: ProviderConfig, later: Later = never) -> None:
        self._provider = provider
        self._proxy = proxy_of(provider.proxy.reveal())
        self._pool = ConnectionPool(later)

    def close(self) -> None:
        """Close idle connections; a running request closes its own connection when it ends. Idempotent."""
        self._pool.close()

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        """The TLS context, which all requests share and which is never changed. Raises TransportError."""
        try:
            if chosen := self._provider.ca_bundle:
                return ssl.create_default_context(cadata=read_named(Path(chosen)).decode("ascii", "ignore"))
            return client_tls()
        except OSError as error:
            if text := exhausted_resource(error):
                raise LocalResourcesExhaustedError(text) from None
            raise TransportError(ErrorKind.INVALID_REQUEST, "its ca_bundle cannot be read as PEM") from None
        except ValueError as error:
            raise TransportError(ErrorKind.INVALID_REQUEST, f"its ca_bundle {error}") from None

    def post(
        self, url: str, headers: Mapping[str, str], body: Sequence[bytes], cancel: CancelToken
    ) -> AbstractContextManager[Reply]:
        """Send `body` with POST; see `send`."""
        return self.send("POST", url, headers, body, cancel, timeouts=self._provider.timeouts)

    @contextmanager
    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Sequence[bytes],
        cancel: CancelToken,
        *,
        timeouts: Timeouts,
    ) -> Generator[Reply]:
        """Send a request and yield the reply once its headers have arrived, whatever its status.

        The body is given in pieces, which are not copied, because a long history has megabytes. Redirects, cookies, and
        proxies or credentials from the environment are ignored. At the end of the block the connection is kept for
        another request, or closed.

        A cancel shuts the socket down at once in every phase except name resolution. After a cancel any exception may
        be raised, so the caller must check the token `cancel`. All other failures raise TransportError.
        """
        endpoint = endpoint_of(url)
        request = self._encoded(method, endpoint, headers, body)
        connection, response = self._begin(endpoint, request, cancel, timeouts)
        read = False
        try:
            yield Reply(connection, response, timeouts)
            read = True
        finally:
            # If `withdrawn` is False, it was too late to withdraw the callback: a cancel is running, and may shut the
            # socket down at any time.
            withdrawn = cancel.forget(connection.abort)
            if withdrawn and (read or response.complete):
                self._pool.put(endpoint.origin, connection)
            else:
                connection.close()

    def _encoded(
        self, method: str, endpoint: Endpoint, headers: Mapping[str, str], body: Sequence[bytes]
    ) -> Sequence[bytes]:
        target = endpoint.path
        if self._proxy is not None and not endpoint.secure:
            target = endpoint.url
            if self._proxy.authorization:
                headers = {**headers, "proxy-authorization": self._proxy.authorization}
        length = sum(map(len, body)) if body or method == "POST" else None
        return encode_head(method, target, endpoint.authority, headers, length), *body

    def _begin(
        self, endpoint: Endpoint, request: Sequence[bytes], cancel: CancelToken, timeouts: Timeouts
    ) -> tuple[HttpConnection, ResponseParser]:
        """Send a request; return its connection, which `cancel` aborts, and its response, whose head has arrived.

        A server may close an idle connection just when it is used again. The request is sent again only if the server
        has certainly received none of it, because a model request that is sent twice may cost twice. Raises
        TransportError.
        """
        kept = self._pool.take(endpoint.origin)
        if kept is not None:
            cancel.on_cancel(kept.abort)
            try:
                return kept, self._exchange(kept, request, cancel, timeouts)
            except NotDeliveredError:
                pass
        fresh = self._connect(endpoint, cancel, timeouts)
        try:
            return fresh, self._exchange(fresh, request, cancel, timeouts)
        except NotDeliveredError:
            raise _not_begun() from None

    def _exchange(
        self, connection: HttpConnection, request: Sequence[bytes], cancel: CancelToken, timeouts: Timeouts
    ) -> ResponseParser:
        try:
            with _translated(timeouts):
                return connection.request(request, timeouts.first_byte)
        except BaseException:
            cancel.forget(connection.abort)
            connection.close()
            raise

    def _connect(self, endpoint: Endpoint, cancel: CancelToken, timeouts: Timeouts) -> HttpConnection:
        """Return a new connection, which `cancel` aborts. Raises TransportError."""
        tls = self._tls if endpoint.secure else None
        handle = AbortHandle()
        cancel.on_cancel(handle.abort)
        try:
            with _translated(timeouts):
                return HttpConnection(self._open(endpoint, tls, timeouts.connect, handle), handle)
        except BaseException:
            cancel.forget(handle.abort)
            handle.close()
            raise

    def _open(
        self, endpoint: Endpoint, tls: ssl.SSLContext | None, seconds: float, handle: AbortHandle
    ) -> socket.socket:
        peer = self._proxy or endpoint
        sock = open_socket(peer.host, peer.port, seconds, handle)
        if tls is None:
            return sock
        if self._proxy is not None:
            _open_tunnel(HttpConnection(sock, handle), self._proxy, endpoint, seconds)
        return start_tls(sock, endpoint.host, tls, seconds, handle)


def _open_tunnel(connection: HttpConnection, proxy: Proxy, endpoint: Endpoint, seconds: float) -> None:
    headers = {"proxy-authorization": proxy.authorization} if proxy.authorization else {}
    request = encode_head("CONNECT", endpoint.origin_authority, endpoint.origin_authority, headers, None)
    try:
        status = connection.request([request], seconds).status
    except TimeoutError:
        raise TransportTimeoutError(f"the proxy did not connect within {seconds:g} s") from None
    except (OSError, ConnectionLostError, MalformedResponseError):
        status = 0
    if not 200 <= status < 300:
        raise TransportError(ErrorKind.NETWORK, "the proxy refused or broke the connection")


@contextmanager
def _translated(timeouts: Timeouts) -> Generator[None]:
    """Within the `with` block, convert errors before an answer begins to TransportError, except NotDeliveredError."""
    try:
        yield
    except NotDeliveredError:
        raise
    except TimeoutError:
        raise TransportTimeoutError(f"no answer began within {timeouts.first_byte:g} s") from None
    except MalformedResponseError:
        raise TransportError(ErrorKind.NETWORK, "something that is not HTTP came before an answer began") from None
    except (OSError, ConnectionLostError) as error:
        if text := exhausted_resource(error):
            raise LocalResourcesExhaustedError(text) from None
        raise _not_begun() from None


def _not_begun() -> TransportError:
    return TransportError(ErrorKind.NETWORK, "the connection was closed before an answer began")
