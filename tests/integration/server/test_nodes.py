"""Several servers over one store: a call is served by the node that owns its conversation, whichever was called."""

import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from bedrock import v1
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from actors.core.errors import Reason, Rejected
from actors.core.states import LlmPhase, LlmRequesting
from actors.ports import NotOwnerError, Owner
from actors.ports.cluster import Node
from actors.ports.records import AuditFilter, CommandOrigin
from actors.ports.telemetry import Telemetry
from actors.runtime.quotas import Quota, QuotaSettings
from server.cluster import node_lists, peers, router
from server.cluster.node_lists import Greetings
from server.cluster.peers import ORIGIN, OWNER, TOKEN, NodeMarks
from tests.integration.server.grpc_harness import AUTHORIZED, SECONDS, Loop, Refusal, refused
from tests.integration.server.test_calls import COMMANDS
from tests.integration.server.two_nodes import NODES_TOKEN, TwoNodes
from tests.integration.server.watch_harness import Author, changed
from tests.support.patience import eventually
from tests.support.stores import SharedDatabase, closing_stores

NAME = "conversations/c1"
ID = "c1"
HELLO = v1.SendMessageRequest(name=NAME, text="hello")


@pytest.fixture(scope="module")
def pair(loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    with closing_stores(tmp_path_factory.mktemp("pair")), closing(TwoNodes(loop)) as made:
        yield made


@pytest.fixture
def nodes(pair: TwoNodes) -> Iterator[TwoNodes]:
    pair.begin()
    yield pair
    for conversation in (ID, "c2"):
        pair.data.delete(conversation)


@pytest.fixture
def author(nodes: TwoNodes) -> Author:
    """Writes the conversation c1, at node b; node a knows that."""
    made = Author(nodes.b.store, nodes.b.harness.hub)
    nodes.owned_by_b(ID)
    return made


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody searches for an owner for long."""
    monkeypatch.setattr(router, "SEARCH_SECONDS", 1.0)
    monkeypatch.setattr(peers, "CONNECT_SECONDS", 0.5)


def call(stub: Any, method: str, request: Any, metadata: Any = AUTHORIZED, timeout: float = SECONDS) -> Any:
    return getattr(stub, method)(request, metadata=metadata, timeout=timeout)


def failed(stub: Any, method: str, request: Any, **options: Any) -> Any:
    def whole() -> None:
        answer = call(stub, method, request, **options)
        if hasattr(answer, "__next__"):
            list(answer)

    with pytest.raises(grpc.RpcError) as caught:
        whole()
    return caught.value


def trailers(error: Any) -> dict[str, Any]:
    return dict(error.trailing_metadata())


def retry_seconds(error: Any) -> int | None:
    status: Any = rpc_status.from_call(error)
    for detail in status.details:
        info = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            return int(info.retry_delay.seconds)
    return None


# --- where a call is served -------------------------------------------------------------------------------------------


def test_every_command_is_carried_out_by_the_owner_and_refused_in_its_words(nodes: TwoNodes, author: Author) -> None:
    for method, (request, command) in COMMANDS.items():
        if method in ("CreateConversation", "ForkConversation"):
            continue
        nodes.begin()
        nodes.owned_by_b(ID)
        nodes.b.harness.conversations.will(Rejected(Reason.AGENT_BUSY, f"not now, {method}"))
        there = failed(nodes.a.stub, method, request)
        assert nodes.b.asked == [(ID, command.__name__)], method
        assert nodes.a.asked == []
        nodes.b.harness.conversations.will(Rejected(Reason.AGENT_BUSY, f"not now, {method}"))
        at_owner = failed(nodes.b.stub, method, request)
        assert (there.code(), there.details()) == (at_owner.code(), at_owner.details())
        assert trailers(there) == trailers(at_owner), "with the details, byte for byte, and the owner's address"


def test_answers_come_back_with_the_address_of_the_owner(nodes: TwoNodes, author: Author) -> None:
    nodes.b.harness.conversations.will(author.record)
    answer, ended = nodes.a.stub.ArchiveConversation.with_call(
        v1.ArchiveConversationRequest(name="conversations/slug-c1"), metadata=AUTHORIZED, timeout=SECONDS
    )
    assert answer.conversation.name == NAME
    assert dict(ended.trailing_metadata()) == {OWNER: nodes.b.harness.address}
    assert nodes.b.asked == [(ID, "ArchiveConversationCommand")]


def test_the_owner_knows_who_sent_a_command_and_from_where(nodes: TwoNodes, author: Author) -> None:
    archive = v1.ArchiveConversationRequest(name=NAME)
    nodes.b.harness.conversations.will(author.record, author.record)
    call(nodes.a.stub, "ArchiveConversation", archive)
    told = CommandOrigin("local", "user", "token-7", "ipv4:192.0.2.7", "ArchiveConversation")
    mark = ((TOKEN, NODES_TOKEN), (ORIGIN, msgspec.msgpack.encode(told)))
    call(nodes.b.stub, "ArchiveConversation", archive, metadata=mark)
    assert nodes.b.origins == [
        CommandOrigin("local", "operator", peer="ipv4:127.0.0.1", method="ArchiveConversation"),
        told,
    ]


def test_a_refusal_by_the_owner_is_in_the_audit_trail_once(nodes: TwoNodes, author: Author) -> None:
    request_id = str(uuid.uuid4())
    nodes.b.harness.conversations.will(Rejected(Reason.TERMINAL))
    failed(nodes.a.stub, "SendMessage", v1.SendMessageRequest(name=NAME, text="x", request_id=request_id))
    failed(nodes.a.stub, "SendMessage", v1.SendMessageRequest(name=NAME))  # which node a refuses

    def noted() -> list[tuple[str, int]]:
        entries = nodes.data.audit(AuditFilter(), limit=999)
        return [
            (e.reason, e.count) for e in entries if e.origin.request_id == request_id or e.reason == "INVALID_ARGUMENT"
        ]

    eventually(lambda: len(noted()) == 2, "both refusals are there")
    assert sorted(noted()) == [("INVALID_ARGUMENT", 1), ("TERMINAL", 1)]
    assert len(nodes.b.asked) == 1


def test_what_a_node_owns_or_may_claim_it_serves_itself(nodes: TwoNodes) -> None:
    record = Author(nodes.a.store, nodes.a.harness.hub).record
    nodes.a.harness.conversations.will(record)
    call(nodes.a.stub, "ArchiveConversation", v1.ArchiveConversationRequest(name=NAME))
    assert (len(nodes.a.asked), nodes.b.asked) == (1, [])


def test_reads_of_the_store_are_served_where_they_come(nodes: TwoNodes, author: Author) -> None:
    author.commit(author.says("hi"))
    messages = call(nodes.a.stub, "ListMessages", v1.ListMessagesRequest(parent=NAME)).messages
    assert [message.content[0].text for message in messages] == ["hi"]


CREATE = v1.CreateConversationRequest(conversation=v1.Conversation(working_directory="/mnt/a/x"))
FORK = v1.ForkConversationRequest(name=NAME)
OFFLINE = Rejected(Reason.WORKSPACE_OFFLINE, "no running node has workspace /mnt/a: start one")


@pytest.mark.parametrize(("method", "request_", "place"), [
    ("CreateConversation", CREATE, "/mnt/a/x"), ("ForkConversation", FORK, ID),
])  # fmt: skip
def test_what_is_created_is_created_where_its_directory_is(
    nodes: TwoNodes, author: Author, method: str, request_: Any, place: str
) -> None:
    nodes.a.harness.conversations.will(author.record)
    assert call(nodes.a.stub, method, request_).conversation.name == NAME
    assert (len(nodes.a.asked), len(nodes.b.asked)) == (1, 0), "every node has it"
    nodes.a.cluster.places[place] = nodes.b.cluster.me
    nodes.b.harness.conversations.will(author.record)
    assert call(nodes.a.stub, method, request_).conversation.name == NAME
    assert (len(nodes.a.asked), len(nodes.b.asked)) == (1, 1)
    nodes.a.cluster.places[place] = OFFLINE
    refusal = failed(nodes.a.stub, method, request_)
    assert (refusal.code(), refusal.details()) == (grpc.StatusCode.UNAVAILABLE, str(OFFLINE))
    assert (Refusal(refusal).reason, retry_seconds(refusal)) == ("WORKSPACE_OFFLINE", None)
    assert (len(nodes.a.asked), len(nodes.b.asked)) == (1, 1)
    nodes.b.cluster.places[place] = nodes.a.cluster.me
    nodes.a.cluster.places[place] = nodes.b.cluster.me
    nodes.b.harness.conversations.will(author.record)
    call(nodes.a.stub, method, request_)
    assert (len(nodes.a.asked), len(nodes.b.asked)) == (1, 2), "it is forwarded once"


def test_a_directory_is_browsed_where_it_is(nodes: TwoNodes, tmp_path: Path) -> None:
    browse = v1.BrowseDirectoryRequest(path=str(tmp_path))
    for at, owner in (nodes.b.cluster.me, nodes.b), (None, nodes.a):
        nodes.begin()
        if at is not None:
            nodes.a.cluster.places[browse.path] = at
        answer, ended = nodes.a.harness.catalog.BrowseDirectory.with_call(browse, metadata=AUTHORIZED, timeout=SECONDS)
        assert answer.path == str(tmp_path)
        assert dict(ended.trailing_metadata()) == {OWNER: owner.harness.address}


def test_a_name_of_nothing_is_not_found_without_a_search(nodes: TwoNodes) -> None:
    missing = v1.CancelConversationRequest(name="conversations/none")
    assert failed(nodes.a.stub, "CancelConversation", missing).code() is grpc.StatusCode.NOT_FOUND
    gone = v1.DeleteConversationRequest(name="conversations/none", allow_missing=True)
    assert call(nodes.a.stub, "DeleteConversation", gone) == v1.DeleteConversationResponse()
    assert nodes.a.cluster.forgotten == []


# --- what moves -------------------------------------------------------------------------------------------------------


def test_a_call_follows_a_conversation_that_has_moved(nodes: TwoNodes, author: Author) -> None:
    """Node a believes in node b, which knows better; then that nobody has it, and its own actor knows better."""
    nodes.b.harness.conversations.will(NotOwnerError("it was mine"))
    nodes.a.harness.conversations.will(NotOwnerError("not yet"), author.record)
    call(nodes.a.stub, "ArchiveConversation", v1.ArchiveConversationRequest(name=NAME))
    assert (len(nodes.b.asked), len(nodes.a.asked)) == (1, 2)
    assert nodes.a.cluster.forgotten == [ID, ID]


def test_a_call_to_a_node_that_stops_waits_for_the_next_owner(nodes: TwoNodes, author: Author) -> None:
    nodes.b.harness.conversations.will(Rejected(Reason.SHUTTING_DOWN))
    nodes.a.harness.conversations.will(author.record)
    call(nodes.a.stub, "ArchiveConversation", v1.ArchiveConversationRequest(name=NAME))
    assert (len(nodes.b.asked), len(nodes.a.asked)) == (1, 1)


def test_without_the_store_what_is_at_work_here_can_be_cancelled(nodes: TwoNodes) -> None:
    Author(nodes.a.store, nodes.a.harness.hub)
    nodes.a.cluster.deaf = True
    nodes.a.harness.conversations.will(Rejected(Reason.TERMINAL))
    error = failed(nodes.a.stub, "CancelConversation", v1.CancelConversationRequest(name=NAME))
    assert Refusal(error).reason == "TERMINAL"


def test_a_remembered_owner_needs_no_look_and_one_that_was_wrong_is_forgotten(nodes: TwoNodes, author: Author) -> None:
    nodes.a.cluster.remembered[ID] = nodes.b.cluster.me
    nodes.a.cluster.deaf = True
    nodes.b.harness.conversations.will(author.record)
    call(nodes.a.stub, "ArchiveConversation", v1.ArchiveConversationRequest(name=NAME))
    assert (nodes.a.asked, nodes.b.asked) == ([], [(ID, "ArchiveConversationCommand")])
    nodes.b.harness.conversations.will(NotOwnerError("moved"))
    nodes.a.harness.conversations.will(author.record)
    call(nodes.a.stub, "ArchiveConversation", v1.ArchiveConversationRequest(name=NAME))
    assert nodes.a.cluster.forgotten == [ID]
    assert nodes.a.asked == [(ID, "ArchiveConversationCommand")]


def test_two_nodes_that_believe_in_each_other_forward_once_and_give_up(
    nodes: TwoNodes, author: Author, hasty: None
) -> None:
    nodes.b.cluster.owners[ID] = nodes.a.cluster.me
    nodes.a.cluster.forgets = nodes.b.cluster.forgets = False
    nodes.b.harness.conversations.will(*[NotOwnerError("a has it")] * 99)
    error = failed(nodes.a.stub, "SendMessage", HELLO)
    assert (error.code(), retry_seconds(error)) == (grpc.StatusCode.UNAVAILABLE, 1)
    assert Refusal(error).reason == "UNAVAILABLE"
    assert nodes.a.asked == [], "it was never sent back"
    assert 1 < len(nodes.b.asked) < 30, "the pauses get longer"


def test_a_search_for_an_owner_ends_when_the_server_stops(loop: Loop) -> None:
    """Else it would be cut, which looks as if the client had cancelled it."""
    with closing(TwoNodes(loop)) as pair:
        Author(pair.b.store, pair.b.harness.hub)
        pair.owned_by_b(ID)
        pair.a.cluster.forgets = False
        pair.b.harness.conversations.will(*[NotOwnerError("moving")] * 999)
        with ThreadPoolExecutor(1) as caller:
            calling = caller.submit(failed, pair.a.stub, "SendMessage", HELLO)
            eventually(lambda: len(pair.b.asked) > 1, "it is searched for")
            pair.a.harness.stop()
            error = calling.result(SECONDS)
        assert (error.code(), Refusal(error).reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")


def test_a_call_whose_deadline_passes_is_searched_for_no_longer(nodes: TwoNodes, author: Author) -> None:
    nodes.a.cluster.forgets = False
    nodes.b.harness.conversations.will(*[NotOwnerError("moving")] * 99)
    error = failed(nodes.a.stub, "SendMessage", HELLO, timeout=0.5)
    assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@pytest.mark.parametrize("answers", [False, True], ids=["refuses", "accepts and says nothing"])
def test_a_node_that_cannot_be_reached_has_changed_nothing(
    nodes: TwoNodes, author: Author, hasty: None, caplog: pytest.LogCaptureFixture, *, answers: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if not answers:
            silent.close()
            address = "127.0.0.1:1"
        else:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
        nodes.a.cluster.owners[ID] = Node(9, address=address)
        nodes.a.harness.conversations.will(author.record)
        call(nodes.a.stub, "ArchiveConversation", v1.ArchiveConversationRequest(name=NAME))
        assert len(nodes.a.asked) == 1, "nothing was sent, so it is made again where the conversation is now"
        nodes.a.cluster.owners[ID] = Node(9, address=address)
        nodes.a.cluster.forgets = False
        error = failed(nodes.a.stub, "ArchiveConversation", v1.ArchiveConversationRequest(name=NAME))
        assert (error.code(), retry_seconds(error)) == (grpc.StatusCode.UNAVAILABLE, 1)
    if answers:
        return
    eventually(
        lambda: f"the node at {address} cannot be reached without TLS: connection refused" in caplog.text, "it is told"
    )
    assert caplog.text.count("cannot be reached") == 1, "once, not for each call"


def test_a_node_that_lives_and_was_long_out_of_reach_is_tried_once_a_call(
    nodes: TwoNodes, author: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It will not be declared dead: its settings have to be changed, and nobody should wait for that."""
    monkeypatch.setattr(peers, "HOPELESS_SECONDS", 0.0)
    monkeypatch.setattr(router, "SEARCH_SECONDS", SECONDS)
    nodes.a.cluster.owners[ID] = Node(9, address="127.0.0.1:1")
    nodes.a.cluster.forgets = False
    error = failed(nodes.a.stub, "SendMessage", HELLO)
    assert (error.code(), retry_seconds(error)) == (grpc.StatusCode.UNAVAILABLE, 1)
    assert "127.0.0.1" not in error.details()
    assert nodes.a.asked == []


@contextmanager
def greeting(loop: Loop, nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Greetings]:
    """Node a calls the others, and is patient with none."""
    monkeypatch.setattr(node_lists, "NEW_SECONDS", 0.0)

    async def made() -> tuple[peers.Peers, Greetings]:
        connections = peers.Peers()
        return connections, Greetings(nodes.a.cluster, connections, NodeMarks(NODES_TOKEN))

    connections, found = loop.do(made())
    yield found
    loop.do(connections.close())


def test_wrong_settings_are_told_before_anybody_calls(
    loop: Loop, nodes: TwoNodes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, before = nodes.b.harness.address, nodes.a.cluster.others
    with greeting(loop, nodes, monkeypatch) as greets:
        loop.do(greets.greet())
        assert not caplog.records, "node b answers"
        nodes.a.cluster.others = (Node(8, "lost", "127.0.0.1:1"), Node(9, "twin", there))
        try:
            for _ in range(3):
                loop.do(greets.greet())
            eventually(lambda: "node lost at 127.0.0.1:1 cannot be reached" in caplog.text, "it is told")
        finally:
            nodes.a.cluster.others = before
    assert f"node twin at {there} did not respond; another node responds at its cluster.address" in caplog.text


def test_a_node_that_has_just_joined_is_waited_for(
    loop: Loop, nodes: TwoNodes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the database before it listens."""
    before, nodes.a.cluster.others = nodes.a.cluster.others, (Node(8, "new", "127.0.0.1:1"),)
    try:
        with greeting(loop, nodes, monkeypatch) as greets:
            monkeypatch.setattr(node_lists, "NEW_SECONDS", SECONDS)
            loop.do(greets.greet())
    finally:
        nodes.a.cluster.others = before
    assert not caplog.records


def held(nodes: TwoNodes, request: v1.SendMessageRequest, during: Callable[[], object]) -> Any:
    """The outcome of a call at node a whose command node b has got, and answers no more."""
    nodes.b.harness.conversations.will(None)
    with ThreadPoolExecutor(1) as caller:
        calling = caller.submit(lambda: call(nodes.a.stub, "SendMessage", request))
        eventually(lambda: len(nodes.b.asked) == 1, "the command is at its owner")
        during()
        return calling.exception(SECONDS) or calling.result()


def test_a_call_to_a_node_that_dies_is_cut_and_not_repeated_blindly(nodes: TwoNodes, author: Author) -> None:
    error = held(nodes, HELLO, lambda: nodes.a.cluster.on_node_dead(nodes.b.cluster.me))
    assert (error.code(), retry_seconds(error)) == (grpc.StatusCode.UNAVAILABLE, None)
    assert "may have taken effect" in error.details()
    assert nodes.a.asked == []


def test_a_call_with_a_request_id_is_repeated_at_the_next_owner(
    nodes: TwoNodes, author: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the first one has lasted."""
    monkeypatch.setattr(router, "SEARCH_SECONDS", 0.2)

    def dies() -> None:
        threading.Event().wait(0.3)
        nodes.a.harness.conversations.will(Rejected(Reason.TERMINAL))
        nodes.a.cluster.on_node_dead(nodes.b.cluster.me)

    request = v1.SendMessageRequest(name=NAME, text="hello", request_id=str(uuid.uuid4()))
    assert Refusal(held(nodes, request, dies)).reason == "TERMINAL"
    assert nodes.a.asked == nodes.b.asked == [(ID, "SendMessageCommand")]


def test_after_a_death_the_node_at_the_same_address_is_reached_again(nodes: TwoNodes, author: Author) -> None:
    nodes.a.cluster.on_node_dead(nodes.b.cluster.me)
    nodes.b.harness.conversations.will(author.record)
    call(nodes.a.stub, "ArchiveConversation", v1.ArchiveConversationRequest(name=NAME))
    assert len(nodes.b.asked) == 1


def test_how_forwarded_calls_end_is_told(nodes: TwoNodes, author: Author, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(Telemetry, "forwarded", lambda _, outcome: told.append(outcome))
    archive = v1.ArchiveConversationRequest(name=NAME)
    nodes.b.harness.conversations.will(author.record, Rejected(Reason.TERMINAL), NotOwnerError("not mine"))
    call(nodes.a.stub, "ArchiveConversation", archive)
    failed(nodes.a.stub, "ArchiveConversation", archive)
    nodes.a.harness.conversations.will(author.record)
    call(nodes.a.stub, "ArchiveConversation", archive)
    nodes.begin()
    nodes.owned_by_b(ID)
    held(nodes, HELLO, lambda: nodes.a.cluster.on_node_dead(nodes.b.cluster.me))
    assert told == ["answered", "refused", "moved", "lost"]


def test_the_nodes_are_listed_in_the_order_of_their_starts_and_in_pages(nodes: TwoNodes) -> None:
    listed = [
        call(harness.catalog, "ListNodes", v1.ListNodesRequest()).nodes
        for harness in (nodes.a.harness, nodes.b.harness)
    ]
    assert [[(each.incarnation, each.name, each.answering) for each in seen] for seen in listed] == [
        [(1, "node-1", True), (2, "node-2", False)], [(1, "node-1", False), (2, "node-2", True)],
    ]  # fmt: skip
    assert [each.address for each in listed[0]] == [nodes.a.harness.address, nodes.b.harness.address]
    first = call(nodes.b.harness.catalog, "ListNodes", v1.ListNodesRequest(page_size=1))
    rest = v1.ListNodesRequest(page_size=1, page_token=first.next_page_token)
    second = call(nodes.b.harness.catalog, "ListNodes", rest)
    assert [*first.nodes, *second.nodes] == list(listed[1])
    assert second.next_page_token == ""


# --- streams ----------------------------------------------------------------------------------------------------------


def kinds(stream: Any, last: str) -> list[str]:
    """The kinds of the events of a stream up to the first of this kind."""
    seen: list[str] = []
    for response in stream:
        for event in response.events:
            seen.append(event.WhichOneof("event"))
            if seen[-1] == last:
                return seen
    raise AssertionError(f"the stream ended after {seen}")


def watch(nodes: TwoNodes, **request: Any) -> Any:
    asked = v1.SubscribeRequest(**{"name": NAME, **request})
    return nodes.a.stub.Subscribe(asked, metadata=AUTHORIZED, timeout=SECONDS)


def test_a_stream_passes_through_until_its_owner_dies_and_goes_on_elsewhere(nodes: TwoNodes, author: Author) -> None:
    stream = watch(nodes)
    assert kinds(stream, "caught_up")[0] == "snapshot"
    author.commit(author.says("one"))
    assert kinds(stream, "message_added") == ["message_added"]
    nodes.a.cluster.on_node_dead(nodes.b.cluster.me)
    error = refused(lambda: stream)
    assert (error.code, error.reason) == ("UNAVAILABLE", "UNAVAILABLE")
    author.commit(author.says("two"))
    again = watch(nodes, after_revision=1)
    assert "message_added" in kinds(again, "caught_up"), "resumed at the revision that was seen last"
    again.cancel()


def test_a_watched_conversation_is_owned_and_recovered(loop: Loop, shared_database: SharedDatabase) -> None:
    """Else another node could take it, and this one's watchers would never hear of what happens there."""
    with closing(TwoNodes(loop, shared=shared_database)) as nodes:
        author = Author(nodes.b.store, nodes.b.harness.hub)
        busy = LlmRequesting(author.record.state.ledger, "r1", 1, LlmPhase.CONNECTING, 1)
        author.commit(changed("llm_requesting"), state=busy)
        shared_database.release(2)
        stream = watch(nodes)
        kinds(stream, "caught_up")
        with pytest.raises(NotOwnerError) as caught:
            nodes.b.store.claim(ID)
        assert caught.value.owner == Owner(1, "first", "127.0.0.1:1")
        assert nodes.a.woken == [ID]
        stream.cancel()


def test_streams_fill_no_connection_that_a_cancel_needs(
    loop: Loop, nodes: TwoNodes, author: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "LASTING_CALLS", 2)
    streams = [watch(nodes) for _ in range(5)]
    for stream in streams:
        kinds(stream, "caught_up")
    nodes.b.harness.conversations.will(Rejected(Reason.TERMINAL))
    cancel = v1.CancelConversationRequest(name=NAME)
    assert Refusal(failed(nodes.a.stub, "CancelConversation", cancel)).reason == "TERMINAL"
    for stream in streams:
        stream.cancel()
    eventually(lambda: nodes.b.harness.hub.watchers() == 0, "the owner knows that nobody watches any more")

    async def lent() -> int:
        peer = peers.NodeConnections(nodes.b.harness.address, None)
        lanes = (*[peers.Lane.LASTING] * 5, peers.Lane.CALLS, peers.Lane.URGENT, peers.Lane.URGENT)
        async with AsyncExitStack() as stack:
            channels = {id(await stack.enter_async_context(peer.channel(lane))) for lane in lanes}
        await peer.close()
        return len(channels)

    assert loop.do(lent()) == 5


def test_a_node_that_stops_ends_the_streams_that_it_passes_on(loop: Loop) -> None:
    before = {thread.name for thread in threading.enumerate()}
    with closing(TwoNodes(loop)) as nodes:
        Author(nodes.b.store, nodes.b.harness.hub)
        nodes.owned_by_b(ID)
        stream = watch(nodes)
        kinds(stream, "caught_up")
        nodes.a.harness.stop()
        assert refused(lambda: stream).reason == "SHUTTING_DOWN"
        eventually(lambda: nodes.b.harness.hub.watchers() == 0, "the owner's stream has ended, too")
    eventually(
        lambda: not {t.name for t in threading.enumerate() if "owner" in t.name} - before, "its threads have ended"
    )


def test_a_reader_who_takes_nothing_holds_up_nobody_and_is_let_go(loop: Loop) -> None:
    with closing(TwoNodes(loop, stall_seconds=0.5)) as nodes:
        author = Author(nodes.b.store, nodes.b.harness.hub)
        nodes.owned_by_b(ID)
        stream = watch(nodes, recent_messages=1)
        kinds(stream, "caught_up")
        for _ in range(40):
            author.commit(author.says("x" * 250_000))
        eventually(lambda: nodes.b.harness.hub.watchers() == 0, "nothing is kept for it", seconds=SECONDS)


def test_a_forwarded_stream_counts_where_it_was_opened(loop: Loop) -> None:
    """Each node has room for one stream of each principal."""
    with closing(TwoNodes(loop, quotas=QuotaSettings(each={Quota.STREAMS: 1}))) as nodes:
        Author(nodes.b.store, nodes.b.harness.hub)
        nodes.owned_by_b(ID)
        stream = watch(nodes)
        kinds(stream, "caught_up")
        assert refused(lambda: watch(nodes)).reason == "QUOTA_EXCEEDED"
        at_owner = nodes.b.harness.watch()
        kinds(at_owner, "caught_up")
        for each in (stream, at_owner):
            each.cancel()


# --- marks of strangers -----------------------------------------------------------------------------------------------

ANN = msgspec.msgpack.encode(CommandOrigin("ann", "operator"))
MARKS: dict[str, tuple[tuple[str, str | bytes], ...]] = {
    "no token": ((ORIGIN, ANN),),
    "another token": ((TOKEN, "x" * 43), (ORIGIN, ANN)),
    "a part of the token": ((TOKEN, NODES_TOKEN[:-1]), (ORIGIN, ANN)),
    "the right token and another": ((TOKEN, NODES_TOKEN), (TOKEN, "x" * 43), (ORIGIN, ANN)),
    "nobody": ((TOKEN, NODES_TOKEN),),
    "two people": ((TOKEN, NODES_TOKEN), (ORIGIN, ANN), (ORIGIN, ANN)),
    "no message": ((TOKEN, NODES_TOKEN), (ORIGIN, b"\xc1")),
    "no role": ((TOKEN, NODES_TOKEN), (ORIGIN, msgspec.msgpack.encode(CommandOrigin("ann", "god")))),
    "no principal": ((TOKEN, NODES_TOKEN), (ORIGIN, msgspec.msgpack.encode(CommandOrigin("", "operator")))),
    "too much": ((TOKEN, NODES_TOKEN), (ORIGIN, msgspec.msgpack.encode(CommandOrigin("a" * 4_096, "operator")))),
}


@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
def test_a_mark_counts_only_with_the_token_of_the_nodes(nodes: TwoNodes, author: Author, mark: Any) -> None:
    for metadata in (mark, (*mark, *AUTHORIZED)):  # a good token of one's own makes no mark good
        for method in ("SendMessage", "Subscribe"):
            request = HELLO if method == "SendMessage" else v1.SubscribeRequest(name=NAME)
            error = failed(nodes.b.stub, method, request, metadata=metadata)
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert OWNER not in trailers(error)
    assert nodes.b.asked == []


def test_nodes_forward_nothing_that_others_can_serve(nodes: TwoNodes, author: Author) -> None:
    mark = ((TOKEN, NODES_TOKEN), (ORIGIN, msgspec.msgpack.encode(CommandOrigin("local", "operator"))))
    listing = failed(nodes.b.stub, "ListAuditEntries", v1.ListAuditEntriesRequest(), metadata=mark)
    assert listing.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_forwarded_reader_may_no_more_than_read(nodes: TwoNodes, author: Author) -> None:
    mark = ((TOKEN, NODES_TOKEN), (ORIGIN, msgspec.msgpack.encode(CommandOrigin("local", "reader"))))
    assert failed(nodes.b.stub, "SendMessage", HELLO, metadata=mark).code() is grpc.StatusCode.PERMISSION_DENIED
    stranger = ((TOKEN, NODES_TOKEN), (ORIGIN, msgspec.msgpack.encode(CommandOrigin("ann", "user"))))
    assert failed(nodes.b.stub, "SendMessage", HELLO, metadata=stranger).code() is grpc.StatusCode.NOT_FOUND
    assert nodes.b.asked == []


def test_nodes_with_different_tokens_say_so_and_serve_nothing_for_each_other(
    loop: Loop, hasty: None, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(TwoNodes(loop, tokens=("m" * 43, NODES_TOKEN))) as nodes:
        Author(nodes.b.store, nodes.b.harness.hub)
        nodes.owned_by_b(ID)
        nodes.a.cluster.forgets = False
        error = failed(nodes.a.stub, "SendMessage", HELLO)
        assert (error.code(), retry_seconds(error)) == (grpc.StatusCode.UNAVAILABLE, 1)
        assert nodes.b.asked == []
    refusal = f"node node-2 at {nodes.b.harness.address} rejects this node's token"
    assert caplog.text.count(refusal) == 1, "however many calls were forwarded"
    assert "cluster.token_file" in caplog.text
    assert caplog.text.count("called as a node, but without the token in cluster.token_file") == 1
    assert "m" * 43 not in caplog.text
