"""Two nodes with real conversations, and a client that knows only one of them, when the other one dies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import bedrock
import pytest
from bedrock.testing.waiting import within

from actors.core.content import ToolUse
from actors.messages import CreateConversationCommand
from actors.ports.cluster import Node
from server.auth.authentication import Authentication
from server.auth.principals import LOCAL
from server.cluster.router import NodeAccess
from server.services.grpc_server import GrpcServer
from server.settings.setting_values import Listen
from tests.integration.actors.conftest import Talk, World
from tests.integration.server.grpc_harness import TOKEN, Loop
from tests.integration.server.two_nodes import NODES_TOKEN, FakeCluster
from tests.support.patience import PATIENCE, eventually
from tests.support.stores import SharedDatabase


class StoreCluster(FakeCluster):
    """Knows who owns what from the store (ports.Cluster)."""

    shared: SharedDatabase

    def owner_of(self, conversation_id: str) -> Node | None:
        owner = self.shared.owner(conversation_id)
        return next((node for node in self.others if node.incarnation == owner), None)


class WorkingNode:
    """A server with everything but models and tools, which the test plays."""

    def __init__(self, loop: Loop, shared: SharedDatabase, incarnation: int, opened: ExitStack) -> None:
        self.cluster = StoreCluster(incarnation)
        self.cluster.shared = shared
        self.world = World(shared.node(incarnation), cluster=self.cluster)
        opened.callback(self.world.close)
        self.cluster.on_taken = self.world.supervisor.wake
        self._loop = loop
        self.endpoint, self.address = loop.do(self._start())
        opened.callback(lambda: loop.do(self.endpoint.stop()))
        self.cluster.node = Node(incarnation, address=self.address)

    async def _start(self) -> tuple[GrpcServer, str]:
        world = self.world
        endpoint = GrpcServer(
            world.services, world.hub, world.supervisor, Authentication(TOKEN), access=NodeAccess(token=NODES_TOKEN)
        )
        where = endpoint.listen(Listen("127.0.0.1", 0))
        await endpoint.start()
        return endpoint, where


class Cluster:
    """Node `near`, which the client knows, and node `far`."""

    def __init__(self, loop: Loop, shared: SharedDatabase, opened: ExitStack) -> None:
        self.shared = shared
        self.near, self.far = (WorkingNode(loop, shared, number, opened) for number in (1, 2))
        self.near.cluster.others = (self.far.cluster.me,)
        self.far.cluster.others = (self.near.cluster.me,)
        self.client = opened.enter_context(bedrock.Client(self.near.address, token=TOKEN))

    def kill_far(self) -> None:
        """Declare `far` dead, as its conversations' next owner does; it does not know that yet."""
        dead = self.far.cluster.me
        left = self.far.world.store.unsettled()
        self.shared.kill(dead.incarnation)
        self.near.cluster.others = ()
        self.near.cluster.on_node_dead(dead)
        for conversation in left:
            self.near.world.store.claim(conversation, self.near.cluster.on_taken)


@pytest.fixture
def cluster(loop: Loop, shared_database: SharedDatabase) -> Iterator[Cluster]:
    with ExitStack() as opened:
        yield Cluster(loop, shared_database, opened)


def test_a_client_sees_one_conversation_whole_although_its_owner_dies(cluster: Cluster) -> None:
    """Its commands and its stream go through the node that it knows; nothing is seen twice, or missed."""
    far = cluster.far.world
    record = far.supervisor.create(CreateConversationCommand(LOCAL, "/tmp")).result(PATIENCE)
    conversation = cluster.client.conversation(record.id)
    seen: list[Any] = []
    stream = conversation.events(after_revision=0)

    def follow() -> None:
        for event in stream:
            if event.revision:
                seen.append((event.revision, event.kind))
            if ends() == 3:
                return

    def ends() -> int:
        return [kind for _, kind in seen].count("run_stopped")

    following = threading.Thread(target=follow)
    following.start()
    conversation.send("hello")
    there = Talk(far, record.id)
    there.exchange().say("from afar")
    eventually(lambda: ends() == 1, "the first run has ended")
    conversation.send("work")
    there.exchange().call(ToolUse("t1", "bash", '{"cmd": "ls"}'))
    tool = there.tool()
    cluster.kill_far()
    eventually(lambda: ends() == 2, "the interrupted run has ended")
    conversation.send("again")
    here = Talk(cluster.near.world, record.id)
    here.exchange().say("from nearby")
    within(following.join)
    tool.reap.set()
    assert [revision for revision, _ in seen] == list(range(1, len(seen) + 1))
    assert [text for text in here.texts() if text.startswith("from")] == ["from afar", "from nearby"]
    here.check()


def test_a_cancel_reaches_the_tool_of_another_node(cluster: Cluster) -> None:
    far = cluster.far.world
    record = far.supervisor.create(CreateConversationCommand(LOCAL, "/tmp")).result(PATIENCE)
    conversation = cluster.client.conversation(record.id)
    conversation.send("work")
    there = Talk(far, record.id)
    there.exchange().call(ToolUse("t1", "bash", '{"cmd": "ls"}'))
    tool = there.tool()
    conversation.cancel()
    assert tool.context.cancel.wait(PATIENCE)
    tool.reap.set()
    assert cluster.near.world.supervisor.live_count() == 0
