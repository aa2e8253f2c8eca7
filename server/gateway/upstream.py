"""The gateway's gRPC connections to the server, and the calls that it makes on them for HTTP requests."""

from __future__ import annotations

import asyncio
import gc
import math
import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from starlette.requests import Request

from server.certificates import SHOWN_TO_GATEWAY
from server.contract import limits
from server.contract.errors import MalformedRequestError
from server.gateway.routes import Route

_SECONDS = re.compile(r"[0-9.eE+-]+")
# How long a connection without calls is kept, in seconds.
IDLE_SECONDS = 5.0
# How many calls share a connection. The server accepts twice as many, so calls do not wait for each other.
CALLS_PER_CONNECTION = limits.MAX_STREAMS_PER_CONNECTION // 2
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.bdp_probe", 0),  # a growing window would buffer more for a client that does not read
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.primary_user_agent", "bedrock-gateway"),
)
PASSED_ON = ("authorization", "traceparent")
# Maximum length of a metadata value: gRPC itself randomly refuses calls with more than 8 KiB of metadata.
MAX_VALUE_CHARS = 7 * 1024
TIMEOUT = "x-server-timeout"
# The key in the ASGI scope's state for the client's certificate in DER, which TLS has verified.
CERTIFICATE = "certificate"
# The longest deadline in seconds; gRPC treats a deadline thousands of years ahead as past.
MOST_SECONDS = 86_400.0


# The key in the ASGI scope's state for the session that a request belongs to.
SESSION = "session"


@dataclass(eq=False)
class BrowserSession:
    """A browser that has signed in. Its calls end when the session ends."""

    token: str
    ended: Exception | None = None
    """The error that its calls raise once the session has ended."""
    calls: set[Any] = field(default_factory=set)

    def end(self, error: Exception) -> None:
        self.ended = error
        for call in self.calls:
            call.cancel()

    @contextmanager
    def lasting(self, call: Any) -> Generator[Any]:
        """Cancel a call at the end of the block, or at the end of the session, in which case `ended` is raised."""
        self.calls.add(call)
        try:
            if self.ended:
                raise self.ended
            yield call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.ended is None or (task and task.cancelling()):
                raise
            raise self.ended from None
        finally:
            self.calls.discard(call)
            call.cancel()


@dataclass(eq=False)
class Connection:
    channel: grpc.aio.Channel
    calls: int = 0
    begun: int = 0  # the number of calls so far


class Upstream:
    """The connections to the server at gRPC's `target`. Use only on the event loop.

    `authorities` are the authorities to trust with `tls`, in PEM; None for the usual ones. `secret` makes the server
    believe what this gateway says about its clients' certificates.
    """

    def __init__(self, target: str, authorities: bytes | None = None, *, tls: bool = False, secret: str = "") -> None:
        self._target, self._secret = target, secret.encode()
        self._local = target.startswith("unix:")
        self._credentials = (
            grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)
            if self._local
            else grpc.ssl_channel_credentials(authorities)
            if tls
            else None
        )
        self._connections: dict[Connection, asyncio.Task[None]] = {}

    async def close(self) -> None:
        for connection, closing in tuple(self._connections.items()):  # others may be removed meanwhile
            closing.cancel()
            await connection.channel.close()

    async def unary(self, route: Route, request: Message, http: Request) -> Any:
        async with self._call("unary_unary", route, request, http) as call:
            return await call

    async def stream(
        self, route: Route, request: Message, http: Request, *, encoded: bool = False
    ) -> AsyncGenerator[Any]:
        """Yield the responses, each read once the previous one is handled; bytes if `encoded`. Raises AioRpcError."""
        async with self._call("unary_stream", route, request, http, encoded=encoded) as call:
            while (response := await call.read()) is not grpc.aio.EOF:
                yield response
            if (code := await call.code()) is not grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(
                    code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
                )

    @asynccontextmanager
    async def _call(
        self, kind: str, route: Route, request: Message, http: Request, *, encoded: bool = False
    ) -> AsyncGenerator[Any]:
        """A call on a connection with room for it, or on a new one. It ends with the block."""
        lent = next((each for each in self._connections if each.calls < CALLS_PER_CONNECTION), None)
        if lent is None:
            channel = (
                grpc.aio.insecure_channel(self._target, options=OPTIONS)
                if self._credentials is None
                else grpc.aio.secure_channel(self._target, self._credentials, options=OPTIONS)
            )
            lent = Connection(channel)
            self._connections[lent] = asyncio.create_task(self._close_unused(lent))
        lent.calls, lent.begun = lent.calls + 1, lent.begun + 1
        try:
            method = getattr(lent.channel, kind)(
                route.rpc,
                request_serializer=route.request.SerializeToString,
                response_deserializer=None if encoded else route.response.FromString,
            )
            session: BrowserSession = http.scope["state"].get(SESSION) or BrowserSession("")
            with session.lasting(method(request, timeout=_timeout(http), metadata=self._metadata(http))) as call:
                yield call
        finally:
            lent.calls -= 1

    async def _close_unused(self, connection: Connection) -> None:
        """Close a connection without calls: a server that ends when it is unused would keep running because of it."""
        begun = -1
        while connection.calls or begun != connection.begun:
            begun = connection.begun
            await asyncio.sleep(IDLE_SECONDS)
        del self._connections[connection]
        await connection.channel.close()
        gc.collect()  # ended calls hold the connection by reference cycles; gRPC's idle timeout waits for them

    def _metadata(self, http: Request) -> tuple[tuple[str, str | bytes], ...]:
        found: list[tuple[str, Any]] = [
            (name, value) for name in PASSED_ON if (value := http.headers.get(name)) is not None
        ]
        for name, value in found:
            if not (value.isascii() and value.isprintable()):
                raise MalformedRequestError((name, "must be printable ASCII"))
            if len(value) > MAX_VALUE_CHARS:
                raise MalformedRequestError((name, f"must have at most {MAX_VALUE_CHARS} characters"))
        if self._local and http.client is not None:
            found.append(("x-forwarded-for", http.client.host))
            if self._secret and (shown := http.scope["state"].get(CERTIFICATE)):
                found.append((SHOWN_TO_GATEWAY, self._secret + shown))
        return tuple(found)


def _timeout(http: Request) -> float | None:
    """The deadline of a call in seconds, from the header X-Server-Timeout; None without that header."""
    if (text := http.headers.get(TIMEOUT)) is None:
        return None
    try:
        seconds = float(text) if _SECONDS.fullmatch(text) else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise MalformedRequestError((TIMEOUT, "must be a number of seconds"))
    return min(seconds, MOST_SECONDS)
