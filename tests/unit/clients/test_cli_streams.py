"""The program with standard streams that are closed, full, broken, or not what they should be."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
from bedrock import v1
from bedrock.cli import exit_codes as exits
from bedrock.cli.commands import ask

from tests.support.fake_server import NAME, FakeBedrock, Step, call, output, says, state, stored, uses_tool

SECONDS = 30.0
ROOT = Path(__file__).parents[3]
PROGRAM = (sys.executable, "-P", "-m", "bedrock.cli")

Shell: TypeAlias = Callable[..., subprocess.CompletedProcess[bytes]]
Start: TypeAlias = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def environ(address: str, tmp_path: Path) -> dict[str, str]:
    search = os.pathsep.join([str(ROOT / "clients"), str(ROOT), *filter(None, sys.path)])
    ours = {"HOME": str(tmp_path), "PYTHONPATH": search, "BEDROCK_ADDRESS": address, "BEDROCK_TOKEN": "secret"}
    return {"PATH": os.environ["PATH"], **ours}


@pytest.fixture
def shell(environ: dict[str, str]) -> Shell:
    """Runs a line of shell, in which `bedrock` is the program."""

    def run(line: str, **more: str) -> subprocess.CompletedProcess[bytes]:
        script = f'bedrock() {{ {shlex.join(PROGRAM)} "$@"; }}\n{line}'
        return subprocess.run(
            ["/bin/sh", "-c", script], env=environ | more, capture_output=True, timeout=SECONDS, check=False
        )

    return run


@pytest.fixture
def start(environ: dict[str, str]) -> Iterator[Start]:
    """Starts `bedrock ask` with pipes."""
    with ExitStack() as stack:

        def run(*arguments: str) -> subprocess.Popen[bytes]:
            child = subprocess.Popen(
                [*PROGRAM, "ask", *arguments],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            stack.enter_context(child)
            stack.callback(child.kill)
            return child

        yield run


def goes_on(run: str) -> list[Step]:
    """A run that says something and is then under way until it is cancelled."""
    agent = stored("agent", v1.ContentBlock(text="Let me look."), call("bash", {"command": "ls"}))
    return [agent, state("tool_executing", run), output("a.txt\n", 0)]


@pytest.mark.parametrize("command", ["models", "show brave-otter", "--version", "ask --help"])
def test_a_full_disk_is_reported_in_one_line(shell: Shell, command: str) -> None:
    done = shell(f"bedrock {command} > /dev/full")
    assert (done.returncode, done.stderr) == (exits.FAILED, b"error: No space left on device\n")


@pytest.mark.parametrize("command", ["models", "--version", "ask Hi"])
def test_a_closed_standard_output_is_reported_in_one_line(shell: Shell, fake: FakeBedrock, command: str) -> None:
    done = shell(f"bedrock {command} >&-")
    assert (done.returncode, done.stderr) == (exits.FAILED, b"error: standard output is closed\n")
    assert not fake.asked(v1.SendMessageRequest)


def test_a_closed_standard_input_is_empty(shell: Shell) -> None:
    done = shell("bedrock ask <&-")
    assert done.returncode == exits.USAGE
    assert b"no prompt" in done.stderr


def test_a_closed_standard_error_is_done_without(shell: Shell, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("ls", "a.txt", "Fine."))
    done = shell("bedrock ask Hi 2>&-")
    assert (done.returncode, done.stdout) == (exits.OK, b"Fine.\n")
    assert shell("bedrock models >&- 2>&- <&-").returncode == exits.FAILED


def test_a_silent_open_input_is_named_with_what_leaves_it_out(environ: dict[str, str], fake: FakeBedrock) -> None:
    fake.answers.append(says("Fine."))
    pipe = subprocess.PIPE
    with subprocess.Popen([*PROGRAM, "ask", "Hi"], env=environ, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        assert child.stdin
        assert child.stdout
        assert child.stderr
        assert child.stderr.readline() == b"Reading standard input until it ends; </dev/null skips it.\n"
        assert not fake.asked(v1.SendMessageRequest)
        child.stdin.write(b"with this")
        child.stdin.close()
        assert child.stdout.read() == b"Fine.\n"
    assert [sent.text for sent in fake.asked(v1.SendMessageRequest)] == ["Hi\n\nwith this"]


def test_a_pipe_that_stays_silent_is_not_waited_for_beside_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ask, "SILENCE_SECONDS", 0.01)
    theirs, ours = os.pipe()
    with open(theirs, encoding="utf-8") as silent, open(ours, "wb"):
        monkeypatch.setattr("sys.stdin", silent)
        assert ask._prompt(("Hi",)) == "Hi"
        assert "No data on standard input" in capsys.readouterr().err


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_standard_input_that_is_no_text_is_a_mistake(shell: Shell, fake: FakeBedrock, locale: str) -> None:
    done = shell(r"printf '\377' | bedrock ask", LC_ALL=locale)
    assert done.returncode == exits.USAGE
    assert b"standard input is not valid UTF-8" in done.stderr
    assert b"Traceback" not in done.stderr
    assert not fake.requests


@pytest.mark.parametrize("command", ["ask", "show"])
def test_an_argument_that_is_no_text_is_a_mistake(shell: Shell, fake: FakeBedrock, command: str) -> None:
    done = shell(rf"""bedrock {command} "$(printf '\377')" """)
    assert done.returncode == exits.USAGE
    assert done.stderr.startswith(b"error: the command line is not valid UTF-8\n")
    assert not fake.requests


@pytest.mark.parametrize("command", ["models", "--version", "ask Hi"])
def test_a_closed_output_ends_the_program_quietly(environ: dict[str, str], fake: FakeBedrock, command: str) -> None:
    theirs, ours = os.pipe()
    os.close(theirs)
    with open(ours, "wb", buffering=0) as nowhere:
        done = subprocess.run(
            [*PROGRAM, *command.split()],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=nowhere,
            stderr=subprocess.PIPE,
            timeout=SECONDS,
            check=False,
        )
    assert (done.returncode, done.stderr) == (exits.CLOSED_PIPE, b"")
    assert not fake.asked(v1.CreateConversationRequest)


@pytest.mark.parametrize("form", ["text", "stream-json"])
def test_a_question_is_cancelled_when_its_output_is_closed(start: Start, fake: FakeBedrock, form: str) -> None:
    fake.answers.append(goes_on)
    child = start("--output", form, "Look")
    assert child.stdout
    assert child.stderr
    if form == "text":
        while b"Let me look" not in (said := child.stderr.readline()):
            assert said
    else:
        assert child.stdout.readline()
    child.stdout.close()
    fake.happen(output("b.txt\n", 6))
    assert child.wait(SECONDS) == exits.CLOSED_PIPE
    (cancelled,) = fake.asked(v1.CancelConversationRequest)
    assert cancelled.run == f"{NAME}/requestCycles/1"
