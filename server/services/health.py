"""The standard gRPC health service, grpc.health.v1.

It needs no token, so anybody can call it, and its calls may use only limited resources. Use in the event loop only.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2

from server.contract.errors import MalformedRequestError
from server.services.request_reading import read_request, reading_handler

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from server.services.request_reading import Context

REQUEST_SECONDS = 2.0
"""Maximum seconds within which a request must arrive. The request is short, and is sent together with the call."""
MAX_REQUESTS = 32
"""Maximum number of calls whose requests have not arrived yet."""
WATCH_SECONDS = 600.0
"""Maximum seconds of a Watch call. After that, clients start another one, as they do after a lost connection."""
MAX_WATCHES = 256

_Status = health_pb2.HealthCheckResponse


class Health:
    """Reports whether the server serves calls. All gRPC services of the server have the same status."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(services)
        self._status: int = _Status.NOT_SERVING
        self._changed = asyncio.Event()
        self._requests = _Places(MAX_REQUESTS)
        self._watches = _Places(MAX_WATCHES)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service, for registration with a server of grpc.aio."""
        encode = _Status.SerializeToString
        methods = {
            "Check": reading_handler(self._check, encode, response_streaming=False),
            "Watch": reading_handler(self._watch, encode, response_streaming=True),
        }
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods)

    def report(self, *, serving: bool) -> None:
        """Set the status, and send it to the clients that watch it."""
        self._status = _Status.SERVING if serving else _Status.NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    def _status_of(self, service: str) -> int:
        return self._status if service in self._services else _Status.SERVICE_UNKNOWN

    async def _check(self, _requests: Any, context: Context) -> health_pb2.HealthCheckResponse:
        status = self._status_of(await self._service(context))
        if status == _Status.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return _Status(status=status)

    async def _watch(self, _requests: Any, context: Context) -> None:
        service = await self._service(context)
        told = None
        try:
            async with self._watches.take(WATCH_SECONDS):
                while True:
                    changed = self._changed
                    if (status := self._status_of(service)) != told:
                        await context.write(_Status(status=status))
                        told = status
                    await changed.wait()
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this watch has lasted long enough: watch again")

    async def _service(self, context: Context) -> str:
        """Return the service name in the request; end the call if the request is invalid or does not arrive in time."""
        try:
            async with self._requests.take(REQUEST_SECONDS):
                raw = await read_request(context, None)
            return health_pb2.HealthCheckRequest.FromString(raw).service
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not arrive in time")
        except (MalformedRequestError, DecodeError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is no HealthCheckRequest")


class _Places:
    """Limits the number of concurrent calls: if the maximum is reached, a new call ends the oldest one.

    So strangers cannot keep others out by holding many calls open.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: dict[asyncio.Timeout, None] = {}
        """The timeouts of the running calls, the oldest call first."""

    @asynccontextmanager
    async def take(self, seconds: float) -> AsyncGenerator[None]:
        """Count the call as running while the `with` block runs, at most `seconds`.

        Raises TimeoutError after that time, or when a new call ends this one because there are too many.
        """
        if len(self._taken) >= self._most:
            oldest = next(iter(self._taken))
            del self._taken[oldest]
            if not oldest.expired():
                oldest.reschedule(asyncio.get_running_loop().time())
        async with asyncio.timeout(seconds) as place:
            self._taken[place] = None
            try:
                yield
            finally:
                self._taken.pop(place, None)
