"""Registers services with the gRPC server, so that urgent calls overtake others that wait to be accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import grpc
    import grpc.aio

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

URGENT = frozenset({"CancelConversation", "SetMode"})
"""Methods whose calls are accepted ahead of all others, however many of those wait."""


def registry_of(server: grpc.aio.Server) -> grpc.aio.Server:
    """Return what generated code takes for the server when it registers a service."""
    return cast("grpc.aio.Server", MethodRegistry(server))


class MethodRegistry:
    """Stands in for the server in generated code, and registers only the urgent methods individually.

    grpc.aio has a queue for each registered method, and one for all other methods. It waits on all of these queues
    for every single call, so registering all methods, as generated code does, makes each call a quarter slower.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Add handlers of any methods."""
        self._server.add_generic_rpc_handlers(generic_rpc_handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        """Give the urgent ones of these methods queues of their own; the generic handlers have the others."""
        urgent = {name: handler for name, handler in method_handlers.items() if name in URGENT}
        if urgent:
            self._server.add_registered_method_handlers(service_name, urgent)
