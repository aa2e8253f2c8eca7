"""The chat at a real (pseudo) terminal: keys in, screen out, and nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc
import pytest
from bedrock import Approval, Client, v1
from bedrock.cli.chat.prompt import prompt_text
from bedrock.cli.chat.session import ChatSession
from bedrock.cli.display.questions import parse_reply, replies
from bedrock.cli.display.transcript import USER_MARK
from bedrock.cli.text.style import Paint
from bedrock.types import Mode

from tests.support.fake_server import (
    NAME,
    FakeBedrock,
    Gate,
    Refusal,
    Step,
    allows,
    asks_person,
    call,
    question,
    says,
    state,
    stored,
    uses_tool,
)
from tests.support.terminals import Terminal


@pytest.fixture
def terminal(address: str) -> Iterator[Terminal]:
    with Terminal("chat", "--effort", "low", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("/help lists")
        yield terminal


def test_a_chat_from_the_first_word_to_the_last(terminal: Terminal, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done, x is gone.", ask=True))
    terminal.keys("Remove x\r")
    terminal.shows("? Run bash in /")
    terminal.shows("[b] always what begins with rm")
    terminal.keys("y\r")
    terminal.shows("Done, x is gone.")
    terminal.idles()
    terminal.keys("\x04")
    terminal.shows("To come back: bedrock chat -r")
    assert terminal.ends() == 0
    (created,) = fake.asked(v1.CreateConversationRequest)
    assert created.conversation.generation == v1.Generation(reasoning_effort=v1.REASONING_EFFORT_LOW)
    (request,) = fake.asked(v1.ResolveApprovalRequest)
    assert request.decision == v1.APPROVAL_DECISION_APPROVE


ALWAYS = "[y]es  [n]o  [never] + Enter (no default)\n"


@pytest.mark.parametrize(
    ("asked", "lines"),
    [
        (
            question("bash", None, allows(command="git push -f"), allows(command_prefix="git push")),
            f"{ALWAYS}[e] always this exact command\n[b] always what begins with git push\n",
        ),
        (
            question("patch", None, allows(path="/work"), allows(tool="tools/patch")),
            f"{ALWAYS}[d] always in /work\n[t] always the tool patch\n",
        ),
        (
            question("mcp__jira__add", None, allows(tool="tools/mcp__jira__add"), allows(mcp_server="jira")),
            f"{ALWAYS}[t] always the tool mcp__jira__add\n[s] always the MCP server jira\n",
        ),
        (question("request_mode_upgrade"), "[y]es  [n]o + Enter (no default)\n"),
        (
            question("bash", None, allows(command_prefix="kubectl --context production delete namespace")),
            f"{ALWAYS}[b] always what begins with kubectl\n    --context production…\n",
        ),
    ],
)
def test_always_is_offered_only_where_it_means_more_than_yes(asked: Approval, lines: str) -> None:
    """Lines break between words at 44 columns."""
    session = SimpleNamespace(
        transcript=SimpleNamespace(unfinished=lambda room: []),
        question=asked,
        agent_lines=list,
        open_questions=1,
        view=SimpleNamespace(info=SimpleNamespace(mode="restricted")),
    )
    assert prompt_text(cast("ChatSession", session), Paint(False), 10, 44) == lines + USER_MARK


@pytest.mark.parametrize(
    ("mode", "available", "offered"),
    [("restricted", True, True), ("restricted", False, False), ("workspace", True, False)],
)
def test_the_workspace_mode_is_offered_where_it_can_be_had_and_is_not_the_mode_already(
    mode: Mode, available: bool, offered: bool
) -> None:
    upgrade = v1.PendingApproval.ModeUpgrade(mode=v1.MODE_UNRESTRICTED, workspace_available=available)
    asked = Approval.from_proto(v1.PendingApproval(mode_upgrade=upgrade))
    assert ("[w] no, but workspace mode" in "".join(replies(asked, Paint(False), mode))) is offered
    assert (parse_reply("w", asked) is not None) is available


def test_the_tree_of_sub_agents_is_above_what_is_being_written_and_the_prompt() -> None:
    session = SimpleNamespace(
        transcript=SimpleNamespace(unfinished=lambda room: ["Hel"]),
        question=None,
        open_questions=0,
        agent_lines=lambda: ["├ ◦ one", "└ ✓ two"],
    )
    assert prompt_text(cast("ChatSession", session), Paint(False), 10, 80) == f"├ ◦ one\n└ ✓ two\nHel\n{USER_MARK}"


def test_a_chat_with_the_demo_model_begins_with_a_hint(address: str) -> None:
    with Terminal("chat", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("The scripted demo model answers; type help")
        terminal.idles()
        terminal.keys("\x04")
        assert terminal.ends() == 0


def test_escape_cancels_and_tab_queues(terminal: Terminal, fake: FakeBedrock) -> None:
    fake.answers.extend([uses_tool("sleep", "", "", ask=True), says("Next.")])
    terminal.keys("Wait\r")
    terminal.shows("[y]es")
    terminal.keys("and then\t")
    terminal.shows("“and then” waits (follow-up)")
    terminal.keys("/etc/hosts too\t")
    terminal.shows("“/etc/hosts too” waits (follow-up)")
    terminal.keys("\x1b")
    terminal.shows("■ cancelled")
    terminal.keys("/quit\r")
    assert terminal.ends() == 0
    (cancelled,) = fake.asked(v1.CancelConversationRequest)
    assert cancelled.discard_queued


def test_ctrl_c_cancels_first_and_leaves_second(terminal: Terminal, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("sleep", "", "", ask=True))
    terminal.keys("Wait\r")
    terminal.shows("[y]es")
    terminal.keys("\x03")
    terminal.shows("■ cancelled")
    terminal.keys("\x03")
    terminal.shows("To come back")
    assert terminal.ends() == 0


def test_without_a_server_the_terminal_shows_how_to_start_one(tmp_path: Path) -> None:
    with Terminal("list", environ={"BEDROCK_ADDRESS": "", "BEDROCK_DATA_DIR": str(tmp_path / "none")}) as terminal:
        terminal.shows("Start one with `bedrock serve`, or chat with one of your own: `bedrock`.")
        assert terminal.ends() == 4


@pytest.mark.parametrize("columns", [70, 160])
def test_tables_fill_the_terminal_and_no_more(address: str, fake: FakeBedrock, columns: int) -> None:
    fake.conversation.title = "long " * 60
    with Terminal("list", environ={"BEDROCK_ADDRESS": address}, columns=columns) as terminal:
        assert terminal.ends() == 0
        head, row = terminal.rows
    assert head.startswith("slug         state  mode")
    assert row.startswith("brave-otter  idle   restr")
    assert columns - 4 < len(row) < columns
    assert row.endswith("…")


def test_a_question_is_cancelled_by_ctrl_c(address: str, fake: FakeBedrock) -> None:
    fake.answers.append(
        lambda run: [state("llm_requesting", run), stored("agent", call("bash", {"command": "sleep 9"})), Gate()]
    )
    with Terminal("ask", "Wait", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("bash sleep 9")
        terminal.keys("\x03")
        terminal.shows("error: cancelled")
        assert terminal.ends() == 130
    (cancelled,) = fake.asked(v1.CancelConversationRequest)
    assert cancelled.run == f"{NAME}/requestCycles/1"


def test_who_waits_for_an_answer_sees_that_it_is_written(address: str, fake: FakeBedrock) -> None:
    fake.answers.append(lambda run: [state("llm_requesting", run), Gate()])
    with Terminal("ask", "Wait", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.until(lambda screen: any(line.startswith("thinking · context 4%") for line in screen))
        assert any(line.endswith("Ctrl-C cancels") for line in terminal.screen)
        terminal.keys("\x03")
        assert terminal.ends() == 130
        assert terminal.rows == ["error: cancelled"]


def test_what_a_tool_asks_is_asked_at_the_terminal_again_if_it_does_not_fit(address: str, fake: FakeBedrock) -> None:
    fake.answers.append(asks_person())
    fake.refuse("AnswerQuestion", Refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", "no such branch"))
    with Terminal("ask", "Use it", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("? MCP server t needs your input for mcp__t__ask")
        terminal.shows("branch (text)  /decline")
        terminal.keys("\r")
        terminal.shows("this field is required")
        terminal.keys("old\r")
        terminal.shows("error: no such branch")
        terminal.keys("main\r")
        terminal.shows("Done.")
        assert terminal.ends() == 0
    replies = fake.asked(v1.AnswerQuestionRequest)
    assert [reply.content["branch"] for reply in replies] == ["old", "main"]


def test_what_a_tool_asks_can_be_declined_at_the_terminal(address: str, fake: FakeBedrock) -> None:
    for typed in ("/decline\r", "\x04"):
        fake.over.clear()
        fake.answers.append(asks_person(url="https://t.test/login"))
        with Terminal("ask", "Use it", environ={"BEDROCK_ADDRESS": address}) as terminal:
            terminal.shows("open https://t.test/login")
            terminal.shows("Enter: I have opened it  /decline")
            terminal.keys(typed)
            terminal.shows("Then not.")
            assert terminal.ends() == 0
    assert [reply.decline for reply in fake.asked(v1.AnswerQuestionRequest)] == [True, True]


def test_a_question_of_a_tool_is_answered_or_declined_by_command(address: str, fake: FakeBedrock) -> None:
    asked = fake.conversation.state.tool_executing.questions.add(name=f"{NAME}/questions/1")
    asked.requested_schema.update({"type": "object", "properties": {"branch": {"type": "string"}}})
    for typed, told in (("main", "answered"), ("/decline", "declined")):
        with Terminal("answer", "brave-otter", environ={"BEDROCK_ADDRESS": address}) as terminal:
            terminal.shows("branch (text, Enter skips this field)  /decline")
            terminal.keys(f"{typed}\r")
            terminal.shows(told)
            assert terminal.ends() == 0
    first, second = fake.asked(v1.AnswerQuestionRequest)
    assert (dict(first.content), second.decline) == ({"branch": "main"}, True)


def test_the_answer_at_a_terminal_looks_like_markdown_unless_it_is_to_be_plain(address: str, fake: FakeBedrock) -> None:
    fake.answers.extend([says("# Yes\n\n- **one**")] * 2)
    for colour, rows in (("", ["Yes", "", " • one"]), ("1", ["# Yes", "", "- **one**"])):
        with Terminal("ask", "Well?", environ={"BEDROCK_ADDRESS": address, "NO_COLOR": colour}) as terminal:
            assert terminal.ends() == 0
            assert terminal.rows == rows


def test_a_deletion_is_asked_about_at_a_terminal(address: str, fake: FakeBedrock) -> None:
    for key, code in (("n", 1), ("y", 0)):
        assert not fake.asked(v1.DeleteConversationRequest)
        with Terminal("rm", "brave-otter", environ={"BEDROCK_ADDRESS": address}) as terminal:
            terminal.shows("Delete brave-otter permanently?")
            terminal.keys(f"{key}\r")
            assert terminal.ends() == code
    assert len(fake.asked(v1.DeleteConversationRequest)) == 1


WATCHERS = {
    "chat": ("chat", "-r", "brave-otter"),
    "watch": ("watch", "brave-otter"),
    "json": ("watch", "--output", "stream-json", "brave-otter"),
}


def waits(run: str) -> list[Step]:
    """A run whose tool goes on until it is cancelled."""
    asked = stored("agent", call("bash", {"command": "sleep 9"}))
    return [state("llm_requesting", run), asked, state("tool_executing", run), Gate()]


@pytest.mark.parametrize("watcher", WATCHERS)
def test_every_watcher_survives_a_cancel(address: str, fake: FakeBedrock, client: Client, watcher: str) -> None:
    fake.answers.extend([waits, says("Here again.")])
    conversation = client.conversation(NAME)
    conversation.send("Wait")
    with Terminal(*WATCHERS[watcher], environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("sleep 9")
        conversation.cancel()
        terminal.shows("STOP_REASON_INTERRUPTED" if watcher == "json" else "■ cancelled")
        conversation.send("Still there?")
        terminal.shows("Here again.")
        terminal.keys("\x03\x03" if watcher == "chat" else "\x03")
        assert terminal.ends() == (0 if watcher == "chat" else 130)


def test_who_waits_for_an_answer_survives_a_cancel(address: str, fake: FakeBedrock, client: Client) -> None:
    fake.answers.append(waits)
    with Terminal("ask", "Wait", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("sleep 9")
        client.conversation(NAME).cancel()
        terminal.shows("error: cancelled")
        assert terminal.ends() == 130


@pytest.mark.parametrize("arguments", [(), ("chat", "What", "is here?")], ids=["alone", "with a prompt"])
def test_the_program_opens_a_chat(address: str, fake: FakeBedrock, arguments: tuple[str, ...]) -> None:
    fake.answers.append(says("Two files."))
    with Terminal(*arguments, environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("/help lists")
        if not arguments:
            terminal.keys("What is here?\r")
        terminal.shows("> What is here?")
        terminal.shows("Two files.")
        terminal.keys("\x04")
        assert terminal.ends() == 0
