"""Starts tool hosts: the server's side of every program that runs as a tool."""

from __future__ import annotations

import marshal
import os
import py_compile
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO

from actors.core.context import Mode
from actors.ports import Launch, ProcessStartFailed, SandboxReport, SandboxUnavailable
from actors.sandbox import toolhost
from actors.sandbox.hosted import HostedTree


class ToolHostSandbox:
    """Runs each program in a tool host of its own (ports.Sandbox). Any thread.

    `pid_namespace=False` does without PID namespaces: trees are then found by walking. For a server that is not root
    a PID namespace needs a user namespace, in which programs cannot become another user (sudo).
    """

    def __init__(self, report: SandboxReport, *, pid_namespace: bool = True) -> None:
        self._report = report
        self._namespace = pid_namespace and report.pid_namespace
        self._lock = threading.Lock()
        self._live: set[HostedTree] = set()
        self._lingering: list[subprocess.Popen[bytes]] = []
        self._closed = False
        self._program = _program()

    @property
    def report(self) -> SandboxReport:
        return self._report

    @property
    def protected(self) -> tuple[str, ...]:
        return ()

    @property
    def live(self) -> int:
        """How many programs run."""
        with self._lock:
            return len(self._live)

    def start(self, launch: Launch, on_output: Callable[[bytes], None]) -> HostedTree:
        """Start `launch`, and wait until it has begun (tool thread, some ten milliseconds).

        Raises ProcessStartFailed or SandboxUnavailable: then it provably did not begin.
        """
        if launch.mode is Mode.RESTRICTED and not self._report.restriction_available:
            raise SandboxUnavailable(f"restricted mode cannot be kept on this machine ({self._report.reason})")
        tree, description = self._spawn(launch, on_output)
        try:
            tree.begin(description)
            tree.await_begin()
        except BaseException:
            tree.kill()
            tree.wait()
            raise
        return tree

    def close(self) -> None:
        """Kill everything that runs, wait for it, and start nothing more; idempotent."""
        with self._lock:
            self._closed = True
            live = tuple(self._live)
        for tree in live:
            tree.kill()
        for tree in live:
            tree.wait()
        self._reap_lingering()

    def _spawn(self, launch: Launch, on_output: Callable[[bytes], None]) -> tuple[HostedTree, bytes]:
        """A tool host that waits for its launch, and that launch."""
        self._reap_lingering()
        with ExitStack() as opened:
            try:
                stdin = opened.enter_context(_memory_file(launch.stdin)).fileno() if launch.stdin else -1
                description = self._describe(launch, stdin)
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                opened.callback(theirs.close)
                unowned = opened.enter_context(ExitStack())
                unowned.callback(ours.close)
                host = _popen(self._program, [theirs.fileno(), *([stdin] if launch.stdin else [])])
                unowned.pop_all()
            except OSError as error:
                raise ProcessStartFailed(f"the tool host could not be started: {error.strerror}") from error
            tree = HostedTree(host, ours, launch, on_output, self._ended)
            self._register(tree)
        return tree, description

    def _describe(self, launch: Launch, stdin: int) -> bytes:
        """The launch as the tool host reads it."""
        limits = launch.limits
        description: dict[str, Any] = {
            "argv": [_bytes(argument) for argument in launch.argv],
            "cwd": _bytes(launch.cwd),
            "env": {_bytes(name): _bytes(value) for name, value in launch.env.items()},
            "stdin": stdin,
            "mode": launch.mode.value,
            "namespace": self._namespace,
            "restrict": {"tier": self._report.tier} if launch.mode is Mode.RESTRICTED else None,
            "limits": {name: getattr(limits, name) for name in limits.__struct_fields__},
        }
        return marshal.dumps(description)

    def _register(self, tree: HostedTree) -> None:
        """Own the tree from here on; after close it is killed before it can begin."""
        with self._lock:
            self._live.add(tree)
            closed = self._closed
        if closed:
            tree.kill()

    def _ended(self, tree: HostedTree, host: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._live.discard(tree)
            if host.returncode is None:
                self._lingering.append(host)

    def _reap_lingering(self) -> None:
        """Reap tool hosts that were still busy with a leaked tree when their call was given up."""
        with self._lock:
            self._lingering = [host for host in self._lingering if host.poll() is None]


@contextmanager
def _memory_file(content: bytes) -> Iterator[BinaryIO]:
    """An anonymous file with this content, at its start: a program's stdin that nobody has to feed."""
    with open(os.memfd_create("stdin"), "w+b") as file:
        file.write(content)
        file.seek(0)
        yield file


def _bytes(text: str) -> bytes:
    """Text for exec; raises ProcessStartFailed if no program could be given it."""
    try:
        encoded = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ProcessStartFailed("an argument is not Unicode text") from error
    if b"\0" in encoded:
        raise ProcessStartFailed("an argument contains NUL")
    return encoded


def _popen(program: str, inherited: list[int]) -> subprocess.Popen[bytes]:
    """Start the host: vfork and exec, a session of its own, nothing of the server's environment or files.

    The first of the files that it inherits is its control socket.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", program, str(inherited[0])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
        start_new_session=True,
        pass_fds=inherited,
    )


def _program() -> str:
    """The tool host, compiled where that can be stored: else every call would compile it anew."""
    source = str(toolhost.__file__)
    if sys.dont_write_bytecode:
        return source
    try:
        return str(py_compile.compile(source, doraise=True))
    except OSError:
        return source
