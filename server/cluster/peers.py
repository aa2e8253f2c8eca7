"""The connections to other nodes: made when they are needed, kept, and cut when their node is declared dead.

A node has several connections to another, because a connection takes a limited number of calls at a time: calls that
last have theirs, and urgent calls have one that no other call fills.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from enum import Enum
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from server.contract import limits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from actors.ports.cluster import Node

log = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
"""How long a connection may take, with TLS: a host that is gone does not even refuse it."""
LASTING_CALLS = limits.MAX_STREAMS_PER_CONNECTION * 3 // 4
"""Calls that last on one connection: fewer than a server admits, so that none has to wait for the end of another."""

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.use_local_subchannel_pool", 1),  # otherwise all lanes would share one connection
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),  # the owner bounds its answers
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 12_000),  # servers take one every 10 s
    ("grpc.keepalive_timeout_ms", 8_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class PeerLostError(Exception):
    """The connection to a node was lost, or could not be made."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__("the connection to the owner was lost" if sent else "the owner cannot be reached")
        self.sent = sent
        """Whether the call may have reached the node."""


class Lane(Enum):
    """What calls have a connection of their own."""

    CALLS = "calls"
    URGENT = "urgent"
    LASTING = "lasting"


class Peer:
    """The connections to one node. Event loop only."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        self._credentials = credentials
        self._channels: dict[tuple[Lane, int], grpc.aio.Channel] = {}
        self._in_use: dict[tuple[Lane, int], int] = {}
        self.cut = False
        """Whether the node is declared dead: its calls were ended."""
        self._unreachable = False

    @asynccontextmanager
    async def channel(self, lane: Lane) -> AsyncGenerator[grpc.aio.Channel]:
        """Lend a channel that is connected. Raises PeerLostError, with `sent` false."""
        number = 0
        if lane is Lane.LASTING:
            while self._in_use.get((lane, number), 0) >= LASTING_CALLS:
                number += 1
        key = lane, number
        self._in_use[key] = self._in_use.get(key, 0) + 1
        try:
            yield await self._connected(key)
        finally:
            self._in_use[key] -= 1

    async def _connected(self, key: tuple[Lane, int]) -> grpc.aio.Channel:
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
            if _wanted_elsewhere():
                raise
            self._tell_unreachable()
            raise PeerLostError(sent=False) from None
        self._unreachable = False
        return channel

    def _tell_unreachable(self) -> None:
        """Log it once until it is reached again; not of a node that is dead."""
        if not (self._unreachable or self.cut):
            secured = "with TLS, by cluster.ca" if self._credentials is not None else "without TLS"
            log.warning("the node at %s cannot be reached %s; every call for it tries again", self.address, secured)
            self._unreachable = True

    def _open(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        return grpc.aio.secure_channel(self.address, self._credentials, options=_OPTIONS)

    async def close(self) -> None:
        """End all calls to this node, and the connections."""
        self.cut = True
        channels = tuple(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()


async def _until_ready(channel: grpc.aio.Channel, state: grpc.ChannelConnectivity) -> None:
    """Wait for a connection. Raises PeerLostError if an attempt fails."""
    while state is not grpc.ChannelConnectivity.READY:
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            raise PeerLostError(sent=False)


def _wanted_elsewhere() -> bool:
    """Whether the current task was itself cancelled; what is cut ends the calls of gRPC in the same way."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Peers:
    """The connections to all nodes. Event loop only.

    A node that starts anew at the same address is another one, whose calls do not end with those of its predecessor.
    """

    def __init__(self, credentials: grpc.ChannelCredentials | None = None) -> None:
        """`credentials` of connections; None: without TLS."""
        self._credentials = credentials
        self._peers: dict[int, Peer] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __contains__(self, node: Node) -> bool:
        return node.incarnation in self._peers

    def of(self, node: Node) -> Peer:
        """Return the connections to a node."""
        peer = self._peers.get(node.incarnation)
        if peer is None:
            peer = self._peers[node.incarnation] = Peer(node.address, self._credentials)
        return peer

    def cut(self, incarnation: int) -> None:
        """End all calls to a node."""
        if (peer := self._peers.pop(incarnation, None)) is not None:
            closing = asyncio.get_running_loop().create_task(peer.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def keep_only(self, nodes: Iterable[Node]) -> None:
        """Cut the connections to all nodes but these."""
        for incarnation in self._peers.keys() - {node.incarnation for node in nodes}:
            self.cut(incarnation)

    async def close(self) -> None:
        """Cut all connections, and wait for their ends."""
        self.keep_only(())
        if self._closing:
            await asyncio.wait(self._closing)
