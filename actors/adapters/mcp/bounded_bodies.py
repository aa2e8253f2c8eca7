"""Size limits for HTTP responses of MCP servers and authorization servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2

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
