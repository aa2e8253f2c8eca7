"""Nothing that a server, a file, a directory or a command line says is obeyed by a terminal, wherever it is printed."""

import asyncio
import io
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bedrock import AsyncClient
from bedrock.cli.app import bedrock
from bedrock.cli.chat.prompt import prompt_text
from bedrock.cli.chat.session import ChatSession
from bedrock.cli.chat.slash_commands import run_command
from bedrock.cli.text.output import print_line
from bedrock.cli.text.style import Paint

from tests.support import terminals
from tests.unit.clients import hostile_server
from tests.unit.clients.hostile_server import HOSTILE, HostileServer

# The colours that we use, and how a block of lines is drawn again.
OURS = re.compile(r"\x1b\[(?:[0-79]|[349][0-7])(?:;(?:[0-79]|[349][0-7]))*m|\x1b\[\d+A\r\x1b\[J")
NAME = "calm-otter"
COMMANDS = [
    ("list",),
    ("list", "--archived", "--output", "json"),
    ("list", "--parent", NAME),
    ("show", NAME),
    ("show", NAME, "--output", "json"),
    ("cycles", NAME),
    ("cycles", NAME, "--output", "json"),
    ("models",),
    ("models", "--output", "json"),
    ("models", "any"),
    ("approvals",),
    ("questions",),
    ("approvals", "--output", "json"),
    ("tools",),
    ("tools", "--output", "json"),
    ("mcp",),
    ("mcp", "--output", "json"),
    ("doctor",),
    ("doctor", "--output", "json"),
    ("watch", NAME),
    ("watch", NAME, "--output", "stream-json"),
    ("ask", "Hello?", "--approve", "all"),
    ("ask", "Hello?", "--quiet"),
    ("ask", "Hello?", "--output", "json"),
    ("ask", "Hello?", "--output", "stream-json"),
    ("chat",),
    ("approve", NAME, "--all"),
    ("approve", NAME),
    ("deny", NAME),
    ("cancel", NAME),
    ("queue", NAME, "--all"),
    ("withdraw", NAME),
    ("withdraw", NAME, "--all"),
    ("mode", NAME, "restricted"),
    ("continue", NAME),
    ("rename", NAME, "--title", "new"),
    ("archive", NAME),
    ("rm", NAME, "--force"),
    ("quota",),
    ("nodes",),
    ("audit",),
    ("verify", "--all"),
    ("verify", NAME),
    ("replay", NAME),
    ("log", NAME),
    ("export", NAME),
    ("download", NAME),
]

# How often a command is run, where what is answered is one of many.
TURNS: dict[tuple[str, ...], int] = {("show", NAME): 6, ("approve", NAME): 6, ("deny", NAME): 6}
# What only calls answer that the program does not make.
NOT_IN_THE_PROGRAM = re.compile(
    r"\.(BrowseDirectory|SpawnSubAgents|TriggerContinuation|WatchConversations)Response\.|DirectoryEntry|\.Attachment\."
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Pipe(io.TextIOWrapper):
    """With a buffer for bytes, as the streams of a process have one."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")

    def getvalue(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined, no-any-return]


def obeyed(text: str) -> set[str]:
    """What of a text a terminal would obey, and not show."""
    left = OURS.sub("", text)
    found = {each for each in set(left) if unicodedata.category(each) in ("Cc", "Cs") and each not in "\n\t"}
    found |= set("\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069") & set(left)
    return found | set(re.findall("\u0301{9,}", left))


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    server = HostileServer()
    yield server
    server.stop()


Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(server: HostileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command with both streams at a terminal, or both at a pipe; what it printed to each."""
    for name, value in (
        ("BEDROCK_ADDRESS", server.address),
        ("BEDROCK_TOKEN", "t"),
        ("TERM", "xterm"),
        ("NO_COLOR", ""),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stream: type[io.StringIO | Pipe] = Terminal) -> tuple[str, str]:
        out, err = stream(), stream()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            patch.setattr(sys, "stdin", io.StringIO())
            with pytest.raises(SystemExit):
                bedrock.main([*arguments], prog_name="bedrock")
        return out.getvalue(), err.getvalue()

    return run


def is_json(arguments: tuple[str, ...]) -> bool:
    return (
        arguments[0] == "export" or arguments == ("models", "any") or "--output" in arguments or "--events" in arguments
    )


def test_nothing_that_a_server_says_is_obeyed(run: Run, server: HostileServer) -> None:
    """One test, so that at its end all strings of the contract were sent."""
    for arguments in COMMANDS:
        server.refuses, server.turn = True, 0
        refused = "".join(run(*arguments))
        assert "evil" in refused, arguments
        assert obeyed(refused) == set(), arguments
        server.refuses = False
        printed = ""
        for server.turn in range(0, TURNS.get(arguments, 1) * 7, 7):
            out, err = run(*arguments)
            assert obeyed(out + err) == set(), arguments
            printed += out + err
        assert "evil" in printed, arguments
        piped, told = run(*arguments, stream=io.StringIO)
        assert {each for each in set(piped + told) if unicodedata.category(each) == "Cc"} <= {"\n", "\t"}, arguments
        if is_json(arguments):
            assert "\\u001b[2J" in piped, arguments
    never_asked_for = {name for name in hostile_server.string_fields() if NOT_IN_THE_PROGRAM.search(name)}
    assert server.sent | never_asked_for == hostile_server.string_fields()


def test_nothing_is_obeyed_in_a_chat(server: HostileServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines above the prompt, the prompt, the line below it, and what can be completed."""
    server.refuses, shown = False, []
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)

    async def chat() -> None:
        async with AsyncClient(server.address, token="t") as client:
            paint = Paint(True)

            def refresh() -> None:
                shown.extend([session.status(), prompt_text(session, paint, 20, 60), *session.agent_lines()])

            session = ChatSession(client, f"conversations/{NAME}", paint, print_line, run_command, width=lambda: 60)
            session.refresh = refresh
            session.move_to(f"conversations/{NAME}")
            client.on_disconnect = session.disconnected
            working = asyncio.create_task(session.work())
            for typed in (
                "/help",
                "/queue",
                "/mode restricted",
                "/model x",
                "/kill",
                f"/{HOSTILE}",
                f"/image {HOSTILE}",
            ):
                session.enter(typed)
            await session.follow()
            server.refuses = True
            session.enter("/continue")
            session.enter("hello")
            while session._entered.qsize():
                await asyncio.sleep(0.01)
            working.cancel()

    try:
        asyncio.run(chat())
    finally:
        server.refuses = False
    assert len(shown) > 20
    assert "evil" in out.getvalue()
    for text in (out.getvalue(), *shown):
        assert obeyed(text) == set()


def test_nothing_is_obeyed_at_a_real_terminal(server: HostileServer, tmp_path: Path) -> None:
    environ = {"BEDROCK_ADDRESS": server.address, "BEDROCK_TOKEN": "t", "XDG_STATE_HOME": str(tmp_path)}
    with terminals.Terminal("chat", "-r", NAME, environ=environ, cwd=tmp_path) as terminal:
        terminal.ends()
        written = terminal._seen
    assert "evil" in written
    for forbidden in (
        "\x1b[8m",
        "\x1b]52",
        "\x1b]8",
        "\x1bP",
        "\x1bc",
        "\x9b",
        "\x9d",
        "\x85",
        "\u202e",
        "\u2066",
        "\x00",
    ):
        assert forbidden not in written


def test_nothing_of_a_command_line_is_obeyed(run: Run) -> None:
    bad = HOSTILE.replace("\x00", "") + "\udcff\udc9b"
    for arguments in (
        (bad,),
        (f"--{bad}",),
        ("show", bad, bad),
        ("ask", "--output", bad),
        ("list", "-n", bad),
        ("--address", bad, "list"),
        ("ask", "--image", bad, "x"),
        ("ask", bad),
        ("cycles", f"{bad}.jsonl"),
        ("download", NAME, "-o", bad),
        ("rename", NAME, "--title", bad),
        ("completion", bad),
    ):
        out, err = run(*arguments)
        assert obeyed(out + err) == set(), arguments


def test_nothing_of_this_machine_is_obeyed(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: HostileServer
) -> None:
    odd = tmp_path / "evil\x1b[2J\u202e\x9b\udcff\n"
    odd.mkdir()
    server.turn = 0
    monkeypatch.chdir(odd)
    monkeypatch.setenv("XDG_STATE_HOME", str(odd))
    for arguments in (("doctor",), ("list", "--here")):
        out, err = run(*arguments)
        assert obeyed(out + err) == set(), arguments
    monkeypatch.setenv("BEDROCK_ADDRESS", f"unix:{odd}/none")
    for arguments in (("doctor",), ("list",)):
        out, err = run(*arguments)
        assert obeyed(out + err) == set(), arguments
    monkeypatch.delenv("BEDROCK_TOKEN")
    out, err = run("doctor")
    assert obeyed(out + err) == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_completes_is_safe_to_print_and_to_type(
    run: Run, monkeypatch: pytest.MonkeyPatch, server: HostileServer, shell: str
) -> None:
    """It reaches the terminal through the shell, so a pipe is no pipe here."""
    for words, last in (("bedrock show ", ""), ("bedrock ask -m ", "")):
        monkeypatch.setenv("_BEDROCK_COMPLETE", f"{shell}_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split())) if shell != "fish" else last)
        out, err = run(stream=Pipe)
        assert obeyed(out + err) == set()
