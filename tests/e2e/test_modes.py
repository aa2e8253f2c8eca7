"""Modes over a whole server: what the restricted mode keeps from happening, who may widen it, and what stays."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bedrock import v1
from bedrock.errors import ModeUnavailable

from actors.adapters.tools.request_mode_upgrade import ASK, GRANTED_WORKSPACE, HOW_TO_ASK
from tests.support.chat import Chat, question
from tests.support.fake_provider import FakeProvider, calls, says
from tests.support.patience import only, within
from tests.support.sandbox_reports import sandbox_report
from tests.support.server_process import ServerProcess, Servers, provider
from tests.support.watcher import Watcher

REPORT = sandbox_report()

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
    with pytest.raises(ModeUnavailable, match="is a system directory"):
        chat.client.create("/", model=chat.conversation.get().model, mode="workspace")
    chat.assert_valid()
