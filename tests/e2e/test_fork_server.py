"""A server or the program that is forked is as one that is executed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import fork_server, processes
from tests.support.patience import PATIENCE, eventually
from tests.support.server_process import ServerProcess, clean_environment

pytestmark = pytest.mark.one_server("it starts its own servers")

CLI = [sys.executable, "-P", "-m", "bedrock.cli"]
WORKER = """
import sys
from pathlib import Path
from tests.support import fork_server, server_process
server_process.ServerProcess.popen = fork_server.Popen
print(server_process.ServerProcess(Path(sys.argv[1])).pid, flush=True)
sys.stdin.read()
"""


def test_a_fork_has_an_environment_a_directory_and_an_end_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, two = ServerProcess(tmp_path), ServerProcess(tmp_path / "other")
    parents = {processes.read(server.pid, "stat").split()[3] for server in (one, two)}
    assert parents != {str(os.getpid()).encode()}
    assert len(parents) == 1, "both are forks of one process"
    assert one.running() == [one.pid], "its marker is in /proc"
    assert f"HOME={one.folder}".encode() in processes.read(one.pid, "environ").split(b"\0")
    assert os.readlink(f"/proc/{one.pid}/cwd") == str(one.folder)
    assert all(str(two.folder) not in file for file in processes.files(one.pid))
    assert one.process.poll() is None
    one.kill()
    assert (one.process.returncode, two.stop()) == (-signal.SIGKILL, 0)


@pytest.mark.parametrize("command", [["--no-such-option"], ["list"]])
def test_a_fork_ends_as_what_is_executed_does(tmp_path: Path, command: list[str]) -> None:
    env = clean_environment(tmp_path, BEDROCK_ADDRESS="127.0.0.1:1")
    assert fork_server.can_fork([*CLI, *command], env)
    pipe = subprocess.PIPE
    with fork_server.Popen([*CLI, *command], env=env, cwd=tmp_path, stdout=pipe, stderr=pipe) as forked:
        seen = forked.communicate(timeout=PATIENCE)
    executed = subprocess.run([*CLI, *command], env=env, cwd=tmp_path, capture_output=True, check=False)
    assert (forked.returncode, *seen) == (executed.returncode, executed.stdout, executed.stderr)


@pytest.mark.parametrize("name", ["PYTHONUTF8", "LANG", "LC_ALL", "TZ"])
def test_what_an_interpreter_looks_at_when_it_starts_is_not_for_a_fork(tmp_path: Path, name: str) -> None:
    assert not fork_server.can_fork(CLI, clean_environment(tmp_path, **{name: "1"}))


def test_the_fork_server_ends_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tmp_path)],
        env=clean_environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as worker:
        assert worker.stdout is not None
        server = int(worker.stdout.readline())
        parent = int(processes.read(server, "stat").split()[3])
        worker.kill()
    eventually(lambda: not processes.alive(parent), "its end")
    os.kill(server, signal.SIGKILL)
