"""Limits on the messages of an MCP server, applied before the MCP library parses the messages.

A response that is too large becomes an error. While a server sends requests without reading the responses to them,
nothing more is read from this server, because the library would hold all these responses in memory. A server that sends
notifications without end is read slowly, because one thread reads the messages of all servers.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

MAX_PARTS = 5_000
"""Maximum length of each list of a result, such as the list of its content parts.

Parsing longer lists would delay all other servers.
"""

MAX_UNSENT = 8
"""When this many messages wait for a server to read them, nothing more is read from that server."""


NOTIFICATIONS = 1_000
"""How many notifications a server may send at once without being slowed down."""

NOTIFICATIONS_A_SECOND = 200
"""How many notifications per second are read from a server that has sent more than NOTIFICATIONS."""


class Pace:
    """Limits the rate at which notifications are read, by a token bucket: after a pause, many are read at once."""

    def __init__(self) -> None:
        self._left = float(NOTIFICATIONS)
        self._since = 0.0

    def seconds_after_one(self, now: float) -> float:
        """Count one notification at the time `now`; return how long to wait before reading on. Both are in seconds."""
        self._left = min(NOTIFICATIONS, self._left + (now - self._since) * NOTIFICATIONS_A_SECOND) - 1
        self._since = now
        return max(0.0, -self._left / NOTIFICATIONS_A_SECOND)


@asynccontextmanager
async def bounded_transport(transport: Any) -> AsyncGenerator[tuple[Any, Any]]:
    """Yield the two streams (received, sent) of an MCP transport with the limits of this module applied."""
    async with transport as (received, sent):
        sending = _Sending(sent)
        yield _Bounded(received, sending), sending


class _Wrapped:
    """Wraps a stream of the MCP library; attributes that this class does not define are those of the stream.

    Used on the thread of the event loop only.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        closed: bool | None = await self._stream.__aexit__(*error)
        return closed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Sending(_Wrapped):
    """The stream of messages to the server (`WriteStream` of mcp.shared)."""

    def __init__(self, sent: Any) -> None:
        super().__init__(sent)
        self._waiting = 0
        self._fewer = asyncio.Event()

    async def until_few_wait(self) -> None:
        """Wait until fewer than MAX_UNSENT messages wait for the server to read them."""
        while self._waiting >= MAX_UNSENT:
            self._fewer.clear()
            await self._fewer.wait()

    async def send(self, item: Any) -> None:
        self._waiting += 1
        try:
            await self._stream.send(item)
        finally:
            self._waiting -= 1
            self._fewer.set()


class _Bounded(_Wrapped):
    """The stream of messages from the server (`ReadStream` of mcp.shared)."""

    def __init__(self, received: Any, sending: _Sending) -> None:
        super().__init__(received)
        self._sending = sending
        self._pace = Pace()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        await self._sending.until_few_wait()
        return await self._in_time(await self._stream.__anext__())

    async def receive(self) -> Any:
        await self._sending.until_few_wait()
        return await self._in_time(await self._stream.receive())

    async def _in_time(self, item: Any) -> Any:
        message = getattr(item, "message", None)
        if getattr(message, "method", None) and not hasattr(message, "id"):
            seconds = self._pace.seconds_after_one(asyncio.get_running_loop().time())
            if seconds:
                await asyncio.sleep(seconds)
        return _bounded(item)


def _bounded(item: Any) -> Any:
    result = getattr(getattr(item, "message", None), "result", None)
    if not isinstance(result, dict):
        return item
    most = max((len(each) for each in result.values() if isinstance(each, list)), default=0)
    if most <= MAX_PARTS:
        return item
    return error_of(item.message.id, f"its answer has {most:,} parts; {MAX_PARTS:,} are the most")


def error_of(request_id: Any, text: str) -> Any:
    """Return an error message that replaces the response to the request `request_id`."""
    from mcp.shared.message import SessionMessage  # noqa: PLC0415 -- any open connection has loaded this
    from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError  # noqa: PLC0415 -- any open connection has it

    error = ErrorData(code=INTERNAL_ERROR, message=text)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))
