"""Forwards a call to the node (server of the cluster) that owns its conversation, in a single attempt.

Requests and responses are forwarded as bytes. The owner's gRPC status and its details are returned unchanged.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio

from actors.core.errors import Reason, Rejected
from actors.ports import NotOwnerError
from server.cluster.node_marks import NOT_OWNER, OWNER, Metadata
from server.cluster.peers import Lane, PeerLostError
from server.contract.errors import AnswerTimeoutError
from server.streams.base import Stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from server.cluster.peers import NodeConnections
    from server.streams.base import Streams


class PassedStatusError(Exception):
    """The node that owns the conversation has answered a forwarded call with a gRPC status other than OK."""

    def __init__(self, code: grpc.StatusCode, details: str, trailers: Metadata) -> None:
        super().__init__(details)
        self.code, self.details, self.trailers = code, details, trailers


@dataclass(frozen=True, kw_only=True)
class ForwardedCall:
    """A call to be forwarded to another node."""

    method: str
    """The full name of the method, e.g. "/bedrock.v1.ConversationService/SendMessage"."""
    request: bytes
    metadata: Metadata
    lane: Lane
    seconds: float | None
    """The seconds that remain until the call's deadline; None if it has no deadline."""


async def forward(peer: NodeConnections, call: ForwardedCall) -> tuple[bytes, Metadata]:
    """Forward a unary call to a node, and return the response and its trailing metadata.

    Raises:
        PassedStatusError: The owner answered with a status other than OK.
        NotOwnerError: The node is not the owner; nothing was changed.
        PeerLostError: There was no answer.
        AnswerTimeoutError: The deadline of the call has passed.
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
    """Re-raise the current CancelledError, or raise PeerLostError if the call ended because its node was declared dead.

    Call this only in an `except` block for a CancelledError.
    """
    task = asyncio.current_task()
    if peer.cut and task is not None and not task.cancelling():
        raise PeerLostError(sent=True) from None
    raise  # noqa: PLE0704 -- called in the handler of the exception


def _raise_for(error: grpc.aio.AioRpcError, peer: NodeConnections) -> NoReturn:
    """Raise the exception of `forward` that corresponds to the gRPC error of a failed call to another node.

    The trailing metadata shows whether a node or a proxy has answered: only nodes send a trailer with their address.
    """
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
    """Forwards a stream of messages from the conversation's owner to the client.

    The owner's next message is read once the client has received the previous one. As with all streams, the server
    limits their number, ends them if the client stops reading, and ends them at shutdown.
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
        """Cancel the call to the node that owns the conversation. May be called more than once."""
        if self._calling is not None:
            self._calling.cancel()

    def _end_at_shutdown(self) -> None:
        if self._streams.closing:
            self.close()

    async def _open(self) -> None:
        """Call the node that owns the conversation, and pass each message of its stream to the client.

        Returns when the stream ends. Raises the exceptions of `forward`, and Rejected (SHUTTING_DOWN) if this server
        shuts down earlier.
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
                task = asyncio.current_task()
                if self._streams.closing and task is not None and not task.cancelling():
                    raise Rejected(Reason.SHUTTING_DOWN) from None
                raise_unless_cut(self._peer)

    async def _go_on(self) -> bool:
        """Return False, which ends the stream: `_open` has already forwarded all messages."""
        return False
