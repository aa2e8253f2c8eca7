"""Limits on the messages from an MCP server, applied before the MCP library parses the messages.

A response that is too large becomes an error. The library would refuse a whole list of tools because of one that it
does not accept; such tools are therefore passed through it in a form that it does not read. While a server sends
requests without reading the responses, nothing more is read from the server, because the library would hold all the
responses in memory. A server that sends endless notifications is read slowly, because one thread reads the messages of
all servers.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

# Maximum length of a list in a message; parsing a longer list would delay all other servers.
MAX_PARTS = 5_000

# While this many messages wait to be read by a server, nothing more is read from that server.
MAX_UNSENT = 8


# The number of notifications that a server can send in one burst without being slowed down.
NOTIFICATIONS = 1_000

# How many notifications per second are read from a server that has sent more than NOTIFICATIONS.
NOTIFICATIONS_A_SECOND = 200

# Maximum nesting depth of a message; the MCP library cannot parse 200 levels.
MAX_LEVELS = 150

# Maximum digits of a whole number. The MCP library cannot parse thousands of digits; the largest double has 309.
MAX_DIGITS = 400

# Maximum size of a message that `mended` repairs, because repairing it blocks the thread that serves all servers.
MENDED_BYTES = 4 << 20

# The key in the `_meta` of a stand-in for a tool that the MCP library does not accept; its value is the original tool.
UNREAD = "bedrock.dev/unread-tool"

# The JSON-RPC error code that the HTTP transport reports for a session that the server does not know.
FORGOTTEN_SESSION = -404_404

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


class Pace:
    """Limits the rate at which notifications are read (token bucket): after a pause, many may be read at once."""

    def __init__(self) -> None:
        self._tokens = float(NOTIFICATIONS)
        self._since = 0.0

    def seconds_after_one(self, now: float) -> float:
        """Count one notification at the time `now`; return how long to wait before reading on. Times are in seconds."""
        self._tokens = min(NOTIFICATIONS, self._tokens + (now - self._since) * NOTIFICATIONS_A_SECOND) - 1
        self._since = now
        return max(0.0, -self._tokens / NOTIFICATIONS_A_SECOND)


@asynccontextmanager
async def bounded_transport(transport: Any) -> AsyncGenerator[tuple[Any, Any]]:
    """Yield the two streams (received, sent) of an MCP transport with the limits of this module applied."""
    async with transport as (received, sent):
        sending = _Sending(sent)
        yield _Bounded(received, sending), sending


class _Wrapped:
    """Wraps a stream of the MCP library; all its attributes remain available. Use only on the event loop's thread."""

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
        """Wait until fewer than MAX_UNSENT messages wait to be read by the server."""
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
    message = getattr(item, "message", None)
    result = getattr(message, "result", None)
    if not isinstance(result, dict):
        return item
    most = max((len(each) for each in result.values() if isinstance(each, list)), default=0)
    if most > MAX_PARTS:
        return error_of(item.message.id, f"its response contains a list of {most:,} items; the limit is {MAX_PARTS:,}")
    if "tools" in result and "content" not in result:
        if not isinstance(result["tools"], list):
            return error_of(item.message.id, "`tools` in its response must be a list")
        item.message.result = {**result, "tools": [*map(_acceptance(result), result["tools"])]}
    return item


def _acceptance(result: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """A function that returns a given tool if the library accepts it, or else a stand-in.

    The stand-in contains the tool under the key UNREAD.
    """
    from mcp.shared.inbound import find_invalid_x_mcp_header  # noqa: PLC0415 -- any open connection has loaded this
    from mcp_types import methods, version  # noqa: PLC0415 -- any open connection has loaded this

    newest = "resultType" in result
    spoken = version.LATEST_MODERN_VERSION if newest else version.LATEST_HANDSHAKE_VERSION

    def accepted(tool: Any) -> dict[str, Any]:
        try:
            methods.validate_server_result("tools/list", spoken, {**result, "tools": [tool]})
            if not newest or find_invalid_x_mcp_header(tool["inputSchema"]) is None:
                return dict(tool)
        except (ValueError, RecursionError):
            pass
        name = tool.get("name") if isinstance(tool, dict) else None
        named = name if isinstance(name, str) else ""
        return {"name": named, "inputSchema": {"type": "object"}, "_meta": {UNREAD: tool}}

    return accepted


def mended(text: bytes) -> bytes:
    """JSON without anything that the MCP library cannot parse. Raises ValueError if `text` is not JSON, or too large.

    The library cannot parse very deep nesting, numbers with thousands of digits, unpaired surrogates, or invalid UTF-8.
    """
    if len(text) > MENDED_BYTES:
        raise ValueError("it is too large")
    value = json.loads(_shallow(text).decode(errors="replace"), parse_int=_number)
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)


def _shallow(text: bytes) -> bytes:
    """`text` (JSON), with a remark in place of each object or list that is nested more than MAX_LEVELS deep."""
    kept: list[bytes] = []
    depth = begin = 0
    for token in _TOKEN.finditer(text):
        if token[0] in b"{[":
            depth += 1
            if depth == MAX_LEVELS + 1:
                kept += [text[begin : token.start()], b'"(nested too deeply)"']
        elif token[0] in b"}]":
            depth -= 1
            if depth == MAX_LEVELS:
                begin = token.end()
    return b"".join([*kept, text[begin:]])


def error_of(request_id: Any, text: str) -> Any:
    """An error that replaces the response to the request `request_id`."""
    from mcp.shared.message import SessionMessage  # noqa: PLC0415 -- any open connection has loaded this
    from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError  # noqa: PLC0415 -- any open connection has it

    error = ErrorData(code=INTERNAL_ERROR, message=text)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))
