"""The gRPC server: its services, its addresses, its health and its shutdown. Use only on the event loop.

The standard health service, grpc.health.v1, needs no token, so its calls may use only limited resources.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import grpc
import grpc.aio
from bedrock import v1
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2

from actors.common import machine
from actors.core.context import ToolGroup
from actors.publishing.hub import EventHub
from actors.runtime.services import Services, check_images_in
from server.auth.authentication import Authentication
from server.auth.authorization import Refusals
from server.cluster.node_lists import GREET, WATCH_LIST, Greetings, NodeLists, greeting_handler, list_handler
from server.cluster.router import URGENT, CallRouter, NodeAccess
from server.contract import limits
from server.contract.errors import MalformedRequestError
from server.operating_system import CannotListenError, listening
from server.queries.read_pool import NameResolver, ReadPool
from server.services.catalog import CatalogService
from server.services.conversations import Conversations, ConversationService, ImageUploads
from server.services.interceptors import Context, RequestInterceptor, read_request, reading_handler
from server.settings.setting_values import Listen
from server.streams.base import TEXT_LONGEST_SECONDS, TEXT_PAUSE_SECONDS, EventEncoder, Wakeups, WatchSettings
from server.streams.subscribe import Sources, SubscribeStreams
from server.streams.watch_conversations import ConversationListStreams, Followed, FollowedNodes
from server.wire.conversation_messages import EncodedConversations
from server.wire.messages import ConversionContext

# Maximum seconds until the request of a health call has arrived. It is short, and is sent together with the call.
REQUEST_SECONDS = 2.0
MAX_REQUESTS = 32
# Maximum seconds of a Watch call. After that, clients start another one, as they do after a lost connection.
WATCH_SECONDS = 600.0
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
        """The health service, for registration with a grpc.aio server."""
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
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return _Status(status=status)

    async def _watch(self, _requests: Any, context: Context) -> None:
        service = await self._service(context)
        told = None
        try:
            async with self._watches.acquire(WATCH_SECONDS):
                while True:
                    changed = self._changed
                    if (status := self._status_of(service)) != told:
                        await context.write(_Status(status=status))
                        told = status
                    await changed.wait()
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the watch has reached its time limit; watch again")

    async def _service(self, context: Context) -> str:
        """The service name in the request; end the call if the request is invalid or arrives too late."""
        try:
            async with self._requests.acquire(REQUEST_SECONDS):
                raw = await read_request(context, None)
            return health_pb2.HealthCheckRequest.FromString(raw).service
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not arrive in time")
        except (MalformedRequestError, DecodeError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not a HealthCheckRequest")


class _Places:
    """Limits concurrent calls: beyond the maximum, a new call ends the oldest, so that strangers lock nobody out."""

    def __init__(self, most: int) -> None:
        self._most = most
        # The timeouts of the running calls, oldest call first.
        self._taken: dict[asyncio.Timeout, None] = {}

    @asynccontextmanager
    async def acquire(self, seconds: float) -> AsyncGenerator[None]:
        """Count a call in the block. Raises TimeoutError after `seconds`, or when a new call ends this one."""
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


Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def registry_of(server: grpc.aio.Server) -> grpc.aio.Server:
    """An object to pass to the generated registration functions in place of the server."""
    return cast("grpc.aio.Server", MethodRegistry(server))


class MethodRegistry:
    """Registers only the urgent methods individually, in place of the server.

    grpc.aio has a queue for each registered method and one for all others, and waits on all of them for every call: if
    all methods were registered, as in generated code, each call would take a quarter longer.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers(generic_rpc_handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        """Register only the urgent methods, so that only they have queues in gRPC; service handlers serve the rest."""
        urgent = {name: handler for name, handler in method_handlers.items() if name in URGENT}
        if urgent:
            self._server.add_registered_method_handlers(service_name, urgent)


SERVICES = ("bedrock.v1.ConversationService", "bedrock.v1.CatalogService")
# Maximum seconds that the shutdown waits for streams to send their remaining events.
STREAM_END_SECONDS = 2.0
# Maximum seconds that the shutdown waits for other calls to end, after the streams have ended.
GRACE_SECONDS = 2.0

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),  # otherwise a second server on the same port would get half of the calls
    ("grpc.max_receive_message_length", limits.MAX_REQUEST_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    # Bursts of calls wait in a queue; with gRPC's defaults, some of the calls would be cancelled.
    ("grpc.server.max_pending_requests", 20_000),
    ("grpc.server.max_pending_requests_hard_limit", 40_000),
    ("grpc.server_max_unrequested_time_in_server", 120),  # in seconds; longer than clients wait for a response
    ("grpc.server_handshake_timeout_ms", 10_000),  # ends connections that do not complete their TLS handshake
)
# Options that close connections without a call after a minute; clients reconnect by themselves.
IDLE = (("grpc.max_connection_idle_ms", 60_000),)
# Options for addresses that strangers can reach. A call that is reset immediately counts as open until the server has
# looked at it, so this limit bounds the cost of a flood of such calls. It also refuses some calls of an honest burst,
# which clients can repeat.
FOR_STRANGERS = (("grpc.max_concurrent_streams", limits.MAX_STREAMS_PER_CONNECTION),)
# Options for addresses that strangers cannot reach: all calls of a burst of any size are accepted.
FOR_FRIENDS = (("grpc.http.overload_protection", 0),)
# The connections to one address may use at most 1/CONNECTIONS_SHARE of the files that the process may open.
CONNECTIONS_SHARE = 2


class GrpcServer:
    """One gRPC server. Create it in a running event loop; `stop` ends everything that it has started."""

    def __init__(
        self,
        services: Services,
        hub: EventHub,
        conversations: Conversations,
        authentication: Authentication,
        *,
        watching: WatchSettings | None = None,
        sqlite_version: str = "",
        reflection: bool = False,
        behind_proxy: bool = False,
        reachable: bool = False,
        access: NodeAccess | None = None,
        ends_when_unused: bool = False,
    ) -> None:
        """Create and register the services; nothing is served before `start`.

        `behind_proxy` means that `x-forwarded-for` is trusted; `reachable`, that strangers can reach an address.
        `access` is for calls between nodes, None for a single server. With `ends_when_unused`, clients keep idle
        connections, because the server stops without them.
        """
        watching = watching or WatchSettings()
        store = services.store
        self._reads = reads = ReadPool()
        self._pictures = ImageUploads(
            services.images, services.quotas.reserve_bytes, partial(check_images_in, services)
        )
        sources = _sources(services, hub, conversations, reads)
        self.watchers = SubscribeStreams(sources, watching)
        self._health = Health(("", *SERVICES))
        self._refusals = Refusals(lambda entries: reads(store.put_audit, entries), services.clock.now_ms)
        resolver = NameResolver(store, reads)
        self._router = (
            CallRouter(services.cluster, access, resolver, self.watchers, store, telemetry=services.telemetry)
            if access
            else None
        )
        interceptor = RequestInterceptor(
            authentication,
            services.telemetry,
            services.quotas,
            self._refusals,
            behind_proxy=behind_proxy,
            router=self._router,
        )
        self._greeting: asyncio.Task[None] | None = None
        self._server = grpc.aio.server(interceptors=[interceptor], options=_options(reachable, ends_when_unused))
        registry = registry_of(self._server)
        conversation_service = ConversationService(
            services,
            conversations,
            resolver,
            sources,
            watchers=self.watchers,
            watch_list=ConversationListStreams(self.watchers, sources, self._lists_of_nodes(hub, sources.wakeups)),
            pictures=self._pictures,
        )
        catalog_service = CatalogService(
            services,
            reads,
            watching,
            shared=access is not None,
            sqlite_version=sqlite_version,
            ends_when_unused=ends_when_unused,
        )
        v1.add_ConversationServiceServicer_to_server(conversation_service, registry)
        v1.add_CatalogServiceServicer_to_server(catalog_service, registry)
        self._server.add_generic_rpc_handlers((self._health.handler(),))
        if reflection:
            _add_reflection(self._server)

    def _lists_of_nodes(self, hub: EventHub, wakeups: Wakeups) -> Callable[[], Followed]:
        if (router := self._router) is None:
            return lambda: nullcontext(FollowedNodes())
        router.for_nodes[GREET] = greeting_handler(router.cluster)
        router.for_nodes[WATCH_LIST] = list_handler(self.watchers, hub.conversation_list, wakeups)
        return NodeLists(router.cluster, router.peers, router.marks, hub.conversation_list).followed

    def listen(self, where: Listen, credentials: grpc.ServerCredentials | None = None) -> Listen:
        """Listen, with TLS if there are `credentials`; return the address with its port. Raises CannotListenError."""
        _probe(where)
        if where.path:
            credentials = grpc.local_server_credentials(grpc.LocalConnectionType.UDS)
        mask = os.umask(0o177)  # so that other users can never connect to the socket
        try:
            if credentials is None:
                port = self._server.add_insecure_port(where)
            else:
                port = self._server.add_secure_port(where, credentials)
        except RuntimeError:
            raise CannotListenError(where, "gRPC rejected the address") from None
        finally:
            os.umask(mask)
        return where if where.path else Listen(where.host, port)

    async def start(self) -> None:
        self._health.report(serving=True)
        await self._server.start()
        if (router := self._router) is not None:
            greetings = Greetings(router.cluster, router.peers, router.marks)
            self._greeting = asyncio.create_task(greetings.run())

    async def withdraw(self) -> None:
        """Report NOT_SERVING to the health service's clients, so that no new clients come. Calls are still served."""
        self._health.report(serving=False)

    async def stop(self) -> None:
        """End the streams with UNAVAILABLE, then the other calls, then the threads, within a time limit."""
        if self._greeting is not None:
            self._greeting.cancel()
        self.watchers.shut_down()
        await self.watchers.ended(STREAM_END_SECONDS)
        await self._server.stop(GRACE_SECONDS)
        if self._router is not None:
            await self._router.close()
        await self._refusals.close()
        await asyncio.to_thread(self._pictures.close)
        await asyncio.to_thread(self._reads.close)


def _options(reachable: bool, ends_when_unused: bool) -> tuple[tuple[str, int], ...]:
    connections = ("grpc.max_allowed_incoming_connections", max_connections())
    idle = () if ends_when_unused else IDLE
    return (*OPTIONS, *idle, connections, *(FOR_STRANGERS if reachable else FOR_FRIENDS))


def max_connections() -> int:
    """The maximum number of connections to each address; further ones are closed at once.

    Strangers who use up the connections of one address thus affect neither other addresses nor running conversations.
    """
    return max(1, machine.max_open_files() // CONNECTIONS_SHARE)


def _lag_of(services: Services) -> Callable[[int], None]:
    clock, telemetry = services.clock, services.telemetry
    return lambda at: telemetry.delivered((clock.now_ms() - at) / 1000)


def _sources(services: Services, hub: EventHub, conversations: Conversations, reads: ReadPool) -> Sources:
    loop, conversion = asyncio.get_running_loop(), conversion_context(services)
    encoded = EncodedConversations(conversion)
    return Sources(
        hub=hub,
        store=services.store,
        reads=reads,
        encoded=encoded,
        frames=EventEncoder(services.store, conversion, encoded, services.clock),
        conversion=conversion,
        wake=conversations.wake,
        delivered=_lag_of(services) if services.telemetry.measures else None,
        wakeups=Wakeups(loop),
        text_wakeups=Wakeups(loop, TEXT_PAUSE_SECONDS, TEXT_LONGEST_SECONDS),
    )


def conversion_context(services: Services) -> ConversionContext:
    """The facts about tools, models, background jobs and MCP servers that conversions to API messages need."""
    specs = (*services.toolbox.specs(sub_agent=False), *services.toolbox.specs(sub_agent=True))
    groups: dict[str, ToolGroup] = {spec.name: spec.traits.group for spec in specs}
    return ConversionContext(
        groups,
        services.usable_window,
        services.limits,
        services.toolbox.jobs,
        services.mcp.statuses_of,
        services.fixed_tokens,
        services.window_assumed,
    )


def _add_reflection(server: grpc.aio.Server) -> None:
    from grpc_reflection.v1alpha import reflection  # noqa: PLC0415 -- only if enabled

    reflection.enable_server_reflection((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)


def _probe(where: Listen) -> None:
    """Bind an address once as a check, because gRPC's errors do not say what is wrong. Raises CannotListenError."""
    if where.path:
        _probe_path(where)
        return
    with listening(where, "--listen", more=", or use --listen none for clients on this machine only"):
        found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
            tried.listen()


def _probe_path(where: Listen) -> None:
    """Raise CannotListenError if the path is unusable, or belongs to a running server (gRPC would take it over)."""
    if os.path.lexists(where.path) and not stat.S_ISSOCK(os.lstat(where.path).st_mode):
        raise CannotListenError(where, "the file there is not a socket; remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
        try:
            tried.connect(where.path)
        except (FileNotFoundError, ConnectionRefusedError):
            pass
        except OSError as error:
            raise CannotListenError(where, (error.strerror or "").lower()) from None
        else:
            raise CannotListenError(where, "another server is listening there")
    if not os.access(Path(where.path).parent, os.W_OK | os.X_OK):
        raise CannotListenError(where, "its directory is missing or not writable")
