"""Ctrl-C while a program is still being loaded, or starts: a line and exit code 130, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.server.test_serve import SECONDS, environment

INTERRUPT = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
AT_OPEN = """
import os, signal, sys

def hook(event, arguments):
    if event == "open" and os.path.basename(str(arguments[0])).startswith(".token."):
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(hook)
"""
SERVER = ("-m", "server")
BEDROCK = ("-m", "bedrock.cli")


def interrupted(tmp_path: Path, module: str, text: str, arguments: tuple[str, ...]) -> tuple[int, str]:
    """Run a program whose Python finds another module of this name; returns its exit code and what it said."""
    first = tmp_path / "first"
    first.mkdir()
    (first / f"{module}.py").write_text(text)
    (tmp_path / "events.jsonl").write_text("")
    env = environment(BEDROCK_DATA_DIR=str(tmp_path / "data"))
    env["PYTHONPATH"] = os.pathsep.join([str(first), env["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("click", SERVER),
        ("peewee", SERVER),
        ("peewee", (*BEDROCK, "serve")),
        ("peewee", (*BEDROCK, "backup", "copy.db")),
        ("peewee", (*BEDROCK, "restore", "copy.db")),
        ("msgspec", (*BEDROCK, "cycles", "events.jsonl")),
        ("click", (*BEDROCK, "--help")),
        ("grpc", (*BEDROCK, "list")),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[1:]),
)
def test_an_interrupt_while_it_is_loaded_ends_it_with_a_line(
    tmp_path: Path, module: str, arguments: tuple[str, ...]
) -> None:
    assert interrupted(tmp_path, module, INTERRUPT, arguments) == (130, "error: interrupted\n")


def test_an_interrupt_while_the_server_starts_ends_it_with_a_line(tmp_path: Path) -> None:
    code, said = interrupted(tmp_path, "sitecustomize", AT_OPEN, (*SERVER, "--listen", "127.0.0.1:0"))
    assert (code, said.splitlines()[-1]) == (130, "error: interrupted")
    assert "Traceback" not in said
