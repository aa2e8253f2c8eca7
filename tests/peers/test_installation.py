"""Installation by the programs that users have: from an index with the wheels, without a checkout or a network."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.peers import installed
from tests.peers.test_server_wheel import build
from tests.support.patience import PATIENCE

UV = Path(sys.executable).with_name("uv")
SECONDS = 300


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both wheels and all that they need."""
    folder = tmp_path_factory.mktemp("index")
    for name, project in (("server", installed.ROOT), ("client", installed.ROOT / "clients")):
        wheel = Path(str(build(project, tmp_path_factory.mktemp(name)).filename))
        wheel.rename(folder / wheel.name)
    pip: list[str | Path] = [
        installed.INSTALLERS / "bin" / "python",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--quiet",
    ]
    run([*pip, "--find-links", folder, "--dest", folder, "phoenix-bedrock", "pip"], dict(os.environ))
    return folder


def run(command: Sequence[str | Path], env: Mapping[str, str]) -> str:
    """What a program prints; it must succeed."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(home: Path, index: Path) -> dict[str, str]:
    """A user's, who has nothing but the index."""
    return {
        "HOME": str(home),
        "PATH": f"{home / '.local/bin'}:/usr/bin:/bin",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "UV_OFFLINE": "1",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(index),
        "UV_PYTHON": sys.executable,
        "PIPX_DEFAULT_PYTHON": sys.executable,
        "PIPX_HOME": str(home / "pipx"),
    }


def converse(program: Sequence[str | Path], home: Path, env: Mapping[str, str]) -> None:
    """Ask the demo model, by a server that the program itself starts."""
    (home / "work").mkdir()
    done = subprocess.run(
        [*program, "chat", "--spawn"],
        cwd=home / "work",
        env=env,
        input="Hello\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Hello" in done.stdout


def test_uvx_runs_it(tmp_path: Path, index: Path) -> None:
    env = environment(tmp_path, index)
    bedrock: list[str | Path] = [
        UV,
        "tool",
        "run",
        "--from",
        "phoenix-bedrock-client",
        "--with",
        "phoenix-bedrock",
        "bedrock",
    ]
    assert "serve" in run([*bedrock, "--help"], env)
    converse(bedrock, tmp_path, env)


def test_uv_installs_the_program(tmp_path: Path, index: Path) -> None:
    env = environment(tmp_path, index)
    run([UV, "tool", "install", "phoenix-bedrock-client", "--with", "phoenix-bedrock", "--quiet"], env)
    assert "sandbox: tier" in run([tmp_path / ".local/bin/bedrock", "config", "check"], env)


def test_pipx_installs_the_program(tmp_path: Path, index: Path) -> None:
    env = environment(tmp_path, index)
    pipx: list[str | Path] = [installed.INSTALLERS / "bin" / "python", "-m", "pipx"]
    run([*pipx, "install", "phoenix-bedrock-client"], env)
    run([*pipx, "inject", "phoenix-bedrock-client", "phoenix-bedrock"], env)
    assert "serve" in run([tmp_path / ".local/bin/bedrock", "--help"], env)
    converse([tmp_path / ".local/bin/bedrock"], tmp_path, env)
