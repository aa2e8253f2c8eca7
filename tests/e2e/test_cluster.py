"""Two servers that share a PostgreSQL: each takes calls for the conversations of the other, and outlives it."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pytest
from bedrock import Client, Unauthenticated, Unavailable
from bedrock.errors import WorkspaceOffline

from tests.support import processes
from tests.support.auditing import audit
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, calls, says, streams
from tests.support.nodes import LEASE_SECONDS, Nodes
from tests.support.patience import PATIENCE, eventually, within
from tests.support.server_process import ServerProcess, provider, token
from tests.support.watcher import Watcher

pytestmark = pytest.mark.one_server("it starts its own nodes")


@pytest.fixture(scope="module")
def nodes(fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    made = Nodes(tmp_path_factory.mktemp("nodes"), env=provider(fake_provider.url))
    yield made
    made.close()


@pytest.fixture
def owner(nodes: Nodes) -> Iterator[ServerProcess]:
    """The node that conversations are created at."""
    server = nodes.start("owner")
    yield server
    server.dispose()


@pytest.fixture(scope="module")
def other(nodes: Nodes) -> ServerProcess:
    """The node that is called for them."""
    return nodes.start("other", BEDROCK_METRICS_LISTEN=nodes.address("metrics"))


@pytest.fixture
def at_owner(owner: ServerProcess) -> Iterator[Client]:
    with owner.client() as client:
        yield client


@pytest.fixture(scope="module")
def at_other(other: ServerProcess) -> Iterator[Client]:
    with other.client() as client:
        yield client


def test_a_list_at_any_node_shows_what_happens_at_the_others(
    fake_provider: FakeProvider, at_owner: Client, at_other: Client, tmp_path: Path
) -> None:
    """It begins anew when a node is found to be gone, as the one of the test before this may be just now."""
    chat = Chat(at_owner, fake_provider.part(says("One.")), tmp_path)

    def shown(title: str) -> bool:
        with suppress(Unavailable), at_other.watch_conversations(changes_only=True) as changes:
            assert next(changes).kind == "caught_up"
            chat.conversation.update(title=title)
            infos = (each.conversation_changed for each in changes if each.conversation_changed is not None)
            return next(info.title for info in infos if info.name == chat.name) == title
        return False

    assert any(within(partial(shown, f"elsewhere {number}")) for number in range(5))


def taken_over(nodes: Nodes) -> float:
    """How many conversations of dead nodes the node that is called has taken, by its metrics."""
    with urlopen(f"http://{nodes.address('metrics')}/metrics", timeout=PATIENCE) as answer:
        lines = answer.read().decode().splitlines()
    counts = (line.split() for line in lines if line.startswith("bedrock_conversations_taken_over_total"))
    return sum(float(count) for _, count in counts)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_the_conversations_of_a_node_that_dies_go_on_at_another(  # noqa: PLR0917 -- fixtures
    how: str,
    fake_provider: FakeProvider,
    nodes: Nodes,
    owner: ServerProcess,
    other: ServerProcess,
    at_owner: Client,
    at_other: Client,
    tmp_path: Path,
) -> None:
    """Killed, or stopped for longer than its lease: it never acts again, and its tools are dead before."""
    before = taken_over(nodes)
    forever = processes.forever()
    working = Chat(
        at_owner, fake_provider.part(calls(("bash", {"cmd": f"sleep {forever}"}))), tmp_path, mode="unrestricted"
    )
    streaming = Chat(at_owner, fake_provider.part(streams, says("Again.")), tmp_path)
    watcher = Watcher(other, streaming.name)
    working.send("Work.")
    streaming.send("Talk.")
    streaming.part.next_reached(streams)
    eventually(lambda: processes.sleepers(forever), "the tool runs")
    watcher.until(lambda event: event.revision > 0)
    owner.process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)

    eventually(lambda: at_other.conversation(working.name).get().state.kind == "idle", "it was taken over")
    assert not processes.running(forever), "a tool outlived its node"
    conversation = at_other.conversation(streaming.name)
    eventually(lambda: conversation.get().state.kind == "idle", "it was taken over, too")
    assert taken_over(nodes) == before + 2
    assert watcher.end() == "UNAVAILABLE"
    watcher.close()
    seen = watcher.revisions[-1]
    again = Watcher(other, streaming.name, after_revision=seen)
    try:
        run = conversation.send(f"And now? {streaming.part.key}")
        assert within(run.answer) == "Again."
        again.until(lambda event: event.run_stopped.request_cycle == run.name)
        assert again.revisions == list(range(seen + 1, again.revisions[-1] + 1))
    finally:
        again.close()
    if how == "stopped":
        owner.process.send_signal(signal.SIGCONT)
        within(owner.process.wait)
        owner.foreseen = "was declared dead"
        assert owner.foreseen in owner.log_text()


def test_a_node_that_is_stopped_in_order_gives_its_conversations_up(  # noqa: PLR0917 -- fixtures
    fake_provider: FakeProvider, nodes: Nodes, owner: ServerProcess, at_owner: Client, at_other: Client, tmp_path: Path
) -> None:
    """At once: nobody waits for the end of its lease, and it can come back."""
    chat = Chat(at_owner, fake_provider.part(says("One."), says("Two."), says("Three.")), tmp_path)
    assert chat.ask("First.") == "One."
    assert owner.stop() == 0
    conversation = at_other.conversation(chat.name)
    assert within(conversation.send("Second.").answer) == "Two."
    back = nodes.start("owner")
    with back.client() as client:
        assert within(client.conversation(chat.name).send("Third.").answer) == "Three."
        audit(back)
    assert back.stop() == 0


def test_a_node_that_is_stopped_in_order_passes_on_what_it_begins_no_more(
    fake_provider: FakeProvider, nodes: Nodes, other: ServerProcess, at_other: Client, tmp_path: Path
) -> None:
    """While a run of it has time to end: whoever calls it notices nothing."""
    leaving = nodes.start("leaving", BEDROCK_DRAIN_SECONDS=str(PATIENCE))
    with leaving.client() as client:
        resting = client.create(tmp_path)
        chat = Chat(client, fake_provider.part(streams), tmp_path)
        chat.send("Talk.")
        chat.part.next_reached(streams)
        leaving.process.send_signal(signal.SIGTERM)
        eventually(lambda: any(node.draining for node in at_other.nodes()), "it gives up what it has")
        made = client.create(tmp_path)
        with ThreadPoolExecutor(1) as pool:
            titled = pool.submit(resting.update, title="While it stops")
            at_other.conversation(chat.name).cancel()
            assert titled.result(PATIENCE).title == "While it stops"
    assert within(leaving.process.wait) == 0
    assert at_other.conversation(resting.name).get().title == "While it stops"
    assert at_other.conversation(made.name).get().state.kind == "idle"


def test_a_token_that_is_made_or_revoked_once_counts_at_every_node(nodes: Nodes) -> None:
    principal = '[principals.ada]\nroots = ["/tmp"]\n'
    places = [nodes.start(name, settings=principal) for name in ("first", "second")]
    made = _token(nodes, places[0], "create", "ada")
    clients = [Client(each.address, token=made, timeout=PATIENCE) for each in places]
    try:
        assert [bool(client.models()) for client in clients] == [True, True], "at once"
        listed = json.loads(_token(nodes, places[1], "list", "--json"))
        assert [each["principal"] for each in listed] == ["ada"]
        assert not (places[0].data / "tokens.json").exists()
        _token(nodes, places[1], "revoke", listed[0]["id"])
        for client in clients:
            eventually(partial(_refused, client), "it counts nowhere any more")
    finally:
        for client in clients:
            client.close()
        for each in places:
            assert each.stop() == 0
            each.dispose()


def _token(nodes: Nodes, at: ServerProcess, *arguments: str) -> str:
    return token(at.data.parent / "bedrock.toml", at.data, *arguments, **nodes.env)


def _refused(client: Client) -> bool:
    try:
        client.models()
    except Unauthenticated:
        return True
    return False


def test_a_node_with_another_lease_is_refused_with_both_values_and_leaves(nodes: Nodes, other: ServerProcess) -> None:
    nodes.table["lease_seconds"] = 7
    try:
        with pytest.raises(AssertionError, match=r"cluster.lease_seconds is 7 here, but 5 on node other; stop all"):
            nodes.start("differs")
    finally:
        nodes.table["lease_seconds"] = LEASE_SECONDS
    back = nodes.start("differs")
    shown = nodes.env["BEDROCK_DATABASE"].partition("?")[0].removeprefix("postgresql://")
    assert back.ready.endswith(f"(data {back.data}, database postgresql://{shown}, node differs)\n")
    assert back.stop() == 0


def test_conversations_are_where_their_workspace_is(
    fake_provider: FakeProvider, nodes: Nodes, at_other: Client, tmp_path: Path
) -> None:
    """The other node could reach the directory as well, but does not say so."""
    having = nodes.start("having", workspace=str(tmp_path))
    eventually(lambda: (str(tmp_path),) in [each.workspaces for each in at_other.nodes()], "both are seen at the other")
    (tmp_path / "inner").mkdir()
    forever = processes.forever()
    part = fake_provider.part(says("One."), calls(("bash", {"cmd": f"sleep {forever}"})))
    chat = Chat(at_other, part, tmp_path / "inner", mode="unrestricted")
    assert chat.ask("First.") == "One."
    fork = chat.conversation.fork()
    assert "inner" in [each.name for each in at_other.browse(str(tmp_path)).entries]
    with psycopg.connect(nodes.env["BEDROCK_DATABASE"]) as database:
        placed = "SELECT name FROM conversations JOIN nodes ON incarnation = owner WHERE workspace_label = %s"
        assert database.execute(placed, (str(tmp_path),)).fetchall() == [("having",)] * 2
    chat.send("Second.")
    eventually(lambda: processes.sleepers(forever), "the tool runs")
    having.process.send_signal(signal.SIGKILL)

    def offline() -> bool:
        try:
            chat.conversation.get()
        except Unavailable as error:
            return f"workspace {tmp_path}: start one" in str(error)
        return False

    eventually(offline, "the node is declared dead")
    for call in (partial(at_other.create, tmp_path), fork.fork):
        with pytest.raises(WorkspaceOffline):
            call()
    shown = {each.name: each.state.kind for each in at_other.conversations()}
    assert shown[chat.name] == "tool_executing", "nobody touches it"
    assert [each.text for each in chat.conversation.messages()][:2] == [f"First. {part.key}", "One."]
    again = nodes.start("having", workspace=str(tmp_path))
    eventually(lambda: state_of(chat) == "idle", "it was taken over by the first that has it")
    assert not processes.running(forever)
    audit(again)
    for conversation in (chat.conversation, fork):
        conversation.delete()  # nobody could say anything of them any more
    assert again.stop() == 0


def state_of(chat: Chat) -> str:
    """Return the state of a conversation; "" while it is offline."""
    try:
        return chat.conversation.get().state.kind
    except Unavailable:
        return ""


def test_a_server_without_the_table_has_the_database_to_itself(nodes: Nodes, other: ServerProcess) -> None:
    with pytest.raises(AssertionError, match="is in use by another server"):
        nodes.start_alone("alone")
    with psycopg.connect(nodes.env["BEDROCK_DATABASE"]) as database:
        rest = database.execute("SELECT address FROM nodes WHERE NOT dead AND address LIKE 'unix:%'").fetchall()
    assert not rest, "the next start need not wait for its lease"
