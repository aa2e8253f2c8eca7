"""Calls the gRPC server for HTTP clients, on a few connections, with what their headers say of a call."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from server.contract import limits
from server.contract.errors import MalformedRequestError
from server.gateway.guard import CERTIFICATE
from server.process.certificates import SHOWN_TO_GATEWAY

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from google.protobuf.message import Message
    from starlette.requests import Request

    from server.gateway.routes import Route

CALLS_PER_CONNECTION = limits.MAX_STREAMS_PER_CONNECTION // 2
"""How many calls share a connection. The server accepts twice as many, so none waits for another one's end."""
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.bdp_probe", 0),  # a window that grows would hold more for a reader that does not read
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.client_idle_timeout_ms", 10_000),  # a server that ends when it is unused counts connections
    ("grpc.primary_user_agent", "bedrock-gateway"),
)
PASSED_ON = ("authorization", "traceparent")
TIMEOUT = "x-server-timeout"
MOST_SECONDS = 86_400.0
"""The longest deadline; gRPC takes one in some thousand years for one that has passed."""


class Upstream:
    """The connections to the server. Use in the event loop only.

    `target` is gRPC's address of the server, `authorities` a PEM file's content for TLS, None for no TLS. `secret` is
    what the server believes this gateway by, over the Unix socket, when it passes on the certificates of its clients.
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
        self._used: dict[grpc.aio.Channel, int] = {}

    async def close(self) -> None:
        """Close all connections; calls on them end."""
        for channel in self._used:
            await channel.close()

    async def unary(self, route: Route, request: Message, http: Request) -> Any:
        """Return the response of a call. Raises AioRpcError."""
        async with self._channel() as channel:
            call: Any = channel.unary_unary(
                route.rpc,
                request_serializer=route.request.SerializeToString,
                response_deserializer=route.response.FromString,
            )
            return await call(request, timeout=_timeout(http), metadata=self._metadata(http))

    async def stream(
        self, route: Route, request: Message, http: Request, *, encoded: bool = False
    ) -> AsyncGenerator[Any]:
        """Yield the responses of a call, each read once the one before is done with; encoded ones on demand.

        Raises AioRpcError.
        """
        async with self._channel() as channel:
            method: Any = channel.unary_stream(
                route.rpc,
                request_serializer=route.request.SerializeToString,
                response_deserializer=None if encoded else route.response.FromString,
            )
            call = method(request, timeout=_timeout(http), metadata=self._metadata(http))
            try:
                while (response := await call.read()) is not grpc.aio.EOF:
                    yield response
                if (code := await call.code()) is not grpc.StatusCode.OK:
                    raise grpc.aio.AioRpcError(
                        code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
                    )
            finally:
                call.cancel()

    @asynccontextmanager
    async def _channel(self) -> AsyncGenerator[grpc.aio.Channel]:
        """Lend a connection with room for a call, a new one if there is none; close it after its last call."""
        channel = next((each for each, calls in self._used.items() if calls < CALLS_PER_CONNECTION), None)
        if channel is None:
            channel = (
                grpc.aio.insecure_channel(self._target, options=OPTIONS)
                if self._credentials is None
                else grpc.aio.secure_channel(self._target, self._credentials, options=OPTIONS)
            )
        self._used[channel] = self._used.get(channel, 0) + 1
        try:
            yield channel
        finally:
            self._used[channel] -= 1
            if not self._used[channel] and len(self._used) > 1:
                del self._used[channel]
                await channel.close()

    def _metadata(self, http: Request) -> tuple[tuple[str, str | bytes], ...]:
        found: list[tuple[str, Any]] = [
            (name, value) for name in PASSED_ON if (value := http.headers.get(name)) is not None
        ]
        for name, value in found:
            if not (value.isascii() and value.isprintable()):
                raise MalformedRequestError((name, "must be printable ASCII"))
        if self._local and http.client is not None:
            found.append(("x-forwarded-for", http.client.host))
            if self._secret and (shown := http.scope["state"].get(CERTIFICATE)):
                found.append((SHOWN_TO_GATEWAY, self._secret + shown))
        return tuple(found)


def _timeout(http: Request) -> float | None:
    """Return the deadline of a call in seconds, by the header X-Server-Timeout; None for none."""
    if (text := http.headers.get(TIMEOUT)) is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise MalformedRequestError((TIMEOUT, "must be a number of seconds"))
    return min(seconds, MOST_SECONDS)
