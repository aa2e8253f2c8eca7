"""What README and the operations page show is what happens, in a new home."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bedrock.cli.spawned_server import SpawnedServer

from tests.documents.pages import README, ROOT, code, fenced, section, table
from tests.generate.readme_session import TARGET, environment, session
from tests.support.sandbox_reports import sandbox_report
from tests.support.terminals import Terminal

pytestmark = pytest.mark.one_server("what is shown starts its own server")

PAGE = README.read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
SECONDS = 90
SNIPPETS = code((ROOT / "clients" / "README.md").read_text(encoding="utf-8"), "python")


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A home with a path as short as those of people, so that the socket is where the pages say."""
    with tempfile.TemporaryDirectory(prefix="bedrock-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def newcomer(home: Path) -> Iterator[dict[str, str]]:
    """The environment of somebody who has typed `bedrock serve` in another window."""
    environ = environment(home)
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("BEDROCK_", "ANTHROPIC_", "OPENAI_", "XDG_")):
                patch.delenv(name)
        for name, value in environ.items():
            patch.setenv(name, value)
        with SpawnedServer():
            del environ["BEDROCK_ADDRESS"], environ["BEDROCK_LISTEN"]
            yield environ


def run(command: list[str], environ: dict[str, str], folder: Path) -> str:
    """What the command prints. It must end well."""
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_session_is_what_the_program_prints() -> None:
    """It shows a tool that the restricted mode stops, so it can be played only where that mode can be kept."""
    report = sandbox_report()
    assert report.restriction_available, f"this machine can keep no restricted mode: {report.reason}"
    assert f"]({TARGET.relative_to(ROOT)})" in PAGE
    assert TARGET.read_text(encoding="utf-8") == session(), "if this is meant: make readme-session"


def test_the_python_example_does_what_it_says(newcomer: dict[str, str], tmp_path: Path) -> None:
    example = fenced(PAGE, "client")
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").touch()
    said = run([sys.executable, "-c", example], newcomer, work)
    assert len(example.splitlines()) <= 17
    assert "bash answered with 2 lines:\nnotes.txt\n" in said
    assert "agent is busy" in said
    assert said.splitlines()[-1].startswith("stopped: ")
    assert said.splitlines()[-1] != "stopped: "


def test_the_lines_for_curl_stream_approve_and_cancel_beside_a_chat(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    assert "`BEDROCK_HTTP_LISTEN=127.0.0.1:7422 make run`" in PAGE
    environ = environment(tmp_path) | {"BEDROCK_HTTP_LISTEN": place}
    with Terminal("chat", "--spawn", environ=environ, cwd=tmp_path, inherit=False) as terminal:
        terminal.until(lambda screen: any(line.startswith("idle") for line in screen))
        said = run(["bash", "-c", fenced(PAGE, "curl").replace("127.0.0.1:7422", place)], environ, tmp_path)
        terminal.keys("/quit\r")
        assert terminal.ends() == 0
    assert said.count("event: end") == 2
    for text in ("it works", "STOP_REASON_COMPLETED", "event: textDelta", "STOP_REASON_INTERRUPTED"):
        assert text in said


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_what_the_clients_page_shows_runs_unchanged(newcomer: dict[str, str], tmp_path: Path, snippet: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "README.md").write_text("One line.\n")
    assert run([sys.executable, "-c", snippet], newcomer, work)


def test_the_data_directory_holds_what_is_named(newcomer: dict[str, str], home: Path) -> None:
    data = home / ".local" / "state" / "bedrock"
    run(["bash", "-c", "bedrock list"], newcomer, home)
    files = section(OPERATIONS, "## The data directory").partition("\n| removed")[0]
    named = [name for cell, _ in table(files) for name in cell.split(", ")]
    assert sorted(f"`{path.name}`" for path in data.iterdir()) == sorted(named)
    assert data.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in data.iterdir()} == {0o600}
