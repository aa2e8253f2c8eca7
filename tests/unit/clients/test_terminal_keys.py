"""The keys of a chat at a real (pseudo) terminal: each of them leaves a prompt that still works."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from bedrock import Client, v1
from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import DummyInput
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.key_binding.defaults import load_key_bindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import DummyOutput

from tests.support.fake_server import NAME, FakeBedrock, Gate, Step, call, says, state, stored, uses_tool
from tests.support.terminals import Terminal
from tests.unit.clients.test_question_form import asked, asks
from tests.unit.clients.test_session import sent
from tests.unit.clients.test_terminal import waits

# What no single sequence stands for, or what is no key that a person presses.
NO_KEYS = {
    *(Keys.SIGINT, Keys.CPRResponse, Keys.Vt100MouseEvent, Keys.WindowsMouseEvent, Keys.ControlInsert),
    *(Keys.ShiftInsert, Keys.ScrollUp, Keys.ScrollDown, Keys.Ignore),
}

# How many keys are pressed before somebody looks.
TOGETHER = 10

# Erases what is before the cursor in its line, or the end of the line above.
CTRL_U = "\x15"

# Keys that leave, cancel or suspend: they have tests of their own.
MEANT = {Keys.ControlC, Keys.ControlD, Keys.ControlZ}


def sequence(key: Keys | str) -> str:
    """What a terminal sends for a key, the shortest if there are several; for "any key" some letter."""
    if key == Keys.Any:
        return "x"
    if key == Keys.BracketedPaste:
        return "\x1b[200~pasted\x1b[201~"
    if not isinstance(key, Keys):
        return key
    return min((sent for sent, meant in ANSI_SEQUENCES.items() if meant == key), key=len)


def bindings() -> list[tuple[Keys | str, ...]]:
    """All combinations of keys that prompt_toolkit binds, but for those of letters, which are a text in this mode."""
    with create_app_session(DummyInput(), DummyOutput()):
        prompt: PromptSession[str] = PromptSession(multiline=True)
        found = {each.keys for each in (*load_key_bindings().bindings, *prompt._create_prompt_bindings().bindings)}
    found |= {(Keys.Escape, character) for character in "qxzQ!~"}  # which nobody binds
    found |= {(key,) for key in Keys if key.value.startswith(("c-", "f", "s-", "c-s-"))}
    wanted = [keys for keys in found if isinstance(keys[0], Keys) and keys[0] != Keys.Any and not NO_KEYS & {*keys}]
    known = {*ANSI_SEQUENCES.values(), Keys.Any, Keys.BracketedPaste}
    typed = [keys for keys in wanted if known.issuperset(key for key in keys if isinstance(key, Keys))]
    return sorted((keys for keys in typed if keys[0] not in MEANT and keys != (Keys.Escape,)), key=str)


@pytest.fixture
def terminal(address: str) -> Iterator[Terminal]:
    with Terminal("chat", "--no-notify", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("idle · ")
        yield terminal


def sends(terminal: Terminal, fake: FakeBedrock, words: str) -> None:
    """Type words and Enter, and wait until the server has got them: as they are, or behind what a key has put there."""
    terminal.keys(f"{words}\r")
    terminal.wait(lambda: any(words in text for text, _ in sent(fake)), words)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_every_key_leaves_a_prompt_that_works(terminal: Terminal, fake: FakeBedrock, busy: bool) -> None:
    every = bindings()
    assert len(every) > 100
    if busy:
        fake.answers.append(waits)
        sends(terminal, fake, "work")
        terminal.until(lambda screen: any(row.startswith("running a tool · ") for row in screen))
    for begin in range(0, len(every), TOGETHER):
        pressed = every[begin : begin + TOGETHER]
        for number, keys in enumerate(pressed, begin):
            # Ctrl-G ends what waits for another key; then all that is typed is erased, line by line.
            terminal.keys(f"{''.join(map(sequence, keys))}\x07\x05{6 * CTRL_U}/image probe-{number}\r")
        try:
            for number, _ in enumerate(pressed, begin):
                terminal.shows(f"✗ probe-{number}: No such file")
        except AssertionError as error:
            raise AssertionError(f"after one of {pressed}: {error}") from None
        assert fake.conversation.state.busy is busy, f"one of {pressed} cancelled or sent something"
    assert len(sent(fake)) == int(busy)
    terminal.keys("/quit\r")
    assert terminal.ends() == 0


def test_ctrl_o_and_escape_hash_leave_an_open_question_answerable(terminal: Terminal, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))
    terminal.keys("Remove x\r")
    terminal.shows("[y]es")
    for key in ("\x0f", "\x1b#"):
        terminal.keys(f"text{key}")
        terminal.keys("\x15")
    terminal.keys("y\r")
    terminal.shows("Done.")


def test_a_new_line(terminal: Terminal, fake: FakeBedrock) -> None:
    for keys in ("one\ntwo\r", "one\x1b\rtwo\r", "one\x1b\ntwo\r", "one\\\rtwo\r"):
        fake.answers.append(says("I see."))
        terminal.keys(keys)
        terminal.shows("I see.")
        terminal.wait(lambda: not fake.conversation.state.busy, "rest")
    assert {text for text, _ in sent(fake)} == {"one\ntwo"}


def test_enter_while_lines_are_printed_sends(terminal: Terminal, fake: FakeBedrock) -> None:
    """The terminal stays in raw mode meanwhile: it neither translates keys nor echoes them."""
    fake.answers.append(waits)
    terminal.keys("Go\r")
    terminal.wait(lambda: fake.conversation.state.busy, "a run")
    for number in range(30):
        fake.happen()
        terminal.keys("/nonsense\r")
        sends(terminal, fake, f"steer {number} ")
    assert "\n" not in "".join(text for text, _ in sent(fake))


def test_tab_while_idle_completes_and_sends_nothing(
    terminal: Terminal, fake: FakeBedrock, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("w")
    (folder / "quarterly-report.txt").touch()
    fake.conversation.working_directory = str(folder)
    with Terminal("chat", environ=terminal.environ, cwd=folder) as chat:
        chat.shows("idle · ")
        chat.keys("read quart\t")
        chat.until(lambda screen: any(line.startswith("> read quarterly-report.txt") for line in screen))
        chat.keys("\x15nothing like this\t")
        chat.keys("\x15/quit\r")
        assert chat.ends() == 0
    assert not sent(fake)


def decisions(fake: FakeBedrock) -> list[tuple[str, str]]:
    """The decisions that were made, and their notes."""
    return [
        (v1.ApprovalDecision.Name(request.decision).removeprefix("APPROVAL_DECISION_"), request.note)
        for request in fake.asked(v1.ResolveApprovalRequest)
    ]


# Seconds between the letters of a slow typist.
SLOWLY = 0.8


def test_nothing_is_decided_without_enter_however_slowly_a_text_is_typed(terminal: Terminal, fake: FakeBedrock) -> None:
    for text in ("explain why first", "yes but why?", "but why?", "not so fast", "never mind", "yess"):
        fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))
        sends(terminal, fake, f"Remove x, then {text}")
        terminal.until(lambda screen: any(row.startswith("[y]es") for row in screen))
        terminal.keys(text[0])
        time.sleep(SLOWLY)  # the pause is what is tested
        assert not decisions(fake)
        sends(terminal, fake, text[1:])
        terminal.shows("answer y, n, e or b; Esc or Ctrl-C cancels")
        terminal.keys("\x1b")
        terminal.wait(lambda: not fake.conversation.state.busy, "the end of the run")
        terminal.idles()
    assert not decisions(fake)
    assert not fake.conversation.approval_rules


def test_a_letter_and_enter_answer_a_question(terminal: Terminal, fake: FakeBedrock) -> None:
    for keys in ("y", "n", "b", "no, keep it"):
        fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))
        sends(terminal, fake, f"Remove x, then {keys}")
        terminal.until(lambda screen: any(row.startswith("[y]es") for row in screen))
        terminal.keys(f"{keys}\r")
        terminal.wait(lambda: not fake.conversation.state.busy, "an answer")
        terminal.idles()
    assert decisions(fake) == [("APPROVE", ""), ("DENY", ""), ("APPROVE", ""), ("DENY", "keep it")]
    rules = [request.rule for request in fake.asked(v1.ResolveApprovalRequest)]
    assert [rule.command_prefix for rule in rules] == ["", "", "rm", ""]


def test_a_letter_typed_before_a_question_was_asked_does_not_answer_it_even_if_enter_is_held(
    terminal: Terminal, fake: FakeBedrock
) -> None:
    fake.answers.append(lambda run: [state("llm_requesting", run)])
    sends(terminal, fake, "Remove x")
    terminal.keys("e")
    terminal.until(lambda screen: "> e" in screen)
    fake.happen(*uses_tool("rm x", "gone", "Done.", ask=True)("runs/r1"))
    terminal.shows("[y]es")
    terminal.keys("\r\r\r")
    terminal.shows("the question came up as you typed: press ↑ and Enter to answer")
    terminal.keys("\r\rn\r")
    terminal.shows("Then not.")
    assert decisions(fake) == [("DENY", "")]


def two_questions(run: str) -> list[Step]:
    """A run that asks for two calls at once; the first answer leaves the second question open."""
    approvals = [
        v1.PendingApproval(
            name=f"conversations/c1/approvals/t{number}",
            tool_call=call("bash", {"command": f"rm {what}"}, call_id=f"t{number}").tool_call,
        )
        for number, what in ((1, "first"), (2, "second"))
    ]
    asking = state("awaiting_tool_approval", run)
    asking.state_changed.state.awaiting_approval.pending.extend(approvals)
    asked = [v1.Event(approval_changed=v1.Event.ApprovalChanged(approval=approval)) for approval in approvals]
    end: list[Step] = [state("idle")]
    answer = stored("agent", *(v1.ContentBlock(tool_call=approval.tool_call) for approval in approvals))
    gates = Gate(approvals[0], [Gate(approvals[1], end, end)], end)
    return [state("llm_requesting", run), answer, asking, *asked, gates]


def test_of_two_open_questions_it_is_said_which_is_answered_and_what_one_no_does(
    terminal: Terminal, fake: FakeBedrock
) -> None:
    fake.answers.append(two_questions)
    terminal.keys("Remove both\r")
    terminal.shows("one of 2 calls: all run once each is approved; denying one skips them all")
    terminal.shows("2 questions are open; this answers: bash rm first")
    terminal.keys("y\r")
    terminal.shows("approved bash rm first; waiting for the remaining answers")
    terminal.until(lambda screen: "questions are open" not in "".join(screen))
    terminal.keys("n\r")
    terminal.wait(lambda: len(fake.asked(v1.ResolveApprovalRequest)) == 2, "both answers")
    assert decisions(fake) == [("APPROVE", ""), ("DENY", "")]


def test_a_text_that_was_begun_before_a_tool_asks_goes_to_the_agent(
    terminal: Terminal, fake: FakeBedrock, address: str
) -> None:
    def asks_later(run: str) -> list[Step]:
        approval = v1.PendingApproval(
            name=f"{NAME}/approvals/t1", tool_call=call("bash", {"command": "rm x"}, call_id="t1").tool_call
        )
        asking = state("awaiting_tool_approval", run)
        asking.state_changed.state.awaiting_approval.pending.append(approval)
        told = v1.Event(approval_changed=v1.Event.ApprovalChanged(approval=approval))
        return [asking, told, Gate(approval, asks(asked({"branch": {"type": "string"}}))(run))]

    fake.answers.append(asks_later)
    sends(terminal, fake, "Move it")
    terminal.shows("? Run bash in")
    terminal.keys("this is for you alone")
    terminal.shows("this is for you alone")
    with Client(address, token="secret") as other:
        other.conversation(NAME).approve(f"{NAME}/approvals/t1")
    terminal.shows("needs your input for mcp__files__move")
    terminal.keys("\r")
    terminal.wait(lambda: any("for you alone" in text for text, _ in sent(fake)), "the message")
    assert not fake.asked(v1.AnswerQuestionRequest)
    terminal.keys("main\r")
    terminal.wait(lambda: len(fake.asked(v1.AnswerQuestionRequest)) == 1, "the answer")
