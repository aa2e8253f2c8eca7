"""Connections to other nodes of the cluster, and the metadata that proves a node's identity and names the caller.

There are several connections to each node, because one connection carries a limited number of concurrent calls. Long
streams and urgent calls have their own connections, so that other calls cannot make them wait. A connection is
opened when needed, kept open, and closed when its node is declared dead.

The token that all nodes share proves that a node has sent the call. The node that a client called has authenticated the
caller, and checked the role, the quotas and the operator's rules; it does not pass on the caller's own token. The node
that receives the call believes the metadata about the caller only if the token is valid.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from enum import Enum
from typing import NamedTuple, TypeAlias

import grpc
import grpc.aio
import msgspec

from actors.common.machine import OutageLog
from actors.ports.cluster import Node
from actors.ports.records import CommandOrigin
from actors.ports.telemetry import trace_parent
from server.contract import limits

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]

TOKEN, ORIGIN = "bedrock-node-token", "bedrock-origin-bin"
# Every response from a node has this trailer, with the address of the node that served the call.
OWNER = "bedrock-owner"
# The trailer with which a node refuses a forwarded call, without any effect, because it does not own the conversation.
NOT_OWNER = "bedrock-not-owner"
MAX_ORIGIN_BYTES = 4_096
MIN_TOKEN_CHARS = 32

_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(CommandOrigin)


class NodeMarks:
    def __init__(self, token: str) -> None:
        """Keep the token that all nodes share. Raises ValueError if the token is too short, or not printable ASCII."""
        if len(token) < MIN_TOKEN_CHARS or not (token.isascii() and token.isprintable()) or token != token.strip():
            raise ValueError(
                f"the nodes' token must be at least {MIN_TOKEN_CHARS} printable ASCII characters, no spaces around it"
            )
        self._token = token

    def on(self, origin: CommandOrigin) -> Metadata:
        """The metadata of a call to another node: the token, the caller (`origin`) and any trace context."""
        marks = ((TOKEN, self._token), (ORIGIN, _encode(origin)))
        traced = trace_parent.get()
        return (*marks, ("traceparent", traced)) if traced else marks

    @staticmethod
    def among(metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Whether the metadata claims, rightly or not, that another node has sent the call."""
        return any(key in (TOKEN, ORIGIN) for key, _ in metadata)

    def origin(self, metadata: Iterable[tuple[str, str | bytes]]) -> CommandOrigin | None:
        """The caller that a forwarded call's metadata names; None if the token or caller is missing or invalid."""
        found = [(key, value) for key, value in metadata if key in (TOKEN, ORIGIN)]
        tokens = [value for key, value in found if key == TOKEN]
        origins = [value for key, value in found if key == ORIGIN]
        token = tokens[0] if len(tokens) == 1 else ""
        given = token.encode() if isinstance(token, str) else token
        if not hmac.compare_digest(given, self._token.encode()) or len(origins) != 1:
            return None
        raw = origins[0]
        if isinstance(raw, str) or len(raw) > MAX_ORIGIN_BYTES:
            return None
        try:
            origin = _decoder.decode(raw)
        except msgspec.MsgspecError:
            return None
        return origin if origin.principal else None


LOOK_SECONDS = 2.0

_SILENT = "no response; check that its cluster.address is reachable from other machines and that no firewall blocks it"
_CLOSED = "connection refused: the node has stopped, or does not listen on its cluster.address"
_UNKNOWN = "the host name in its cluster.address cannot be resolved on this machine"
_NEEDS_TLS = "it uses TLS; set cluster.ca here to the authorities that sign the nodes' certificates"
_HAS_NO_TLS = "it does not use TLS; set tls_certificate and tls_key there, or remove cluster.ca on all nodes"
_NO_NODE = "it is not a node, or accepts no more connections"
_UNTRUSTED = "its certificate is not signed by cluster.ca here, or is for another host"
_PASSED = "a connection made shortly afterwards succeeded"


class Obstacle(NamedTuple):
    text: str
    for_good: bool = False
    """Whether the node is certain to stay unreachable until somebody changes a setting."""


async def why_unreachable(address: str, authorities: bytes | None) -> Obstacle:
    """Why a node at "host:port" cannot be reached, with and without TLS.

    `authorities` are those of cluster.ca, or None.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        await _tried(host, int(port), None)
    except TimeoutError:
        return Obstacle(_SILENT)
    except ConnectionRefusedError:
        return Obstacle(_CLOSED)
    except (socket.gaierror, UnicodeError):
        return Obstacle(_UNKNOWN)
    except OSError as error:
        return Obstacle(f"{(error.strerror or 'it cannot be reached').lower()}; check its cluster.address")
    try:
        await _tried(host, int(port), _context(authorities))
    except ssl.SSLCertVerificationError as error:
        return Obstacle(f"{_UNTRUSTED}: {error.verify_message}", for_good=True)
    except ssl.SSLError:
        return Obstacle(_HAS_NO_TLS, for_good=True) if authorities else Obstacle(_NO_NODE)
    except OSError:  # includes TimeoutError
        return Obstacle(_HAS_NO_TLS if authorities else _NO_NODE)
    return Obstacle(_PASSED) if authorities else Obstacle(_NEEDS_TLS, for_good=True)


async def _tried(host: str, port: int, context: ssl.SSLContext | None) -> None:
    """Connect, with TLS if there is a context, and close the connection. Raises OSError, such as TimeoutError."""
    async with asyncio.timeout(LOOK_SECONDS):
        name = None if context is None else host
        _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    writer.transport.abort()


def _context(authorities: bytes | None) -> ssl.SSLContext:
    """A TLS context for a test connection. If `authorities` is None, it trusts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if authorities is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context.load_verify_locations(cadata=authorities.decode("ascii"))
    return context


log = logging.getLogger(__name__)

# Maximum seconds to connect: without a limit, an attempt to reach a dead host could hang for minutes.
CONNECT_SECONDS = 2.0
# After a node was unreachable for this many seconds without being declared dead, calls to it are no longer repeated.
HOPELESS_SECONDS = 20.0
# Maximum number of long calls per connection: fewer than a server admits, so that no stream has to wait until another
# one ends.
LASTING_CALLS = limits.MAX_STREAMS_PER_CONNECTION * 3 // 4

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.use_local_subchannel_pool", 1),  # without this option, all kinds of calls would share one connection
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),  # no limit here: the node that responds limits its responses
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 12_000),  # servers allow one keepalive ping every 10 s
    ("grpc.keepalive_timeout_ms", 8_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class PeerLostError(Exception):
    def __init__(self, *, sent: bool, hopeless: bool = False) -> None:
        super().__init__("the connection to the owner was lost" if sent else "the owner cannot be reached")
        self.sent = sent
        self.hopeless = hopeless
        """Whether repeating the call is useless, because it will fail until somebody changes a setting."""


class Lane(Enum):
    CALLS = "calls"
    URGENT = "urgent"
    LASTING = "lasting"


class NodeConnections:
    """The connections to one other node. Use only on the event loop."""

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None = None,
        authorities: bytes | None = None,
        name: str = "",
    ) -> None:
        """Prepare the connections, which the first call opens.

        `authorities`, in PEM, help to diagnose failures; `name` appears in the log.
        """
        self.address = address
        self._called = f"node {name} at {address}" if name else f"the node at {address}"
        self._credentials = credentials
        self._authorities = authorities
        self._channels: dict[tuple[Lane, int], grpc.aio.Channel] = {}
        self._in_use: dict[tuple[Lane, int], int] = {}
        self.cut = False
        self._lost_since: float | None = None
        self._for_good = False
        """Whether a diagnosis found that the node stays unreachable until somebody changes a setting."""
        self._unreachable = OutageLog(log, f"{self._called} can be reached again")
        self._refused = OutageLog(log, f"{self._called} accepts this node's calls again")
        self._misled = OutageLog(log, f"{self._called} is the expected node again")
        self._asking: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def channel(self, lane: Lane, *, quiet: bool = False) -> AsyncGenerator[grpc.aio.Channel]:
        """Yield a connected channel for one call, which ends with the block. Raises PeerLostError (`sent` is False).

        With `quiet`, a failure is not logged.
        """
        number = 0
        if lane is Lane.LASTING:
            while self._in_use.get((lane, number), 0) >= LASTING_CALLS:
                number += 1
        key = lane, number
        self._in_use[key] = self._in_use.get(key, 0) + 1
        try:
            yield await self._connected(key, quiet=quiet)
        finally:
            self._in_use[key] -= 1

    async def _connected(self, key: tuple[Lane, int], *, quiet: bool) -> grpc.aio.Channel:
        if self.cut:
            raise PeerLostError(sent=False)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = self._open()
        state = channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            return channel
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await _until_ready(channel, state)
        except (TimeoutError, asyncio.CancelledError, PeerLostError):
            if is_cancelled():
                raise
            raise PeerLostError(sent=False, hopeless=self._is_lost(quiet=quiet)) from None
        self._lost_since, self._for_good = None, False
        self._unreachable.worked()
        return channel

    def _is_lost(self, *, quiet: bool) -> bool:
        """Record a failed attempt to connect; log it unless `quiet`. Return whether further attempts are useless."""
        if self.cut:
            return False
        loop = asyncio.get_running_loop()
        if self._lost_since is None:
            self._lost_since = loop.time()
        if not quiet and self._asking is None:
            if self._unreachable.due:
                self._asking = loop.create_task(self._tell_unreachable())
            else:
                self._unreachable.failed("")
        return self._for_good or loop.time() - self._lost_since >= HOPELESS_SECONDS

    async def _tell_unreachable(self) -> None:
        try:
            why = await why_unreachable(self.address, self._authorities)
        finally:
            self._asking = None
        if not self.cut:
            secured = "without TLS" if self._credentials is None else "with TLS"
            self._for_good = why.for_good and self._lost_since is not None
            self._unreachable.failed(f"{self._called} cannot be reached {secured}: {why.text}")

    def refuses(self) -> None:
        """Record that the node refuses this node's token; log the first refusal until a call is accepted."""
        self._refused.failed(
            f"{self._called} rejects this node's token; cluster.token_file must contain the same token on both nodes"
        )

    def accepts(self) -> None:
        """Record that the expected node has answered at this address, and has accepted this node's token."""
        for outages in (self._refused, self._misled):
            outages.worked()

    def misled(self) -> None:
        """Record that another node answers at this address; log it once until the expected one does."""
        self._misled.failed(f"{self._called} did not respond; another node responds at its cluster.address")

    def _open(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        return grpc.aio.secure_channel(self.address, self._credentials, options=_OPTIONS)

    async def close(self) -> None:
        self.cut = True
        if self._asking is not None:
            self._asking.cancel()
        channels = tuple(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()


async def _until_ready(channel: grpc.aio.Channel, state: grpc.ChannelConnectivity) -> None:
    """Wait until the channel is connected. Raises PeerLostError if an attempt to connect fails."""
    while state is not grpc.ChannelConnectivity.READY:
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            raise PeerLostError(sent=False)


def is_cancelled() -> bool:
    """Whether the current task was cancelled; False if a CancelledError only means that a connection closed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Peers:
    """The connections to all other nodes. Use only on the event loop. A restarted node counts as a new one."""

    def __init__(self, credentials: grpc.ChannelCredentials | None = None, authorities: bytes | None = None) -> None:
        """`credentials` trust `authorities`, which are in PEM; both are None without TLS."""
        self._credentials = credentials
        self._authorities = authorities
        self._peers: dict[int, NodeConnections] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __contains__(self, node: Node) -> bool:
        return node.incarnation in self._peers

    def of(self, node: Node) -> NodeConnections:
        """The connections to a node. They are opened at the first call."""
        peer = self._peers.get(node.incarnation)
        if peer is None:
            peer = self._peers[node.incarnation] = NodeConnections(
                node.address, self._credentials, self._authorities, node.name
            )
        return peer

    def cut(self, incarnation: int) -> None:
        """End all calls to the node with this incarnation; its connections are closed later."""
        if (peer := self._peers.pop(incarnation, None)) is not None:
            closing = asyncio.get_running_loop().create_task(peer.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def keep_only(self, nodes: Iterable[Node]) -> None:
        """End all calls to nodes that are not in `nodes`, and close the connections; return before they are closed."""
        for incarnation in self._peers.keys() - {node.incarnation for node in nodes}:
            self.cut(incarnation)

    async def close(self) -> None:
        """Close all connections, and wait until they are closed."""
        self.keep_only(())
        if self._closing:
            await asyncio.wait(self._closing)
