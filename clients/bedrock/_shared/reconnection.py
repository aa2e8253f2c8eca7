"""Converts gRPC errors into the exceptions of this package, and decides which calls to repeat, and when."""

from __future__ import annotations

import errno
import math
import os
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from google.api import annotations_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from bedrock import errors, v1
from bedrock._shared.cursor import EventCursor
from bedrock._shared.settings import no_listener_error, proxy_of
from bedrock.errors import BedrockError

if TYPE_CHECKING:
    import grpc
    from google.protobuf import any_pb2

M = TypeVar("M", bound=Message)

DOMAIN = "bedrock.dev"

# Status codes with which gRPC itself ends a broken stream. The client may open such a stream again.
_BROKEN = frozenset({"CANCELLED", "UNKNOWN", "INTERNAL"})

# The beginning of gRPC's error text for a call that never got a connection.
_NO_CONNECTION = "failed to connect to all addresses"

# The system's error texts for connecting to a Unix socket that is missing, or that a killed server left behind.
_NO_LISTENER = frozenset({os.strerror(errno.ENOENT), os.strerror(errno.ECONNREFUSED)})


def from_rpc(error: grpc.RpcError, target: str, token_source: str = "") -> errors.BedrockError:
    """The exception for a failed gRPC call to `target`.

    `token_source` says where the token came from; "" without one.
    """
    code = error.code().name
    message = error.details() or code
    reason, resource, fields, metadata, retry_after = "", "", {}, {}, None
    for detail in _details(error):
        if (info := _unpack(detail, error_details_pb2.ErrorInfo())) and info.domain == DOMAIN:
            reason, metadata = info.reason, dict(info.metadata)
        elif request := _unpack(detail, error_details_pb2.BadRequest()):
            fields = {violation.field: violation.description for violation in request.field_violations}
        elif retry := _unpack(detail, error_details_pb2.RetryInfo()):
            retry_after = retry.retry_delay.ToTimedelta().total_seconds()
        elif named := _unpack(detail, error_details_pb2.ResourceInfo()):
            resource = named.resource_name
    if code == "UNAVAILABLE" and not reason:
        cause = cause_of(message)
        if target.startswith("unix:") and cause in _NO_LISTENER:
            return no_listener_error(target)
        variable = proxy_of(target)
        proxy = f" through the proxy {os.environ[variable].rpartition('@')[2]} of {variable}" if variable else ""
        message = f"no Bedrock server can be reached at {target}{proxy}: {cause}"
    if code == "UNAUTHENTICATED":
        sent = f"rejects the token from {token_source}" if token_source else "requires a token, but none was sent"
        message = f"the server at {target} {sent}"
    if code == "DEADLINE_EXCEEDED" and not reason:
        message = f"{target} did not respond in time"
    return errors.error_class(reason, code)(
        message, reason=reason, code=code, fields=fields, metadata=metadata, resource=resource, retry_after=retry_after
    )


def nothing_was_sent(error: grpc.RpcError) -> bool:
    """Whether no server can have executed a failed call, because no connection could be made.

    False if a connection was lost, and for an error with metadata, which only a server sends.
    """
    call = cast("grpc.Call", error)  # gRPC raises the call object itself as the error
    if error.code().name != "UNAVAILABLE" or not (error.details() or "").startswith(_NO_CONNECTION):
        return False
    return not call.initial_metadata() and not call.trailing_metadata()


def may_resume(error: errors.BedrockError) -> bool:
    """Whether the client may resume a stream that ended with this error."""
    if isinstance(error, errors.Unavailable | errors.Aborted | errors.TooManyStreams | errors.QuotaExceeded):
        return True
    return not error.reason and error.code in _BROKEN


def is_gap(error: errors.BedrockError) -> bool:
    """Whether the error means that the server cannot send the events after the requested revision."""
    if isinstance(error, errors.RevisionTooOld):
        return True
    return isinstance(error, errors.InvalidArgument) and "after_revision" in error.fields


def cause_of(details: str) -> str:
    """The innermost of gRPC's nested causes, which helps users most; or advice, if the TLS handshake failed."""
    if "handshake failed" in details:
        return "the TLS handshake failed. Check that the server uses TLS with a certificate that this machine trusts."
    if "http1.x" in details or "ALPN" in details:
        return "this is an HTTP port. gRPC uses a different one, 7421 by default."
    return details.rpartition(": ")[2].rstrip("]")


def _details(error: grpc.RpcError) -> list[any_pb2.Any]:
    try:
        status = rpc_status.from_call(cast("grpc.Call", error))  # gRPC raises the call object itself as the error
    except ValueError:  # the details contradict the status, which happens when a proxy answered
        return []
    return [] if status is None else list(status.details)


def _unpack(detail: any_pb2.Any, message: M) -> M | None:
    return message if detail.Unpack(message) else None


# The delay in seconds after the first failure, before jitter is added.
FIRST_SECONDS = 0.1

# The longest delay in seconds between two attempts, before jitter is added.
LONGEST_SECONDS = 5.0

# How often a call is attempted. With the delays of `Backoff`, this takes about two seconds: long enough for a server to
# restart, and short enough to report soon that no server is running.
ATTEMPTS = 5

_HTTP: Any = annotations_pb2.http

# The names of the requests for read-only calls, which the contract binds to GET. Such calls may always be repeated.
READS = frozenset(
    method.input_type.full_name
    for request in (v1.GetModelRequest, v1.GetConversationRequest)
    for service in request.DESCRIPTOR.file.services_by_name.values()
    for method in service.methods
    if not method.server_streaming and method.GetOptions().Extensions[_HTTP].WhichOneof("pattern") == "get"
)


def repeatable(request: Message) -> bool:
    """Whether a call that the server may have executed can be repeated: it is read-only, or has a request id."""
    return request.DESCRIPTOR.full_name in READS or bool(getattr(request, "request_id", ""))


class Backoff:
    """Delays that double with each failure, with jitter, until there is progress or the time limit is reached."""

    def __init__(self, max_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`next` returns None once `max_seconds` have passed since the first failure after the last progress."""
        self._max_seconds = max_seconds
        self._clock = clock
        self._failures = 0
        self._since = 0.0

    def progress(self) -> None:
        """Start again with the shortest delay, because something new has arrived."""
        self._failures = 0

    def next(self, at_least: float = 0.0) -> float | None:
        """Count a failure; return the seconds to wait, at least `at_least`, or None at the time limit."""
        if not self._failures:
            self._since = self._clock()
        elif self._clock() - self._since >= self._max_seconds:
            return None
        delay = min(FIRST_SECONDS * 2.0**self._failures, LONGEST_SECONDS)
        self._failures += 1
        return max(at_least, delay * random.uniform(0.8, 1.2))  # noqa: S311 -- spreads load, guards nothing


class Attempts:
    """Decides whether to repeat a call that did not reach a server, or whose response did not arrive completely."""

    def __init__(self, *, last: bool = False) -> None:
        """Prepare for the first attempt of a call. `last` sets the attribute of the same name."""
        self.last = last
        """Whether no further attempt is allowed: the call is not idempotent, or has already yielded responses."""
        self._left = ATTEMPTS
        self._new_connection_tried = False
        self._backoff = Backoff(math.inf)

    def may_try_new_connection(self) -> bool:
        """True the first time: a call that was not sent may try one new connection, even after the last attempt."""
        first, self._new_connection_tried = not self._new_connection_tried, True
        return first

    def delay_after(self, error: BedrockError) -> float:
        """The seconds to wait before the next attempt.

        Raises the error if another attempt would not help, or none is left.
        """
        # A server that is stopping cancels calls. A cancellation by the caller itself never arrives here.
        cut = error.code == "CANCELLED" and not error.reason
        if self.last or not (cut or error.code == "UNAVAILABLE"):
            raise error
        self._left -= 1
        delay = self._backoff.next(error.retry_after or 0.0) if self._left else None
        if delay is None:
            raise error
        return delay


class Reconnection:
    """Passes the responses of an event stream to its cursor, and decides whether to resume a stream after an error."""

    def __init__(self, cursor: EventCursor, max_seconds: float, *, resuming: bool) -> None:
        """Retry for `max_seconds` without progress. With `resuming`, retry even if the first stream fails at once."""
        self._cursor = cursor
        self._resuming = resuming
        self._backoff = Backoff(max_seconds)

    def receive(self, response: v1.SubscribeResponse) -> None:
        """Pass a response to the cursor, and append the new events to `cursor.due`."""
        self._cursor.due.extend(self._cursor.receive(response))
        if self._cursor.progressed:
            self._resuming = True
            self._backoff.progress()

    def delay_after(self, error: BedrockError) -> float:
        """The seconds to wait before the next stream. Raises the error if that would not help, or at the time limit.

        Zero if the server no longer has the missed events; the next stream then starts with a snapshot.
        """
        if self._resuming and is_gap(error):
            self._cursor.restart_with_snapshot()
            return 0.0
        if not (self._resuming and may_resume(error)):
            raise error
        delay = self._backoff.next(error.retry_after or 0.0)
        if delay is None:
            raise error
        return delay
