"""Which node serves which method, and how a node proves that it is one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from bedrock.v1 import catalog_service_pb2, conversation_service_pb2

from actors.ports.cluster import Cluster, Node
from actors.ports.records import CommandOrigin
from actors.ports.telemetry import Telemetry
from server.auth.authorization import CONVERSATIONS, NEEDED
from server.cluster.forwarding import PLACES, URGENT, ServingNode
from server.cluster.peers import TOKEN, NodeMarks
from server.cluster.router import REPEATABLE, CallRouter, NodeAccess, directory_in
from server.contract.resource_names import conversation_in
from server.services.interceptors import READS
from tests.unit.server.test_checks import GOOD, made

REQUESTS = {
    f"/{service.full_name}/{method.name}": method.input_type._concrete_class
    for file in (catalog_service_pb2, conversation_service_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def test_what_changes_a_conversation_is_never_done_by_any_node() -> None:
    """It has an actor on its owner only. A creation has none yet: its directory decides."""
    assert PLACES.keys() == REQUESTS.keys() == NEEDED.keys()
    changing = {method for method in PLACES if not method.rpartition("/")[2].startswith(READS)}
    here = {method for method, place in PLACES.items() if place is ServingNode.HERE}
    assert changing
    assert not changing & here
    owned = {method for method, place in PLACES.items() if place is ServingNode.OWNER}
    assert owned - changing == {f"{CONVERSATIONS}GetConversation"}


@pytest.mark.parametrize(
    "method", [method for method, place in PLACES.items() if place not in (ServingNode.HERE, ServingNode.DIRECTORY)]
)
def test_a_request_that_needs_the_owner_names_a_conversation(method: str) -> None:
    kind = REQUESTS[method]
    kind_of_name, _, key = conversation_in(made(kind, GOOD[kind])).partition("/")
    assert kind_of_name == "conversations"
    assert key
    assert "/" not in key


@pytest.mark.parametrize("method", [method for method, place in PLACES.items() if place is ServingNode.DIRECTORY])
def test_a_request_that_needs_a_directory_names_it(method: str) -> None:
    kind = REQUESTS[method]
    request: Any = made(kind, GOOD[kind])
    given = request.path if hasattr(request, "path") else request.conversation.working_directory
    assert directory_in(request) == given


def test_what_is_repeated_is_named_as_in_the_contract() -> None:
    names = {method.rsplit("/", 1)[1] for method, place in PLACES.items() if place is not ServingNode.HERE}
    assert names > REPEATABLE
    assert names > URGENT


@pytest.mark.parametrize("token", ["", "short", "x" * 31, "x" * 40 + " ", "x" * 40 + "\n", "ä" * 40])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="at least 32 printable"):
        NodeMarks(token)


def test_a_death_that_is_told_after_the_end_is_of_no_interest() -> None:
    async def begin() -> CallRouter:
        made: Any = None
        return CallRouter(Cluster(), NodeAccess(token="t" * 40), made, made, made, telemetry=Telemetry())

    router = asyncio.run(begin())
    router.peer_died(Node(2))
    asyncio.run(router.close())


def test_a_mark_says_who_calls() -> None:
    marks = NodeMarks("t" * 40)
    origin = CommandOrigin("ann", "user", "id-1", "ipv4:192.0.2.1", "SendMessage", "r")
    assert NodeMarks.among(marks.on(origin))
    assert marks.origin(marks.on(origin)) == origin
    assert not NodeMarks.among((("authorization", "Bearer x"),))
    assert marks.origin((*marks.on(origin), (TOKEN, "t" * 40))) is None, "it counts if it is given once"
