"""Greetings between the nodes of a cluster: each node calls every new node once, so that wrong settings show early.

The log tells the operator, for example, that the nodes have different tokens.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from server.cluster.node_lists import SELF
from server.cluster.peers import Lane, PeerLostError

if TYPE_CHECKING:
    from actors.ports.cluster import Cluster, Node
    from server.cluster.node_marks import NodeMarks
    from server.cluster.peers import NodeConnections, Peers

log = logging.getLogger(__name__)

GREET = "/bedrock.nodes.v1.Nodes/Greet"
"""The gRPC method of the first call to another node. The response is that node's incarnation.

A node gets this number when it starts, so that a restarted node can be told from its predecessor.
"""
LOOK_SECONDS = 1.0
"""Seconds between two rounds of calls to the nodes that have not answered yet."""
NEW_SECONDS = 5.0
"""How many seconds a new node may leave greetings unanswered before a warning is logged.

Such a delay is normal: a node is listed in the cluster before it begins to listen.
"""
ANSWER_SECONDS = 2.0


def greeting_handler(cluster: Cluster) -> grpc.RpcMethodHandler[Any, Any]:
    """Return the handler of GREET, which answers with this node's incarnation, the number it got when it started.

    The server calls the handler only for calls that carry the token that all nodes share.
    """

    async def serve(_request: bytes, _context: Any) -> bytes:
        return str(cluster.me.incarnation).encode()

    return grpc.unary_unary_rpc_method_handler(serve, None, None)


class Greetings:
    """Calls every other node of the cluster until that node has answered once. Use in the event loop only."""

    def __init__(self, cluster: Cluster, peers: Peers, marks: NodeMarks) -> None:
        self._cluster, self._peers, self._marks = cluster, peers, marks
        self._seen: dict[int, float] = {}
        """When each node that has not answered was first seen, in seconds of the event loop's clock.

        The keys are incarnations: numbers that nodes get when they start.
        """
        self._answered: set[int] = set()

    async def run(self) -> None:
        """Call nodes that have not answered yet, every LOOK_SECONDS, until this task is cancelled."""
        while True:
            await self.greet()
            await asyncio.sleep(LOOK_SECONDS)

    async def greet(self) -> None:
        """Call each node that has not answered yet, once, and wait for the answers."""
        me = self._cluster.me.incarnation
        others = {node.incarnation: node for node in self._cluster.nodes() if node.incarnation != me and node.address}
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
            task = asyncio.current_task()
            if task is None or task.cancelling():
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
        log.debug("the node at %s does not answer: %s", peer.address, error.code().name)
