"""Modes over a whole server: what the restricted mode keeps from happening, who may widen it, and what stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bedrock import Client, v1
from bedrock.errors import ModeUnavailable

from actors.adapters.tools.request_mode_upgrade import ASK, GRANTED, GRANTED_WORKSPACE, HOW_TO_ASK
from tests.support.chat import Chat, question
from tests.support.fake_provider import FakeProvider, calls, says
from tests.support.patience import only, within
from tests.support.sandbox_reports import sandbox_report
from tests.support.server_process import ServerProcess, Servers, provider
from tests.support.watcher import Watcher

REPORT = sandbox_report()
UPGRADE = ("request_mode_upgrade", {"reason": "to write the file"})

OpenChat = Callable[..., Chat]
Watch = Callable[..., Watcher]


def sandboxed(fake_provider: FakeProvider) -> dict[str, str]:
    """The settings of a server that restricts tools, in the best way that this machine can keep."""
    assert REPORT.restriction_available, f"this machine can keep no restricted mode: {REPORT.reason}"
    return {"BEDROCK_SANDBOX": REPORT.tier, **provider(fake_provider.url)}


@pytest.fixture(scope="module")
def server(fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that restricts tools."""
    servers = Servers()
    yield servers(tmp_path_factory.mktemp("server"), **sandboxed(fake_provider))
    servers.close()


def write(target: Path) -> tuple[str, dict[str, str]]:
    return "bash", {"cmd": f"echo written > {target} && cat {target}"}


def outputs(chat: Chat) -> list[str]:
    """What the tools answered, in order."""
    return [
        block.tool_result.output
        for message in chat.messages()
        for block in message.content
        if block.HasField("tool_result")
    ]


def test_what_the_mode_forbids_fails_and_says_how_to_ask(open_chat: OpenChat, tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    patch = ("patch", {"path": str(target), "patches": [{"operation": "overwrite", "newText": "x"}]})
    chat = open_chat(calls(write(target), patch, ("bash", {"cmd": "cat /nowhere"})), says("I see."))
    assert chat.ask("Write it.") == "I see."
    shell, patched, other = outputs(chat)
    assert HOW_TO_ASK in shell
    assert HOW_TO_ASK in patched
    assert HOW_TO_ASK not in other, "a failure that has nothing to do with the mode"
    results = [result for message in chat.conversation.messages() for result in message.tool_results]
    assert [result.display.get("for_agent", "") for result in results] == [ASK, ASK, ""]
    assert not target.exists()
    chat.assert_valid()


def test_an_agent_asks_is_allowed_and_does_it(open_chat: OpenChat, watch: Watch, tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    chat = open_chat(calls(write(target)), calls(UPGRADE, write(target)), calls(write(target)), says("Done."))
    run = chat.send("Write it.")
    asked = question(run)
    assert (asked.tool, asked.input) == ("request_mode_upgrade", {"reason": "to write the file"})
    late = watch(chat.name)
    pending = only(late.events[0].snapshot.pending_approvals)
    assert pending.mode_upgrade.reason == "to write the file"
    assert chat.conversation.get().mode == "restricted"
    chat.conversation.approve(asked)
    assert within(run.answer) == "Done."
    assert [output.split("\n")[0] for output in outputs(chat)[1:]] == [GRANTED, "written", "written"]
    assert target.read_text() == "written\n"
    assert chat.conversation.get().mode == "unrestricted"
    late.until("run_stopped")
    assert [each.mode for each in late.of("conversation_updated")][-1] == v1.MODE_UNRESTRICTED
    third = chat.part.exchanges[2]
    assert [block["type"] for block in third.body["messages"][-1]["content"]] == ["tool_result", "tool_result", "text"]
    assert "now unrestricted" in third.question
    chat.assert_valid()


def test_an_agent_asks_for_the_workspace_mode_edits_and_gets_no_further(
    open_chat: OpenChat, watch: Watch, tmp_path: Path
) -> None:
    """Its directory is where the chat works; what is protected there, and what is outside, stays as it is."""
    assert REPORT.workspace_available, f"this machine can keep no workspace mode: {REPORT.workspace_reason}"
    asks = ("request_mode_upgrade", {"reason": "to edit", "mode": "workspace"})
    patch = ("patch", {"path": "made.txt", "patches": [{"operation": "overwrite", "newText": "patched"}]})
    more = ("bash", {"cmd": "mkdir .git; echo x > .envrc; echo x > ../out; echo on > run.txt && cat made.txt"})
    chat = open_chat(calls(asks), calls(patch, more), says("Done."))
    work = Path(chat.conversation.get().working_directory)
    run = chat.send("Edit it.")
    asked = question(run)
    assert asked.mode_upgrade is not None
    assert (asked.mode_upgrade.mode, asked.mode_upgrade.reason) == ("workspace", "to edit")
    late = watch(chat.name)
    assert only(late.events[0].snapshot.pending_approvals).mode_upgrade.mode == v1.MODE_WORKSPACE
    chat.conversation.approve(asked)
    assert within(run.answer) == "Done."
    assert chat.conversation.get().mode == "workspace"
    assert (work / "made.txt").read_text() == "patched"
    assert (work / "run.txt").read_text() == "on\n"
    assert not {".git", ".envrc"} & {path.name for path in work.iterdir()}
    assert not (work.parent / "out").exists()
    granted, patched, shell = outputs(chat)
    assert granted == GRANTED_WORKSPACE
    assert "patched" in shell
    assert "applied" in patched
    kinds = [message.system_kind for message in chat.conversation.messages()]
    assert "mode_workspace" in kinds
    with pytest.raises(ModeUnavailable, match="belongs to the system"):
        chat.client.create("/", model=chat.conversation.get().model, mode="workspace")
    chat.assert_valid()


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_person_is_asked_only_for_what_can_be_had(
    server: ServerProcess, fake_provider: FakeProvider, tmp_path: Path, everywhere: bool
) -> None:
    assert REPORT.workspace_available, f"this machine can keep no workspace mode: {REPORT.workspace_reason}"
    wrong = ("request_mode_upgrade", {"reason": "to write", "mode": "everything"})
    asks = ("request_mode_upgrade", {"reason": "to write", "mode": "workspace"})
    with server.client() as client:
        part = fake_provider.part(calls(wrong), *([calls(asks)] if everywhere else []), calls(UPGRADE), says("Done."))
        chat = Chat(client, part, Path("/") if everywhere else tmp_path, approval_policy="ask_all")
        run = chat.send("Write it.")
        asked = question(run)
        assert asked.mode_upgrade is not None
        assert (asked.mode_upgrade.mode, asked.mode_upgrade.workspace_available) == ("unrestricted", not everywhere)
        refused = outputs(chat)
        assert "does not fit its schema" in refused[0]
        if everywhere:
            assert "The workspace mode cannot be kept here" in refused[1]
        chat.conversation.deny(asked)
        assert within(run.answer) == "Done."
        chat.assert_valid()


def test_where_nothing_can_be_restricted_the_server_says_why(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    plain = start_server(tmp_path, BEDROCK_SANDBOX="none", **provider(fake_provider.url))
    with plain.client() as client:
        work = tmp_path / "work"
        work.mkdir()
        chat = Chat(client, fake_provider.part(calls(UPGRADE), says("Good.")), work)
        assert chat.conversation.get().mode == "unrestricted"
        with pytest.raises(ModeUnavailable) as refused:
            chat.conversation.set_mode("restricted")
        assert client.server_info().sandbox.reason in refused.value.message
        run = chat.send("Ask for more.")
        asked = question(run)
        chat.conversation.approve(asked)
        assert within(run.answer) == "Good."
        assert "already" in outputs(chat)[0]


@pytest.mark.one_server("the server is killed and restarted")
def test_a_crash_leaves_the_mode_as_acknowledged_and_withdraws_what_was_asked(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    server = start_server(tmp_path, **sandboxed(fake_provider))
    work = tmp_path / "work"
    work.mkdir()
    with server.client() as client:
        widened, narrowed, asking = (Chat(client, fake_provider.part(calls(UPGRADE)), work) for _ in range(3))
        widened.conversation.set_mode("unrestricted")
        narrowed.conversation.set_mode("unrestricted")
        narrowed.conversation.set_mode("restricted")
        run = asking.send("Ask.")
        question(run)
        server.kill()
    again = start_server(tmp_path, **sandboxed(fake_provider))
    with again.client() as client:
        modes = [client.conversation(chat.name).get().mode for chat in (widened, narrowed, asking)]
        assert modes == ["unrestricted", "restricted", "restricted"]
        after = client.conversation(asking.name).get()
        assert after.state.kind == "idle"
        results = [message.tool_results for message in client.conversation(asking.name).messages()]
        assert [result.output for each in results for result in each] == ["Interrupted by server restart"]


def test_the_demo_model_writes_by_asking_first(client: Client, tmp_path: Path) -> None:
    conversation = client.create(tmp_path, model="demo")
    run = conversation.send("write note.txt")
    asked = question(run)
    assert asked.tool == "request_mode_upgrade"
    assert "note.txt" in str(asked.input["reason"])
    conversation.approve(asked)
    assert "written by the demo model" in within(run.answer)
    assert (tmp_path / "note.txt").read_text() == "written by the demo model\n"
