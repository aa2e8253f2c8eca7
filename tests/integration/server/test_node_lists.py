"""WatchConversations over several nodes: the watchers of one are told what happens at all."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest
from bedrock import v1

from actors.core.notifications import ConversationUpdated
from actors.ports.cluster import Node
from server.cluster import node_lists
from server.cluster.peers import ORIGIN, TOKEN
from tests.integration.server.grpc_harness import AUTHORIZED, SECONDS, Loop, refused
from tests.integration.server.test_watch_list import names_of, until_caught_up
from tests.integration.server.two_nodes import NODES_TOKEN, RunningNode, TwoNodes
from tests.integration.server.watch_harness import Author
from tests.support.patience import eventually


@pytest.fixture
def nodes(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoNodes]:
    monkeypatch.setattr(node_lists, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(node_lists, "READY_SECONDS", SECONDS)
    with closing(TwoNodes(loop)) as made:
        yield made


def watch(node: RunningNode, **request: Any) -> Any:
    asked = v1.WatchConversationsRequest(**request)
    return node.stub.WatchConversations(asked, metadata=AUTHORIZED, timeout=SECONDS)


def write(node: RunningNode, conversation_id: str, **fields: Any) -> Author:
    return Author(node.store, node.harness.hub, conversation_id, **fields)


def entitle(author: Author, title: str) -> None:
    author.commit(ConversationUpdated(("title",)), title=title)


def told(stream: Any) -> tuple[str, str]:
    """The next change: the name, and the title or that it is deleted."""
    for entry in stream:
        if entry.HasField("conversation_changed"):
            return entry.conversation_changed.name, entry.conversation_changed.title
        if entry.HasField("conversation_deleted"):
            return entry.conversation_deleted, "deleted"
    raise AssertionError("the stream ended")


def follows(node: RunningNode) -> bool:
    """Whether another node follows the list of this one, or somebody watches it."""
    return node.harness.hub.conversation_list.watched


def test_a_watcher_is_told_what_happens_at_every_node_once(nodes: TwoNodes) -> None:
    here, there = write(nodes.a, "c1"), write(nodes.b, "c2")
    streams = [watch(nodes.a), watch(nodes.b)]
    for stream in streams:
        assert sorted(until_caught_up(stream)) == names_of("c1", "c2")
    for number in range(3):
        entitle(there, f"there {number}")
        for stream in streams:
            assert told(stream) == ("conversations/c2", f"there {number}")
        entitle(here, f"here {number}")
        for stream in streams:
            assert told(stream) == ("conversations/c1", f"here {number}")
    nodes.b.store.delete("c2")
    nodes.b.harness.hub.deleted("c2", there.record)
    for stream in streams:
        assert told(stream) == ("conversations/c2", "deleted"), "and nothing was told twice before"
        stream.cancel()


def test_nodes_follow_each_other_only_while_somebody_watches(nodes: TwoNodes) -> None:
    assert not follows(nodes.b)
    stream = watch(nodes.a, changes_only=True)
    until_caught_up(stream)
    assert follows(nodes.b)
    stream.cancel()
    eventually(lambda: not follows(nodes.b), "nobody follows")


def test_an_older_change_of_another_node_replaces_no_newer_one(nodes: TwoNodes) -> None:
    """A conversation moves here, and what its last owner has said of it arrives afterwards."""
    author = write(nodes.a, "c1")
    before = author.record
    stream = watch(nodes.a)
    until_caught_up(stream)
    entitle(author, "new")
    feed = nodes.a.harness.hub.conversation_list
    feed.changed_elsewhere("c1", before, deleted=False)
    assert told(stream) == ("conversations/c1", "new")
    entitle(author, "newer")
    assert told(stream) == ("conversations/c1", "newer")
    feed.deleted("c1", author.record)
    feed.changed_elsewhere("c1", author.record, deleted=False)
    assert told(stream) == ("conversations/c1", "deleted")
    stream.cancel()


@pytest.mark.parametrize("change", ["joins", "dies", "returns"])
def test_a_list_begins_anew_when_something_may_have_been_missed(nodes: TwoNodes, change: str) -> None:
    other = nodes.b.cluster.me
    if change == "joins":
        nodes.a.cluster.others = ()
    stream = watch(nodes.a)
    until_caught_up(stream)
    match change:
        case "joins":
            nodes.a.cluster.others = (other,)
        case "dies":
            nodes.a.cluster.others = ()
            nodes.a.cluster.on_node_dead(other)
        case _:
            nodes.a.cluster.on_node_dead(other)
    refusal = refused(lambda: stream)
    assert (refusal.code, refusal.reason) == ("UNAVAILABLE", "UNAVAILABLE")
    write(nodes.b, "c2")
    again = watch(nodes.a)
    assert until_caught_up(again) == names_of("c2")
    again.cancel()


def test_a_node_that_cannot_be_reached_holds_up_no_list_for_long(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(nodes.a, "c1")
    first = watch(nodes.a)
    until_caught_up(first)
    monkeypatch.setattr(node_lists, "READY_SECONDS", 0.2)
    nodes.a.cluster.others = (nodes.b.cluster.me, Node(9, address="127.0.0.1:1"))
    stream = watch(nodes.a)
    assert until_caught_up(stream) == names_of("c1")
    there = write(nodes.b, "c2")
    entitle(there, "reached")
    for each in (stream, first):
        assert told(each) == ("conversations/c2", "reached"), "what can be reached is told"
        each.cancel()


def test_nobody_but_a_node_can_follow_a_list(nodes: TwoNodes) -> None:
    """It shows the conversations of all principals."""
    call: Any = nodes.b.harness.channel.unary_stream(node_lists.WATCH_LIST)

    def code(metadata: Any) -> grpc.StatusCode:
        with pytest.raises(grpc.RpcError) as caught:
            next(call(b"", metadata=metadata, timeout=SECONDS))
        error: Any = caught.value
        found: grpc.StatusCode = error.code()
        return found

    assert code(AUTHORIZED) is grpc.StatusCode.UNIMPLEMENTED
    assert code(()) is grpc.StatusCode.UNIMPLEMENTED
    for mark in (((TOKEN, "x" * 43),), ((ORIGIN, b"x"),), ((TOKEN, NODES_TOKEN),)):
        assert code((*mark, *AUTHORIZED)) is grpc.StatusCode.UNAUTHENTICATED
    assert not follows(nodes.b)
