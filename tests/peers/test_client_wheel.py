"""The client's wheel, installed alone: beside the oldest and the newest of what it says that it works with."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.peers import installed
from tests.peers.install import pip
from tests.support.patience import PATIENCE
from tests.support.server_process import ServerProcess

SOURCE = installed.ROOT / "clients"
PROGRAM = Path(__file__).parent / "client_program.py"


def run(command: list[str | Path], folder: Path, **env: str) -> str:
    """What a command prints. It must end well, and have nothing to complain about."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Installed:
    """An environment in which the wheel was just installed, without any way to a registry."""

    protobuf: str
    home: Path

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    @property
    def bedrock(self) -> Path:
        return self.home / "bin" / "bedrock"

    def mypy(self, program: Path, folder: Path) -> str:
        """What a strict check of a program says whose imports are found in this environment."""
        options = [f"--cache-dir={self.home / '.mypy_cache'}", "--python-executable", str(self.python)]
        command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", *options, str(program)]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command: list[str | Path] = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=SOURCE, capture_output=True, check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module", params=sorted(installed.CLIENTS))
def client(request: pytest.FixtureRequest, wheel: Path) -> Installed:
    home = installed.CLIENTS[request.param]
    command = pip(home, "install", "--no-index", "--no-deps", "--force-reinstall", str(wheel))
    subprocess.run(command, capture_output=True, check=True)
    return Installed(request.param.removeprefix("protobuf "), home)


@pytest.fixture
def way(server: ServerProcess) -> Mapping[str, str]:
    return {"BEDROCK_ADDRESS": server.address, "BEDROCK_TOKEN": server.token}


def test_it_holds_the_client_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name) for name in archive.namelist()]
    ours = {path.relative_to(SOURCE) for path in (SOURCE / "bedrock").rglob("*") if path.suffix in {".py", ".pyi"}}
    packed = {name for name in names if name.parts[0] == "bedrock"}
    assert packed == ours | {Path("bedrock/py.typed")}
    assert Path("bedrock/v1/event_pb2.pyi") in packed
    (metadata,) = {name.parts[0] for name in names} - {"bedrock"}
    assert {name.name for name in names if name.parts[0] == metadata} >= {"LICENSE", "METADATA", "entry_points.txt"}


def test_it_fits_what_it_is_installed_beside(client: Installed) -> None:
    """Every requirement of the wheel is met, by these versions."""
    done = subprocess.run(pip(client.home, "check"), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_program_does_everything_with_a_server(client: Installed, way: Mapping[str, str], tmp_path: Path) -> None:
    printed = run([client.python, "-I", "-W", "error", PROGRAM], tmp_path, **way)
    told: dict[str, Any] = json.loads(printed)
    assert told["protobuf"].startswith(client.protobuf + ".")
    assert Path(told["home"]).is_relative_to(client.home)
    assert told["found"] == [], "this is not the wheel alone"
    assert "hello" in told["answer"]
    assert told["tokens"] > 0
    assert "again" in told["again"]
    kinds = told["streamed"]
    assert {"text_delta", "tool_output_delta"} < set(kinds)
    assert kinds.index("text_delta") < kinds.index("run_stopped") < kinds.index("snapshot")
    denied, decided, everything = told["approved"]
    assert ("\na\n" in denied, "\nb\n" in decided, "\nc\n" in everything) == (False, True, True)
    assert told["cancelled"] == "interrupted"
    one, two = told["at once"]
    assert ("\none\n" in one, "\ntwo\n" in two) == (True, True)


def test_the_program_of_the_terminal_works(client: Installed, way: Mapping[str, str], tmp_path: Path) -> None:
    version = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]["version"]
    assert run([client.bedrock, "--version"], tmp_path) == f"bedrock {version}\n"
    assert "\nhello\n" in run([client.bedrock, "ask", "-q", "run echo hello"], tmp_path, **way)
    printed = json.loads(run([client.bedrock, "ask", "-q", "--output", "json", "run echo hello"], tmp_path, **way))
    assert (printed["exit_code"], printed["stop_reason"]) == (0, "completed")


def test_users_who_check_types_strictly_find_nothing_wrong(client: Installed, tmp_path: Path) -> None:
    """Although no stubs of gRPC and protobuf are installed: the types of the client are its own."""
    assert client.mypy(PROGRAM, tmp_path) == "Success: no issues found in 1 source file\n"


def test_the_strict_check_sees_mistakes(client: Installed, tmp_path: Path) -> None:
    """So that the check above means something."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text('from bedrock import Client\n\nClient().ask(1, on_approval="some")\n')
    assert client.mypy(wrong, tmp_path).count("[arg-type]") == 2
