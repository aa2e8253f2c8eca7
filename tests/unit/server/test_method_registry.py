"""Only urgent calls have queues of their own: each queue makes every call slower."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

from bedrock import v1

from server.cluster.forwarding import URGENT
from server.services.grpc_server import registry_of

if TYPE_CHECKING:
    import grpc
    import grpc.aio


class Server:
    """Notes what is registered."""

    def __init__(self) -> None:
        self.generic: list[grpc.GenericRpcHandler] = []
        self.apart: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        self.generic += handlers

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        assert service == "bedrock.v1.ConversationService"
        self.apart.update(handlers)

    def serves(self, service: str, method: str) -> bool:
        details: Any = SimpleNamespace(method=f"/bedrock.v1.{service}/{method}", invocation_metadata=())
        return any(handler.service(details) is not None for handler in self.generic)


def test_urgent_methods_have_queues_of_their_own_and_all_methods_are_served() -> None:
    server, servicer = Server(), Mock()
    registry = registry_of(cast("grpc.aio.Server", server))
    v1.add_ConversationServiceServicer_to_server(servicer, registry)
    v1.add_CatalogServiceServicer_to_server(servicer, registry)
    assert set(server.apart) == URGENT == {"CancelConversation", "SetMode"}
    for method in (*URGENT, "SendMessage", "Subscribe", "GetConversation"):
        assert server.serves("ConversationService", method)
    assert server.serves("CatalogService", "ListTools")
