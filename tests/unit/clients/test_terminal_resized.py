"""A chat whose terminal is resized, suspended or closed."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from functools import partial

import pytest
from bedrock import v1
from bedrock.cli.display.live_block import reflows, rows_taken

from tests.support.fake_server import FakeBedrock, Gate, Step, call, delta, output, says, state, stored
from tests.support.terminals import Terminal

# None is less than half as wide or half as high as the one before.
SIZES = [(60, 24), (100, 24), (51, 24), (100, 12), (52, 12), (104, 30), (52, 30), (80, 15), (40, 15), (100, 24)]


def words(begin: int, count: int) -> str:
    """So many words, each of which occurs once."""
    return "".join(f"word{number}; " for number in range(begin, begin + count))


def shows(word: str, screen: list[str]) -> bool:
    return any(word in row for row in screen)


def copies(terminal: Terminal) -> list[str]:
    """The words that are on the screen or above it more than once; what the terminal has broken does not count."""
    found = Counter(re.findall(r"\bword\d+;", "\n".join(terminal.rows)))
    return [word for word, count in found.items() if count > 1]


@pytest.mark.parametrize("reflow", [False, True], ids=["cut", "reflow"])
@pytest.mark.parametrize("plain", [False, True], ids=["markdown", "plain"])
def test_resizing_while_text_streams_leaves_no_copies(
    address: str, fake: FakeBedrock, reflow: bool, plain: bool
) -> None:
    fake.answers.append(lambda run: [state("llm_requesting", run), delta(words(0, 20), 0)])
    environ = {"BEDROCK_ADDRESS": address, "NO_COLOR": "1" if plain else ""}
    with Terminal("chat", environ=environ, reflow=reflow) as terminal:
        terminal.shows("idle · ")
        terminal.keys("Go\r")
        terminal.shows("word19;")
        said = words(0, 20)
        for number, (columns, rows) in enumerate(SIZES, 1):
            terminal.settle()
            terminal.resize(columns, rows)
            piece = words(20 * number, 20)
            fake.happen(delta(piece, len(said)))
            said += piece
            terminal.until(partial(shows, piece.split()[-1]))
            terminal.until(lambda screen: any(row.startswith("thinking ·") for row in screen))
            assert copies(terminal) == [], "\n".join([f"at {columns} x {rows}", *terminal.rows])
            assert sum(row.startswith("thinking ·") for row in terminal.rows) == 1
        agent = stored("agent", *stored("agent").message_added.content, request="r1", attempt=1)
        agent.message_added.content.add(text=said)
        fake.happen(agent, state("idle"))
        terminal.idles()
        assert copies(terminal) == [], "\n".join(["at the end", *terminal.rows])
        if reflow:  # else the terminal itself cuts off what was printed
            assert [word for word in said.split() if word not in "".join(terminal.rows)] == []
        terminal.keys("\x04")
        assert terminal.ends() == 0


def prints(run: str) -> list[Step]:
    """A run whose tool goes on until it is cancelled."""
    asked = stored("agent", call("bash", {"command": "make"}))
    return [state("llm_requesting", run), asked, state("tool_executing", run)]


def test_the_end_of_what_a_tool_prints_is_shown_and_all_of_it_on_request(address: str, fake: FakeBedrock) -> None:
    fake.answers.append(prints)
    with Terminal("chat", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("idle · ")
        terminal.keys("Go\r")
        terminal.shows("● bash make")
        printed = ""
        for number in range(1, 31):
            line = f"line {number}\n"
            fake.happen(output(line, len(printed)))
            printed += line
        terminal.until(lambda screen: any("│ line 30" in row for row in screen))
        terminal.until(lambda screen: any("… 25 lines above (Ctrl-O or /output shows all)" in row for row in screen))
        assert not any(row.endswith("line 1") for row in terminal.rows)
        terminal.keys("\x0f")
        terminal.until(lambda screen: any(row.endswith("│ line 24") for row in screen))
        assert sum(row.endswith("│ line 1") for row in terminal.rows) == 1
        done = stored("tool")
        done.message_added.content.add().tool_result.output = f"{printed}[exit code 0]"
        fake.happen(done, state("idle"))
        terminal.shows("… 19 lines above (Ctrl-O or /output shows all)")
        terminal.shows("[exit code 0]")
        terminal.keys("/output\r")
        terminal.until(lambda _: sum(row.endswith("│ line 1") for row in terminal.rows) == 2)
        terminal.keys("/output 2\r")
        terminal.shows("no tool output that far back")


def test_the_terminal_may_be_suspended(address: str, fake: FakeBedrock) -> None:
    """The shell gets the terminal back as it was; the chat is drawn again by `fg`."""
    fake.answers.append(says("Here again."))
    environ = {"BEDROCK_ADDRESS": address, "PS1": "shell$ "}
    with Terminal("--norc", "--noprofile", "-i", environ=environ, command=["/bin/bash"]) as terminal:
        terminal.shows("shell$ ")
        terminal.keys(f"{sys.executable} -P -m bedrock.cli chat\r")
        terminal.shows("idle · ")
        terminal.keys("half\x1a")
        terminal.shows("Stopped")
        terminal.shows("shell$ ")
        terminal.keys("echo $((6*7))\r")
        terminal.shows("42")
        terminal.shows("shell$ ")
        terminal.keys("fg\r")
        terminal.shows("> half")
        terminal.keys(" of it\r")
        terminal.shows("Here again.")
        terminal.keys("/quit\r")
        terminal.shows("To come back")
        terminal.shows("shell$ ")
        terminal.keys("exit\r")
        assert terminal.ends() == 0


SLOW_MODES = (
    "import runpy, time; from prompt_toolkit.input.vt100 import cooked_mode;"
    "enter = cooked_mode.__enter__; cooked_mode.__enter__ = lambda mode: (enter(mode), time.sleep(0.2));"
    "runpy.run_module('bedrock.cli', run_name='__main__')"
)
"""The program, in which the terminal would stay out of raw mode for long, were it ever left."""


def test_what_is_typed_while_a_chat_continues_goes_to_its_prompt(address: str, fake: FakeBedrock) -> None:
    """Nothing of it is echoed, and Enter sends."""
    fake.answers.append(says("Here again."))
    program = [sys.executable, "-P", "-c", SLOW_MODES, "chat"]
    with Terminal(environ={"BEDROCK_ADDRESS": address}, command=program) as terminal:
        for key in "qqqqqqqq\r":
            terminal.shows("idle · ")
            os.kill(terminal.pid, signal.SIGCONT)
            terminal.wait(lambda: "\x1b[?2004l" in terminal._seen, "the prompt is erased")
            terminal.keys(key)
        terminal.shows("Here again.")
        assert [row for row in terminal.rows if "q" in row] == ["> qqqqqqqq"]


@pytest.mark.parametrize("how", ["window", "ignored", "signal", "busy"])
def test_a_chat_ends_with_its_terminal(address: str, fake: FakeBedrock, how: str) -> None:
    """Whether or not a signal tells of it; a run that is under way goes on, as with Ctrl-D."""
    fake.answers.append(lambda run: [state("llm_requesting", run), Gate()])
    program = [sys.executable, "-P", "-m", "bedrock.cli"]
    ignoring = ["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", *program]
    with Terminal(
        "chat", environ={"BEDROCK_ADDRESS": address}, command=ignoring if how == "ignored" else program
    ) as terminal:
        terminal.shows("idle · ")
        if how == "busy":
            terminal.keys("Go\r")
            terminal.until(lambda screen: any(row.startswith("thinking · ") for row in screen))
        if how == "signal":
            os.kill(terminal.pid, signal.SIGHUP)
            terminal.shows("To come back")
        else:
            terminal.hang_up()
        assert terminal.ends() in (0, 1, 120)
    assert not any("Cancel" in type(request).__name__ for request in fake.requests)


def test_a_watch_ends_with_its_terminal(address: str, fake: FakeBedrock) -> None:
    program = [sys.executable, "-P", "-m", "bedrock.cli", "watch", "brave-otter"]
    ignoring = ["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", *program]
    fake.answers.append(says("Hello."))
    with Terminal(environ={"BEDROCK_ADDRESS": address}, command=ignoring) as terminal:
        terminal.wait(lambda: fake.asked(v1.SubscribeRequest), "a watcher")
        terminal.hang_up()
        assert terminal.ends() in (120, 141)


def test_which_terminals_rewrap_lines() -> None:
    assert reflows({"TERM": "tmux-256color"})
    assert reflows({"TERM": "xterm-kitty"})
    assert reflows({"TERM": "xterm-256color", "VTE_VERSION": "7000"})
    assert reflows({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"})
    assert not reflows({"TERM": "xterm-256color"})
    assert not reflows({"TERM": "xterm", "XTERM_VERSION": "XTerm(379)", "TMUX": ""})
    assert not reflows({"TERM": "linux"})


def test_rows() -> None:
    assert rows_taken([0, 10, 11, 25], 10) == 1 + 1 + 2 + 3
