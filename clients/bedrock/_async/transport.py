"""Makes the gRPC calls of the asyncio client.

`bedrock._sync.transport` is written by hand instead of generated from this module, because tasks and threads wait and
are cancelled in different ways.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from bedrock import v1
from bedrock._shared.connection import CONNECT_ENDS, CONNECT_SECONDS, Connection, open_aio_channel
from bedrock._shared.deadline import checked_timeout
from bedrock._shared.reconnection import Attempts, from_rpc, nothing_was_sent, repeatable
from bedrock._shared.requests import Page
from bedrock._shared.settings import Settings
from bedrock._shared.wrapper import Wrapper
from bedrock.errors import BedrockError, ServerNotRunning, Unauthenticated, Unavailable
from bedrock.streams import AsyncStream

Response = TypeVar("Response")
PageT = TypeVar("PageT", bound=Page)
W = TypeVar("W", bound=Wrapper[Any])


class AsyncTransport:
    """Makes gRPC calls on one event loop, with token, time limits, retries, and the errors of this package."""

    def __init__(
        self,
        find: Callable[[], Settings],
        *,
        timeout: float,
        reconnect_for: float,
        on_disconnect: Callable[[BedrockError, float], None] | None,
    ) -> None:
        """Find the server; the first call opens the connection.

        `find` is called before each attempt to connect, and returns the address and credentials. `timeout` limits a
        call, and `reconnect_for` how long a broken stream is retried, both in seconds. `on_disconnect` is called before
        each retry of a stream.
        """
        self.timeout = checked_timeout(timeout)
        self._connection = Connection(find, open_aio_channel)
        self._closed = asyncio.Event()
        self.reconnect_for = reconnect_for
        self.on_disconnect = on_disconnect
        channel = cast("grpc.aio.Channel", self._connection)
        self.conversations = v1.ConversationServiceStub(channel)
        self.catalog = v1.CatalogServiceStub(channel)

    @property
    def address(self) -> str:
        """The address of the server; empty until a server is found."""
        return self._connection.address

    async def close(self) -> None:
        self._closed.set()
        for channel in self._connection.channels:
            await channel.close()

    async def call(
        self, method: Callable[..., Awaitable[Response]], request: Any, timeout: float | None = None
    ) -> Response:
        """Make one call, and repeat it if the connection is lost and repeating it is safe.

        Raises BedrockError (Unavailable if this client is closed), or TypeError and ValueError for a bad `timeout`.
        """
        attempts = Attempts(last=not repeatable(request))
        until = time.monotonic() + (self.timeout if timeout is None else checked_timeout(timeout))
        while True:
            self._ensure_open()
            try:
                left = max(0.0, until - time.monotonic())
                return await method(request, timeout=left)
            except grpc.RpcError as error:
                self._ensure_open()  # otherwise closing the client would look like a server failure
                failure, unsent = self._failure(error), nothing_was_sent(error)
            except ServerNotRunning as error:
                failure, unsent = error, False
            except asyncio.CancelledError:
                self._raise_if_closed_under_a_call()
                raise
            await self._before_another(attempts, failure, unsent)

    async def pages(
        self, method: Callable[..., Awaitable[PageT]], request: Any, timeout: float | None = None
    ) -> AsyncIterator[PageT]:
        """Iterate over the pages of a call that lists something; sets `page_token` in `request`."""
        while True:
            page = await self.call(method, request, timeout)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def items(
        self, method: Callable[..., Awaitable[Any]], request: Any, field: str, kind: type[W], timeout: float | None
    ) -> AsyncIterator[W]:
        """Iterate over the items in `field` on the pages of a call, as objects of the class `kind`."""
        async for page in self.pages(method, request, timeout):
            for item in getattr(page, field):
                yield kind.from_proto(item)

    def stream(
        self, method: Callable[..., AsyncIterable[Response]], request: Any, timeout: float | None = None
    ) -> AsyncStream[Response]:
        """The responses of a call that starts at the first read, and ends with the stream.

        `timeout` limits the whole stream, in seconds; None for no limit. Raises TypeError or ValueError for a bad
        `timeout`.
        """
        timeout = None if timeout is None else checked_timeout(timeout)
        return AsyncStream(self._responses(method, request, timeout))

    async def _responses(
        self, method: Callable[..., AsyncIterable[Response]], request: Any, timeout: float | None
    ) -> AsyncGenerator[Response]:
        attempts = Attempts()
        while True:
            self._ensure_open()
            try:
                call: Any = method(request, timeout=timeout)
            except ServerNotRunning as error:
                await self._before_another(attempts, error, unsent=False)
                continue
            try:
                async for response in call:
                    attempts.last = True
                    yield response
                return
            except grpc.RpcError as error:
                failure, unsent = self._failure(error), nothing_was_sent(error)
            except asyncio.CancelledError:
                self._raise_if_closed_under_a_call()
                raise
            finally:
                call.cancel()
            await self._before_another(attempts, failure, unsent)

    async def _before_another(self, attempts: Attempts, failure: BedrockError, unsent: bool) -> None:
        """Wait before another attempt, or raise `failure` if the call must not be tried again.

        Returns at once if a token was rejected and there is another one. A request that was never sent gets one more
        attempt if a new connection opens.
        """
        if isinstance(failure, Unauthenticated) and self._connection.look_again():
            return
        try:
            delay = attempts.delay_after(failure)
        except BedrockError:
            if unsent and attempts.may_try_new_connection() and await self._use_new_connection():
                return
            raise
        await self.pause(delay)

    async def _use_new_connection(self) -> bool:
        """Try to open another connection, and use it from then on. Return whether that succeeded."""
        try:
            settings, channel = self._connection.candidate()
        except ServerNotRunning:
            return False
        ready = False
        try:
            connected = await _is_ready(channel)
            self._ensure_open()
            if connected:
                self._connection.use(settings, channel)
                ready = True
        finally:
            if not ready:
                await channel.close()
        return ready

    async def pause(self, seconds: float) -> None:
        """Wait `seconds`, then look up the server again. Raises Unavailable if the client is closed."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), seconds)
        self._ensure_open()
        self._connection.look_again()

    def _raise_if_closed_under_a_call(self) -> None:
        """Raise Unavailable if a call was cancelled by closing the client, and not by cancelling the caller's task."""
        if (task := asyncio.current_task()) is None or not task.cancelling():
            self._ensure_open()

    def _failure(self, error: grpc.RpcError) -> BedrockError:
        return from_rpc(error, self.address, self._connection.token_source)

    def _ensure_open(self) -> None:
        if self._closed.is_set():
            raise Unavailable("this client is closed")


async def _is_ready(channel: grpc.aio.Channel) -> bool:
    """Connect a channel; return whether the first attempt succeeded before the time limit."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CONNECT_SECONDS):
            while (state := channel.get_state(try_to_connect=True)) not in CONNECT_ENDS:
                await channel.wait_for_state_change(state)
            return state is grpc.ChannelConnectivity.READY
    return False
