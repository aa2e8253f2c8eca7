"""Size limits for HTTP responses of MCP servers and authorization servers, and corrections of responses."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx2
from mcp_types import jsonrpc_message_adapter

from actors.adapters.mcp.bounded_messages import MENDED_BYTES, mended

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable


def check_uncompressed(response: httpx2.Response) -> None:
    """Raise httpx2.DecodingError if a response is compressed, because its uncompressed size could not be bounded."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("it compresses its answers, unasked")


def bound_body(response: httpx2.Response, most: int) -> None:
    """Make reading more than `most` bytes of a response raise httpx2.ReadError. Call this before the body is read."""
    body: Any = response.stream
    response.stream = _BoundedBody(body, body.aclose, most)


def mend_body(response: httpx2.Response, *, events: bool) -> None:
    """Correct each message of a response that the MCP library cannot parse; see `mended`.

    With `events`, the body is an event stream. Call this before the body is read.
    """
    body: Any = response.stream
    response.stream = _MendedBody(body, body.aclose, events)


class _BoundedBody(httpx2.AsyncByteStream):
    def __init__(self, body: AsyncIterable[bytes], close: Callable[[], Awaitable[None]], most: int) -> None:
        self._body = body
        self._close = close
        self._most = most

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        size = 0
        async for part in self._body:
            size += len(part)
            if size > self._most:
                raise httpx2.ReadError("a message is too large")
            yield part

    async def aclose(self) -> None:
        await self._close()


class _MendedBody(httpx2.AsyncByteStream):
    def __init__(self, body: AsyncIterable[bytes], close: Callable[[], Awaitable[None]], events: bool) -> None:
        self._body = body
        self._close = close
        self._events = events

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        waiting = b""
        async for part in self._body:
            waiting += part
            whole = max(waiting.rfind(b"\r"), waiting.rfind(b"\n")) + 1 if self._events else 0
            if len(waiting) > MENDED_BYTES:
                yield waiting
                waiting = b""
            elif whole:
                yield b"".join(map(_mended_event, waiting[:whole].splitlines(keepends=True)))
                waiting = waiting[whole:]
        if waiting:
            yield waiting if self._events else _readable(waiting)

    async def aclose(self) -> None:
        await self._close()


def _mended_event(line: bytes) -> bytes:
    """Return one line of an event stream, with its data corrected."""
    field, colon, rest = line.partition(b":")
    data = rest.rstrip(b"\r\n")
    return field + colon + _readable(data) + rest[len(data) :] if field == b"data" else line


def _readable(text: bytes) -> bytes:
    """Return a message as the MCP library can parse it; a message that cannot be corrected is returned unchanged."""
    with suppress(ValueError):
        try:
            jsonrpc_message_adapter.validate_json(text, by_name=False)
        except ValueError:
            return mended(text)
    return text
