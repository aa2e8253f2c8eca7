"""Sends responses at the speed of the client: a slow client delays no other, and is disconnected after a time limit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from server.contract import limits
from server.contract.errors import SlowReaderError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Response = TypeVar("Response")


async def send(
    write: Callable[[Response], Awaitable[None]], response: Response, stall_seconds: float = limits.STALL_SECONDS
) -> None:
    """Send a response, and return once gRPC has accepted it. Raises SlowReaderError if that takes `stall_seconds`."""
    try:
        async with asyncio.timeout(stall_seconds):
            await write(response)
    except TimeoutError:
        raise SlowReaderError("nothing was read for too long; call again") from None
