"""Lets clients of this node watch the list of all conversations in the cluster, and greets new nodes.

While clients watch the list here, this node receives the list changes of every other node. A node sends to other nodes
only the changes of its own conversations, never changes that it has received, and it sends complete records, so that
the receivers need not read the database. If changes may have been missed (because a node joined, was lost or could not
be reached), the clients' streams end, and the clients begin again with the whole list, as after any broken connection.

Each node calls every new node once, so that misconfiguration, such as different tokens, is logged early.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import msgspec

from actors.core.errors import Reason, Rejected
from actors.ports import ConversationRecord
from actors.ports.cluster import Cluster, Node
from actors.ports.records import CommandOrigin
from actors.publishing.conversation_list import ListChange, ListFeed
from server.auth.principals import LOCAL, Role
from server.cluster.peers import Lane, NodeConnections, NodeMarks, PeerLostError, Peers, is_cancelled
from server.contract.errors import SlowReaderError
from server.streams.base import Stream, Streams, Wakeups
from server.streams.watch_conversations import FollowedNodes

log = logging.getLogger(__name__)

WATCH_LIST = "/bedrock.nodes.v1.Nodes/WatchList"
# How many seconds a client's new stream waits for other nodes' lists before it begins without the missing ones.
READY_SECONDS = 2.0
# Seconds between two checks for new nodes, and between two attempts to connect to a node.
LOOK_SECONDS = 1.0
# Seconds to pause after sending changes, so that frequent changes are sent together.
PAUSE_SECONDS = 0.05
CHANGES_PER_FRAME = 64

SELF = CommandOrigin(LOCAL, Role.OPERATOR.value)


class NodeChange(msgspec.Struct, frozen=True, array_like=True):
    id: str
    record: ConversationRecord
    deleted: bool


_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(tuple[NodeChange, ...])


class NodeListStream(Stream):
    """Sends this node's list changes to another node. The first message is empty: after it, no change is missed."""

    def __init__(
        self, streams: Streams, feed: ListFeed, wakeups: Wakeups, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        super().__init__(streams, write)
        self._watch = feed.attach(lambda: wakeups.wake(self.wake))

    def close(self) -> None:
        self._watch.close()

    async def _open(self) -> None:
        await self._out.send(_encode(()))

    async def _go_on(self) -> bool:
        self._woken.clear()
        closing = self._streams.closing  # read first, so that no change from before the shutdown is lost
        changes = [change for change in self._watch.read() if not (change.elsewhere or change.outdated)]
        for start in range(0, len(changes), CHANGES_PER_FRAME):
            await self._out.send(_frame(changes[start : start + CHANGES_PER_FRAME]))
        if closing:
            raise Rejected(Reason.SHUTTING_DOWN)
        if self._silent():
            await self._out.send(_encode(()))
        await asyncio.sleep(PAUSE_SECONDS)
        return True


def _frame(changes: Sequence[ListChange]) -> bytes:
    return _encode([NodeChange(change.id, change.record, change.deleted) for change in changes])


def list_handler(streams: Streams, feed: ListFeed, wakeups: Wakeups) -> grpc.RpcMethodHandler[Any, Any]:
    async def serve(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            await streams.attend(lambda: NodeListStream(streams, feed, wakeups, context.write))
        except (Rejected, SlowReaderError) as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    return grpc.stream_stream_rpc_method_handler(serve, None, None)


def _others(cluster: Cluster) -> dict[int, Node]:
    me = cluster.me.incarnation
    return {node.incarnation: node for node in cluster.nodes() if node.incarnation != me and node.address}


class NodeLists:
    """Receives the list changes of other nodes, and publishes them in this node's feed. Use only on the event loop."""

    def __init__(self, cluster: Cluster, peers: Peers, marks: NodeMarks, feed: ListFeed) -> None:
        self._cluster, self._peers, self._marks, self._feed = cluster, peers, marks, feed
        self._watchers: set[FollowedNodes] = set()
        """One object for each client that watches the list. It ends the client's stream if changes may be missing."""
        self._waiting = 0
        self._following: dict[Node, asyncio.Task[None]] = {}
        self._ready: set[Node] = set()
        self._changed = asyncio.Condition()
        self._looking: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def followed(self) -> AsyncGenerator[FollowedNodes]:
        """Receive all nodes' list changes during the block. It begins once all nodes send them, or after READY_SECONDS.

        The yielded object shows whether changes may have been missed.
        """
        self._waiting += 1
        watcher = FollowedNodes()
        try:
            self._look()
            if self._looking is None:
                self._looking = asyncio.get_running_loop().create_task(self._look_again())
            with suppress(TimeoutError):
                async with asyncio.timeout(READY_SECONDS), self._changed:
                    await self._changed.wait_for(lambda: self._ready >= self._following.keys())
            self._watchers.add(watcher)
            yield watcher
        finally:
            self._waiting -= 1
            self._watchers.discard(watcher)
            if not self._waiting:
                self._stop()

    def _look(self) -> None:
        """Start to receive the changes of new nodes, and stop receiving those of nodes that no longer exist."""
        known = {node.incarnation for node in self._following}
        living = _others(self._cluster)
        for node in [node for node in self._following if node.incarnation not in living]:
            self._following.pop(node).cancel()
            self._ready.discard(node)
            self._missed()
        for incarnation in living.keys() - known:
            node = living[incarnation]
            self._following[node] = asyncio.get_running_loop().create_task(self._follow(node))

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look()

    async def _follow(self, node: Node) -> None:
        """Publish the changes of a node until this task is cancelled. Connects again after every failure."""
        while True:
            try:
                await self._read(node)
            except (PeerLostError, grpc.aio.AioRpcError, msgspec.MsgspecError) as error:
                log.debug("lost the conversation list of node %s; reconnecting: %s", node.name, type(error).__name__)
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
            self._ready.discard(node)
            await asyncio.sleep(LOOK_SECONDS)

    async def _read(self, node: Node) -> None:
        async with self._peers.of(node).channel(Lane.LASTING) as channel:
            method: Any = channel.unary_stream(WATCH_LIST)
            calling = method(b"", metadata=self._marks.on(SELF))
            try:
                async for frame in calling:
                    if node not in self._ready:
                        self._ready.add(node)
                        self._missed()
                        async with self._changed:
                            self._changed.notify_all()
                    for change in _decoder.decode(frame):
                        self._feed.changed_elsewhere(change.id, change.record, deleted=change.deleted)
            finally:
                calling.cancel()

    def _missed(self) -> None:
        """End the streams of all clients that watch the list: they may have missed changes, and have to begin again."""
        watchers, self._watchers = self._watchers, set()
        for watcher in watchers:
            watcher.interrupt()

    def _stop(self) -> None:
        for task in (*self._following.values(), *([self._looking] if self._looking else ())):
            task.cancel()
        self._following.clear()
        self._ready.clear()
        self._looking = None


# The method of the first call to another node. It returns that node's incarnation, a number that distinguishes a
# restarted node from its predecessor.
GREET = "/bedrock.nodes.v1.Nodes/Greet"
# A node is listed before it begins to listen, so it may leave greetings unanswered for this many seconds without a
# warning.
NEW_SECONDS = 5.0
ANSWER_SECONDS = 2.0


def greeting_handler(cluster: Cluster) -> grpc.RpcMethodHandler[Any, Any]:
    """Answer GREET with this node's incarnation, if the call has the token that all nodes share."""

    async def serve(_request: bytes, _context: Any) -> bytes:
        return str(cluster.me.incarnation).encode()

    return grpc.unary_unary_rpc_method_handler(serve, None, None)


class Greetings:
    """Calls every other node of the cluster until that node has answered once. Use only on the event loop."""

    def __init__(self, cluster: Cluster, peers: Peers, marks: NodeMarks) -> None:
        self._cluster, self._peers, self._marks = cluster, peers, marks
        # When each node that has not answered was first seen, in seconds of the event loop's clock. The keys are
        # incarnations: numbers that nodes get when they start.
        self._seen: dict[int, float] = {}
        self._answered: set[int] = set()

    async def run(self) -> None:
        """Call nodes that have not answered yet, every LOOK_SECONDS, until this task is cancelled."""
        while True:
            await self.greet()
            await asyncio.sleep(LOOK_SECONDS)

    async def greet(self) -> None:
        """Call each node that has not answered yet, once, and wait for the answers."""
        others = _others(self._cluster)
        self._answered &= others.keys()
        self._seen = {incarnation: at for incarnation, at in self._seen.items() if incarnation in others}
        new = [node for incarnation, node in others.items() if incarnation not in self._answered]
        await asyncio.gather(*map(self._greet, new))

    async def _greet(self, node: Node) -> None:
        now = asyncio.get_running_loop().time()
        quiet = now - self._seen.setdefault(node.incarnation, now) < NEW_SECONDS
        peer = self._peers.of(node)
        try:
            async with peer.channel(Lane.CALLS, quiet=quiet) as channel:
                method: Any = channel.unary_unary(GREET)
                answer = await method(b"", metadata=self._marks.on(SELF), timeout=ANSWER_SECONDS)
        except PeerLostError:
            return
        except grpc.aio.AioRpcError as error:
            if not quiet:
                _tell(peer, error)
            return
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return  # the node was declared dead, and its connection closed
        if answer == str(node.incarnation).encode():
            self._answered.add(node.incarnation)
            self._seen.pop(node.incarnation, None)
            peer.accepts()
        elif not quiet:
            peer.misled()


def _tell(peer: NodeConnections, error: grpc.aio.AioRpcError) -> None:
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        peer.refuses()
    else:
        log.debug("the node at %s does not respond: %s", peer.address, error.code().name)
