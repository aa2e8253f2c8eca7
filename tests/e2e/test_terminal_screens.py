"""The chat at a terminal as a person sees it: whole sessions against a real server, held to the screens in `screens/`.

`BEDROCK_WRITE_SCREENS=1` writes them anew; look at them then. What differs from run to run is masked: durations, counts
of tokens, ids. The width and the height count, so each story is told at a small terminal and at a large one.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.fake_provider import FakeProvider, calls, held, refuses, says
from tests.support.sandbox_reports import sandbox_report
from tests.support.server_process import ServerProcess, Servers
from tests.support.terminals import Terminal

REPORT = sandbox_report()
SCREENS = Path(__file__).parent / "screens"
SIZES = [(80, 24), (120, 40)]

ANSWER = """\
# What I found

The tests take **four seconds**, of which `test_slow` takes three:

1. It waits for a *real* clock.
2. Its fixture starts a server
   - for every case,
   - and never stops it.

```python
def test_slow() -> None:
    assert wait(3) == "done"
```

| test | seconds |
|---|---|
| `test_slow` | 3 |
| all others | 1 |

> See [the manual](https://example.com/manual) for more.
"""


@pytest.fixture(scope="module")
def demo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without a key, whose demo model answers, and that restricts what its tools may do."""
    assert REPORT.restriction_available, f"this machine can keep no restricted mode: {REPORT.reason}"
    servers = Servers()
    yield servers(tmp_path_factory.mktemp("demo"))
    servers.close()


@pytest.fixture
def at_terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Opens a chat at a terminal, in a folder with two files whose path is short enough for one line."""
    short = Path(tempfile.mkdtemp(prefix="b-"))
    work = short / "project"
    work.mkdir()
    (work / "README.md").write_text("# A project\n")
    (work / "notes.txt").write_text("buy milk\nbuy bread\n")
    opened: list[Terminal] = []

    def open_(server: ServerProcess, size: tuple[int, int], *arguments: str, colour: bool = False) -> Terminal:
        environ = {
            "HOME": str(tmp_path),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "BEDROCK_ADDRESS": server.address,
            "BEDROCK_TOKEN": server.token,
            "NO_COLOR": "" if colour else "1",
        }
        columns, rows = size
        opened.append(Terminal("chat", *arguments, environ=environ, columns=columns, rows=rows, cwd=work))
        opened[-1].until(at_rest)
        return opened[-1]

    yield open_
    for terminal in opened:
        terminal.__exit__()
    shutil.rmtree(short)


def at_rest(screen: list[str]) -> bool:
    return any(line.startswith("idle · ") for line in screen)


def shown(*words: str) -> Callable[[list[str]], bool]:
    """Whether all of these are on the screen, each in some line."""
    return lambda screen: all(any(word in line for line in screen) for word in words)


def shows_status(pattern: str) -> Callable[[list[str]], bool]:
    """Whether the last line of the screen that has something is this."""
    return lambda screen: re.fullmatch(pattern, next(filter(None, reversed(screen)), "")) is not None


def masked(rows: list[str]) -> list[str]:
    """The lines from the first message on, without what differs from run to run."""
    begin = next(number for number, row in enumerate(rows) if row.startswith("> "))
    text = "\n".join(rows[begin:])
    for pattern, mask in (
        (r"\d+(\.\d+)? s\b", "N s"),
        (r"\d+ process(es)? ended in \d+ ms", "N processes ended in N ms"),
        (r"[\d,]+ tokens", "N tokens"),
        (r"context \d+%", "context N%"),
        (r"\b[a-z]+-[a-z]+-[a-km-np-z2-9]{4}\b", "calm-brook-7xk2"),
        (r"\S*/project\b", "/home/ada/project"),
        (r"#part-\d+", "#part-1"),
        # how much of an attempt was shown before it failed
        (r"(?<=\n)This sentence[^\n]*(?=\n· the unfinished text)", "This sentence is about to be thrown away, because"),
    ):
        text = re.sub(pattern, mask, text)
    return text.split("\n")


def assert_looks(rows: list[str], name: str, size: tuple[int, int]) -> None:
    """Hold the lines to the stored ones."""
    file = SCREENS / f"{name}-{size[0]}x{size[1]}.txt"
    looks = "".join(f"{row}\n" for row in masked(rows))
    if os.environ.get("BEDROCK_WRITE_SCREENS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(looks, encoding="utf-8")
    assert looks == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_session_with_the_demo_model(
    demo_server: ServerProcess, at_terminal: Callable[..., Terminal], size: tuple[int, int]
) -> None:
    terminal = at_terminal(demo_server, size)
    terminal.keys("run echo hello\r")
    terminal.until(lambda screen: shown("Type help to see")(screen) and at_rest(screen))
    terminal.keys("write x.txt\r")
    terminal.until(shown("? Switch to", "[y]es  [n]o + Enter (no default)", "[w] no, but"))
    terminal.keys("no, not now\r")
    terminal.until(lambda screen: shown("That is fine.", "Type help to see")(screen) and at_rest(screen))
    terminal.keys("sleep 25\r")
    terminal.until(shown("bash 1/1"))
    terminal.keys("and hurry\r")
    terminal.until(shown("“and hurry” waits (steer)"))
    terminal.keys("then this\t")
    terminal.until(shown("“then this” waits (follow-up)"))
    terminal.until(shows_status(r"bash 1/1 \d+ s · 2 waiting · context \d+% · \w+ · demo · Esc cancels"))
    terminal.keys("\x1b")
    terminal.until(lambda screen: shown("■ discarded before it began", "ended in")(screen) and at_rest(screen))
    terminal.keys("retry\r")
    terminal.until(shown("↻ attempt 2/3"))
    terminal.until(lambda screen: shown("and tried", "history.")(screen) and at_rest(screen))
    terminal.keys("one \\\rtwo\x1b\rthree\r")
    terminal.until(lambda screen: shown("> one", "  three", "You said")(screen) and at_rest(screen))
    terminal.keys("/mode unrestricted\r")
    terminal.until(shown("The mode is now unrestricted", "· unrestricted ·"))
    terminal.keys("/nonsense\r/quit\r")
    assert terminal.ends() == 0
    assert_looks(terminal.rows, "demo", size)


def test_sub_agents_are_a_tree_while_they_work_and_lines_when_they_have_ended(
    server: ServerProcess, fake_provider: FakeProvider, at_terminal: Callable[..., Terminal]
) -> None:
    agents = [fake_provider.part(held(calls(("submit_result", {"result": "found"})))) for _ in range(3)]
    tasks = [{"task": f"{text} {part.key}"} for text, part in zip(("Count", "Find", "Read"), agents, strict=True)]
    part = fake_provider.part(calls(("spawn_sub_agent", {"tasks": tasks})), says("All have ended."))
    terminal = at_terminal(server, (80, 24))
    terminal.keys(f"Look. {part.key}\r")
    terminal.until(shown("├ ◦ Count", "├ ◦ Find", "└ ◦ Read"))
    terminal.until(shows_status("3 sub-agents · .* · Esc cancels"))
    assert all(len(row) < 80 for row in terminal.screen)
    agents[0].next_reached().go.set()
    terminal.until(shown("├ ✓ Count", "├ ◦ Find", "└ ◦ Read"))
    terminal.until(shows_status("3 sub-agents, 1 done · .*"))
    for agent in agents[1:]:
        agent.next_reached().go.set()
    terminal.until(lambda screen: shown("  └ spawn_sub_agent", "All have ended.")(screen) and at_rest(screen))
    assert not shown("├ ")(terminal.screen)
    ended = [row for row in terminal.rows if re.match(r"  ✓ .* · \d+ s$", row)]
    assert len(ended) == 3


def test_a_long_chat_that_is_to_go_on_goes_on_in_successors(
    server: ServerProcess, fake_provider: FakeProvider, at_terminal: Callable[..., Terminal]
) -> None:
    full = says("That is all.", input_tokens=900_000)
    part = fake_provider.part(full, says("Summary 1."), full, says("Summary 2."), says("Done."))
    terminal = at_terminal(server, (120, 40), "--auto-continue")
    for count, text in enumerate(("Add.", "And now?"), 1):
        terminal.keys(f"{text} {part.key}\r")
        terminal.until(
            lambda screen, n=count: at_rest(screen) and sum("this chat continues in" in line for line in screen) == n  # type: ignore[misc]
        )
        terminal.until(shown(f"Summary {count}."))
    terminal.keys(f"And then? {part.key}\r")
    terminal.until(lambda screen: shown("Done.")(screen) and at_rest(screen))
    assert not [row for row in terminal.rows if "✗" in row]
    terminal.keys("\x04")
    assert terminal.ends() == 0


def test_a_chat_follows_the_size_of_its_terminal(
    server: ServerProcess, fake_provider: FakeProvider, at_terminal: Callable[..., Terminal]
) -> None:
    """What is said from then on is set in to the new width; so is the line beneath."""
    sentence = "Every line of this answer is as long as the terminal is wide, and no longer. " * 3
    part = fake_provider.part(says(sentence), says(sentence), says(sentence))
    terminal = at_terminal(server, (60, 24), colour=True)
    widths = []
    for columns, text in ((60, "One"), (110, "Two"), (40, "Three")):
        terminal.settle()
        terminal.resize(columns, 24)
        terminal.keys(f"{text} {part.key}\r")
        terminal.until(partial(_answer, asked=text))
        widths.append(max(map(len, _answer(terminal.screen, text))))
    assert [50 < widths[0] < 60, 90 < widths[1] < 110, 30 < widths[2] < 40] == [True] * 3, widths
    terminal.keys("\x04")
    assert terminal.ends() == 0


def _answer(screen: list[str], asked: str) -> list[str]:
    """The lines between a question and the prompt, once all three sentences are there and nothing more comes."""
    begin = max((number for number, row in enumerate(screen) if row.startswith(f"> {asked}")), default=len(screen))
    rows = screen[begin + 1 :]
    end = rows.index(">") if ">" in rows else 0
    text = " ".join(rows[:end])
    return rows[:end] if at_rest(screen) and text.count("no longer.") == 3 else []


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_markdown_a_patch_and_an_error(
    server: ServerProcess, fake_provider: FakeProvider, at_terminal: Callable[..., Terminal], size: tuple[int, int]
) -> None:
    change = {"operation": "replace", "oldText": "buy milk", "newText": "buy oat milk\nbuy coffee"}
    part = fake_provider.part(
        says(*re.findall(r"(?s).{1,7}", ANSWER)),
        calls(("patch", {"path": "notes.txt", "patches": [change]})),
        says("It is **done**."),
        refuses(401, "authentication_error"),
    )
    policy = ("--mode", "unrestricted", "--approval-policy", "ask_writes")
    terminal = at_terminal(server, size, *policy, colour=True)
    terminal.keys(f"What is slow? {part.key}\r")
    terminal.until(lambda screen: shown("for more.")(screen) and at_rest(screen))
    assert terminal.colours("What I found") == {"default", "bold"}
    assert terminal.colours("test_slow takes") >= {"cyan"}
    assert terminal.colours("def") != {"default"}
    terminal.keys("Change the notes.\r")
    terminal.until(shown("+ buy coffee", "[d] always in "))
    assert terminal.colours("- buy milk") == {"red"}
    assert terminal.colours("+ buy coffee") == {"green"}
    terminal.keys("y\r")
    terminal.until(lambda screen: shown("It is done.")(screen) and at_rest(screen))
    assert terminal.colours("-buy milk") == {"red"}
    assert terminal.colours("+buy coffee") == {"green"}
    terminal.keys("And now?\r")
    terminal.until(shown("✗ ", "error · "))
    terminal.keys("\x04")
    assert terminal.ends() == 0
    assert_looks(terminal.rows, "markdown", size)
