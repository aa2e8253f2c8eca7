"""A run that is killed, whatever it has made, does not trouble the next one."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import leftovers

ROOT = Path(__file__).parents[2]

# A test that leaves a tree too deep for recursion, what is hard to remove, and a process without an end.
POISON = """
import os, signal, subprocess
from pathlib import Path

def test_poison(tmp_path: Path) -> None:
    if os.environ.get("KILL"):
        os.chdir(tmp_path)
        for _ in range(1500):
            os.mkdir("dddd")
            os.chdir("dddd")
        os.chdir("/")
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "shut").mkdir(mode=0)
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        Path(os.environ["KILL"]).write_text(f"{child.pid} {tmp_path}")
        os.killpg(0, signal.SIGKILL)
"""


def make_deep(directory: Path, depth: int) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("dddd", dir_fd=descriptor)
        inner = os.open("dddd", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)


def test_whatever_is_in_a_directory_is_removed_with_it(tmp_path: Path) -> None:
    gone, kept = tmp_path / "gone", tmp_path / "kept"
    for directory in (gone, kept, gone / "shut", gone / "full"):
        directory.mkdir()
    (kept / "file").write_text("kept")
    make_deep(gone, 1_500)
    (gone / "link").symlink_to(kept)
    (gone / "full" / "link").symlink_to(kept)
    (gone / "shut" / "file").write_text("x")
    (gone / "shut" / "within").mkdir()
    for number in range(3):  # what a removal has moved that was itself cut off
        (gone / f".moved-{number}" / "kept").mkdir(parents=True)
    (gone / "shut").chmod(0)
    os.mkfifo(gone / "pipe", 0o000)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(gone / "s"))
    leftovers.clear(gone)
    assert not os.path.lexists(gone)
    assert (kept / "file").read_text() == "kept"
    leftovers.clear(gone)


def test_what_is_protected_or_mounted_is_removed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    (gone / "mounted").mkdir(parents=True)
    (gone / "file").write_text("x")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", gone / "mounted"], capture_output=True, check=False)
    protected = subprocess.run(["chattr", "+i", gone / "file"], capture_output=True, check=False)
    if mounted.returncode and protected.returncode:
        pytest.skip(f"this machine lets nobody mount or protect: {mounted.stderr!r} {protected.stderr!r}")
    leftovers.clear(gone)
    assert not gone.exists()


def test_the_run_after_a_killed_one_removes_all_that_it_left(tmp_path: Path) -> None:
    told, module = tmp_path / "told", tmp_path / "test_poison.py"
    environ = {**os.environ, "PYTEST_DEBUG_TEMPROOT": str(tmp_path)}
    del environ[leftovers.MARK]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", str(module)]
    module.write_text(POISON)
    killed = subprocess.run(
        command, env={**environ, "KILL": str(told)}, cwd=ROOT, start_new_session=True, check=False, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stdout
    child, left = told.read_text().split()
    assert Path(left).is_dir()
    assert Path(f"/proc/{child}").exists()
    again = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert not os.path.lexists(left)
    assert leftovers._started(int(child)) == "" or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]
    assert list((tmp_path / f"bedrock-tests-{os.getuid()}").iterdir()) == []


def test_a_run_that_goes_on_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path))
    monkeypatch.setenv(leftovers.MARK, "")
    run = leftovers.begin()
    run.mkdir()
    assert leftovers.begin() == run
    assert run.exists()
