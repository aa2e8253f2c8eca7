"""A server that has a PostgreSQL to itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e import processes
from tests.e2e.chat import Chat
from tests.e2e.fake_provider import FakeProvider, calls, says
from tests.e2e.nodes import Nodes
from tests.e2e.patience import eventually, within
from tests.e2e.server_process import provider

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
        eventually(lambda: conversation.get().state.kind == "idle", "it was recovered")
        assert not processes.running(forever)
        assert within(conversation.send(f"And now? {part.key}").answer) == "Here."


def test_a_database_that_is_away_for_a_while_ends_nothing(nodes: Nodes, fake_provider: FakeProvider) -> None:
    server = nodes.start_alone("alone")
    with server.client() as client:
        chat = Chat(client, fake_provider.part(says("Before."), says("After.")), server.folder)
        assert chat.ask("First.") == "Before."
        nodes.database.crash()
        nodes.database.start()
        assert within(lambda: chat.ask("Second.")) == "After."
        chat.assert_valid()
