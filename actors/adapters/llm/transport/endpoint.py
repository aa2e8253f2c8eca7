"""The address of a request, and the encoding of its head (request line and headers, RFC 9112)."""

from __future__ import annotations

import base64
import functools
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

from actors.adapters.llm.transport.connections import TransportError
from actors.core.errors import ErrorKind

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_NO_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_RESERVED = "!#$%&'()*+,/:;=?@[]~"
_OURS = frozenset({"content-length", "transfer-encoding", "accept-encoding"})


class Endpoint(Struct, frozen=True):
    """The server and path of a URL."""

    secure: bool
    host: str
    port: int
    authority: str
    """The value of the Host header."""
    path: str
    """The path with the query."""

    @property
    def origin(self) -> tuple[bool, str, int]:
        """The server: whether it uses TLS, its host and its port."""
        return self.secure, self.host, self.port

    @property
    def origin_authority(self) -> str:
        """The server's host and port in the form of a CONNECT request to a proxy."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The absolute URL for a request through a proxy."""
        return f"http://{self.authority}{self.path}"


class Proxy(Struct, frozen=True):
    """An HTTP proxy."""

    host: str
    port: int
    authorization: str
    """The value of the Proxy-Authorization header; "" for none."""


@functools.lru_cache(maxsize=64)
def endpoint_of(url: str) -> Endpoint:
    """Return the endpoint of a URL. Raises TransportError for an invalid URL, for example one without a host."""
    try:
        parts = urlsplit(url)
        host = _ascii(parts.hostname or "")
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
    except ValueError:
        raise _unsendable() from None
    bracketed = f"[{host}]" if ":" in host else host
    authority = f"{bracketed}:{parts.port}" if parts.port else bracketed
    path = quote(parts.path or "/", safe=_RESERVED) + (f"?{quote(parts.query, safe=_RESERVED)}" if parts.query else "")
    if not host or _NO_VALUE.search(authority) or " " in authority:
        raise _unsendable()
    return Endpoint(secure, host, port, authority, path)


def proxy_of(url: str) -> Proxy | None:
    """Return the proxy at `url`, which may contain its credentials; None for ""."""
    if not url:
        return None
    parts = urlsplit(url)
    user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode("latin-1", "replace")
    authorization = "" if parts.username is None else f"Basic {base64.b64encode(user).decode()}"
    return Proxy(parts.hostname or "", parts.port or 80, authorization)


def encode_head(method: str, target: str, authority: str, headers: Mapping[str, str], length: int | None) -> bytes:
    """Return the head of a request with `length` bytes of content; None means that the request has no content.

    Raises TransportError for a header name or value that cannot be sent.
    """
    lines = [f"{method} {target} HTTP/1.1"]
    if "host" not in headers:
        lines.append(f"host: {authority}")
    for name, value in headers.items():
        if _NAME.fullmatch(name) is None or _NO_VALUE.search(value):
            raise _unsendable()
        if name not in _OURS:
            lines.append(f"{name}: {value}")
    lines.append("accept-encoding: identity")
    if length is not None:
        lines.append(f"content-length: {length}")
    try:
        return "\r\n".join((*lines, "\r\n")).encode("latin-1")
    except UnicodeError:
        raise _unsendable() from None


def _ascii(host: str) -> str:
    return host if host.isascii() else host.encode("idna").decode()


def _unsendable() -> TransportError:
    text = "the base_url, the api_key or a header contains characters that cannot be sent"
    return TransportError(ErrorKind.INVALID_REQUEST, text)
