"""Serves the calls of the contract over HTTP: an ASGI application that converts and forwards them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
from bedrock import v1
from google.protobuf.message import Message
from grpc_status import rpc_status
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from server.contract import limits
from server.contract.errors import MalformedRequestError
from server.gateway.event_streams import (
    EVENTS,
    LAST_EVENT,
    PATH,
    events,
    file_response,
    followed,
    is_bytes,
    last_event,
    of_one_message,
    requests,
    resumed,
    start_response,
    wanted,
)
from server.gateway.json_requests import request_from
from server.gateway.json_responses import JSON, HttpError, StatusError, as_json, encoded, error_response
from server.gateway.routes import NoRouteError, Route, contract
from server.gateway.upstream import Upstream

OPENAPI = Path(__file__).with_name("openapi.json")
log = logging.getLogger(__name__)

# Maximum size of a body: a request of the contract's maximum size, as JSON with bytes in Base64.
MAX_BODY_BYTES = limits.MAX_REQUEST_BYTES * 3 // 2
# How many bytes of a body are read, and for how many seconds, before the server validates the token.
STRANGERS_BODY_BYTES, STRANGERS_SECONDS = 64 * 1024, 1.0
# The time limit for that validation in seconds. After it, the call is refused.
CHECK_SECONDS = 5.0
# If the validation fails with one of these statuses, or with an error that is not the server's own, the caller still
# counts as a stranger.
UNCHECKED = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
# How many seconds calls may continue once the gateway is stopping.
GRACE_SECONDS = 1.0
AG_UI = "/ag-ui/v1/run"
NO_AG_UI = "AG-UI requires the `ag-ui` extra of the server's package"
IDEMPOTENCY = "idempotency-key"
# A string in a structured header (RFC 8941), such as Idempotency-Key.
_QUOTED = re.compile(r'"([^"\\]*)"')
NO_STORE = {"Cache-Control": "no-store"}


class HttpApi:
    """The ASGI application. Use only on the event loop."""

    def __init__(self, upstream: Upstream, new_thread: v1.Conversation | None = None) -> None:
        """`new_thread` is the template for a new AG-UI thread's conversation; None to refuse new threads."""
        self._upstream, self._new_thread = upstream, new_thread
        self.stopping = asyncio.Event()
        """Set when the gateway stops, which ends all streams of events."""
        self._stopped: asyncio.Task[None] | None = None
        self._routes = contract()
        self._calls = {route.name: route for route in reversed(list(self._routes))}
        self._subscribe, self._watch, self._quotas = (
            self._calls[name] for name in ("Subscribe", "WatchConversations", "GetQuotas")
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = Request(scope, receive)
        try:
            response = _described(http) or await self._served(http)
        except ClientDisconnect:
            return
        except NoRouteError as error:
            response = error_response(_no_route(http, error))
        except (HttpError, MalformedRequestError, StatusError, grpc.aio.AioRpcError) as error:
            response = error_response(error)
        except Exception as error:
            log.exception("an HTTP request failed")
            response = error_response(error)
        if response is not None:
            await response(scope, receive, send)

    async def _served(self, http: Request) -> Response | None:
        """The response; None if the client has disconnected before there was one."""
        path = http.scope["raw_path"].decode("ascii", "replace")
        if path == AG_UI:
            return await self._ag_ui(http)
        if path == PATH:
            if http.method != "POST":
                raise NoRouteError(["POST"])
            wanted_here = requests(await self._body(http), self._subscribe, self._watch)
            stream = followed(self._upstream, wanted_here, http)
            return await self._while_connected(http, start_response(stream, wanted(http) or EVENTS, self.stopping))
        route, name = self._routes.find(http.method, path)
        request = request_from(
            route, name, http.scope["query_string"].decode("ascii", "replace"), await self._body(http)
        )
        _identify(request, http)
        return await self._while_connected(http, self._answer(route, name, request, http))

    async def _ag_ui(self, http: Request) -> Response | None:
        if http.method != "POST":
            raise NoRouteError(["POST"])
        try:
            runs = await asyncio.to_thread(import_module, "server.gateway.ag_ui.runs")
        except ModuleNotFoundError:
            raise HttpError(501, NO_AG_UI, grpc.StatusCode.UNIMPLEMENTED) from None
        run = runs.AgUiRun(self._upstream, self._calls, self._new_thread, http, await self._body(http))
        return await self._while_connected(
            http, start_response(run.events(), wanted(http) or EVENTS, self.stopping, end=None, failed=runs.failed)
        )

    async def _body(self, http: Request) -> bytes:
        """Read the body. Raises HttpError (too large, too slow or not plain JSON), or AioRpcError (unknown caller)."""
        headers = http.headers
        if headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise HttpError(415, "the body must not be compressed; leave out Content-Encoding")
        body = await body_of(http, MAX_BODY_BYTES, limits.REQUEST_SECONDS, lambda: self._check_stranger(http))
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if body and kind != JSON:
            raise HttpError(415, f"the body must be JSON, with Content-Type: {JSON}")
        return body

    async def check_token(self, http: Request) -> None:
        """Raise AioRpcError if the server does not know the caller. Asks with a call that every caller may make."""
        await self._upstream.unary(self._quotas, self._quotas.request(), http)

    async def _check_stranger(self, http: Request) -> None:
        """Raise AioRpcError or HttpError unless the server knows the caller."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await self.check_token(http)
        except grpc.aio.AioRpcError as error:
            if error.code() in UNCHECKED or rpc_status.from_call(cast("grpc.Call", error)) is None:
                raise
        except TimeoutError:
            text = "the server cannot be reached; try again later"
            raise HttpError(503, text, grpc.StatusCode.UNAVAILABLE) from None

    async def _while_connected(self, http: Request, answering: Awaitable[Response]) -> Response | None:
        """Wait for a response. If the client disconnects first, cancel the call and return None.

        Raises HttpError if the gateway stops.
        """
        # All calls share one such task, because few calls last until it ends. The event loop cancels it.
        stop = self._stopped = self._stopped or asyncio.ensure_future(self._stop())
        answer = asyncio.ensure_future(answering)
        gone = asyncio.ensure_future(http.receive())  # the body has been read, so this is the end of the connection
        try:
            await asyncio.wait((answer, gone, stop), return_when=asyncio.FIRST_COMPLETED)
            if stop.done() and not (answer.done() or gone.done()):
                raise HttpError(503, "the gateway is stopping; try again", grpc.StatusCode.UNAVAILABLE)
            return answer.result() if answer.done() else None
        finally:
            answer.cancel()
            gone.cancel()

    async def _stop(self) -> None:
        """Wait until the gateway has been stopping for long enough for most calls to end."""
        await self.stopping.wait()
        await asyncio.sleep(GRACE_SECONDS)

    async def _answer(self, route: Route, name: str, request: Message, http: Request) -> Response:
        """The response to a call, once it is complete or its stream has begun."""
        if not route.method.server_streaming:
            kind = wanted(http) if route.name == "SendMessage" else ""
            seen = last_event(http.headers.get(LAST_EVENT) or "0") if kind else 0
            response = await self._upstream.unary(route, request, http)
            if kind:
                stream = of_one_message(self._upstream, self._subscribe, response, http, seen)
                return await start_response(stream, kind, self.stopping)
            return Response(encoded(as_json(response)) + b"\n", 200, NO_STORE, JSON)
        resumed(request, http)
        if is_bytes(route):
            return await file_response(route, name, self._upstream.stream(route, request, http))
        responses = self._upstream.stream(route, request, http, encoded=True)
        return await start_response(events(route, responses), wanted(http) or EVENTS, self.stopping)


def _described(http: Request) -> Response | None:
    if http.scope["raw_path"] != b"/openapi.json":
        return None
    if http.method not in {"GET", "HEAD"}:
        raise NoRouteError(["GET", "HEAD"])
    return FileResponse(OPENAPI, media_type=JSON)


def _no_route(http: Request, error: NoRouteError) -> HttpError:
    if not error.allowed:
        return HttpError(404, str(error), grpc.StatusCode.NOT_FOUND)
    allowed = ", ".join(error.allowed)
    text = f"{http.method} is not allowed at this path; allowed: {allowed}"
    return HttpError(405, text, grpc.StatusCode.UNIMPLEMENTED, {"Allow": allowed})


async def body_of(
    http: Request, most_bytes: int, seconds: float, check_stranger: Callable[[], Awaitable[None]] | None = None
) -> bytes:
    """Read a body. Raises HttpError (too large or slow), ClientDisconnect, or what `check_stranger` raises.

    `check_stranger` is called once, if the body is large or slow; None if strangers may send such a body.
    """
    announced, too_large = http.headers.get("content-length", "0"), f"the body is larger than {most_bytes} bytes"
    if announced.isdecimal() and int(announced) > most_bytes:
        raise HttpError(413, too_large, headers={"Connection": "close"})
    body, more, clock = bytearray(), True, asyncio.get_running_loop().time
    began = clock()
    try:
        async with asyncio.timeout_at(began + seconds):
            while more:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(began + STRANGERS_SECONDS if check_stranger else None):
                        message = await http.receive()
                        if message["type"] == "http.disconnect":
                            raise ClientDisconnect
                        body += message.get("body", b"")
                        more = message.get("more_body", False)
                if len(body) > most_bytes:
                    raise HttpError(413, too_large, headers={"Connection": "close"})
                late = more and clock() >= began + STRANGERS_SECONDS
                if check_stranger and (late or len(body) > STRANGERS_BODY_BYTES):
                    await check_stranger()
                    check_stranger = None
    except TimeoutError:
        raise HttpError(408, f"the body did not arrive within {seconds:g} seconds") from None
    return bytes(body)


def _identify(request: Any, http: Request) -> None:
    """Use the Idempotency-Key header as the request id, if the call has one. Raises MalformedRequestError."""
    given = http.headers.get(IDEMPOTENCY)
    if given is None or "request_id" not in request.DESCRIPTOR.fields_by_name:
        return
    quoted = _QUOTED.fullmatch(given.strip())
    key = quoted[1] if quoted else given.strip()
    if request.request_id not in {"", key}:
        raise MalformedRequestError(("requestId", "must equal the Idempotency-Key header"))
    request.request_id = key
