"""Routes each call to the node that owns its conversation: the call is served here, or forwarded once.

The node that a client calls authenticates and validates the call, and checks quotas. While the conversation moves to
another node, the called node keeps looking for the new owner. The owner executes the command, and records the command
or its refusal in the audit trail. A node never forwards a call that another node has forwarded.

A call is forwarded in a single attempt. Requests and responses are forwarded as bytes; the owner's gRPC status and its
details are returned unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from actors.core.errors import Reason, Rejected
from actors.ports import ConversationOwnership, NotOwnerError, StoreUnavailableError
from actors.ports.cluster import Cluster, Node
from actors.ports.records import CommandOrigin
from actors.ports.telemetry import Telemetry
from server.auth.authorization import CATALOG, CONVERSATIONS, NEEDED
from server.auth.principals import Role
from server.cluster.peers import (
    NOT_OWNER,
    OWNER,
    Lane,
    Metadata,
    NodeConnections,
    NodeMarks,
    PeerLostError,
    Peers,
    is_cancelled,
)
from server.contract import limits
from server.contract.errors import (
    AnswerTimeoutError,
    ClientDisconnectedError,
    ConversationNotFoundError,
    OwnerLostError,
)
from server.contract.resource_names import conversation_in
from server.queries.read_pool import NameResolver, ReadPool
from server.streams.base import Stream, Streams

URGENT = frozenset({"CancelConversation", "SetMode"})
"""Methods whose calls are accepted and forwarded before all other waiting calls."""


class ServingNode(Enum):
    """The node of the cluster that serves the calls of a method."""

    HERE = "here"
    """The node that was called. It needs only the shared store or its own settings."""
    OWNER = "owner"
    """The node that owns the conversation, and therefore runs the actor that may change it."""
    WATCHED = "watched"
    """The node that owns the conversation, for long calls that need events that only the owner has in memory."""
    DIRECTORY = "directory"
    """A node that has the directory in the request: the called one, unless only other nodes have the directory."""
    FORK = "fork"
    """A node that has the working directory of the conversation to fork."""


_OF_THEIR_OWN: dict[str, ServingNode] = {
    f"{CATALOG}BrowseDirectory": ServingNode.DIRECTORY,
    f"{CONVERSATIONS}CreateConversation": ServingNode.DIRECTORY,
    f"{CONVERSATIONS}ForkConversation": ServingNode.FORK,
    f"{CONVERSATIONS}GetConversation": ServingNode.OWNER,
    f"{CONVERSATIONS}Subscribe": ServingNode.WATCHED,
    f"{CONVERSATIONS}WaitRequestCycle": ServingNode.WATCHED,
}

# Which node serves the calls of each method. Methods that require the role USER change a conversation, so its owner
# serves them. All others only read, which every node can do.
PLACES: dict[str, ServingNode] = {
    method: ServingNode.OWNER if role is Role.USER else ServingNode.HERE for method, role in NEEDED.items()
} | _OF_THEIR_OWN


class PassedStatusError(Exception):
    def __init__(self, code: grpc.StatusCode, details: str, trailers: Metadata) -> None:
        super().__init__(details)
        self.code, self.details, self.trailers = code, details, trailers


@dataclass(frozen=True, kw_only=True)
class ForwardedCall:
    method: str
    request: bytes
    metadata: Metadata
    lane: Lane
    seconds: float | None
    """The seconds that remain until the call's deadline; None if it has no deadline."""


async def forward(peer: NodeConnections, call: ForwardedCall) -> tuple[bytes, Metadata]:
    """Forward a unary call; return the response and its trailing metadata.

    Raises PassedStatusError (not OK), NotOwnerError (nothing was changed), PeerLostError (no answer) or
    AnswerTimeoutError (deadline exceeded).
    """
    async with peer.channel(call.lane) as channel:
        method: Any = channel.unary_unary(call.method)
        calling = method(call.request, metadata=call.metadata, timeout=call.seconds)
        try:
            response: bytes = await calling
            peer.accepts()
            return response, tuple(await calling.trailing_metadata() or ())
        except grpc.aio.AioRpcError as error:
            _raise_for(error, peer)
        except asyncio.CancelledError:
            raise_unless_cut(peer)


def raise_unless_cut(peer: NodeConnections) -> NoReturn:
    """Re-raise the CancelledError being handled, or raise PeerLostError if the node was declared dead."""
    if peer.cut and not is_cancelled():
        raise PeerLostError(sent=True) from None
    raise  # noqa: PLE0704 -- called in the handler of the exception


def _raise_for(error: grpc.aio.AioRpcError, peer: NodeConnections) -> NoReturn:
    """Raise the exception of `forward` for a failed call; a trailer with an address shows that a node answered."""
    trailers: Metadata = tuple(error.trailing_metadata() or ())
    names = {name for name, _ in trailers}
    if NOT_OWNER in names:
        raise NotOwnerError("the presumed owner no longer owns the conversation") from None
    if OWNER in names:
        raise PassedStatusError(error.code(), error.details() or "", trailers) from None
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        raise AnswerTimeoutError from None
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        peer.refuses()
        raise PeerLostError(sent=False, hopeless=True) from None
    raise PeerLostError(sent=True) from None


class ForwardedStream(Stream):
    """Forwards a stream from the conversation's owner.

    The next message is read once the client has the previous one. Limits, slow readers and shutdown are handled as in
    all streams.
    """

    def __init__(
        self, streams: Streams, peer: NodeConnections, call: ForwardedCall, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        super().__init__(streams, write)
        self._peer, self._call = peer, call
        self._calling: Any = None
        self.wake = self._end_at_shutdown
        self.began = False
        """Whether a message has been sent to the client."""
        self.trailers: Metadata = ()

    def close(self) -> None:
        if self._calling is not None:
            self._calling.cancel()

    def _end_at_shutdown(self) -> None:
        if self._streams.closing:
            self.close()

    async def _open(self) -> None:
        """Call the owner, and pass on each message until the stream ends.

        Raises what `forward` raises, and Rejected (SHUTTING_DOWN).
        """
        call = self._call
        async with self._peer.channel(call.lane) as channel:
            method: Any = channel.unary_stream(call.method)
            self._calling = method(call.request, metadata=call.metadata, timeout=call.seconds)
            try:
                async for frame in self._calling:
                    if not self.began:
                        self._peer.accepts()
                    await self._out.send(frame)
                    self.began = True
                self.trailers = tuple(await self._calling.trailing_metadata() or ())
            except grpc.aio.AioRpcError as error:
                _raise_for(error, self._peer)
            except asyncio.CancelledError:
                if self._streams.closing and not is_cancelled():
                    raise Rejected(Reason.SHUTTING_DOWN) from None
                raise_unless_cut(self._peer)

    async def _go_on(self) -> bool:
        """Return False, which ends the stream: `_open` has forwarded all messages."""
        return False


Behaviour: TypeAlias = Callable[[Any, Any], Any]
Trailers: TypeAlias = tuple[tuple[str, str], ...]

# Methods whose calls may be repeated without a request id, even if the first attempt was executed.
REPEATABLE = frozenset({"BrowseDirectory", "CancelConversation", "GetConversation", "Subscribe", "WaitRequestCycle"})
# How many seconds a call waits for its conversation to be owned by a reachable node before it fails.
SEARCH_SECONDS = 5.0
# The same while a node is leaving: longer, because it releases its conversations only after their runs have ended.
LEAVING_SECONDS = 60.0
# The shortest and the longest pause in seconds between attempts. The second attempt follows without a pause; from then
# on, each pause is twice as long as the one before.
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.1
THREADS = 4


@dataclass(frozen=True, kw_only=True)
class NodeAccess:
    """The settings for calls between this server and the other nodes."""

    token: str
    """The secret token that all nodes share. It has at least 32 printable characters."""
    credentials: grpc.ChannelCredentials | None = None
    """The TLS credentials for connections to other nodes; None for connections without TLS."""
    authorities: bytes | None = None
    """The certificate authorities that `credentials` trusts, in PEM; None without TLS."""


class CallRouter:
    """Finds the node that serves a call, and keeps the connections to other nodes. Use only on the event loop.

    `peer_died` is thread-safe.
    """

    def __init__(
        self,
        cluster: Cluster,
        access: NodeAccess,
        resolver: NameResolver,
        streams: Streams,
        store: ConversationOwnership,
        *,
        telemetry: Telemetry,
    ) -> None:
        self.cluster = cluster
        self.marks = NodeMarks(access.token)
        self.streams = streams
        self.peers = Peers(access.credentials, access.authorities)
        self.resolver = resolver
        self.telemetry = telemetry
        self._store = store
        self.for_nodes: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        """The handlers for calls that nodes make for themselves, not for a client, by the full name of the method."""
        self._loop = asyncio.get_running_loop()
        self._owners = ReadPool(THREADS, name="bedrock-owner")
        self._urgent_owners = ReadPool(1, name="bedrock-urgent-owner")
        self._find: dict[ServingNode, Callable[[str], Node | None]] = {
            ServingNode.DIRECTORY: cluster.place_of,
            ServingNode.FORK: cluster.place_of_fork,
        }
        """The functions that find a node with a certain directory, for calls that any such node can serve."""
        self.cluster.on_node_dead = self.peer_died

    @property
    def trailers(self) -> Trailers:
        """The trailers (metadata at the end of a response) of calls that this node serves: the node's address."""
        return ((OWNER, self.cluster.me.address),)

    def routes(self, method: str) -> bool:
        """Whether calls of a method may have to be served by another node, such as the conversation's owner."""
        return PLACES.get(method, ServingNode.HERE) is not ServingNode.HERE

    @property
    def some_leave(self) -> bool:
        """Whether any node of the cluster, including this one, is about to stop and is releasing its conversations."""
        return any(node.draining for node in self.cluster.nodes())

    def peer(self, node: Node) -> NodeConnections:
        if node not in self.peers:
            self.peers.keep_only((node, *self.cluster.nodes()))
        return self.peers.of(node)

    def peer_died(self, node: Node) -> None:
        """End the calls to a node that was declared dead: its connections might never close. Thread-safe."""
        with suppress(RuntimeError):  # raised if the loop is closed, in which case the connections are closed, too
            self._loop.call_soon_threadsafe(self.peers.cut, node.incarnation)

    async def node_for(self, place: ServingNode, subject: str, *, urgent: bool) -> Node | None:
        """The other node that serves calls about a conversation or directory; None if this node serves them.

        Also None if the store does not answer, so that conversations that are active here can be cancelled. Raises
        Rejected (WORKSPACE_OFFLINE).
        """
        find: Callable[[str], Node | None] = self._find.get(place, self.cluster.owner_of)
        if place not in self._find and (owner := self.cluster.remembered_owner(subject)) is not None:
            return None if owner.incarnation == self.cluster.me.incarnation else owner
        try:
            return await (self._urgent_owners if urgent else self._owners)(find, subject)
        except StoreUnavailableError:
            return None

    async def acquire(self, conversation_id: str) -> None:
        await self._owners(self._store.claim, conversation_id, self.cluster.on_taken)

    async def close(self) -> None:
        """Close the connections to all nodes, and end the threads that look up and claim conversations."""
        await self.peers.close()
        for pool in (self._owners, self._urgent_owners):
            await asyncio.to_thread(pool.close)


class ForwardedMethod:
    """Serves the calls of one gRPC method that other nodes have forwarded. Never forwards a call again."""

    def __init__(self, router: CallRouter, method: str, behaviour: Behaviour) -> None:
        self._router, self._behaviour = router, behaviour
        self._claims = PLACES[method] is ServingNode.WATCHED

    def behaviour(self, _raw: bytes, _origin: Callable[[], CommandOrigin]) -> Behaviour:
        """The function that serves one call. The arguments match those of `RoutedMethod.behaviour`."""
        return self._serve

    async def _serve(self, request: Any, context: Any) -> Any:
        context.set_trailing_metadata(self._router.trailers)
        return await served_here(self._router, self._behaviour, request, context, claims=self._claims)

    def trailers(self, error: Exception) -> Trailers:
        """Trailers that make the caller look for the owner again, if this node is not the owner or is shutting down."""
        leaves = isinstance(error, Rejected) and error.reason is Reason.SHUTTING_DOWN
        if leaves or isinstance(error, NotOwnerError):
            return ((NOT_OWNER, "1"),)
        return self._router.trailers


async def served_here(router: CallRouter, behaviour: Behaviour, request: Any, context: Any, *, claims: bool) -> Any:
    """Serve a call on this node. With `claims` or images, this node first becomes the conversation's owner.

    Raises NotOwnerError, and the method's errors.
    """
    if claims or _has_images(request):  # images are stored before the actor claims the conversation
        conversation = await router.resolver.identify(conversation_in(request))
        await router.acquire(conversation)
    return await behaviour(request, context)


def _has_images(request: Any) -> bool:
    return hasattr(request, "images") and bool(request.images)


def directory_in(request: Any) -> str:
    """The directory that a request concerns: the one to browse, or the one for the conversation to create."""
    return str(request.path if hasattr(request, "path") else request.conversation.working_directory)


def _has_id(request: Any) -> bool:
    return hasattr(request, "request_id") and bool(request.request_id)


# The outcome reported to telemetry for an attempt to forward a call, by the error raised; "ended" for other errors.
OUTCOMES = {
    PassedStatusError: "refused",
    NotOwnerError: "moved",
    PeerLostError: "lost",
    AnswerTimeoutError: "timed_out",
}


@contextmanager
def _counted(telemetry: Telemetry) -> Generator[None]:
    outcome = "ended"
    try:
        yield
        outcome = "answered"
    except Exception as error:
        outcome = next((name for kind, name in OUTCOMES.items() if isinstance(error, kind)), outcome)
        raise
    finally:
        telemetry.forwarded(outcome)


class RoutedMethod:
    """Serves the calls of one gRPC method that clients make: on this node, or by forwarding them to the right node."""

    def __init__(
        self,
        router: CallRouter,
        method: str,
        behaviour: Behaviour,
        decode: Callable[[bytes], Message],
        *,
        streaming: bool,
    ) -> None:
        self._router, self._method, self._behaviour, self._decode = router, method, behaviour, decode
        self._streaming = streaming
        name = method.rsplit("/", 1)[-1]
        self._place = PLACES[method]
        self._claims = self._place is ServingNode.WATCHED
        self._repeatable = name in REPEATABLE
        self._lane = Lane.URGENT if name in URGENT else Lane.LASTING if self._claims else Lane.CALLS

    def behaviour(self, raw: bytes, origin: Callable[[], CommandOrigin]) -> Behaviour:
        """The function that serves one call: `raw` is its encoded request, and `origin` returns its caller."""
        return partial(self._serve, raw, origin)

    def trailers(self, _error: Exception) -> Trailers:
        """The trailers (metadata at the end of the response) of a call that failed on this node."""
        return self._router.trailers

    async def _serve(self, raw: bytes, origin: Callable[[], CommandOrigin], request: Any, context: Any) -> Any:
        """Serve a call, and try again while its conversation is moving.

        Raises NotOwnerError, OwnerLostError, Rejected (WORKSPACE_OFFLINE, SHUTTING_DOWN), the owner's status as
        PassedStatusError, and the method's errors.
        """
        context.set_trailing_metadata(self._router.trailers)
        try:
            subject = await self._subject(request)
        except ConversationNotFoundError:
            return await self._behaviour(request, context)  # raises the error for a missing conversation
        loop = asyncio.get_running_loop()
        until: float | None = None
        pause = 0.0
        while True:
            try:
                return await self._attempt(subject, raw, origin, request, context)
            except NotOwnerError:
                pass
            except Rejected as refused:
                if not self._moves_on(refused):
                    raise
            except PeerLostError as lost:
                if lost.sent and not (self._repeatable or _has_id(request)):
                    raise OwnerLostError from None
                if lost.hopeless:
                    raise NotOwnerError("the owner is alive but cannot be reached") from None
            if self._router.streams.closing:  # otherwise shutdown would cancel the call during the pause below
                raise Rejected(Reason.SHUTTING_DOWN)
            if until is None:  # set after the first failure, because a stream may have run for minutes before it failed
                left = context.time_remaining()
                patience = LEAVING_SECONDS if self._router.some_leave else SEARCH_SECONDS
                until = loop.time() + (patience if left is None else min(patience, left))
            if loop.time() + pause >= until:
                raise NotOwnerError("no owner was found in time")
            self._router.cluster.forget(subject)
            await asyncio.sleep(pause)
            pause = min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE)
            request = self._decode(raw)  # the method may have changed the request

    def _moves_on(self, refused: Rejected) -> bool:
        """Whether another node will soon serve a call refused at shutdown; False for streams, which clients resume."""
        stops = refused.reason is Reason.SHUTTING_DOWN and self._lane is not Lane.LASTING
        cluster = self._router.cluster
        me = cluster.me.incarnation
        return stops and any(node.incarnation != me and not node.draining for node in cluster.nodes())

    async def _subject(self, request: Any) -> str:
        """The conversation or directory of a request. Raises ConversationNotFoundError or the store's errors."""
        if self._place is ServingNode.DIRECTORY:
            return directory_in(request)
        return await self._router.resolver.identify(conversation_in(request))

    async def _attempt(
        self, subject: str, raw: bytes, origin: Callable[[], CommandOrigin], request: Any, context: Any
    ) -> Any:
        router = self._router
        owner = await router.node_for(self._place, subject, urgent=self._lane is Lane.URGENT)
        if owner is None:
            return await served_here(router, self._behaviour, request, context, claims=self._claims)
        call = ForwardedCall(
            method=self._method,
            request=raw,
            metadata=router.marks.on(origin()),
            lane=self._lane,
            seconds=self._seconds(context),
        )
        peer = router.peer(owner)
        if not self._streaming:
            with _counted(router.telemetry):
                response, trailers = await forward(peer, call)
            context.set_trailing_metadata(trailers)
            return response
        stream = ForwardedStream(router.streams, peer, call, context.write)
        try:
            with _counted(router.telemetry):
                await router.streams.attend(lambda: stream)
        except (PeerLostError, NotOwnerError):
            if stream.began:
                raise ClientDisconnectedError from None  # the client resumes after the last revision it received
            raise
        context.set_trailing_metadata(stream.trailers)
        return None

    def _seconds(self, context: Any) -> float | None:
        left: float | None = context.time_remaining()
        return limits.ANSWER_SECONDS if left is None and not self._claims else left
