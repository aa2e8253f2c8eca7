"""Sub-agents by hand, from outside: the call, what it refuses, and their conversations as any client sees them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bedrock import Task, v1

from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, Play, calls, held
from tests.support.patience import only, within
from tests.support.server_process import ServerProcess, Servers
from tests.support.terminals import Terminal
from tests.support.watcher import Watcher


def submits(text: str) -> Play:
    return calls(("submit_result", {"result": text}))


def test_tasks_run_and_their_results_reach_the_agent_in_order(
    open_chat: Callable[..., Chat], fake_provider: FakeProvider, watch: Callable[..., Watcher]
) -> None:
    slow, quick = fake_provider.part(held(submits("first"))), fake_provider.part(submits("second"))
    chat = open_chat()
    watcher = watch(chat.name)
    run = chat.conversation.spawn([f"{slow.key} One", Task(f"{quick.key} Two", max_turns=3, timeout=60)])
    assert run.sub_agents == [f"{chat.name}-a1", f"{chat.name}-a2"]
    assert run.message.text.splitlines() == [f"{slow.key} One", f"{quick.key} Two"]
    started = watcher.state(v1.STATE_KIND_AWAITING_SUB_AGENTS).state_changed.state.awaiting_sub_agents
    assert [(agent.conversation, agent.task) for agent in started.pending] == [
        (f"{chat.name}-a1", f"{slow.key} One"),
        (f"{chat.name}-a2", f"{quick.key} Two"),
    ]
    working = slow.next_reached()
    ended = watcher.until("sub_agents_changed").sub_agents_changed
    assert [(report.conversation, report.result) for report in ended.reports] == [(f"{chat.name}-a2", "second")]
    late = watch(chat.name)
    standing = late.events[0].snapshot.sub_agents
    assert [agent.conversation for agent in standing.pending] == [f"{chat.name}-a1"]
    assert [report.result for report in standing.reports] == ["second"]
    working.go.set()
    assert within(run.wait)
    watcher.until("run_stopped")
    last = watcher.of("sub_agents_changed")[-1]
    assert [(report.task_index, report.result) for report in last.reports] == [(1, "second"), (0, "first")]
    assert not last.pending
    told = only([each for each in chat.messages() if each.system_kind == v1.SYSTEM_MESSAGE_KIND_SUB_AGENT_RESULTS])
    assert told.content[0].text == f'Task: "{slow.key} One"\nResult: first\n\nTask: "{quick.key} Two"\nResult: second'


def test_children_are_listed_by_their_parent_only_and_read_like_any_conversation(
    open_chat: Callable[..., Chat], fake_provider: FakeProvider, watch: Callable[..., Watcher]
) -> None:
    part = fake_provider.part(calls(("think", {"thoughts": "hm"})), submits("done"))
    chat = open_chat()
    within(chat.conversation.spawn([f"Do it. {part.key}"]).wait)
    child = only(list(chat.conversation.sub_agents()))
    assert child == only(list(chat.client.conversations(parent=chat.conversation.get().slug)))
    assert child.name not in [each.name for each in chat.client.conversations()]
    assert (child.parent, child.state.completed and child.state.completed.result) == (chat.name, "done")
    assert child.title == f"Do it. {part.key}"
    restricted = chat.client.server_info().sandbox.restricted_available
    assert child.mode == ("restricted" if restricted else chat.conversation.get().mode)
    said = list(chat.client.conversation(child.name).messages())
    assert [message.role for message in said] == ["user", "agent", "tool", "agent", "tool"]
    watcher = watch(child.name, after_revision=0)
    watcher.state(v1.STATE_KIND_COMPLETED)
    assert watcher.revisions == list(range(1, child.revision + 1))


# --- at a terminal, with the demo model -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that has nothing but the demo model."""
    servers = Servers()
    yield servers(tmp_path_factory.mktemp("demo"))
    servers.close()


def environ(server: ServerProcess) -> dict[str, str]:
    return {"BEDROCK_ADDRESS": server.address, "BEDROCK_TOKEN": server.token}


def test_ctrl_c_in_a_chat_cancels_the_parent_and_all_its_sub_agents(demo: ServerProcess, tmp_path: Path) -> None:
    with demo.client() as client:
        conversation = client.create(tmp_path)
        slug = conversation.get().slug
        with Terminal("chat", "-r", slug, environ=environ(demo)) as terminal:
            terminal.shows("idle")
            conversation.spawn(["run sleep 600", "run sleep 600"])
            terminal.shows("└ ◦ run sleep 600 · ")
            terminal.keys("\x03")
            terminal.shows("■ cancelled")
            terminal.keys("\x03")
            assert terminal.ends() == 0
        kinds = [child.state.failed and child.state.failed.error.kind for child in conversation.sub_agents()]
    assert kinds == ["cancelled"] * 2
