"""The interceptor of all gRPC calls: authenticates, decodes and validates requests, and converts errors to statuses.

For a method with a single request, grpc.aio reads the whole request before it calls any other code: without a time
limit, and up to the maximum size even if the caller has no token. Therefore, all methods are registered with a stream
of requests, from which this module reads one within a time limit. Clients see no difference.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import ipaddress
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from actors.common.machine import OutageLog
from actors.core.errors import Reason, Rejected
from actors.ports import StoreDamagedError, StoreUnusableError
from actors.ports.records import CommandOrigin, command_origin
from actors.ports.telemetry import Rpc, Telemetry, trace_parent
from actors.runtime.quotas import QuotaBook
from actors.runtime.services import unlimited
from server.auth.authentication import Authentication, caller, subject
from server.auth.authorization import READING, CallRevokedError, LiveCalls, Refusals, check_role
from server.auth.principals import LOCAL, Caller, Role
from server.cluster.router import CallRouter, ForwardedMethod, PassedStatusError, RoutedMethod, Trailers
from server.contract import errors, limits
from server.contract.resource_names import name_in
from server.contract.validation import check

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


async def read_request(context: Context, seconds: float | None) -> bytes:
    """Read the request within `seconds` or, if that is None, within the call's deadline.

    Raises RequestTimeoutError, or MalformedRequestError if the client ends the call without a request.
    """
    try:
        async with asyncio.timeout(seconds):
            raw: Any = await context.read()
    except TimeoutError:
        raise errors.RequestTimeoutError(seconds) from None
    if raw is grpc.aio.EOF:
        raise errors.MalformedRequestError(("", "the call contains no request message"))
    request: bytes = raw
    return request


def reading_handler(behaviour: Callable[[Any, Context], Any], serialize: Any, *, response_streaming: bool) -> Handler:
    """A handler that calls `behaviour` before the request is read.

    `behaviour` must not use the iterator of requests; it passes the context to `read_request`.
    """
    if response_streaming:
        return grpc.stream_stream_rpc_method_handler(behaviour, None, serialize)
    return grpc.stream_unary_rpc_method_handler(behaviour, None, serialize)


def peer_of(context: Context) -> str:
    """The peer's address, such as `ipv4:192.0.2.1:50000`; over the Unix socket, the gateway reports its client's."""
    return forwarded_peer_of(context) if (peer := context.peer()).startswith("unix:") else peer


def forwarded_peer_of(context: Context) -> str:
    """The client's address as the proxy reports it, or else the proxy's own.

    A proxy appends what it sees to `x-forwarded-for`; a client may forge earlier entries.
    """
    found = [value for key, value in context.invocation_metadata() or () if key == "x-forwarded-for"]
    last = str(found[-1]).rpartition(",")[2].strip() if found else ""
    try:
        address = ipaddress.ip_address(last)
    except ValueError:
        return context.peer()
    return f"ipv{address.version}:{address}".partition("%")[0]  # without an IPv6 scope, which may be any string


log = logging.getLogger(__name__)

# The prefix of the methods that need no token: those of the health service, which limits its own resources.
# Orchestrators such as Kubernetes have no token.
OPEN_PREFIX = "/grpc.health.v1.Health/"
OURS = "/bedrock.v1."
# The prefix of methods that wait. They are measured as streams, so that they do not distort the latencies of other
# calls.
WAITS = "Wait"
# Methods that do not count towards a principal's quota of calls. A cancel, above all, must never be refused.
UNCOUNTED = ("CancelConversation", "GetQuotas")
TRACE_PARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# The statuses of calls that failed. A call with any other error status was refused; the audit trail records it.
FAILURES = frozenset({"CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
MAX_REQUEST_ID = 36
# Matches the address without the port, as gRPC reports it (`ipv6:%5B::1%5D:5000`) or a proxy (`ipv6:2001:db8::1`).
ADDRESS = re.compile(r"ipv4:[0-9.]+|ipv6:(?:%5B[^%]*(?:%25[^%]*)?%5D|\[[^]]*\]|[0-9a-f:.]+)")
# Maximum seconds that the server waits for a client to read the error that ends its call.
ABORT_SECONDS = 5.0

forwarded_origin: ContextVar[CommandOrigin | None] = ContextVar("forwarded_origin", default=None)
"""The client that called, if another node of the cluster has forwarded the current call; otherwise None."""

_CODES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}


class RequestInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handler of each method once, and chooses the handler for each call. Runs on the event loop."""

    def __init__(
        self,
        authentication: Authentication,
        telemetry: Telemetry,
        quotas: QuotaBook,
        refusals: Refusals,
        *,
        behind_proxy: bool = False,
        router: CallRouter | None = None,
    ) -> None:
        """`router` forwards calls to the owners of conversations; None without a cluster."""
        self._client_of = forwarded_peer_of if behind_proxy else peer_of
        self._authentication = authentication
        self._quotas = quotas
        self._live = LiveCalls(authentication)
        self._telemetry = telemetry
        self._refusals = refusals
        self._guarded: dict[str, Handler] = {}
        self._router = router
        self._forwarded: dict[str, Handler] = {}
        self._strangers = OutageLog(log, "calls from other nodes have a valid token again")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Authenticate the caller, and return the handler that serves or refuses the call; None for unknown methods."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if self._router is not None and self._router.marks.among(handler_call_details.invocation_metadata):
            return self._from_node(self._router, handler, handler_call_details)
        if handler is None or method.startswith(OPEN_PREFIX):
            return handler
        who = self._authentication.caller_of(handler_call_details.invocation_metadata)
        if who is None:
            who = await self._authentication.caller_after_refresh(handler_call_details.invocation_metadata)
        if who is not None:
            caller.set(who)
        elif not (self._authentication.looks_further and method.startswith(OURS)):
            return self._refusing(method)
        if self._telemetry.on:
            trace_parent.set(_trace_parent_in(handler_call_details.invocation_metadata))
        if not method.startswith(OURS):
            return handler
        guarded = self._guarded.get(method)
        if guarded is None:
            guarded = self._guarded[method] = GuardedMethod(
                method,
                handler,
                self._live,
                self._telemetry,
                self._quotas,
                note=self._refusals.note,
                client_of=self._client_of,
                further=self._authentication if self._authentication.looks_further else None,
                route=self._route(method, handler),
            ).handler()
        return guarded

    def _route(self, method: str, handler: Handler) -> RoutedMethod | None:
        if self._router is None or not self._router.routes(method):
            return None
        decode: Any = handler.request_deserializer
        return RoutedMethod(
            self._router, method, _behaviour_of(handler), decode, streaming=bool(handler.response_streaming)
        )

    def _from_node(self, router: CallRouter, handler: Handler | None, call: grpc.HandlerCallDetails) -> Handler:
        """The handler of a call that claims to come from a node.

        It refuses a call without the token that all nodes share. The calling node authenticates the client, counts the
        call, and ends it when the client's token expires.
        """
        method = call.method
        origin = router.marks.origin(call.invocation_metadata)
        if origin is None or origin.role not in tuple(Role):
            return self._refusing(method, stranger=True)
        self._strangers.worked()
        if method in router.for_nodes:
            return router.for_nodes[method]
        if handler is None or not router.routes(method):
            return self._refusing(method)
        caller.set(Caller(origin.principal, Role(origin.role)))
        forwarded_origin.set(origin)
        if self._telemetry.on:
            trace_parent.set(_trace_parent_in(call.invocation_metadata))
        guarded = self._forwarded.get(method)
        if guarded is None:
            guarded = self._forwarded[method] = GuardedMethod(
                method,
                handler,
                self._live,
                Telemetry(),
                unlimited(),
                note=self._refusals.note,
                route=ForwardedMethod(router, method, _behaviour_of(handler)),
            ).handler()
        return guarded

    def _refusing(self, method: str, *, stranger: bool = False) -> Handler:
        """The handler that refuses a call without reading the request. A `stranger` falsely claims to be a node."""

        async def refuse(_requests: Any, context: Context) -> NoReturn:
            status = errors.status_of(errors.UnauthenticatedError())
            origin = CommandOrigin("", peer=address_of(self._client_of(context)), method=_name_of(method))
            if stranger:
                self._strangers.failed(
                    f"refused {origin.peer}, which called as a node, but without the token in cluster.token_file"
                )
            self._refusals.note(origin, "", _reason_in(status))
            await abort(context, status)

        return reading_handler(refuse, None, response_streaming=True)


def address_of(peer: str) -> str:
    if found := ADDRESS.match(peer):
        return found[0]
    return peer.partition(":")[0] + ":"


def _name_of(method: str) -> str:
    return method.rsplit("/", 1)[-1]


def _reason_in(status: Status) -> str:
    info = ErrorInfo()
    found = any(detail.Unpack(info) for detail in status.details)
    return info.reason if found and info.reason else _CODES.get(status.code, "UNKNOWN")


async def abort(context: Context, status: Status, trailers: Trailers = ()) -> NoReturn:
    """End the call with this status and these trailers, by raising gRPC's AbortError."""
    ending = rpc_status.to_status(status)
    if trailers:
        await context.abort(ending.code, ending.details, (*(ending.trailing_metadata or ()), *trailers))
    else:
        await context.abort_with_status(ending)
    raise AssertionError("abort raises")


def as_bytes(response: Message | bytes) -> bytes:
    return response if isinstance(response, bytes) else response.SerializeToString()


def _trace_parent_in(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    found = next((value for key, value in metadata if key == "traceparent"), "")
    return found if isinstance(found, str) and TRACE_PARENT.fullmatch(found) else ""


class GuardedMethod:
    """One gRPC method, with all that the server checks and counts before and after each of its calls."""

    def __init__(
        self,
        method: str,
        handler: Handler,
        live: LiveCalls,
        telemetry: Telemetry,
        quotas: QuotaBook,
        *,
        note: Callable[[CommandOrigin, str, str], None],
        client_of: Callable[[Context], str] = peer_of,
        further: Authentication | None = None,
        route: RoutedMethod | ForwardedMethod | None = None,
    ) -> None:
        """`live` ends calls whose token is revoked, `note` records refusals, `client_of` returns the client's address.

        `further` identifies callers by certificates and the authorizer, `route` finds the node that serves a call; both
        may be None.
        """
        self._method = method
        self._name = _name_of(method)
        self._behaviour = _behaviour_of(handler)
        self._decode: Any = handler.request_deserializer
        self._streaming = bool(handler.response_streaming)
        self._lasts = self._streaming or self._name.startswith(WAITS)
        self._live = live
        self._telemetry = telemetry
        self._quotas = quotas
        self._note = note
        self._client_of = client_of
        self._further = further
        self._route = route

    def handler(self) -> Handler:
        return reading_handler(self._serve, as_bytes, response_streaming=self._streaming)

    async def _serve(self, _requests: Any, context: Context) -> Any:
        call = _Observed(self._name, self._lasts, functools.partial(self._client_of, context))
        try:
            return await self._ended(context, call)
        finally:
            if self._telemetry.on:
                self._telemetry.rpc_ended(call.ended())

    async def _ended(self, context: Context, call: _Observed) -> Any:
        try:
            response = await self._answer(context, call)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            call.outcome = "CANCELLED"
            raise
        except PassedStatusError as passed:  # the other node has recorded the refusal in the audit trail
            call.outcome = passed.code.name
            return await _within_time(context.abort(passed.code, passed.details, passed.trailers))
        except Exception as error:  # noqa: BLE001 -- the client gets a status for every error
            status = _status_of(error, reading=not call.command)
            call.outcome = _CODES.get(status.code, "UNKNOWN")
            if call.outcome not in FAILURES:
                self._note(call.origin(), subject.get(), _reason_in(status))
            trailers = () if self._route is None else self._route.trailers(error)
            return await _within_time(abort(context, status, trailers))
        call.answered(response)
        return response

    async def _answer(self, context: Context, call: _Observed) -> Any:
        """Identify the caller, check role and quotas, and only then read, check and execute the request.

        Raises the error that refuses or fails the call.
        """
        who = caller.get() if self._further is None else await looked_further(self._further, context)
        check_role(self._method, who.role)
        if self._name not in UNCOUNTED:
            self._quotas.admit_call(who.principal)
        with self._live.serving(who), self._quotas.stream(who.principal) if self._lasts else nullcontext():
            raw = await read_request(context, limits.REQUEST_SECONDS)
            call.arrived()
            request = _decoded(self._decode, raw)
            call.asked(request)
            if self._further is not None:
                await _authorize(self._further, who, self._method, request)
            serving = self._behaviour if self._route is None else self._route.behaviour(raw, call.origin)
            return await _call(serving, request, context, call)


def _behaviour_of(handler: Handler) -> Any:
    return handler.unary_stream if handler.response_streaming else handler.unary_unary


def _status_of(error: Exception, *, reading: bool) -> Status:
    if isinstance(error, CallRevokedError):
        return errors.status_of(errors.UnauthenticatedError())
    if isinstance(error, grpc.aio.InternalError):  # the client has disconnected during a write
        return errors.status_of(errors.ClientDisconnectedError())
    return errors.status_of(error, reading=reading)


async def _within_time(aborting: Awaitable[NoReturn]) -> None:
    """Await `aborting`, which sends a call's status, for at most ABORT_SECONDS: the client may not read it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(ABORT_SECONDS):
            await aborting


async def looked_further(authentication: Authentication, context: Context) -> Caller:
    """The caller identified by token, certificate or authorizer; also sets `caller`.

    Raises UnauthenticatedError or AuthorizerUnavailableError.
    """
    metadata: Any = context.invocation_metadata() or ()
    by_gateway = authentication.shown_to_gateway(metadata) if context.peer().startswith("unix:") else {}
    connection = by_gateway or context.auth_context()
    who = await authentication.caller_on(caller.get(None), metadata, connection, peer_of(context))
    if who is None:
        raise errors.UnauthenticatedError
    caller.set(who)
    return who


async def _authorize(authentication: Authentication, who: Caller, method: str, request: Any) -> None:
    """Ask the operator's authorizer, if any. Raises Rejected or AuthorizerUnavailableError."""
    if authentication.authorizer is None or who.principal == LOCAL:
        return
    refusal = await authentication.authorizer.refusal(who.principal, who.role, method, name_in(request))
    if refusal is not None:
        raise Rejected(Reason.PERMISSION_DENIED, refusal)


class _Observed:
    """Collects the facts about a call that are logged and measured at its end."""

    def __init__(self, method: str, stream: bool, peer: Callable[[], str]) -> None:
        self._method = method
        self._stream = stream
        self._peer = peer
        self._began = time.monotonic()
        self._conversation = ""
        self._request_id = ""
        self.outcome = "UNKNOWN"

    def arrived(self) -> None:
        """Start measuring the call's duration, once the request has arrived: before that, it depends on the client."""
        self._began = time.monotonic()

    @property
    def command(self) -> bool:
        return self._method not in READING

    def asked(self, request: Any) -> None:
        self._request_id = getattr(request, "request_id", "")

    def origin(self) -> CommandOrigin:
        """The caller and its address; for a forwarded call, as the other node reports them."""
        if (forwarded := forwarded_origin.get()) is not None:
            return forwarded
        who, address = caller.get(None), address_of(self._peer())
        if who is None:
            return CommandOrigin("", peer=address, method=self._method)
        return CommandOrigin(
            who.principal, who.role.value, who.token, address, self._method, self._request_id[:MAX_REQUEST_ID]
        )

    def answered(self, response: Any) -> None:
        self.outcome = "OK"
        made = getattr(getattr(response, "conversation", None), "name", "")
        self._conversation = made.removeprefix("conversations/")

    def ended(self) -> Rpc:
        return Rpc(
            method=self._method,
            conversation=subject.get() or self._conversation,
            principal=who.principal if (who := caller.get(None)) is not None else "",
            peer=self._peer(),
            request_id=self._request_id,
            outcome=self.outcome,
            seconds=time.monotonic() - self._began,
            stream=self._stream,
            command=self.command,
        )


def _decoded(decode: Callable[[bytes], Message], raw: bytes) -> Message:
    try:
        request = decode(raw)
    except DecodeError:
        text = "the request is malformed or nested too deeply; the client may be a different version"
        raise errors.MalformedRequestError(("", text)) from None
    return request


async def _call(behaviour: Callable[..., Any], request: Message, context: Context, call: _Observed) -> Any:
    check(request)
    if call.command:
        command_origin.set(call.origin())
    try:
        answer = behaviour(request, context)
        return await answer if inspect.isawaitable(answer) else answer
    except (StoreDamagedError, StoreUnusableError):
        log.error("stored data is damaged: %s", _subject(request))
        raise


def _subject(request: Any) -> str:
    return name_in(request) or "a request without a conversation"
