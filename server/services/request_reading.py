"""Reads the request of a call within a time limit, because a client may begin a request and never finish it.

For a method with a single request, grpc.aio reads the whole request before it calls any other code: without a time
limit, and up to the maximum size even if the caller has no token. So all methods are registered as streams of requests,
of which this module reads one; clients see no difference.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import grpc.aio

from server.contract.errors import MalformedRequestError, RequestTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


async def read_request(context: Context, seconds: float | None) -> bytes:
    """Return the bytes of the request. Use in the event loop only.

    `seconds` is the time limit; None for the deadline of the call.

    Raises:
        RequestTimeoutError: The request was not complete within `seconds`.
        MalformedRequestError: The client has ended the call without a request.
    """
    try:
        async with asyncio.timeout(seconds):
            raw: Any = await context.read()
    except TimeoutError:
        raise RequestTimeoutError(seconds) from None
    if raw is grpc.aio.EOF:
        raise MalformedRequestError(("", "the call has no request"))
    request: bytes = raw
    return request


def reading_handler(behaviour: Callable[[Any, Context], Any], serialize: Any, *, response_streaming: bool) -> Handler:
    """Return a gRPC handler that calls `behaviour`, a coroutine function, before the request is read.

    `behaviour` gets an iterator of requests, which it must not use, and the context, which it passes to `read_request`.
    """
    if response_streaming:
        return grpc.stream_stream_rpc_method_handler(behaviour, None, serialize)
    return grpc.stream_unary_rpc_method_handler(behaviour, None, serialize)
