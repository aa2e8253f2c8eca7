"""The chat at a real (pseudo) terminal: keys in, screen out, and nothing left behind."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Self, cast

import pytest
from bedrock import v1
from bedrock.cli.paint import Paint
from bedrock.cli.session import ChatSession
from bedrock.cli.terminal import _prompt
from bedrock.cli.transcript import USER_MARK
from bedrock.messages import Approval

from tests.unit.clients.fake_server import NAME, FakeBedrock, Gate, call, says, state, stored, uses_tool

ROOT = Path(__file__).parents[3]
SECONDS = 30.0

#: Makes standard input the controlling terminal, so that Ctrl-C is a signal when it should be one.
AT_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "signal.signal(signal.SIGINT, signal.SIG_DFL);"  # whoever runs the tests in the background ignores it
    "os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """A program at a pseudo terminal."""

    def __init__(self, *arguments: str, environ: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 100))
        search = os.pathsep.join([str(ROOT / "clients"), str(ROOT), *filter(None, sys.path)])
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-c", AT_TERMINAL, sys.executable, "-P", "-m", "bedrock.cli", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": search, "TERM": "xterm", "NO_COLOR": "1", **environ},
        )
        os.close(slave)
        self._seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait(SECONDS)
        os.close(self._master)

    def shows(self, words: str) -> None:
        """Wait until something new on the screen has these words."""
        deadline = time.monotonic() + SECONDS
        while words not in (plain := re.sub(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[=>])", "", self._seen)):
            left = deadline - time.monotonic()
            assert left > 0, f"{words!r} did not appear in {plain!r}"
            if select.select([self._master], [], [], left)[0]:
                self._seen += self._read()
        self._seen = ""

    def keys(self, text: str) -> None:
        os.write(self._master, text.encode())

    def ends(self) -> int:
        """Wait until the program has ended; returns its exit code."""
        deadline = time.monotonic() + SECONDS
        while self._child.poll() is None:
            assert time.monotonic() < deadline, f"still there: {self._seen!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                self._seen += self._read()
        return self._child.returncode

    def _read(self) -> str:
        try:
            piece = os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # how Linux says that nobody holds the other end any more
            return ""
        if "\x1b[6n" in piece:
            os.write(self._master, b"\x1b[1;1R")  # where the cursor is, as a terminal would say
        return piece


@pytest.fixture
def terminal(address: str) -> Iterator[Terminal]:
    with Terminal("chat", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("/help says")
        yield terminal


def test_a_chat_from_the_first_word_to_the_last(terminal: Terminal, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done, x is gone.", ask=True))
    terminal.keys("Remove x\r")
    terminal.shows("bash wants to run in")
    terminal.shows("[y]es  [n]o  [a]lways")
    terminal.keys("y\r")
    terminal.shows("Done, x is gone.")
    terminal.shows("idle · context")
    terminal.keys("\x04")
    terminal.shows("To come back: bedrock chat -r")
    assert terminal.ends() == 0
    (request,) = fake.asked(v1.ResolveApprovalRequest)
    assert isinstance(request, v1.ResolveApprovalRequest)
    assert request.decision == v1.APPROVAL_DECISION_APPROVE


@pytest.mark.parametrize(
    ("tool", "replies"),
    [("bash", "[y]es  [n]o  [a]lways "), ("request_mode_upgrade", "[y]es  [n]o ")],
)
def test_always_is_offered_only_where_it_means_more_than_yes(tool: str, replies: str) -> None:
    asked = Approval(f"{NAME}/approvals/t1", "t1", tool, {})
    session = SimpleNamespace(transcript=SimpleNamespace(tail=""), question=asked)
    shown = _prompt(cast("ChatSession", session), Paint(False))
    assert shown == replies + USER_MARK


def test_a_chat_with_the_demo_model_begins_with_a_hint(address: str) -> None:
    with Terminal("chat", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("The demo model answers, by its script: type help")
        terminal.shows("idle · context")
        terminal.keys("\x04")
        assert terminal.ends() == 0


def test_escape_cancels_and_tab_queues(terminal: Terminal, fake: FakeBedrock) -> None:
    fake.answers.extend([uses_tool("sleep", "", "", ask=True), says("Next.")])
    terminal.keys("Wait\r")
    terminal.shows("[y]es")
    terminal.keys("and then\t")
    terminal.shows("“and then” waits (follow-up)")
    terminal.keys("\x1b")
    terminal.shows("■ cancelled")
    terminal.keys("/quit\r")
    assert terminal.ends() == 0
    (cancelled,) = fake.asked(v1.CancelConversationRequest)
    assert isinstance(cancelled, v1.CancelConversationRequest)
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


def test_a_server_that_goes_away_is_told(terminal: Terminal, fake: FakeBedrock) -> None:
    fake.close()
    terminal.shows("connection lost, trying again")
    fake.open()
    terminal.keys("\x04")
    assert terminal.ends() == 0


def test_without_a_server_the_terminal_is_told_how_to_start_one() -> None:
    with Terminal("chat", environ={"BEDROCK_ADDRESS": "127.0.0.1:1"}) as terminal:
        terminal.shows("bedrock chat --spawn")
        assert terminal.ends() == 4


def test_tables_fit_the_terminal(address: str, fake: FakeBedrock) -> None:
    fake.conversation.title = "long " * 60
    with Terminal("list", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("brave-otter")
        assert terminal.ends() == 0


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
    assert isinstance(cancelled, v1.CancelConversationRequest)
    assert cancelled.run == f"{NAME}/requestCycles/1"
