"""The `bedrock` program: `make run` without a terminal, and `bedrock ask` against a real server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from bedrock.cli.commands import chat as demo

from tests.support import pictures, processes
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, Part, calls, dribbles, refuses, says, stalls
from tests.support.fork_server import Popen
from tests.support.patience import PATIENCE, eventually
from tests.support.server_process import BEDROCK, ServerProcess, bedrock, clean_environment
from tests.support.terminals import Terminal

PROGRAM = Path(sys.executable).with_name("bedrock")


@pytest.fixture
def newcomer(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has just installed this: no key, an empty home.

    It keeps clear of a server that somebody else may run at the usual place.
    """
    home = tmp_path / "home"
    home.mkdir()
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "BEDROCK_LISTEN": "127.0.0.1:0",
        "BEDROCK_ADDRESS": "127.0.0.1:1",
        "LC_BEDROCK_E2E": f"e2e-{uuid.uuid4().hex}",
    }


def test_what_make_run_runs_plays_a_conversation_without_a_terminal(newcomer: dict[str, str], tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a-file-to-find").touch()
    done = subprocess.run(
        [str(PROGRAM), "chat", "--spawn"],
        cwd=work,
        env=newcomer,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = done.stdout
    assert "\x1b" not in text, "colours without a terminal"
    assert "Traceback" not in text + done.stderr
    found = [text.find(part) for part in ("bash", "answered automatically", "a-file-to-find", "Completed")]
    assert found == sorted(found), text
    assert found[0] > 0, text
    assert "ANTHROPIC_API_KEY" in text, "nobody is told how to plug in a real model"
    assert processes.running(newcomer["LC_BEDROCK_E2E"]) == []
    assert (Path(newcomer["XDG_STATE_HOME"]) / "bedrock" / "bedrock.db").exists()


def test_what_make_run_runs_at_a_terminal_signs_a_browser_in(newcomer: dict[str, str], tmp_path: Path) -> None:
    environ = newcomer | {"BEDROCK_HTTP_LISTEN": "127.0.0.1:0"}
    with Terminal("chat", "--spawn", environ=environ, columns=140, cwd=tmp_path, inherit=False) as terminal:
        terminal.shows("console: http://127.0.0.1:")
        sign_in(terminal)


def sign_in(terminal: Terminal) -> None:
    """Sign a browser in by the link that the screen shows."""
    found = next(filter(None, (re.search(r"(http://\S+)/#link=(\S+)", row) for row in terminal.screen)))
    url, link = found.groups()
    body, headers = json.dumps({"link": link}).encode(), {"Origin": url}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/console/session", body, headers)) as answer:
        assert "HttpOnly" in answer.headers["Set-Cookie"]


def test_the_console_runs_a_server_and_a_gateway_until_ctrl_c(newcomer: dict[str, str], tmp_path: Path) -> None:
    environ = {name: each for name, each in newcomer.items() if name != "BEDROCK_ADDRESS"}  # the home is its own
    with Terminal("console", "--no-open", environ=environ, columns=140, cwd=tmp_path, inherit=False) as terminal:
        terminal.shows("No server is running; starting one.")
        terminal.shows("Ctrl-C stops the console; runs continue.")
        sign_in(terminal)
        terminal.keys("\x03")
        assert terminal.ends() == 0
    eventually(lambda: processes.running(newcomer["LC_BEDROCK_E2E"]) == [], "the end of both")


def test_the_console_uses_the_gateway_that_runs(newcomer: dict[str, str], tmp_path: Path) -> None:
    environ = newcomer | {"BEDROCK_HTTP_LISTEN": "127.0.0.1:0"}
    with Terminal("chat", "--spawn", environ=environ, columns=140, cwd=tmp_path, inherit=False) as chat:
        chat.shows("console: http://127.0.0.1:")
        del environ["BEDROCK_ADDRESS"]
        with Terminal("console", "--no-open", environ=environ, columns=140, cwd=tmp_path, inherit=False) as terminal:
            assert terminal.ends() == 0
            sign_in(terminal)


@pytest.mark.parametrize("env", [{"BEDROCK_TOKEN": "of this server"}, {}])
def test_the_console_of_a_server_that_does_not_answer_says_so(newcomer: dict[str, str], env: dict[str, str]) -> None:
    command = [str(PROGRAM), "console", "--no-open"]
    done = subprocess.run(command, env=newcomer | env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert "no Bedrock server can be reached at 127.0.0.1:1" in done.stderr


# --- ask ----------------------------------------------------------------------------------------------------------


class Asked:
    """How a call of `bedrock ask` ended."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.output = done.stdout
        self.errors = done.stderr


@pytest.fixture
def ask(server: ServerProcess, tmp_path: Path) -> Callable[..., Asked]:
    """Runs `bedrock ask`, or another command, in a process of its own, against the server of this module."""

    def run(
        *arguments: str, program: Sequence[str] = BEDROCK, command: str = "ask", stdin: str = "", **env: str
    ) -> Asked:
        return Asked(bedrock(tmp_path, command, *arguments, program=program, stdin=stdin, **(server.way | env)))

    return run


def prompt(part: Part) -> str:
    return f"What do you say? {part.key}"


def test_the_prompt_may_be_piped_and_the_answer_be_json(ask: Callable[..., Asked], fake_provider: FakeProvider) -> None:
    asked = ask("--output", "json", stdin=prompt(fake_provider.part(says("Forty-two."))))
    result = json.loads(asked.output)
    assert asked.code == 0
    assert (result["text"], result["stop_reason"], result["exit_code"]) == ("Forty-two.", "completed", 0)


def test_instructions_that_are_left_out_are_said_at_the_terminal(
    ask: Callable[..., Asked], fake_provider: FakeProvider, tmp_path: Path
) -> None:
    (tmp_path / "AGENTS.md").write_bytes("Use tabs.".encode("utf-16"))
    part = fake_provider.part(says("Hello."), says("Hello."))
    warning = f"{tmp_path}/AGENTS.md is not used as instructions: it is not UTF-8 text.\n"
    assert warning in ask(prompt(part)).errors.replace("\n  ", " ")
    assert warning not in ask("--quiet", prompt(part)).errors


def test_every_event_can_be_had_as_a_line_of_json(ask: Callable[..., Asked], fake_provider: FakeProvider) -> None:
    answer = dribbles("So", ".", seconds=0.2)  # what arrives as a whole has no text deltas
    asked = ask("--output", "stream-json", prompt(fake_provider.part(calls(("think", {"thoughts": "x"})), answer)))
    lines = [json.loads(line) for line in asked.output.splitlines()]
    revisions = [int(line["revision"]) for line in lines if "revision" in line]
    assert revisions == list(range(revisions[0], revisions[0] + len(revisions)))
    assert {"message_added", "state_changed", "text_delta", "run_stopped"} <= {line["kind"] for line in lines}
    assert lines[-1]["result"]["text"] == "So."


def test_a_run_that_fails_is_exit_code_1(ask: Callable[..., Asked], fake_provider: FakeProvider) -> None:
    asked = ask(prompt(fake_provider.part(refuses(401, "authentication_error"))))
    assert (asked.code, asked.output) == (1, "")
    assert "ANTHROPIC_API_KEY" in asked.errors


def test_a_question_without_an_answer_is_exit_code_3(ask: Callable[..., Asked], fake_provider: FakeProvider) -> None:
    part = fake_provider.part(calls(("bash", {"cmd": "echo hi"})), says("Thank you."))
    asked = ask("--approval-policy", "ask_all", prompt(part))
    assert (asked.code, asked.output) == (3, "")
    assert re.search(r"bedrock approve \S+", asked.errors)
    assert len(part.exchanges) == 1


def test_questions_can_be_answered_in_advance(ask: Callable[..., Asked], fake_provider: FakeProvider) -> None:
    part = fake_provider.part(calls(("bash", {"cmd": "echo hi"})), says("Thank you."))
    asked = ask("--approval-policy", "ask_all", "--approve", "all", prompt(part))
    assert (asked.code, asked.output) == (0, "Thank you.\n")


def test_a_run_that_is_cancelled_is_exit_code_130(
    ask: Callable[..., Asked], fake_provider: FakeProvider, server: ServerProcess
) -> None:
    part = fake_provider.part(stalls)
    with ThreadPoolExecutor(1) as pool, server.client() as client:
        asking = pool.submit(ask, prompt(part))
        part.next_reached()
        (busy,) = (each for each in client.conversations() if each.state.llm_requesting)
        client.conversation(busy.name).cancel()
        asked = asking.result(PATIENCE)
    assert (asked.code, asked.output) == (130, "")
    assert "cancelled" in asked.errors


@pytest.mark.parametrize(
    ("arguments", "how"),
    [
        (("ask", "Wait. #INT"), signal.SIGINT),
        (("ask", "Wait. #TERM"), signal.SIGTERM),
        (("ask", "Wait. #HUP"), signal.SIGHUP),
        (("chat",), signal.SIGTERM),  # without a terminal
    ],
)
def test_a_run_is_cancelled_when_its_command_is_ended(
    server: ServerProcess, fake_provider: FakeProvider, tmp_path: Path, arguments: tuple[str, ...], how: signal.Signals
) -> None:
    """By Ctrl-C, by `timeout` or a cancelled job, or by a terminal that is closed."""
    part = Part(arguments[1] if len(arguments) > 1 else demo.PROMPT, stalls)
    fake_provider.model.add(part)
    environment = clean_environment(tmp_path, **server.way)
    begun = Popen([*BEDROCK, *arguments], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL)
    with server.client() as client, begun, ExitStack() as left:
        left.callback(begun.kill)
        part.next_reached()
        (busy,) = (each for each in client.conversations() if each.state.llm_requesting)
        begun.send_signal(how)
        assert begun.wait(PATIENCE) == 130
        (cycle,) = client.conversation(busy.name).cycles()
        assert (client.conversation(busy.name).get().state.busy, cycle.stop_reason) == (False, "interrupted")


def test_a_run_whose_output_is_closed_is_cancelled(
    ask: Callable[..., Asked], fake_provider: FakeProvider, server: ServerProcess
) -> None:
    part = fake_provider.part(calls(("bash", {"cmd": "while sleep 0.1; do echo still here; done"})))
    line = '{ "$0" ask -q --output stream-json "$1"; echo $? >&2; } | head -n 1'
    asked = ask(line, str(PROGRAM), prompt(part), program=["sh"], command="-c")
    assert asked.errors == "141\n"
    assert len(asked.output.splitlines()) == 1
    with server.client() as client:
        (found,) = (each for each in client.conversations() if part.key in each.title)
        (cycle,) = client.conversation(found.name).cycles()
        assert (found.state.busy, cycle.stop_reason) == (False, "interrupted")


def test_an_image_is_asked_about_and_comes_back_as_a_file(
    ask: Callable[..., Asked], fake_provider: FakeProvider, tmp_path: Path
) -> None:
    file = tmp_path / "red.png"
    file.write_bytes(pictures.png())
    part = fake_provider.part(says("Red."))
    asked = ask("--output", "json", "--image", str(file), prompt(part))
    result = json.loads(asked.output)
    assert (asked.code, result["text"]) == (0, "Red.")
    assert part.next().body["messages"][0]["content"][0]["type"] == "image"
    shown = ask(result["slug"], command="show").output
    (name,) = re.findall(r"\[image (\w+): png, 30 x 20\]", shown)
    saved = ask(result["slug"], name, command="download")
    assert (saved.code, saved.output) == (0, f"{name}.png\n")
    assert (tmp_path / f"{name}.png").read_bytes() == pictures.png()


def test_what_a_cancel_left_undelivered_is_shown_where_it_happened(
    ask: Callable[..., Asked], fake_provider: FakeProvider, server: ServerProcess, tmp_path: Path
) -> None:
    with server.client() as client:
        chat = Chat(client, fake_provider.part(stalls, says("Fresh.")), tmp_path)
        chat.send("Go.")
        chat.part.next_reached()
        chat.conversation.send("gently", delivery="steer")
        chat.conversation.send("then this", delivery="follow_up")
        chat.conversation.withdraw(chat.conversation.send("no matter", delivery="follow_up").message)
        chat.conversation.cancel(discard_queued=True)
        assert chat.ask("Again.") == "Fresh."
        shown = ask(chat.conversation.get().slug, command="show").output
    rows = [row for row in shown[shown.index("> Go.") :].splitlines() if row and chat.part.key not in row]
    assert rows == [
        "⋯ “gently” was not delivered; send it again if it still matters",
        "■ cancelled",
        "> then this",
        "■ discarded before it began",
        "Fresh.",
    ]


def test_what_is_no_image_is_a_wrong_command_line(ask: Callable[..., Asked], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not an image")
    asked = ask("--image", "notes.txt", "Look.")
    assert asked.code == 2
    assert "notes.txt" in asked.errors


def test_a_wrong_token_is_reported(ask: Callable[..., Asked]) -> None:
    asked = ask("Hello?", BEDROCK_TOKEN="wrong")
    assert asked.code == 1
    assert "BEDROCK_TOKEN" in asked.errors


def test_a_wrong_command_line_is_exit_code_2(ask: Callable[..., Asked]) -> None:
    assert ask().code == 2
    assert ask("--output", "xml", "Hello?").code == 2
    assert ask("--model", "nobody/serves this", "Hello?").code == 2
