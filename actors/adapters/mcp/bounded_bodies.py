"""Size limits for HTTP responses of MCP servers and authorization servers, and corrections of responses."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx2
from mcp_types import jsonrpc_message_adapter

from actors.adapters.mcp.bounded_messages import FORGOTTEN_SESSION, MENDED_BYTES, mended

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator


def check_uncompressed(response: httpx2.Response) -> None:
    """Raise httpx2.DecodingError if a response is compressed, because its uncompressed size could not be bounded."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("it compresses its answers, unasked")


def bound_body(response: httpx2.Response, most: int) -> None:
    """Make reading more than `most` bytes of a response raise httpx2.ReadError. Call this before the body is read."""
    body: Any = response.stream
    response.stream = _ChangedBody(body, _bounded(body, most))


def mend_body(response: httpx2.Response, *, events: bool) -> None:
    """Correct each message of a response that the MCP library cannot parse; see `mended`.

    With `events`, the body is an event stream. Call this before the body is read.
    """
    body: Any = response.stream
    response.stream = _ChangedBody(body, _mended(body, events=events))


def mark_forgotten_session(response: httpx2.Response) -> None:
    """Let the MCP library report the error FORGOTTEN_SESSION if a server does not know the session of a request.

    Servers say so with status 404, whatever the body, and some with status 400 and words. Either way they have not
    carried out the request. Call this before the body is read.
    """
    if response.status_code in {httpx2.codes.NOT_FOUND, httpx2.codes.BAD_REQUEST}:
        body: Any = response.stream
        surely = response.status_code == httpx2.codes.NOT_FOUND
        response.stream = _ChangedBody(body, _marked(body, surely=surely))
        response.headers["content-type"] = "application/json"


class _ChangedBody(httpx2.AsyncByteStream):
    def __init__(self, body: httpx2.AsyncByteStream, changed: AsyncIterator[bytes]) -> None:
        self._body = body
        self._changed = changed

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._changed

    async def aclose(self) -> None:
        await self._body.aclose()


async def _bounded(body: httpx2.AsyncByteStream, most: int) -> AsyncGenerator[bytes]:
    size = 0
    async for part in body:
        size += len(part)
        if size > most:
            raise httpx2.ReadError("a message is too large")
        yield part


async def _marked(body: httpx2.AsyncByteStream, *, surely: bool) -> AsyncGenerator[bytes]:
    text = b"".join([part async for part in body])
    yield _NO_SUCH_SESSION if surely or b"session" in text.lower() else text


_NO_SUCH_SESSION = (
    b'{"jsonrpc": "2.0", "id": null, "error": {"code": %d, "message": "it does not know the session"}}'
    % FORGOTTEN_SESSION
)


async def _mended(body: httpx2.AsyncByteStream, *, events: bool) -> AsyncGenerator[bytes]:
    waiting = b""
    async for part in body:
        waiting += part
        whole = max(waiting.rfind(b"\r"), waiting.rfind(b"\n")) + 1 if events else 0
        if len(waiting) > MENDED_BYTES:
            yield waiting
            waiting = b""
        elif whole:
            yield b"".join(map(_mended_event, waiting[:whole].splitlines(keepends=True)))
            waiting = waiting[whole:]
    if waiting:
        yield waiting if events else _readable(waiting)


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
