"""Starts `python -m server` and `python -m bedrock.cli` as forks of one process that has imported them already.

Imports are most of what such a process costs. The fork server has one thread, and has used nothing of gRPC. A fork has
arguments, an environment (in /proc, too), a directory and files of its own, and runs its module as an interpreter does.
"""

import atexit
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import re
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import termios
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATHS = [str(ROOT), str(ROOT / "clients")]
COMMANDS = ("approvals", "ask", "audit", "chat", "doctor", "inspect", "manage")
IMPORTED = {
    "server": ["server.cli", "server.app.serving"],
    "bedrock.cli": ["bedrock.cli.app", *(f"bedrock.cli.commands.{name}" for name in COMMANDS)],
}
"""The modules that can be run, and what each has imported when it begins to work."""
AT_START = re.compile(r"PYTHON(?!PATH$)|LANG|LC_(?!BEDROCK)|TZ$|LD_|MALLOC_|GRPC_|OPENSSL_|SSL_")
"""Variables that an interpreter looks at when it starts, or a module when it is imported."""
ROOM = 64 * 1024
"""Bytes for the environment of a fork."""


class Popen(subprocess.Popen[Any]):
    """A process that is forked if that is as good as executing it. The parent of a fork is the fork server."""

    _says = -1
    """Where the fork server writes the process id, and the status once the process has ended."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        env = os.environ if rest[5] is None else rest[5]
        if not can_fork(args, env):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        pipes = rest[9:15]
        files = [given if given >= 0 else number for number, given in enumerate((pipes[0], pipes[3], pipes[5]))]
        self._says, told = os.pipe()
        weakref.finalize(self, os.close, self._says)
        with open(os.memfd_create("request"), "w+b") as request:
            request.write(json.dumps([args, os.path.abspath(rest[4] or "."), dict(env), rest[20]]).encode())
            request.flush()
            socket.send_fds(_fork_server(), [b"\n"], [request.fileno(), told, *files])
        os.close(told)
        self.pid = self._told()
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _wait(self, timeout: float | None) -> int:
        if self._says < 0:
            return super()._wait(timeout)  # type: ignore[misc, no-any-return]
        if self.returncode is None and not select.select([self._says], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:
                self.returncode = os.waitstatus_to_exitcode(self._told())
        return self.returncode

    def _internal_poll(self, *state: Any, **named: Any) -> int | None:
        if self._says < 0:
            return super()._internal_poll(*state, **named)  # type: ignore[misc, no-any-return]
        with suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _told(self) -> int:
        told = os.read(self._says, 4)
        assert told, "the fork server has ended"
        return int.from_bytes(told, sys.byteorder)


def can_fork(command: Any, env: Mapping[str, str]) -> bool:
    """Whether a fork would be the process that this command starts in this environment."""
    if not isinstance(command, list) or command[0] != sys.executable:
        return False
    return (
        [part for part in command[1:4] if part != "-P"][:1] == ["-m"]
        and command[command.index("-m") + 1] in IMPORTED
        and set(PATHS) <= {*env.get("PYTHONPATH", "").split(os.pathsep)} <= {*PATHS, *sys.path}
        and not any(map(AT_START.match, env))
        and len(json.dumps(dict(env))) < ROOM
    )


_started = threading.Lock()


def _fork_server() -> socket.socket:
    with _started:
        return _only_fork_server()


@functools.cache
def _only_fork_server() -> socket.socket:
    """Start it. It ends with this process, since the other end of the socket is closed then."""
    control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(PATHS),
        "GRPC_VERBOSITY": "NONE",
        "ROOM": " " * ROOM,
    }
    with other:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(other.fileno())],
            cwd="/",
            env=env,
            stdin=subprocess.DEVNULL,
            pass_fds=[other.fileno()],
        )
    atexit.register(process.wait)
    atexit.register(control.close)
    return control


def _serve(control: socket.socket) -> str:
    """Fork until the socket is closed. Return "" then, and in each fork the module that it runs."""
    children: dict[int, tuple[int, int]] = {}
    """The id, and where to tell of its end, for each descriptor of a process."""
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for ready, _ in selector.select():
                if ready.fd in children:
                    selector.unregister(ready.fd)
                    os.close(ready.fd)
                    child, tell = children.pop(ready.fd)
                    _tell(tell, os.waitpid(child, 0)[1])
                    os.close(tell)
                    continue
                message, files, _, _ = socket.recv_fds(control, 1, 5)
                if not message:
                    return ""
                request, tell, *standard = files
                if not (child := os.fork()):
                    selector.close()
                    control.close()
                    return _become(request, standard)
                for file in (request, *standard):
                    os.close(file)
                _tell(tell, child)
                descriptor = os.pidfd_open(child)
                children[descriptor] = child, tell
                selector.register(descriptor, selectors.EVENT_READ)


def _tell(file: int, number: int) -> None:
    with suppress(BrokenPipeError):
        os.write(file, number.to_bytes(4, sys.byteorder))


def _become(request: int, standard: list[int]) -> str:
    """Make this process what is asked for, and return the module that it runs."""
    with open(request, "rb") as asked:
        asked.seek(0)
        arguments, directory, environ, leads = json.load(asked)
    for number, file in enumerate(standard):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        first = getattr(sys, name)  # what kind of file it is, is found out when it is opened
        opened = open(number, mode, 1 if number == 2 else -1, first.encoding, first.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)
    if leads:
        os.setsid()
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(directory)
    at = arguments.index("-m")
    if "-P" not in arguments[:at]:
        sys.path.insert(0, directory)
    coerced = {name: value for name, value in os.environ.items() if name == "LC_CTYPE"}  # as an interpreter does
    os.environ.clear()  # by now, nothing uses the memory of the first environment
    os.environ.update(environ)
    _show(b"".join(name + b"=" + value + b"\0" for name, value in os.environb.items()))
    os.environ.update(coerced)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [arguments[at], *arguments[at + 2 :]]
    return str(arguments[at + 1])


def _show(environ: bytes) -> None:
    """Make /proc show an environment."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    assert len(environ) <= end - start
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, environ, len(environ))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who asked
    for name in (name for names in IMPORTED.values() for name in names):
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "an import has started a thread"
    gc.collect()
    gc.freeze()
    if module := _serve(socket.socket(fileno=int(sys.argv[1]))):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
