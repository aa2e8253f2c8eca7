"""Sends the responses of streaming calls: as server-sent events, as lines of JSON, or as the bytes of one file.

An event's id is its revision, so a client that reconnects with the last id it has seen misses nothing. Several
streams can share a connection, since browsers allow six to a server; a stream that ends or fails does not affect the
others.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import grpc
import grpc.aio
import msgspec
from bedrock import v1
from google.protobuf.message import Message
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from server.contract.errors import MalformedRequestError
from server.gateway.json_requests import decoded, request_of
from server.gateway.json_responses import HttpError, as_error, as_json, encoded, on_one_line
from server.gateway.routes import ALL, Route
from server.gateway.upstream import Upstream

Item = TypeVar("Item")
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
# After this many seconds without data, a comment is sent, so that proxies keep the connection open.
COMMENT_SECONDS = 15.0
COMMENT = b":\n"  # no blank line, which some clients would take for an empty event
EMPTY = b"{}"
# How many converted responses are cached, and their maximum size. Each is converted once for all watchers of a stream.
REMEMBERED, REMEMBERED_BYTES = 256, 16 * 1024
# The size of one write, so that at most this much of a large event waits for a slow reader.
PIECE_BYTES = 64 * 1024
LAST_EVENT = "last-event-id"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_OVER = frozenset({v1.QueuedMessage.FATE_RETURNED, v1.QueuedMessage.FATE_WITHDRAWN})


@dataclass(frozen=True)
class Sent:
    """One event of a stream over HTTP."""

    kind: str
    data: bytes
    """JSON on one line."""
    id: int = 0
    """The revision after which a client that has seen this event resumes; 0 for the previous event's revision."""
    ours: bool = False
    """Whether the event is not part of the contract. If so, a JSON line must name its kind."""


def as_event(sent: Sent) -> bytes:
    """An event in the format of server-sent events."""
    head = f"id: {sent.id}\n" if sent.id else ""
    return b"%sevent: %s\ndata: %s\n\n" % (head.encode(), sent.kind.encode(), sent.data)


def as_line(sent: Sent) -> bytes:
    named = sent.ours and sent.kind != "error"
    return b'{"%s":%s}\n' % (sent.kind.encode(), sent.data) if named else sent.data + b"\n"


def wanted(http: Request) -> str:
    """The format that the client accepts, LINES or EVENTS; "" if it names neither."""
    accepted = http.headers.get("accept", "").lower()
    return next((kind for kind in (LINES, EVENTS) if kind in accepted), "")


def resumed(request: Message, http: Request) -> None:
    """Make a request resume after the client's Last-Event-ID, if that is set and the call can resume."""
    if (text := http.headers.get(LAST_EVENT)) and "after_revision" in request.DESCRIPTOR.fields_by_name:
        request.after_revision = last_event(text)  # type: ignore[attr-defined]


def last_event(text: str) -> int:
    """The revision in the header Last-Event-ID. Raises MalformedRequestError."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise MalformedRequestError((LAST_EVENT, "must be the id of an event (a number)"))
    return int(text)


async def events(route: Route, responses: AsyncGenerator[bytes]) -> AsyncGenerator[Sent]:
    """Yield the events in a call's encoded responses.

    WatchConversations, which cannot be resumed, begins with `reset`.
    """
    begins = route.name == "WatchConversations"
    async with aclosing(responses):
        async for response in responses:
            if begins:
                yield Sent("reset", EMPTY, ours=True)
                begins = False
            convert = _converted if len(response) <= REMEMBERED_BYTES else _converted.__wrapped__
            for event in convert(route, response):
                yield event


@lru_cache(REMEMBERED)
def _converted(route: Route, response: bytes) -> tuple[Sent, ...]:
    message: Any = route.response.FromString(response)
    return tuple(map(sent, getattr(message, "events", (message,))))


def sent(message: Any) -> Sent:
    """An event of the contract in its HTTP form."""
    if "event" not in message.DESCRIPTOR.oneofs_by_name:
        return Sent("message", encoded(as_json(message)))
    chosen = message.WhichOneof("event") or ""
    field = message.DESCRIPTOR.fields_by_name.get(chosen)
    revision = getattr(message, "revision", 0)
    if chosen == "caught_up" and isinstance(message, v1.Event):
        revision = message.caught_up.head_revision  # up to it, everything was sent or is in the snapshot
    return Sent(field.json_name if field else "message", encoded(as_json(message)), revision)


async def of_one_message(
    upstream: Upstream, subscribe: Route, response: v1.SendMessageResponse, http: Request, seen: int
) -> AsyncGenerator[Sent]:
    """Yield the response of SendMessage, and all events until its run has stopped.

    The client has seen the events up to `seen`. If the message is a follow-up, this waits for its run, or ends if the
    message leaves the queue without a run.
    """
    yield Sent("response", encoded(as_json(response)), ours=True)
    ours, run = response.message.name, response.run
    request = v1.SubscribeRequest(name=ours.partition("/messages/")[0], after_revision=max(response.revision, seen))
    over = False
    async with aclosing(upstream.stream(subscribe, request, http)) as responses:
        async for batch in responses:
            for event in batch.events:
                if over and not event.HasField("state_changed"):
                    break
                yield sent(event)
                if event.message_added.name == ours:
                    run = event.message_added.request_cycle
                left = event.queue_changed.message.name == ours and event.queue_changed.fate in _OVER
                stopped = event.HasField("run_stopped") and event.run_stopped.request_cycle == run
                over = over or stopped or (left and not run)
            if over:  # after the final state, which the same commit has published
                return


END = Sent("end", EMPTY, ours=True)


def failure(error: Exception) -> Sent:
    return Sent("error", encoded(as_error(error)[1]), ours=True)


async def start_response(
    stream: AsyncGenerator[Sent],
    kind: str,
    stopping: asyncio.Event,
    *,
    end: Sent | None = END,
    failed: Callable[[Exception], Sent] = failure,
) -> Response:
    """The response for a stream, once its first event has arrived; an earlier error becomes an HTTP status.

    The stream ends with `end`, or with an error event, which is also sent when `stopping` is set.
    """
    write: Callable[[Sent], bytes] = as_line if kind == LINES else as_event
    first = await first_of(stream)

    async def written() -> AsyncGenerator[bytes]:
        async with aclosing(stream):
            yield write(first or END)
            if first is None:
                return
            try:
                async for event in _with_comments(stream, stopping):
                    if event is not None:
                        yield write(event)
                    elif kind == EVENTS:
                        yield COMMENT
            except Exception as error:  # noqa: BLE001 -- the client gets a status for every error
                yield write(failed(error))
            else:
                if end is not None:
                    yield write(end)

    return StreamingResponse(pieces(written()), headers=HEADERS, media_type=kind)


async def first_of(stream: AsyncGenerator[Item]) -> Item | None:
    """The first item of a stream; None if the stream is empty. If it fails or is cancelled, the stream is closed."""
    try:
        return await anext(stream, None)
    except BaseException:
        await stream.aclose()
        raise


async def _with_comments(stream: AsyncGenerator[Sent], stopping: asyncio.Event) -> AsyncGenerator[Sent | None]:
    """Yield the events of a stream, and None whenever it was silent for a while.

    Raises HttpError once `stopping` is set.
    """
    # A single task reads all events: a task for each event would cost more than the event itself.
    arrived: asyncio.Queue[Sent | None] = asyncio.Queue(1)

    async def read() -> None:
        async for event in stream:
            await arrived.put(event)

    def wake(_: object) -> None:
        if arrived.empty():
            arrived.put_nowait(None)

    reading, stop = asyncio.ensure_future(read()), asyncio.ensure_future(stopping.wait())
    reading.add_done_callback(wake)
    stop.add_done_callback(wake)
    try:
        while not (arrived.empty() and reading.done()):
            try:
                async with asyncio.timeout(COMMENT_SECONDS):
                    event = await arrived.get()
            except TimeoutError:
                yield None
                continue
            if stopping.is_set():
                raise HttpError(503, "the gateway is stopping; resume the stream", grpc.StatusCode.UNAVAILABLE)
            if event is not None:
                yield event
        reading.result()
    finally:
        stop.cancel()
        reading.cancel()
        while not reading.done():  # until then, `stream` cannot be closed, even if this task is cancelled again
            with suppress(asyncio.CancelledError):
                await asyncio.wait({reading})


async def pieces(content: AsyncGenerator[bytes]) -> AsyncGenerator[memoryview]:
    """Yield content in pieces, each once the connection can accept it."""
    async with aclosing(content):
        async for each in content:
            for piece in _cut(each):
                yield piece


def _cut(content: bytes) -> Iterator[memoryview]:
    view = memoryview(content)
    yield from (view[start : start + PIECE_BYTES] for start in range(0, len(view), PIECE_BYTES))


DOWNLOAD, EXPORT = "DownloadAttachment", "ExportConversation"


def is_bytes(route: Route) -> bool:
    """Whether the responses of a call are the pieces of one file."""
    return route.name in {DOWNLOAD, EXPORT}


async def file_response(route: Route, name: str, responses: AsyncGenerator[Any]) -> Response:
    """The response that sends a file, once the file's first piece has arrived. `name` is the resource name."""
    first: Any = await first_of(responses) or route.response()
    of = name.rpartition("/")[2]
    if route.name == EXPORT:
        return _response(_lines(first, responses), LINES, f"attachment; filename={_safe(of)}.jsonl")
    kind = first.media_type if first.media_type.startswith("image/") else "application/octet-stream"
    suffix = mimetypes.guess_extension(kind) or ""
    response = _response(_bytes(first, responses), kind, f"inline; filename={_safe(of)}{suffix}")
    response.headers["Content-Length"] = str(first.size_bytes)
    return response


def _response(content: AsyncGenerator[bytes], kind: str, disposition: str) -> Response:
    headers = HEADERS | {"Content-Disposition": disposition}
    return StreamingResponse(pieces(content), headers=headers, media_type=kind)


async def _lines(first: Any, rest: AsyncGenerator[Any]) -> AsyncGenerator[bytes]:
    """Yield the lines of an export. If it fails, the last line is the error, because an export cannot be resumed."""
    async with aclosing(rest):
        yield on_one_line(first.line.encode()) + b"\n"
        try:
            async for each in rest:
                yield on_one_line(each.line.encode()) + b"\n"
        except Exception as error:  # noqa: BLE001 -- the client gets a status for every error
            yield encoded(as_error(error)[1]) + b"\n"


async def _bytes(first: Any, rest: AsyncGenerator[Any]) -> AsyncGenerator[bytes]:
    """Yield the bytes of an attachment. On an error, the connection is closed before the announced length."""
    async with aclosing(rest):
        yield first.data
        try:
            async for each in rest:
                yield each.data
        except (HttpError, grpc.aio.AioRpcError):
            raise ClientDisconnect from None  # ends the response, and uvicorn closes the connection


def _safe(name: str) -> str:
    return "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "_" for each in name)


PATH = "/v1/conversations:subscribe"
MAX_FOLLOWED = 100
# How many events of each stream may wait for a slow reader; the server holds back the rest.
WAITING = 16


class Followed(msgspec.Struct, forbid_unknown_fields=True):
    """The body: Subscribe requests, and at most one WatchConversations request, in the contract's JSON."""

    subscriptions: list[dict[str, Any]] = []
    watch: dict[str, Any] | None = None


def requests(body: bytes, subscribe: Route, watch: Route) -> list[tuple[bytes, Route, Message]]:
    """The streams to follow, each with the prefix of its lines. Raises MalformedRequestError."""
    try:
        given = msgspec.convert(decoded(body), Followed)
    except msgspec.MsgspecError as error:
        raise MalformedRequestError(("", f"the body must contain subscriptions or watch ({error})")) from None
    if not given.subscriptions and given.watch is None:
        raise MalformedRequestError(("subscriptions", "required unless watch is set"))
    if len(given.subscriptions) > MAX_FOLLOWED:
        raise MalformedRequestError(("subscriptions", f"must have at most {MAX_FOLLOWED} entries"))
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
    return request_of(replace(route, body=ALL), name, "", given)


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
    except Exception as error:  # noqa: BLE001 -- reported for this stream, while the others continue
        await waiting.put(_wrapped(head, Sent("error", encoded(as_error(error)[1]["error"]), ours=True)))
    else:
        await waiting.put(_wrapped(head, Sent("end", EMPTY, ours=True)))
    await waiting.put(None)


def _wrapped(head: bytes, sent: Sent) -> Sent:
    key = sent.kind.encode() if sent.ours else b"event"
    return Sent(sent.kind, b'{%s,"%s":%s}' % (head, key, sent.data))
