"""One streamed answer over httpx, for the drivers of LangGraph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from tests.bench.driver import Answer, body_of, events_in

if TYPE_CHECKING:
    from collections.abc import Callable


def client() -> httpx.AsyncClient:
    """Return a client that opens as many connections as there are requests."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(limits=limits, timeout=60, trust_env=False)


async def ask(
    using: httpx.AsyncClient, url: str, messages: list[dict[str, Any]], on_text: Callable[[str], object]
) -> dict[str, Any]:
    """Return an answer, and call `on_text` with each piece of text as it comes."""
    answer, rest = Answer(), b""
    async with using.stream("POST", url, json=body_of(messages)) as response:
        async for piece in response.aiter_raw():
            found, rest = events_in(rest + piece)
            for event in found:
                if text := answer.add(event):
                    on_text(text)
    return answer.message
