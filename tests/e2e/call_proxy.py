"""A gRPC proxy in front of two nodes: conversations are made at one, and everything else is called at the other.

`python -m tests.e2e.call_proxy OWNER OTHER` says where it listens, and ends when its standard input does. Calls of
every kind pass as bytes, with their metadata, deadline and cancellation; so do the answers, their status and trailers.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

MAKING = frozenset({"CreateConversation", "ForkConversation"})
"""Methods called at the node that then owns the conversation."""
REFLECTION = "/grpc.reflection."
"""The services whose clients send a stream. A request that is sent alone cannot fail because it is refused unread."""
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 64 * 1024),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
)
FROM_THE_CONNECTION = frozenset({"user-agent"})
"""Metadata that the connection to the node has itself."""


class CallProxy(grpc.GenericRpcHandler):
    """Takes all calls."""

    def __init__(self, owner: grpc.aio.Channel, other: grpc.aio.Channel) -> None:
        self._owner, self._other = owner, other

    def service(self, handler_call_details: Any) -> Any:
        """Return what passes on the calls of a method. On the wire, one answer is like a stream of answers."""
        method: str = handler_call_details.method
        channel = self._owner if method.rpartition("/")[2] in MAKING else self._other
        if method.startswith(REFLECTION):
            return grpc.stream_stream_rpc_method_handler(_passing(channel.stream_stream(method)))
        return grpc.unary_stream_rpc_method_handler(_passing(channel.unary_stream(method)))


def _passing(method: Any) -> Callable[[bytes | AsyncIterator[bytes], Any], Awaitable[None]]:
    async def passed(request: bytes | AsyncIterator[bytes], context: Any) -> None:
        await _pass(method, request, context)

    return passed


async def _pass(method: Any, request: bytes | AsyncIterator[bytes], context: Any) -> None:
    metadata = [(name, value) for name, value in context.invocation_metadata() if name not in FROM_THE_CONNECTION]
    call = method(request, metadata=metadata, timeout=context.time_remaining())
    try:
        await context.send_initial_metadata(tuple(await call.initial_metadata()))
        async for answer in call:
            await context.write(answer)
    except grpc.aio.AioRpcError:
        pass  # its status is passed on
    finally:
        call.cancel()  # if the client has gone
    context.set_trailing_metadata(tuple(await call.trailing_metadata()))
    if (code := await call.code()) is not grpc.StatusCode.OK:
        context.set_code(code)
        context.set_details(await call.details())


async def main() -> None:
    """Pass calls on until standard input ends."""
    async with (
        grpc.aio.insecure_channel(sys.argv[1], options=OPTIONS) as owner,
        grpc.aio.insecure_channel(sys.argv[2], options=OPTIONS) as other,
    ):
        server = grpc.aio.server(handlers=[CallProxy(owner, other)], options=OPTIONS)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(f"127.0.0.1:{port}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main())
