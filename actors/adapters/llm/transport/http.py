"""One streaming HTTP request over `requests`, sent once, that a cancel aborts in any phase."""

from __future__ import annotations

import functools
import ssl
import time
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import requests
import urllib3.exceptions
from requests.adapters import HTTPAdapter
from requests.utils import DEFAULT_CA_BUNDLE_PATH

from actors.adapters.llm.transport.connections import (
    AbortableConnection,
    AbortableTlsConnection,
    AbortHandle,
    LocalResourcesExhaustedError,
    TransportError,
    TransportTimeoutError,
)
from actors.core.errors import ErrorKind
from actors.ports.resources import exhausted_resource

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from actors.adapters.llm.provider import ProviderConfig, Timeouts
    from actors.ports import CancelToken

#: Bytes of one decoded answer, at most.
MAX_ANSWER_BYTES = 64 << 20

_PIECE_BYTES = 65536


class Reply:
    """A response whose headers have arrived. Not thread-safe."""

    def __init__(self, response: requests.Response, abort_handle: AbortHandle, timeouts: Timeouts) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        """Case-insensitive."""
        self.idle = timeouts.idle
        """Seconds that the next chunk may take; may be changed between reads."""
        self._raw = response.raw
        self._abort_handle = abort_handle
        self._total = timeouts.total
        self._deadline = time.monotonic() + timeouts.total if timeouts.total else float("inf")
        self._limit = 0.0
        self._received = 0

    def read(self) -> bytes:
        """Return the next chunk as soon as it arrives; b"" at the end.

        Raises TransportError for a broken connection, an exceeded time limit, or an oversized answer.
        """
        left = self._deadline - time.monotonic()
        seconds = min(self.idle, left)
        if seconds <= 0:
            raise self._overdue()
        stream = self._abort_handle.stream
        if seconds != self._limit and stream is not None and stream.fileno() >= 0:
            stream.settimeout(seconds)
            self._limit = seconds
        try:
            piece: bytes = self._raw.read1(_PIECE_BYTES, decode_content=True)
        except (urllib3.exceptions.ReadTimeoutError, TimeoutError):
            if left < self.idle:
                raise self._overdue() from None
            raise TransportTimeoutError(f"nothing arrived for {seconds:g} s") from None
        except (urllib3.exceptions.HTTPError, OSError):
            raise TransportError(ErrorKind.NETWORK, "the connection broke off in the middle of the answer") from None
        self._received += len(piece)
        if self._received > MAX_ANSWER_BYTES:
            raise TransportError(ErrorKind.RESPONSE_TOO_LARGE, f"the answer has more than {MAX_ANSWER_BYTES >> 20} MiB")
        return piece

    def _overdue(self) -> TransportTimeoutError:
        return TransportTimeoutError(f"the answer was not complete within its total time limit of {self._total:g} s")

    def read_all(self, limit: int = MAX_ANSWER_BYTES) -> bytes:
        """Return the rest of the answer, or its first `limit` bytes."""
        pieces, size = [], 0
        while size < limit and (piece := self.read()):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)[:limit]


class Transport:
    """Send requests to one provider. Any thread; every request has its own connection."""

    def __init__(self, provider: ProviderConfig) -> None:
        self._provider = provider

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        """Return the TLS context: shared by all requests and never changed."""
        try:
            return ssl.create_default_context(cafile=self._provider.ca_bundle or DEFAULT_CA_BUNDLE_PATH)
        except OSError as error:
            if text := exhausted_resource(error):
                raise LocalResourcesExhaustedError(text) from None
            raise TransportError(ErrorKind.INVALID_REQUEST, "its ca_bundle cannot be read as PEM") from None

    def post(
        self, url: str, headers: Mapping[str, str], body: bytes, cancel: CancelToken
    ) -> AbstractContextManager[Reply]:
        """Send `body`: see `send`."""
        return self.send("POST", url, headers, body, cancel, timeouts=self._provider.timeouts)

    @contextmanager
    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        cancel: CancelToken,
        *,
        timeouts: Timeouts,
    ) -> Generator[Reply]:
        """Send a request and yield the reply once its headers have arrived, whatever its status.

        Redirects, cookies, and proxies or credentials from the environment are ignored, since the adapter of `requests`
        is used without a session. Leaving the block closes everything.

        A cancel shuts the socket down at once in every phase but name resolution; the exception raised then is
        arbitrary, so the caller must check the token. Raises TransportError.
        """
        tls = self._tls if url.lower().startswith("https:") else None
        abort_handle = AbortHandle()
        adapter = _Adapter(abort_handle, tls, timeouts)
        cancel.on_cancel(abort_handle.abort)
        try:
            request = requests.Request(method, url, headers={**headers, "accept-encoding": "identity"}, data=body)
            with self._send(adapter, request, timeouts) as response:
                yield Reply(response, abort_handle, timeouts)
        finally:
            cancel.forget(abort_handle.abort)
            adapter.close()
            abort_handle.close()

    def _send(self, adapter: _Adapter, request: requests.Request, timeouts: Timeouts) -> requests.Response:
        proxy = self._provider.proxy.reveal()
        try:
            return adapter.send(
                request.prepare(),
                stream=True,
                timeout=(timeouts.connect, timeouts.first_byte),
                verify=True,
                proxies={"http": proxy, "https": proxy} if proxy else {},
            )
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            text = "the base_url, the api_key or a header contains characters that cannot be sent"
            raise TransportError(ErrorKind.INVALID_REQUEST, text) from None
        except requests.exceptions.ProxyError:
            raise TransportError(ErrorKind.NETWORK, "the proxy refused or broke the connection") from None
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            if text := exhausted_resource(error):
                raise LocalResourcesExhaustedError(text) from None
            if _timed_out(error):
                text = f"no answer began within {timeouts.first_byte:g} s"
                raise TransportTimeoutError(text) from None
            raise TransportError(ErrorKind.NETWORK, "the connection was closed before an answer began") from None


def _timed_out(error: BaseException | None) -> bool:
    """Return whether a socket timeout caused `error`; `requests` reports one in sending as a broken connection."""
    while error is not None:
        if isinstance(error, TimeoutError):
            return True
        error = error.__context__
    return False


class _Adapter(HTTPAdapter):
    """Make one connection, with an abort handle."""

    def __init__(self, abort_handle: AbortHandle, tls: ssl.SSLContext | None, timeouts: Timeouts) -> None:
        super().__init__(pool_connections=1, pool_maxsize=1, max_retries=0)
        self._abort_handle = abort_handle
        self._tls = tls
        self._send_timeout = timeouts.first_byte

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:
        """Return a pool whose connections can be aborted."""
        pool: Any = super().get_connection_with_tls_context(*args, **options)
        pool.conn_kw.update(abort_handle=self._abort_handle, send_timeout=self._send_timeout)
        if self._tls is None:
            pool.ConnectionCls = AbortableConnection
        else:
            pool.ConnectionCls = AbortableTlsConnection
            pool.conn_kw["tls"] = self._tls
        return pool

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Do nothing: AbortableTlsConnection has its own context, which always verifies."""
