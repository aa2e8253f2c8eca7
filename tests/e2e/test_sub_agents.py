"""Sub-agents of a real server: with real tools and requests, and through kill -9 at any instant."""

import functools
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.core import history
from actors.core.states import INACTIVE, TERMINAL
from actors.ports.store import UNARCHIVED, Selection
from tests.support import processes
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, Part, Play, calls, hangs, held, says, streams
from tests.support.patience import eventually
from tests.support.server_process import ServerProcess, Servers, provider

KILLS = int(os.environ.get("BEDROCK_AGENT_KILLS", "3"))
"""Servers that are killed with sub-agents at work."""

SOON = 0.5
"""Seconds after the message at which a server is killed at the latest: all of a family's life."""


def submits(text: str) -> Play:
    return calls(("submit_result", {"result": text}))


def spawns(*parts: Part, **more: Any) -> Play:
    """A call that starts a sub-agent for each of these parts."""
    return calls(("spawn_sub_agent", {"tasks": [{"task": f"Do it. {part.key}"} | more for part in parts]}))


def results(chat: Chat) -> list[str]:
    """What the parent's model was told, a paragraph per task."""
    blocks = [block for message in chat.messages() for block in message.content]
    (told,) = [block.tool_result for block in blocks if block.tool_result.output]
    return [paragraph.partition("\n")[2] for paragraph in told.output.split("\n\n")]


def test_sub_agents_work_in_their_own_conversations_and_their_results_come_back(
    open_chat: Callable[..., Chat], fake_provider: FakeProvider, tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("the code is 4711\n")
    reader = fake_provider.part(calls(("bash", {"cmd": "cat notes; touch made; echo $?"})), submits("done"))
    failing = fake_provider.part(calls(("submit_error", {"error": "no such door"})))
    chat = open_chat(spawns(reader, failing, read_first=["notes"]), says("Both have ended."), mode="unrestricted")
    assert chat.ask("Look.") == "Both have ended."
    assert results(chat) == ["Result: done", "Failed: no such door"]
    first = reader.exchanges[0]
    assert first.tools[-2:] == ["submit_result", "submit_error"]
    assert not {"spawn_sub_agent", "request_mode_upgrade"} & set(first.tools)
    assert '<file path="notes">\n     1\tthe code is 4711\n</file>' in first.texts[0]
    ran = reader.exchanges[1].results[0]
    assert "the code is 4711" in str(ran)
    restricted = chat.client.server_info().sandbox.restricted_available
    assert (tmp_path / "made").exists() != restricted, "its parent may, a sub-agent may not"
    chat.assert_valid()


def test_a_sub_agent_that_has_ended_leaves_no_background_job(
    open_chat: Callable[..., Chat], fake_provider: FakeProvider
) -> None:
    forever = processes.forever()
    running = calls(("bash", {"cmd": f"sleep {forever}", "wait_seconds": 1}))
    handed_over = fake_provider.part(running, held(submits("it runs")))
    chat = open_chat(spawns(handed_over), says("Well."))
    run = chat.send("Start it.")
    handed_over.next()
    exchange = handed_over.next_reached()
    assert "handle" in str(exchange.results[0])
    assert processes.sleepers(forever)
    exchange.go.set()
    run.wait()
    eventually(lambda: not processes.running(forever), "its job has ended with it")
    assert results(chat) == ["Result: it runs"]


def test_a_cancel_hangs_up_on_the_provider_and_kills_the_tools(
    open_chat: Callable[..., Chat], fake_provider: FakeProvider
) -> None:
    forever = processes.forever()
    asking = [fake_provider.part(hangs), fake_provider.part(streams)]
    working = fake_provider.part(calls(("bash", {"cmd": f"setsid sleep {forever} & sleep {forever}"})))
    chat = open_chat(spawns(*asking, working))
    chat.send("Go.")
    exchanges = [part.next_reached() for part in asking]
    eventually(lambda: len(processes.sleepers(forever)) == 2, "the tool's processes run")
    assert len(chat.conversation.cancel().sub_agents) == 3
    eventually(lambda: chat.state.kind == "idle", "the parent is idle")
    eventually(lambda: not processes.running(forever), "the tools are dead")
    assert all(exchange.closed.wait(45) for exchange in exchanges)
    chat.assert_valid()
    chat.part.then(says("Yes."))
    assert chat.ask("Still there?") == "Yes."


@pytest.mark.one_server("the server is killed and restarted")
def test_servers_that_are_killed_at_any_instant_leave_whole_families(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    server = start_server(tmp_path, **provider(fake_provider.url))
    for number in range(KILLS):
        name = _family(server, fake_provider, tmp_path, rng.random() * SOON)
        server.kill()
        eventually(functools.partial(_gone, server), f"the tools of the dead server are gone; seed {seed}")
        asked = fake_provider.asked
        server = start_server(tmp_path, **provider(fake_provider.url))
        with server.client() as client:
            assert client.conversation(name).get().state.kind == "idle", f"seed {seed}, family {number}"
        assert fake_provider.asked == asked, f"the start asked the model; seed {seed}"
    assert server.stop() == 0
    store = open_store(tmp_path / "data")
    try:
        parents = store.list(Selection("local", UNARCHIVED), limit=1_000).records
        assert len(parents) == KILLS
        for parent in parents:
            _check(store, parent.id, f"seed {seed}")
    finally:
        store.close()


def _gone(server: ServerProcess) -> bool:
    return not server.running()


def _family(server: ServerProcess, fake_provider: FakeProvider, folder: Path, seconds: float) -> str:
    """A family at work for so long; its name."""
    forever = processes.forever()
    parts = [
        fake_provider.part(hangs),
        fake_provider.part(streams),
        fake_provider.part(calls(("bash", {"cmd": f"sleep {forever}"}))),
        fake_provider.part(submits("at once")),
        fake_provider.part(calls(("think", {"thoughts": "hm"})), submits("after a tool")),
    ]
    with server.client() as client:
        chat = Chat(client, fake_provider.part(spawns(*parts)), folder)
        chat.send("Go.")
        time.sleep(seconds)
        return chat.name


def _check(store: PeeweeStore, parent_id: str, where: str) -> None:
    """At rest, sound, every chain valid, every call answered."""
    for key in (parent_id, *store.children(parent_id)):
        record = store.load(key)
        assert record is not None
        assert isinstance(record.state, INACTIVE if key == parent_id else TERMINAL), (where, record.state)
        said = store.history(key, record.state.ledger.seq)
        assert history.violations(said) == (), where
        assert history.open_calls(said) == (), where
        assert store.verify(key) == (), where
