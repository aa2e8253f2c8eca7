"""Follows many conversations, and the list of them, over one connection: browsers allow six to a server.

The body names what is followed. Each line says of which conversation it is; one that ends or fails leaves the others.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from server.contract.errors import MalformedRequestError
from server.gateway.answers import as_error, encoded
from server.gateway.event_streams import EMPTY, Sent, events
from server.gateway.json_requests import request_from
from server.gateway.routes import ALL

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from google.protobuf.message import Message
    from starlette.requests import Request

    from server.gateway.routes import Route
    from server.gateway.upstream import Upstream

PATH = "/v1/conversations:subscribe"
MAX_FOLLOWED = 100
WAITING = 16
"""How many events of each stream wait for a slow reader; the server holds back the rest."""


class Followed(msgspec.Struct, forbid_unknown_fields=True):
    """The body: requests of Subscribe, and one of WatchConversations, as JSON of the contract."""

    subscriptions: list[dict[str, Any]] = []
    watch: dict[str, Any] | None = None


def requests(body: bytes, subscribe: Route, watch: Route) -> list[tuple[bytes, Route, Message]]:
    """Return what is followed, each with how its lines begin. Raises MalformedRequestError."""
    try:
        given = msgspec.json.decode(body, type=Followed)
    except msgspec.MsgspecError as error:
        raise MalformedRequestError(("", f"the body must have subscriptions, or watch: {error}")) from None
    if not given.subscriptions and given.watch is None:
        raise MalformedRequestError(("subscriptions", "is required, or watch"))
    if len(given.subscriptions) > MAX_FOLLOWED:
        raise MalformedRequestError(("subscriptions", f"must be at most {MAX_FOLLOWED}"))
    return list(_requests(given, subscribe, watch))


def _requests(given: Followed, subscribe: Route, watch: Route) -> Iterator[tuple[bytes, Route, Message]]:
    for each in given.subscriptions:
        name = each.get("name")
        if not isinstance(name, str):
            raise MalformedRequestError(("subscriptions.name", "is required"))
        yield b'"name":' + encoded(name), subscribe, _request(subscribe, each, name)
    if given.watch is not None:
        yield b'"watch":true', watch, _request(watch, given.watch, "")


def _request(route: Route, given: dict[str, Any], name: str) -> Message:
    return request_from(replace(route, body=ALL), name, "", msgspec.json.encode(given))


async def followed(
    upstream: Upstream, wanted: list[tuple[bytes, Route, Message]], http: Request
) -> AsyncGenerator[Sent]:
    """Yield the events of all streams as they come, until all have ended."""
    waiting: asyncio.Queue[Sent | None] = asyncio.Queue(WAITING)
    tasks = [
        asyncio.create_task(_pump(head, events(route, upstream.stream(route, request, http, encoded=True)), waiting))
        for head, route, request in wanted
    ]
    try:
        left = len(tasks)
        while left:
            if (found := await waiting.get()) is None:
                left -= 1
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(head: bytes, stream: AsyncGenerator[Sent], waiting: asyncio.Queue[Sent | None]) -> None:
    try:
        async with aclosing(stream) as found:
            async for each in found:
                await waiting.put(_wrapped(head, each))
    except Exception as error:  # noqa: BLE001 -- told of this stream, while the others go on
        await waiting.put(_wrapped(head, Sent("error", encoded(as_error(error)[1]["error"]), ours=True)))
    else:
        await waiting.put(_wrapped(head, Sent("end", EMPTY, ours=True)))
    await waiting.put(None)


def _wrapped(head: bytes, sent: Sent) -> Sent:
    key = sent.kind.encode() if sent.ours else b"event"
    return Sent(sent.kind, b'{%s,"%s":%s}' % (head, key, sent.data))
