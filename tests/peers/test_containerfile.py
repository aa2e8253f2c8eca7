"""What the Containerfile does, done without containers: its steps install a server, which starts and is healthy.

Only the base image and its user are left out: the build stage runs in a directory, with the Python of this machine.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.documents.containerfile import stages
from tests.documents.pages import ROOT
from tests.e2e.patience import PATIENCE, eventually

if TYPE_CHECKING:
    from pathlib import Path

LEFT_OUT = shutil.ignore_patterns("node_modules", "__pycache__", "*.egg-info", "*.pyc")


def test_its_steps_install_a_server_that_starts_and_is_healthy(tmp_path: Path) -> None:
    source, home = tmp_path / "src", tmp_path / "opt"
    source.mkdir()
    build, run = stages()
    for instruction in build:
        if instruction.name == "COPY":
            *what, where = shlex.split(instruction.text)
            for each in what:
                _copy(ROOT / each, source / each if where == "./" else source / where)
        if instruction.name == "RUN":
            command = instruction.text.replace("/opt/bedrock", str(home))
            words = [sys.executable if word == "python" else word for word in shlex.split(command)]
            subprocess.run(words, cwd=source, check=True, timeout=600)
    told = {i.name: i.text for i in run}
    environment = {
        "PATH": f"{home}/bin:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "BEDROCK_DATA_DIR": f"{tmp_path}/data",
    }
    health = _command(told["HEALTHCHECK"].partition("CMD ")[2], home)
    serve = _command(told["ENTRYPOINT"], home)
    server = subprocess.Popen([*serve, "--listen", "none"], env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: _succeeds(health, environment), "the server is healthy")
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
    assert not _succeeds(health, environment)


def _copy(what: Path, where: Path) -> None:
    if what.is_dir():
        shutil.copytree(what, where, ignore=LEFT_OUT)
    else:
        where.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(what, where)


def _command(text: str, home: Path) -> list[str]:
    program, *arguments = json.loads(text)
    return [str(home / "bin" / program), *arguments]


def _succeeds(command: list[str], environment: dict[str, str]) -> bool:
    done = subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE, check=False)
    return done.returncode == 0
