"""HTTP requests to one provider with `requests`: a cancel aborts them in any phase, and idle connections are reused.

A custom adapter for `requests` uses its own urllib3 connections. They differ from urllib3's in three ways: a connection
publishes its socket to the request's abort handle before it connects; its time limits apply to whole phases; and one
read takes everything that has arrived.
"""

from __future__ import annotations

import http.client
import io
import logging
import math
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from actors.adapters.llm.provider import HEADER, ProviderConfig, Timeouts
from actors.adapters.llm.transport.connections import (
    Exchange,
    LocalResourcesExhaustedError,
    NotDeliveredError,
    TransportError,
    TransportTimeoutError,
    open_socket,
)
from actors.common.machine import client_tls, exhausted_resource, max_open_files
from actors.common.settings_checks import read_named
from actors.core.errors import ErrorKind
from actors.ports import CancelToken

# Maximum bytes of one response body.
MAX_ANSWER_BYTES = 64 << 20
# Maximum bytes without content (the response's head, chunk headers, other framing) that may arrive in succession.
MAX_OVERHEAD_BYTES = 256 << 10
# Maximum bytes of one read.
READ_BYTES = 64 << 10

# Seconds that are charged to an answer for each read, and for each line or chunk. If an answer's charges exceed the
# elapsed time by more than BURST_SECONDS, its next read waits, so that no stream of tiny pieces, events or comments
# takes much of a core.
READ_COST, LINE_COST = 1 / 500, 1 / 20_000
BURST_SECONDS = 1.0

# Maximum seconds that a connection may be idle before it is reused; servers keep idle connections longer.
IDLE_SECONDS = 15.0
# If a server announces when it will close an idle connection, Bedrock stops reusing it this many seconds earlier.
_MARGIN_SECONDS = 1.0
_ANNOUNCED = re.compile(r"timeout\s*=\s*(\d{1,9})", re.IGNORECASE)
# Maximum number of idle connections to one server; further ones are closed. If this process may open only a few files,
# the maximum is a sixteenth of that limit, because requests and tools need most of the files.
MAX_IDLE = 100
_SHARE_OF_FILES = 16

_CHUNK_HEAD = re.compile(rb"([0-9a-fA-F]{1,24})[ \t]*(?:;[^\n]*)?\r?\n")
_TRAILERS = re.compile(rb"(?:[^\r\n][^\n]*\n)*\r?\n")

_NOT_BEGUN = "the connection closed before a response arrived"

_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OURS = frozenset({"content-length", "transfer-encoding", "accept-encoding"})

# The attribute `exchange` is the exchange in progress on this thread, since urllib3 has no way to pass it to a
# connection.
_thread = threading.local()


class _Arrivals(io.RawIOBase):
    """A file object through which http.client reads the data that arrives on a connection."""

    def __init__(self, sock: socket.socket, exchange: Exchange, file: Any) -> None:
        super().__init__()
        self._sock = sock
        self._exchange = exchange
        self._file = file  # keeps the socket open even after http.client has closed it

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Take all that has arrived, or wait for the next bytes.

        A TLS read returns a single record, and providers send one record for each event. If only one record were taken
        before each pause, reading would fall further and further behind the stream.
        """
        view = memoryview(buffer)
        size = self._exchange.within(self._sock, select.POLLIN, partial(self._sock.recv_into, view))
        if size and isinstance(self._sock, ssl.SSLSocket):
            with suppress(OSError):  # raised if nothing more has arrived; a real error is raised again by the next read
                while size < len(view) and (more := self._sock.recv_into(view[size:])):
                    size += more
        self._exchange.overhead += size
        if self._exchange.overhead > MAX_OVERHEAD_BYTES:
            raise http.client.HTTPException
        return size

    def close(self) -> None:
        super().close()
        self._file.close()


class _Chunks:
    """Decoder for chunked bodies.

    http.client's own decoder returns one chunk per call, and waits for the head of the next chunk.
    """

    def __init__(self) -> None:
        self.ended = False
        # Bytes that are not yet decoded, or that follow the body.
        self.rest = b""
        self._remaining = 0
        # The length of the line ending that follows the last chunk and may not have arrived yet.
        self._line_end = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The content of the chunks, and parts of chunks, that have arrived. Raises HTTPException if malformed."""
        data, position = self.rest + data, 0
        pieces: list[bytes] = []
        while not self.ended:
            if self._remaining:
                piece = data[position : position + self._remaining]
                if not piece:
                    break
                pieces.append(piece)
                position, self._remaining, self._line_end = position + len(piece), self._remaining - len(piece), 2
            elif (head := _CHUNK_HEAD.match(data, position + self._line_end)) is None:
                if not pieces and data.find(b"\n", position + self._line_end) >= 0:
                    raise http.client.HTTPException
                break
            elif size := int(head[1], 16):
                position, self._remaining = head.end(), size
            elif end := _TRAILERS.match(data, head.end()):
                position, self.ended = end.end(), True
            else:
                break
        self.rest = data[position:]
        return pieces

    def end(self) -> None:
        """Note that nothing more will arrive. Raises IncompleteRead if anything other than trailers is missing."""
        self.ended = _CHUNK_HEAD.match(self.rest, self._line_end) is not None
        if not self.ended:
            raise http.client.IncompleteRead(b"")


class _Response(http.client.HTTPResponse):
    """A response whose body is returned as it arrives. Not thread-safe."""

    def __init__(self, exchange: Exchange, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp: Any = io.BufferedReader(_Arrivals(sock, exchange, self.fp))
        self._exchange = exchange
        self._chunks = _Chunks()

    def _read_status(self) -> tuple[str, int, str]:
        """The answer's status line, after any 1xx except 101; http.client skips only 100 (Continue)."""
        version, status, reason = super()._read_status()  # type: ignore[misc]
        return version, http.HTTPStatus.CONTINUE if 101 < status < 200 else status, reason

    @property
    def ended(self) -> bool:
        return self._chunks.ended if self.chunked else self.length == 0

    def pieces(self) -> list[bytes]:
        """The part of the body that has arrived; if there is none, the next part to arrive; [] at the body's end.

        Raises TransportTimeoutError, HTTPException or OSError.
        """
        if self.chunked:
            data = b""
            while not (pieces := self._chunks.feed(data)) and not self._chunks.ended:
                data = self.fp.read1(READ_BYTES)
                if not data:
                    self._chunks.end()
            return pieces
        if self.ended:
            return []
        data = self.fp.read1(READ_BYTES if self.length is None else min(READ_BYTES, self.length))
        if not data and self.length:
            raise http.client.IncompleteRead(b"", self.length)
        self.length = self.length - len(data) if self.length and data else None if data else 0
        return [data] if data else []

    def settle(self, *, alone: bool = False) -> bool:
        """Read the body's end if it has arrived; False if other data came instead or, if `alone`, after the end."""
        self._exchange.begin(math.inf, "")
        self._exchange.idle = 0
        try:
            while not self.ended:
                if self.pieces():
                    return False
            if alone:
                self.fp.peek(1)  # raises TransportTimeoutError if nothing has arrived
            return not alone
        except TransportTimeoutError:
            return not self._chunks.rest or not self.ended
        except (OSError, http.client.HTTPException):
            return False


class _Connection(HTTPConnection):
    """A connection that an exchange can abort. It raises TransportErrors."""

    exchange: Exchange
    response: _Response
    idle_until = 0.0
    """The time, in monotonic seconds, until which the idle connection can be used again."""
    timeout: Any = property(lambda _: 0, lambda *_: None)  # else urllib3 would block, without our limits

    def _new_conn(self) -> socket.socket:
        self.exchange = _thread.exchange
        sock = open_socket(self._dns_host, self.port, self.exchange)
        sock.settimeout(self.exchange.timeouts.connect)
        return sock

    def _tunnel(self) -> None:
        seconds = self.exchange.timeouts.connect
        self.exchange.begin(seconds, f"the proxy did not connect within {seconds:g} s")
        self.sock.setblocking(False)
        try:
            super()._tunnel()
        except (OSError, ValueError, http.client.HTTPException):
            raise TransportError("the proxy refused or closed the connection") from None
        self.sock.settimeout(seconds)

    def request(self, *arguments: Any, **options: Any) -> None:
        exchange: Exchange = _thread.exchange
        if self.sock is None:
            self.connect()
            cast("socket.socket", self.sock).setblocking(False)
        elif self.exchange is not exchange:  # this is a kept connection
            self.response.close()
            self.exchange = exchange
            exchange.publish(self.sock)
        self._expect_answer()
        super().request(*arguments, **options)

    def _expect_answer(self) -> None:
        seconds = self.exchange.timeouts.first_byte
        self.exchange.begin(seconds, f"the server did not respond within {seconds:g} s")

    def send(self, data: Any) -> None:
        """Send `data`. Raises BrokenPipeError if the server ends the connection; urllib3 then reads any answer."""
        left = memoryview(data)
        try:
            while left:
                sent = self.exchange.within(self.sock, select.POLLOUT, partial(self.sock.send, left))
                self.exchange.sent += sent
                left = left[sent:]
        except OSError:
            raise BrokenPipeError from None

    def _respond(self, *arguments: Any, **options: Any) -> _Response:
        self.response = _Response(self.exchange, *arguments, **options)
        return self.response

    response_class: Any = _respond

    def getresponse(self) -> Any:
        """The next response.

        Raises NotDeliveredError if the server certainly read nothing. When a server's kernel ends a connection
        properly, it acknowledges all bytes received before; if it has acknowledged none, no program has read any. A
        reset proves nothing, because bytes may have been read but not acknowledged.
        """
        self._expect_answer()
        exchange = self.exchange
        try:
            return super().getresponse()
        except OSError as error:
            ended = isinstance(error, http.client.RemoteDisconnected)
            delivered = exchange.sent and not (ended and exchange.unacknowledged >= exchange.sent)
            raise (TransportError if delivered or exchange.aborted else NotDeliveredError)(_NOT_BEGUN) from None
        except (ValueError, HTTPError, http.client.HTTPException):
            raise TransportError("the server's response is not HTTP") from None

    def is_reusable(self) -> bool:
        """End a request; return whether the connection can be reused, now or after the rest of the response."""
        if self.sock is None or self.response.status < 200 or not self.response.settle():
            return False
        announced = _ANNOUNCED.search(self.response.headers.get("keep-alive", ""))
        seconds = min(IDLE_SECONDS, int(announced[1]) - _MARGIN_SECONDS) if announced else IDLE_SECONDS
        self.idle_until = time.monotonic() + seconds
        return True

    @property
    def is_connected(self) -> bool:
        """Whether a request can be sent now; urllib3 closes the connection if not."""
        recent = self.sock is not None and time.monotonic() < self.idle_until
        return recent and self.response.settle(alone=True) and self.response.ended


class _TlsConnection(_Connection, HTTPSConnection):
    def connect(self) -> None:
        host = self._tunnel_host or self.host
        try:
            super().connect()
        except ssl.SSLCertVerificationError as error:
            text = f"the certificate of {host} is not trusted ({error.verify_message}); to trust it, set ca_bundle"
            raise TransportError(text, ErrorKind.INVALID_REQUEST) from None  # another attempt would not help
        except TimeoutError:
            seconds = self.exchange.timeouts.connect
            raise TransportTimeoutError(f"the TLS handshake with {host} took longer than {seconds:g} s") from None
        except OSError as error:
            if exhausted_resource(error):
                raise
            reason = getattr(error, "reason", None) or type(error).__name__
            raise TransportError(f"the TLS handshake with {host} failed: {reason}") from None


class _Pool(HTTPConnectionPool):
    ConnectionCls: Any = _Connection

    def _get_conn(self, timeout: float | None = None) -> Any:
        connection = super()._get_conn(timeout)
        if _thread.exchange.fresh:
            connection.close()
        return connection


class _TlsPool(_Pool, HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class Adapter(HTTPAdapter):
    """Sends requests over connections that can be aborted. `tls` verifies servers; it is None if TLS is not used."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        files = max_open_files()
        super().__init__(pool_maxsize=MAX_IDLE if files < 0 else max(1, min(MAX_IDLE, files // _SHARE_OF_FILES)))
        # urllib3 logs URLs, and warns about each connection above the maximum.
        logging.getLogger("urllib3").setLevel(logging.ERROR)

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, ssl_context=self._tls, **options)
        self._adapt(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        return self._adapt(super().proxy_manager_for(proxy, ssl_context=self._tls, **options))

    def _adapt(self, manager: Any) -> Any:
        manager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
        manager.pools.dispose_func = HTTPConnectionPool.close  # else idle connections stay open until collected
        return manager

    def build_response(self, req: requests.PreparedRequest, resp: Any) -> Any:
        """Return urllib3's response, because a response of `requests` would look for cookies and a text encoding."""
        return resp

    def cert_verify(self, *_arguments: Any, **_options: Any) -> None:
        """Do nothing: the TLS context verifies, and `requests` would read certifi's file for each connection."""


class Reply:
    """A response whose headers have arrived. Not thread-safe."""

    def __init__(self, exchange: Exchange, response: HTTPResponse, cancel: CancelToken) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._exchange = exchange
        self._raw: Any = response
        self._connection = cast("_Connection", self._raw.connection)
        self._response = self._connection.response
        self._cancel = cancel
        self._received = 0
        # The time (monotonic) that the charges for reads and lines have reached; see READ_COST.
        self._due = -math.inf
        self._failure: TransportError | None = None
        total = exchange.timeouts.total
        late = f"the answer was not complete within the total timeout of {total:g} s"
        exchange.begin(total or math.inf, late)
        self.idle = exchange.timeouts.idle
        """Time limit in seconds for the next bytes; can be changed between reads."""
        encoding = self.headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            text = "the answer is compressed, which was not requested; turn off compression in the server or proxy"
            self._failure = TransportError(text, ErrorKind.INVALID_REQUEST)

    def read(self) -> bytes:
        """The next bytes of the answer; b"" at its end.

        Raises TransportError for a broken connection, an exceeded time limit, or an oversized or compressed answer.
        """
        if self._failure is not None:
            raise self._failure
        now = time.monotonic()
        self._due = max(self._due, now - BURST_SECONDS)
        if self._due > now:
            self._cancel.wait(self._due - now)
        self._exchange.idle = self.idle
        try:
            pieces = self._response.pieces()
        except TransportError as failure:
            self._failure = failure
            raise
        except (OSError, ValueError, http.client.HTTPException):
            self._failure = TransportError("the connection broke in the middle of the answer")
            raise self._failure from None
        self._exchange.overhead = 0
        content = b"".join(pieces)
        self._received += len(content)
        if self._received > MAX_ANSWER_BYTES:
            text = f"the answer is larger than {MAX_ANSWER_BYTES >> 20} MiB"
            self._failure = TransportError(text, ErrorKind.RESPONSE_TOO_LARGE)
            raise self._failure
        self._due += READ_COST + (len(pieces) + content.count(b"\n")) * LINE_COST
        return content

    def read_all(self, limit: int = MAX_ANSWER_BYTES) -> bytes:
        """The rest of the answer, or its first `limit` bytes. Raises the same errors as `read`."""
        pieces, size = [], 0
        while size < limit and (piece := self.read()):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)[:limit]

    def close(self, *, read: bool) -> None:
        """End the exchange; keep its connection if it is intact and the needed part of the answer was `read`."""
        unharmed = self._exchange.close() and self._failure is None
        if unharmed and (read or self._response.ended) and self._connection.is_reusable():
            self._raw._fp = None  # otherwise its destructor would close the response, whose end may still arrive
            self._raw.release_conn()
        else:
            self._raw.close()


class Transport:
    """Sends requests to one provider, each over its own connection. Thread-safe.

    Raises TransportError for an unusable ca_bundle.
    """

    def __init__(self, provider: ProviderConfig) -> None:
        self._provider = provider
        self._prepared = lru_cache(maxsize=8)(_prepared)

        self._session = requests.Session()
        self._session.trust_env = False
        proxy = provider.proxy.reveal()
        self._session.proxies = {"http": proxy, "https": proxy} if proxy else {}
        self._adapter = Adapter(_tls(provider.ca_bundle) if provider.base_url.startswith("https") else None)
        self._session.mount("http://", self._adapter)
        self._session.mount("https://", self._adapter)

    def close(self) -> None:
        """Close idle connections; a running request closes its own connection when it ends. Idempotent."""
        self._session.close()

    def post(
        self, url: str, headers: Mapping[str, str], body: bytes, cancel: CancelToken
    ) -> AbstractContextManager[Reply]:
        return self.send("POST", url, headers, body, cancel, timeouts=self._provider.timeouts)

    @contextmanager
    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, cancel: CancelToken, *, timeouts: Timeouts
    ) -> Generator[Reply]:
        """Yield the reply once its headers have arrived, whatever its status.

        Redirects, cookies, and the environment's proxies and credentials are ignored. At the end, the connection is
        kept or closed. A cancel shuts down the socket, except during name resolution. After a cancel, any exception may
        be raised, so check the token. All other failures raise TransportError.
        """
        request = self._prepared(method, url, tuple(headers.items())).copy()
        request.prepare_body(body, files=None)
        try:
            exchange, response = self._begin(request, cancel, Exchange(timeouts, fresh=False))
        except NotDeliveredError:
            # A server may close an idle connection just when it is reused. A request is sent again only if the server
            # has certainly received none of it, because a model request that is sent twice may cost twice as much.
            exchange, response = self._begin(request, cancel, Exchange(timeouts, fresh=True))
        reply = Reply(exchange, response, cancel)
        read = False
        try:
            yield reply
            read = True
        finally:
            cancel.forget(exchange.abort)
            reply.close(read=read)

    def _begin(
        self, request: requests.PreparedRequest, cancel: CancelToken, exchange: Exchange
    ) -> tuple[Exchange, HTTPResponse]:
        cancel.on_cancel(exchange.abort)
        _thread.exchange = exchange
        try:
            response: Any = self._adapter.send(request, stream=True, proxies=self._session.proxies)
            return exchange, response
        except BaseException as error:
            cancel.forget(exchange.abort)
            exchange.close()
            if not isinstance(error, (OSError, ValueError, HTTPError)):
                raise
            if text := exhausted_resource(error):
                raise LocalResourcesExhaustedError(text) from None
            raise TransportError(_NOT_BEGUN) from None
        finally:
            _thread.exchange = None


def _prepared(method: str, url: str, headers: tuple[tuple[str, str], ...]) -> requests.PreparedRequest:
    """A request without a body, prepared once and copied for each use. Raises TransportError."""
    try:
        if not all(HEADER.fullmatch(name) and _HEADER_VALUE.fullmatch(value) for name, value in headers):
            raise ValueError
        own = {name: value for name, value in headers if name.lower() not in _OURS}
        return requests.Request(method, url, {**own, "accept-encoding": "identity"}).prepare()
    except ValueError:  # errors of `requests` are ValueErrors, too
        text = "the base_url, the api_key or a header contains characters that cannot be sent"
        raise TransportError(text, ErrorKind.INVALID_REQUEST) from None


def _tls(ca_bundle: str) -> ssl.SSLContext:
    try:
        if ca_bundle:
            return ssl.create_default_context(cadata=read_named(Path(ca_bundle)).decode("ascii", "ignore"))
        return client_tls()
    except OSError as error:
        if text := exhausted_resource(error):
            raise LocalResourcesExhaustedError(text) from None
        raise TransportError("its ca_bundle cannot be read as PEM", ErrorKind.INVALID_REQUEST) from None
    except ValueError as error:
        raise TransportError(f"its ca_bundle {error}", ErrorKind.INVALID_REQUEST) from None
