"""What a run of the tests leaves on the machine when it is killed, and how the next run removes it.

Each run has a directory of its own, named after its process; `tmp_path` is in there. Processes that a run starts, and
theirs, have its mark in their environment. The next run ends the processes of runs that are gone, and removes their
directories, however deep, odd or protected what is in them: pytest's own clean-up is recursive, and fails for ever.
"""

import fcntl
import os
import secrets
import signal
import stat
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

# The environment variable that says which run a process belongs to.
MARK = "PHOENIX_TEST_RUN"

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_PROTECTED = 0x10 | 0x20  # immutable, append-only


def begin() -> Path:
    """Remove what runs have left that are gone, mark this process, and return the directory of this run."""
    root = _own_directory(Path(os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()))
    for run in root.iterdir():
        if not _is_alive(run.name):
            end_processes(run)
            clear(run)
    me = os.getpid()
    run = root / f"{me}.{_started(me)}"
    os.environ[MARK] = str(run)
    return run


def end_processes(run: Path) -> list[int]:
    """Kill what a run has started and left; returns the process ids."""
    ended = []
    for pid in _processes():
        with suppress(OSError):
            descriptor = os.pidfd_open(pid)
            try:
                if pid != os.getpid() and _belongs_to(pid, run):  # asked of the process that is held
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    ended.append(pid)
            finally:
                os.close(descriptor)
    return ended


def clear(directory: Path) -> None:
    """Remove a directory and all beneath it, without recursion and whatever it is; links are not followed."""
    _unmount(directory)
    with suppress(FileNotFoundError, NotADirectoryError):
        top = _open(directory.name, _at := os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY))
        try:
            _empty(top)
            os.rmdir(directory.name, dir_fd=_at)
        finally:
            os.close(top)
            os.close(_at)


def _empty(top: int) -> None:
    """Remove what is in a directory. What is deeper is moved up here first, so that no path and no stack gets long."""
    mine = secrets.token_hex(8)  # a run that was ended here has left names of its own
    names = (f".moved-{mine}-{number}" for number in count())
    while entries := os.listdir(top):
        for name in entries:
            _remove(name, top, names)


def _remove(name: str, top: int, names: Iterator[str]) -> None:
    _unprotect(name, top)
    if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
        os.unlink(name, dir_fd=top)
        return
    child = _open(name, top)
    try:
        for inner in os.listdir(child):
            _unprotect(inner, child)
            if stat.S_ISDIR(os.lstat(inner, dir_fd=child).st_mode):
                os.rename(inner, next(names), src_dir_fd=child, dst_dir_fd=top)
            else:
                os.unlink(inner, dir_fd=child)
    finally:
        os.close(child)
    os.rmdir(name, dir_fd=top)


def _open(name: str, parent: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)


def _unprotect(name: str, parent: int) -> None:
    """Let a directory be entered and emptied, and a file or directory be removed."""
    mode = os.lstat(name, dir_fd=parent).st_mode
    if stat.S_ISDIR(mode):
        with suppress(OSError):
            os.chmod(name, 0o700, dir_fd=parent)
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        return  # opening a pipe waits, and none of the others has flags
    with suppress(OSError):
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
        try:
            (flags,) = struct.unpack("l", fcntl.ioctl(descriptor, _GET_FLAGS, struct.pack("l", 0)))
            if flags & _PROTECTED:
                fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("l", flags & ~_PROTECTED))
        finally:
            os.close(descriptor)


def _unmount(directory: Path) -> None:
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines()[::-1]:
            point = line.split()[4].encode().decode("unicode_escape")
            if point.startswith(f"{directory}/"):
                subprocess.run(["umount", "--lazy", point], check=False, stderr=subprocess.DEVNULL)


def _own_directory(parent: Path) -> Path:
    """The directory of all runs of this user; nobody else can put anything there."""
    root = parent.resolve() / f"bedrock-tests-{os.getuid()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError(f"{root} must be a directory that only this user can enter")
    return root


def _is_alive(run: str) -> bool:
    pid, _, started = run.partition(".")
    return pid.isdecimal() and started != "" and _started(int(pid)) == started


def _started(pid: int) -> str:
    """When a process was started, in ticks since the machine was; empty if there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]


def _belongs_to(pid: int, run: Path) -> bool:
    """Whether a process has the mark of a run, or works in its directory, as tools do, whose environment is theirs."""
    with suppress(OSError):
        if f"{MARK}={run}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return True
    with suppress(OSError):
        return Path(f"{os.readlink(f'/proc/{pid}/cwd')}/").is_relative_to(run)
    return False
