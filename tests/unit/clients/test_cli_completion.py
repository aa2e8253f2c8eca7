"""What shells complete: commands, options, names; at once, and without a server too."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bedrock.cli import arguments as names
from bedrock.cli.app import bedrock

from tests.support.fake_server import SLUG
from tests.support.terminals import ROOT

Shell = Callable[..., str]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which `bedrock` is this program."""
    program = tmp_path / "bedrock"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m bedrock.cli "$@"\n')
    program.chmod(0o755)
    search = os.pathsep.join([str(ROOT / "clients"), str(ROOT)])
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "PYTHONPATH": search}


def run(command: list[str], environ: dict[str, str]) -> str:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_bash_completes_commands_and_names(address: str, environ: dict[str, str]) -> None:
    """What it offers at the end of lines, by the script that `bedrock completion bash` prints."""
    script = 'eval "$(bedrock completion bash)"'
    for line in ("bedrock can", "bedrock show br", "bedrock chat -r br", "bedrock ask -m b"):
        script += f"; COMP_WORDS=({line}); COMP_CWORD={line.count(' ')}; COMPREPLY=(); _bedrock_completion bedrock"
        script += '; echo "${COMPREPLY[@]}"'
    offered = run(["bash", "-c", script], environ | {"BEDROCK_ADDRESS": address, "BEDROCK_TOKEN": "secret"})
    command, shown, resumed, models = map(str.split, offered.splitlines())
    assert (command, shown, resumed) == (["cancel"], [SLUG], [SLUG])
    assert "big" in models


@pytest.mark.parametrize(
    ("shell", "words", "reply"),
    [
        ("zsh", {"COMP_WORDS": "bedrock show br", "COMP_CWORD": "2"}, f"plain\n{SLUG}\n"),
        ("fish", {"COMP_WORDS": "bedrock show br", "COMP_CWORD": "br"}, f"plain,{SLUG}"),
    ],
)
def test_what_the_scripts_of_other_shells_ask_is_answered(
    address: str, environ: dict[str, str], shell: str, words: dict[str, str], reply: str
) -> None:
    script = run(["bedrock", "completion", shell], environ)
    assert "_BEDROCK_COMPLETE" in script
    assert f"{shell}_complete" in script
    environ |= {"BEDROCK_ADDRESS": address, "BEDROCK_TOKEN": "secret", "_BEDROCK_COMPLETE": f"{shell}_complete"}
    assert run(["bedrock"], environ | words).replace("\n", ",").startswith(reply.replace("\n", ","))


def test_a_server_that_says_nothing_does_not_block_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asked = bedrock.make_context("bedrock", ["--address", f"127.0.0.1:{silent.getsockname()[1]}", "show", "x"])
        before = time.monotonic()
        assert names.CONVERSATION.shell_complete(asked, bedrock.params[0], "x") == []
        assert time.monotonic() - before < 10
