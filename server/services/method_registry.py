"""Registers services with the gRPC server so that urgent calls are accepted before other waiting calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

from server.cluster.places import URGENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import grpc
    import grpc.aio

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def registry_of(server: grpc.aio.Server) -> grpc.aio.Server:
    """Return an object to pass to the generated registration functions in place of the server."""
    return cast("grpc.aio.Server", MethodRegistry(server))


class MethodRegistry:
    """Stands in for the server in generated registration code, and registers only the urgent methods individually.

    grpc.aio has a queue for each registered method, and one for all other methods. It waits on all of these queues for
    every single call. If all methods were registered, as generated code does, each call would be a quarter slower.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Pass handlers of whole services to the server. Generated code calls this."""
        self._server.add_generic_rpc_handlers(generic_rpc_handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        """Register only the urgent methods, so that gRPC keeps a separate queue for the calls of each.

        The other methods are served by the handlers that `add_generic_rpc_handlers` has added.
        """
        urgent = {name: handler for name, handler in method_handlers.items() if name in URGENT}
        if urgent:
            self._server.add_registered_method_handlers(service_name, urgent)
