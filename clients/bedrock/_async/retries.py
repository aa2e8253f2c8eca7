"""Repeats calls while the server is unreachable, for at most the client's `reconnect_for` seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bedrock._async.transport import AsyncTransport
from bedrock._shared.deadline import Deadline
from bedrock._shared.reconnection import Backoff
from bedrock.errors import BedrockError, Unavailable


async def insist(transport: AsyncTransport, method: Callable[..., Any], request: Any, deadline: Deadline) -> Any:
    """Make an idempotent call, and repeat it while the server is unavailable.

    Raises Unavailable after `reconnect_for` seconds.
    """
    backoff = Backoff(transport.reconnect_for)
    while True:
        try:
            return await transport.call(method, request, deadline.shorten(transport.timeout))
        except Unavailable as error:
            delay = backoff.next(error.retry_after or 0.0)
            if delay is None:
                raise
            await pause(transport, error, deadline.shorten(delay))


async def pause(transport: AsyncTransport, error: BedrockError, delay: float) -> None:
    """Call `on_disconnect`, then wait `delay` seconds. Raises Unavailable if the client is closed."""
    if transport.on_disconnect is not None:
        transport.on_disconnect(error, delay)
    await transport.pause(delay)
