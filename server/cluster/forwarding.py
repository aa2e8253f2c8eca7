"""Which node of a cluster serves a gRPC method, and the forwarding of a call to the node that owns its conversation.

A call is forwarded in a single attempt. Requests and responses are forwarded as bytes; the owner's gRPC status and its
details are returned unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

import grpc
import grpc.aio

from actors.core.errors import Reason, Rejected
from actors.ports import NotOwnerError
from server.auth.authorization import CATALOG, CONVERSATIONS, NEEDED
from server.auth.principals import Role
from server.cluster.peers import NOT_OWNER, OWNER, Lane, Metadata, NodeConnections, PeerLostError, is_cancelled
from server.contract.errors import AnswerTimeoutError
from server.streams.base import Stream, Streams

URGENT = frozenset({"CancelConversation", "SetMode"})
"""Methods whose calls are accepted and forwarded before all other waiting calls."""


class ServingNode(Enum):
    """The node of the cluster that serves the calls of a method."""

    HERE = "here"
    """The node that was called. It needs only the shared store or its own settings."""
    OWNER = "owner"
    """The node that owns the conversation, and so runs the actor that may change it."""
    WATCHED = "watched"
    """The node that owns the conversation. Such calls last long, and need events that only the owner has in memory."""
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

# Methods for the role USER change a conversation, so its owner serves them; all others only read, which every node can.
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
    """Forward a unary call; the response and its trailing metadata.

    Raises PassedStatusError (not OK), NotOwnerError (nothing was changed), PeerLostError (no answer) or
    AnswerTimeoutError (the deadline).
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
    """Re-raise the current CancelledError, or PeerLostError if the node was declared dead. In `except` blocks only."""
    if peer.cut and not is_cancelled():
        raise PeerLostError(sent=True) from None
    raise  # noqa: PLE0704 -- called in the handler of the exception


def _raise_for(error: grpc.aio.AioRpcError, peer: NodeConnections) -> NoReturn:
    """Raise the exception of `forward` for a failed call; a trailer with an address shows that a node has answered."""
    trailers: Metadata = tuple(error.trailing_metadata() or ())
    names = {name for name, _ in trailers}
    if NOT_OWNER in names:
        raise NotOwnerError("the node that was thought to own it does not") from None
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

    The next message is read once the client has the previous one. Limits, slow readers and shutdown are as for all
    streams.
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
        """Ends the stream: `_open` has forwarded all messages."""
        return False
