"""A server that has a PostgreSQL to itself."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from bedrock import v1

from tests.e2e.test_backup import bedrock
from tests.integration.server.grpc_harness import refused
from tests.support import processes
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, calls, says
from tests.support.nodes import Nodes
from tests.support.patience import eventually, within
from tests.support.server_process import ServerProcess, Servers, provider

pytestmark = pytest.mark.one_server("it starts its own servers")


@pytest.fixture
def nodes(fake_provider: FakeProvider, tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path, env=provider(fake_provider.url))
    yield made
    made.close()


def test_a_killed_server_recovers_everything_at_its_next_start(nodes: Nodes, fake_provider: FakeProvider) -> None:
    forever = processes.forever()
    server = nodes.start_alone("alone")
    with server.client() as client:
        part = fake_provider.part(calls(("bash", {"cmd": f"sleep {forever}"})), says("Here."))
        chat = Chat(client, part, server.folder, mode="unrestricted")
        chat.send("Work.")
        eventually(lambda: processes.sleepers(forever), "the tool runs")
        server.kill()
    again = nodes.start_alone("alone")
    with again.client() as client:
        conversation = client.conversation(chat.name)
        assert conversation.get().state.kind == "idle", "before the server said that it is ready"
        assert not processes.running(forever)
        assert within(conversation.send(f"And now? {part.key}").answer) == "Here."


def worrying(server: ServerProcess) -> list[str]:
    """What the log has of warnings and errors."""
    lines = map(json.loads, server.log_text().splitlines())
    return [str(line["message"]) for line in lines if line["level"] not in {"debug", "info"}]


def test_a_database_that_is_away_for_a_while_ends_nothing(nodes: Nodes, fake_provider: FakeProvider) -> None:
    server = nodes.start_alone("alone")
    with server.client() as client, server.channel() as channel:
        chat = Chat(client, fake_provider.part(says("Before."), says("After.")), server.folder)
        assert chat.ask("First.") == "Before."
        before = worrying(server)
        nodes.database.crash()
        stub = v1.ConversationServiceStub(channel)
        for _ in range(5):
            unread = refused(partial(stub.ListConversations, v1.ListConversationsRequest(), metadata=server.metadata))
            assert (unread.reason, unread.text) == ("STORE_UNAVAILABLE", "the store cannot be read; retry")
            made = v1.CreateConversationRequest(conversation=v1.Conversation(working_directory=str(server.folder)))
            unwritten = refused(partial(stub.CreateConversation, made, metadata=server.metadata))
            assert unwritten.reason == "STORE_UNAVAILABLE"
            assert "cannot confirm the change" in unwritten.text or "database lease expired" in unwritten.text
        (away,) = worrying(server)[len(before) :]
        assert away.startswith("the database "), "one line for its heartbeats, reads and writes"
        nodes.database.start()
        assert within(lambda: chat.ask("Second.")) == "After."
        chat.assert_valid()


def test_conversations_move_from_the_data_directory_and_go_on(
    nodes: Nodes, fake_provider: FakeProvider, start_server: Servers, tmp_path: Path
) -> None:
    folder = tmp_path / "alone"
    folder.mkdir()
    server = start_server(folder, **provider(fake_provider.url))
    with server.client() as client:
        chat = Chat(client, fake_provider.part(says("Before."), says("After.")), folder)
        assert chat.ask("First.") == "Before."
        code, text = bedrock(folder, "move", "--data-dir", str(server.data), **nodes.env)
        assert code == 1
        assert "nothing was moved: the data directory" in text
        assert text.endswith("stop the server first\n")
    assert server.stop() == 0
    code, text = bedrock(folder, "move", "--data-dir", str(server.data), **nodes.env)
    assert (code, text.split(":")[0]) == (0, "moved 1 conversation to postgresql")
    code, text = bedrock(folder, "move", "--data-dir", str(server.data), **nodes.env)
    assert (code, "were moved to postgresql" in text) == (1, True)
    code, text = bedrock(folder, "config", "check", "--data-dir", str(server.data), BEDROCK_LISTEN="127.0.0.1:0")
    assert (code, "were moved to postgresql" in text) == (1, True)
    code, text = bedrock(folder, "backup", "--data-dir", str(server.data), "copy.db")
    assert (code, "no backup was made: the conversations of" in text) == (1, True)
    with pytest.raises(AssertionError, match="were moved to postgresql"):
        start_server(folder, **provider(fake_provider.url))
    code, text = bedrock(folder, "backup", "copy.db", **nodes.env)
    assert (code, "copy them with PostgreSQL's own tools, such as pg_dump" in text) == (2, True)
    with nodes.start_alone("alone").client() as client:
        conversation = client.conversation(chat.name)
        assert [message.text.split()[0] for message in conversation.messages()] == ["First.", "Before."]
        assert within(conversation.send(f"Second. {chat.part.key}").answer) == "After."
        assert conversation.verify() == []
        assert client.server_info().sqlite_version == ""


def test_a_move_without_a_database_says_what_to_give(tmp_path: Path) -> None:
    code, text = bedrock(tmp_path, "move")
    assert (code, "--database postgresql://user@host:port/name" in text) == (2, True)
    code, text = bedrock(tmp_path, "move", "--database", "postgresql://ann:s3cret@127.0.0.1:1/none")
    assert (code, "no database in" in text, "s3cret" in text) == (1, True, False)
