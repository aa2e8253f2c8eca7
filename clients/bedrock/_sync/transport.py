"""Makes the gRPC calls of the blocking client.

This module is written by hand instead of generated from `bedrock._async.transport`, because tasks and threads wait and
are cancelled in different ways.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc

from bedrock import v1
from bedrock._shared.connection import CONNECT_ENDS, CONNECT_SECONDS, Connection, open_channel
from bedrock._shared.deadline import checked_timeout
from bedrock._shared.reconnection import Attempts, from_rpc, nothing_was_sent, repeatable
from bedrock._shared.requests import Page
from bedrock._shared.wrapper import Wrapper
from bedrock.errors import BedrockError, ServerNotRunning, Unauthenticated, Unavailable
from bedrock.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from bedrock._shared.settings import Settings

Response = TypeVar("Response")
PageT = TypeVar("PageT", bound=Page)
W = TypeVar("W", bound=Wrapper[Any])

CLOSE_SECONDS = 2.0
"""Maximum seconds for which `close` waits for gRPC."""


class Transport:
    """Makes gRPC calls from any thread.

    Adds the token, time limits and retries, and raises the errors of this package.
    """

    def __init__(
        self,
        find: Callable[[], Settings],
        *,
        timeout: float,
        reconnect_for: float,
        on_disconnect: Callable[[BedrockError, float], None] | None,
    ) -> None:
        """Find the server; the first call opens the connection.

        Args:
            find: Returns the address and credentials, before each attempt to connect; see `Connection`.
            timeout: Default time limit of one call in seconds.
            reconnect_for: Seconds for which a broken stream of events is tried again before its error is raised.
            on_disconnect: Called before each attempt to resume a broken stream of events.
        """
        self.timeout = checked_timeout(timeout)
        self._connection = Connection(find, open_channel)
        self._closed = threading.Event()
        self.reconnect_for = reconnect_for
        self.on_disconnect = on_disconnect
        channel = cast("grpc.Channel", self._connection)
        self.conversations = v1.ConversationServiceStub(channel)
        self.catalog = v1.CatalogServiceStub(channel)

    @property
    def address(self) -> str:
        """The address of the server; empty until a server is found."""
        return self._connection.address

    def close(self) -> None:
        """Close the connection and end every stream that is still open."""
        self._closed.set()
        for channel in self._connection.channels:
            # If a signal raised an exception within gRPC, a call may have been left there, and closing waits for its
            # end.
            closing = threading.Thread(target=channel.close, name="bedrock-close", daemon=True)
            closing.start()
            closing.join(CLOSE_SECONDS)

    def call(self, method: Callable[..., Response], request: Any, timeout: float | None = None) -> Response:
        """Make one call, and repeat it if the connection is lost and repeating it is safe.

        Raises:
            BedrockError: The call has failed, or this client is closed (Unavailable).
            TypeError, ValueError: `timeout` is negative, or not a number of seconds; nothing was sent.
        """
        attempts = Attempts(last=not repeatable(request))
        until = time.monotonic() + (self.timeout if timeout is None else checked_timeout(timeout))
        while True:
            self._ensure_open()
            try:
                left = max(0.0, until - time.monotonic())
                return method(request, timeout=left)
            except grpc.RpcError as error:
                self._ensure_open()  # otherwise closing the client would look like a server failure
                failure, unsent = self._failure(error), nothing_was_sent(error)
            except ServerNotRunning as error:
                failure, unsent = error, False
            self._before_another(attempts, failure, unsent)

    def pages(self, method: Callable[..., PageT], request: Any, timeout: float | None = None) -> Iterator[PageT]:
        """Iterate over the pages of a call that lists something.

        `page_token` in `request` is set for each further page.
        """
        while True:
            page = self.call(method, request, timeout)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def items(
        self, method: Callable[..., Any], request: Any, field: str, kind: type[W], timeout: float | None
    ) -> Iterator[W]:
        """Iterate over the items in `field` on the pages of a call, as objects of the class `kind`."""
        for page in self.pages(method, request, timeout):
            for item in getattr(page, field):
                yield kind.from_proto(item)

    def stream(
        self, method: Callable[..., Iterable[Response]], request: Any, timeout: float | None = None
    ) -> Stream[Response]:
        """Return the responses of a streaming call, which starts at the first read.

        Closing the stream cancels the call.

        `timeout` limits the whole stream, in seconds; None means no limit. Raises TypeError or ValueError if `timeout`
        is not a number of seconds, or negative.
        """
        timeout = None if timeout is None else checked_timeout(timeout)
        return Stream(self._responses(method, request, timeout))

    def _responses(
        self, method: Callable[..., Iterable[Response]], request: Any, timeout: float | None
    ) -> Generator[Response]:
        attempts = Attempts()
        while True:
            self._ensure_open()
            try:
                call: Any = method(request, timeout=timeout)
            except ServerNotRunning as error:
                self._before_another(attempts, error, unsent=False)
                continue
            try:
                for response in call:
                    attempts.last = True
                    yield response
                return
            except grpc.RpcError as error:
                failure, unsent = self._failure(error), nothing_was_sent(error)
            finally:
                call.cancel()
            self._before_another(attempts, failure, unsent)

    def _before_another(self, attempts: Attempts, failure: BedrockError, unsent: bool) -> None:
        """Wait before another attempt at a call, or raise `failure` if the call must not be tried again.

        Returns at once if the server has rejected the token and another token is found. If the request was never sent
        (`unsent`), it can be repeated safely: before `failure` is raised, a new connection is tried.
        """
        if isinstance(failure, Unauthenticated) and self._connection.look_again():
            return
        try:
            delay = attempts.delay_after(failure)
        except BedrockError:
            if unsent and attempts.may_try_new_connection() and self._use_new_connection():
                return
            raise
        self.pause(delay)

    def _use_new_connection(self) -> bool:
        """Try to open a new connection. If that succeeds, use it from now on. Return whether it has succeeded."""
        try:
            settings, channel = self._connection.candidate()
        except ServerNotRunning:
            return False
        ready = False
        try:
            connected = _is_ready(channel)
            self._ensure_open()
            if connected:
                self._connection.use(settings, channel)
                ready = True
        finally:
            if not ready:
                channel.close()
        return ready

    def pause(self, seconds: float) -> None:
        """Wait before another attempt, at most until the client is closed. Then look up the server again.

        Raises:
            Unavailable: The client is closed.
        """
        self._closed.wait(seconds)
        self._ensure_open()
        self._connection.look_again()

    def _failure(self, error: grpc.RpcError) -> BedrockError:
        return from_rpc(error, self.address, self._connection.token_source)

    def _ensure_open(self) -> None:
        if self._closed.is_set():
            raise Unavailable("this client is closed")


def _is_ready(channel: grpc.Channel) -> bool:
    """Connect a new channel. Return whether the first attempt succeeded within the time limit for connecting."""
    ends: queue.SimpleQueue[grpc.ChannelConnectivity] = queue.SimpleQueue()

    def note(state: grpc.ChannelConnectivity) -> None:
        if state in CONNECT_ENDS:
            ends.put(state)

    channel.subscribe(note, try_to_connect=True)
    try:
        return ends.get(timeout=CONNECT_SECONDS) is grpc.ChannelConnectivity.READY
    except queue.Empty:
        return False
    finally:
        channel.unsubscribe(note)
