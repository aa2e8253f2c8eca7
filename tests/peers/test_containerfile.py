"""The Containerfile without containers: its instructions as they stand, in a Debian of its own, and the server in it.

A stage is a directory with a file system, which a program gets as its root, in namespaces of its own for mounts and
processes: all of that ends with the program. The base image is a Debian with Python; the network is the machine's.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.documents.containerfile import Instruction, stages
from tests.documents.pages import ROOT
from tests.peers import installed
from tests.support.patience import PATIENCE, eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a program another root directory")

LEFT_OUT = shutil.ignore_patterns("node_modules", "__pycache__", "*.egg-info", "*.pyc")
BUILD_SECONDS = 600
DATA = "/var/lib/bedrock"
ENTER = """
set -e
root=$1 wheels=$2 volume=$3
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
if [ -n "$wheels" ]; then mkdir -p "$root/wheels" && mount --bind "$wheels" "$root/wheels"; fi
if [ -n "$volume" ]; then
    mount --bind "$root/$volume" "$root/$volume"
    mount -o remount,bind,ro "$root"
fi
cd "$root"
pivot_root . mnt
umount -l /mnt
shift 3
exec "$@"
"""
"""Mounts what containers have and executes a program; with a volume everything but that and /tmp is read-only."""


class Stage:
    """A stage of the file: its file system, and what its instructions set for the programs in it."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        subprocess.run(["tar", "-C", root, "-xf", installed.BASE_IMAGE], check=True)
        self.root = root
        self.environment = {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.directory = "/"
        self.user = "0"
        self.volume = ""

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command of a program, its directory, user and variables included, for somebody inside."""
        names = [line.split(":") for line in (self.root / "etc/passwd").read_text().splitlines()]
        group = next(fields[3] for fields in names if fields[2] == self.user)
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        # A change of user forgets the signal at the end of the parent, so that it is set here, not with --kill-child.
        become = ["setpriv", f"--reuid={self.user}", f"--regid={group}", "--clear-groups", "--pdeathsig", "KILL"]
        return ["env", "-i", "-C", self.directory, *variables, *become, *command]

    def entering(self, command: Sequence[str], *, wheels: Path | None = None) -> list[str]:
        """Return the command of a program that gets the stage as its root; it ends with whoever starts it."""
        alone = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork"]
        mounts = [str(self.root), str(wheels or ""), self.volume]
        return [*alone, "sh", "-c", ENTER, "sh", *mounts, *self.inside(command)]

    def follow(self, instruction: Instruction, others: dict[str, Stage]) -> None:
        """Do what an instruction of the file says; those that only tell of the server are left."""
        match instruction.name:
            case "RUN":
                self._run(instruction.text)
            case "COPY":
                self._copy(instruction.text, others)
            case "ENV":
                pairs = (word.partition("=") for word in shlex.split(instruction.text))
                self.environment |= {name: value for name, _, value in pairs}
            case "WORKDIR":
                self.directory = instruction.text
                (self.root / instruction.text.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "USER":
                self.user = instruction.text
            case "VOLUME":
                self.volume = instruction.text
            case name:
                assert name in {"FROM", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"}, f"{name} is not followed here"

    def _run(self, text: str) -> None:
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
        shell = ["env", *(f"{name}={value}" for name, value in offline.items()), "sh", "-c", text]
        command = self.entering(shell, wheels=installed.WHEELS)
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
        assert done.returncode == 0, f"RUN {text}\n{done.stdout}{done.stderr}"

    def _copy(self, text: str, others: dict[str, Stage]) -> None:
        words = shlex.split(text)
        option, named = (words[0], words[1:]) if words[0].startswith("--from=") else ("", words)
        *sources, target = named
        origin = others[option.removeprefix("--from=")].root if option else ROOT
        where = self.root / os.path.join(self.directory, target).lstrip("/")
        for each in sources:
            source = origin / each.lstrip("/")
            if source.is_dir():
                shutil.copytree(source, where, symlinks=True, ignore=None if option else LEFT_OUT)
            else:
                where.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, where)


class Built(NamedTuple):
    """The last stage, and its instructions by name."""

    stage: Stage
    told: dict[str, str]


@pytest.fixture
def built(tmp_path: Path) -> Iterator[Built]:
    """Follow all instructions; the file systems are removed at the end."""
    made: dict[str, Stage] = {}
    try:
        for number, instructions in enumerate(stages()):
            first = instructions[0].text.split()
            name = first[-1] if "AS" in first else str(number)
            made[name] = Stage(tmp_path / name)
            for instruction in instructions:
                made[name].follow(instruction, made)
        yield Built(made[name], {each.name: each.text for each in instructions})
    finally:
        for stage in made.values():
            shutil.rmtree(stage.root)


@contextmanager
def running(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A program that entered a stage, and the id of its first process here; all of it is killed at the end."""
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            eventually(lambda: process.poll() is not None or children.read_text(), "it is started")
            yield process, int(children.read_text())
        finally:
            process.kill()


def test_its_instructions_build_a_server_that_converses_as_a_user_with_a_read_only_root(built: Built) -> None:
    stage, told = built
    assert (stage.user, stage.volume) == ("10001", DATA)
    serve = json.loads(told["ENTRYPOINT"])
    health = json.loads(told["HEALTHCHECK"].partition("CMD ")[2])
    with running(stage.entering([*serve, "--listen", "none"])) as (server, first):

        def beside(*command: str) -> subprocess.CompletedProcess[str]:
            """Run a program beside the server, as `podman exec` does."""
            enter = ["nsenter", f"--target={first}", "--mount", "--pid", "--root"]
            everything = [*enter, *stage.inside(command)]
            return subprocess.run(everything, capture_output=True, text=True, timeout=PATIENCE, check=False)

        eventually(lambda: server.poll() is not None or beside(*health).returncode == 0, "the server is healthy")
        assert server.poll() is None
        status = Path(f"/proc/{first}/status").read_text()
        assert "\nUid:\t10001\t10001\t10001\t10001\n" in status
        asked = beside("bedrock", "ask", "--quiet", "Hello")
        assert (asked.returncode, "[exit code 0]" in asked.stdout) == (0, True), asked.stdout + asked.stderr
        assert beside("touch", "/opt/bedrock/mine").returncode == 1
        os.kill(first, signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
