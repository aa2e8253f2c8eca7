"""Nodes that call each other with TLS; and nodes that cannot, because of their settings."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from bedrock import Client, v1

from tests.integration.server.grpc_harness import Refusal, refused
from tests.support import processes
from tests.support.certificates import make_authority, make_certificate
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, calls, says
from tests.support.nodes import Nodes
from tests.support.patience import PATIENCE, eventually, within
from tests.support.server_process import ServerProcess, provider
from tests.support.watcher import Watcher

pytestmark = pytest.mark.one_server("it starts its own nodes")


@pytest.fixture(scope="module")
def nodes(fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("nodes")
    make_authority(folder, "ca")
    make_certificate(folder, "node", "IP:127.0.0.1", "ca")
    made = Nodes(folder, env=provider(fake_provider.url))
    yield made
    made.close()


def with_tls(nodes: Nodes, name: str) -> ServerProcess:
    """Start a node that the others call with TLS; its own clients come by its socket."""
    nodes.table["ca"] = str(nodes.folder / "ca.pem")
    pair = f'tls_certificate = "{nodes.folder}/node.pem"\ntls_key = "{nodes.folder}/node.key"\n'
    try:
        return at_its_socket(nodes.start(name, pair))
    finally:
        del nodes.table["ca"]


def at_its_socket(server: ServerProcess) -> ServerProcess:
    server.address = server.socket
    return server


@pytest.fixture(scope="module")
def owner(nodes: Nodes) -> ServerProcess:
    return with_tls(nodes, "owner")


@pytest.fixture(scope="module")
def at_owner(owner: ServerProcess) -> Iterator[Client]:
    with owner.client() as client:
        yield client


@pytest.fixture(scope="module")
def other(nodes: Nodes) -> ServerProcess:
    return with_tls(nodes, "other")


@pytest.fixture(scope="module")
def at_other(other: ServerProcess) -> Iterator[Client]:
    with other.client() as client:
        yield client


def test_calls_and_streams_pass_between_nodes_with_tls(  # noqa: PLR0917 -- fixtures
    fake_provider: FakeProvider,
    owner: ServerProcess,
    other: ServerProcess,
    at_owner: Client,
    at_other: Client,
    tmp_path: Path,
) -> None:
    forever = processes.forever()
    part = fake_provider.part(says("There."), calls(("bash", {"cmd": f"sleep {forever}"})))
    chat = Chat(at_owner, part, tmp_path, mode="unrestricted")
    conversation = at_other.conversation(chat.name)
    watcher = Watcher(other, chat.name)
    try:
        watcher.until("caught_up")
        run = conversation.send(f"Where? {part.key}")
        assert within(run.answer) == "There."
        watcher.until(lambda event: event.run_stopped.request_cycle == run.name)
        conversation.send(f"Sleep. {part.key}")
        eventually(lambda: processes.sleepers(forever), "the tool runs at its owner")
        assert conversation.cancel().state.kind == "idle"
        eventually(lambda: not processes.running(forever), "nothing of the tool is left")
        watcher.until(lambda event: event.run_stopped.request_cycle not in {"", run.name})
        first, *_, last = watcher.revisions
        assert watcher.revisions == list(range(first, last + 1))
    finally:
        watcher.close()
    chat.assert_valid()
    assert "cannot be reached" not in owner.log_text() + other.log_text()


def asked(server: ServerProcess, name: str) -> Refusal:
    """The refusal of a call at a node for a conversation of another."""
    with server.channel() as channel:
        stub = v1.ConversationServiceStub(channel)
        request = v1.GetConversationRequest(name=name)
        return refused(lambda: stub.GetConversation(request, metadata=server.metadata, timeout=PATIENCE))


def test_a_node_with_other_settings_is_told_at_both_and_its_clients_are_not_kept_waiting(
    nodes: Nodes, owner: ServerProcess, at_owner: Client, tmp_path: Path
) -> None:
    ours = at_owner.create(tmp_path)
    plain = nodes.start("plain")
    with plain.client() as client:
        theirs = client.create(tmp_path)
    tls = "without TLS: it uses TLS; set cluster.ca here"
    no_tls = "with TLS: it does not use TLS; set tls_certificate and tls_key there"
    for server, name, about, told in (
        (plain, ours.name, f"node owner at {nodes.address('owner')}", tls),
        (owner, theirs.name, f"node plain at {nodes.address('plain')}", no_tls),
    ):
        refusal = asked(server, name)
        assert (refusal.code, refusal.reason) == ("UNAVAILABLE", "UNAVAILABLE")
        assert "127.0.0.1" not in refusal.text
        eventually(partial(_tells, server, f"{about} cannot be reached {told}"), "it is told")
    with plain.client() as client:
        client.conversation(theirs.name).delete()  # the owner would look for it at a node that has gone
    assert plain.stop() == 0


def _tells(server: ServerProcess, text: str) -> bool:
    return text in server.log_text()
