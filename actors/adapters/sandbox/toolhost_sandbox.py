"""Starts tool hosts: the server's side of every program that runs as a tool."""

from __future__ import annotations

import fcntl
import functools
import marshal
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from actors.adapters.sandbox import orphans, toolhost
from actors.adapters.sandbox.private_dirs import PrivateRoot, remove
from actors.adapters.sandbox.process_tree import ProcessTree
from actors.adapters.sandbox.server_files import ServerFiles
from actors.core.context import Mode
from actors.ports import Launch, ProcessStartError, SandboxReport, SandboxUnavailableError
from actors.ports.resources import exhausted_resource

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from actors.adapters.sandbox.control_groups import ControlGroups, Described

CLOSE_SECONDS = 0.5
"""How long the end of the server looks for what each lost call may have left."""

START = "import marshal, posix; exec(marshal.loads(posix.pread({}, 1 << 24, 0)))"
"""What the interpreter of a tool host runs; its place is for the number of the file that holds the compiled program."""


class ToolHostSandbox:
    """Runs each program in a tool host of its own (ports.Sandbox). Any thread.

    `pid_namespace=False` does without PID namespaces: trees are then found by walking. For a server that is not root
    a PID namespace needs a user namespace, in which programs cannot become another user (sudo).

    `protected` is kept from restricted programs, and from the others where the report says so. Nobody may have to
    wait for a private directory: in tier A they share one mount point, and each has its own memory there; in tier B
    each has its own directory, removed when the call has ended.

    `groups`: control groups by which the kernel bounds each call, closed with the sandbox. Without them, or without
    one for something, the tool host counts.
    """

    def __init__(
        self,
        report: SandboxReport,
        *,
        protected: Iterable[str] = (),
        pid_namespace: bool = True,
        groups: ControlGroups | None = None,
    ) -> None:
        self._report = report
        self._files = ServerFiles(protected)
        self._groups = groups
        self._namespace = pid_namespace and report.pid_namespace
        self._private = PrivateRoot(self._files.real()) if report.restriction_available else None
        self._orphaned: list[orphans.CallMarks] = []
        self._directories: dict[ProcessTree, str] = {}
        self._lock = threading.Lock()
        self._live: set[ProcessTree] = set()
        self._lingering: list[subprocess.Popen[bytes]] = []
        self._closed = False
        _program()  # now, not in the first call

    @property
    def report(self) -> SandboxReport:
        return self._report

    @property
    def protected(self) -> tuple[str, ...]:
        return self._files.real()

    @property
    def exposed(self) -> tuple[str, ...]:
        """Protected files whose directory others need, too: an unrestricted call sees what takes their place."""
        return self._files.in_shared_directories()

    @property
    def live(self) -> int:
        """How many programs run."""
        with self._lock:
            return len(self._live)

    def start(self, launch: Launch, on_output: Callable[[bytes], None]) -> ProcessTree:
        """Start `launch`, and wait until it has begun (tool thread, some ten milliseconds).

        Raises ProcessStartError or SandboxUnavailableError: then it provably did not begin.
        """
        if launch.mode is Mode.RESTRICTED and not self._report.restriction_available:
            raise SandboxUnavailableError(f"restricted mode cannot be kept on this machine ({self._report.reason})")
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
        for trace in self._orphaned:
            orphans.kill_orphans(trace, CLOSE_SECONDS, grouped=False)
            orphans.remove_groups(trace)
        if self._private is not None:
            self._private.close()
        if self._groups is not None:
            self._groups.close()

    def _spawn(self, launch: Launch, on_output: Callable[[bytes], None]) -> tuple[ProcessTree, bytes]:
        """A tool host that waits for its launch, and that launch."""
        self._reap_lingering()
        with ExitStack() as opened:
            try:
                stdin = opened.enter_context(_memory_file(launch.stdin)).fileno() if launch.stdin else -1
                unowned = opened.enter_context(ExitStack())
                directory = self._private_directory(launch, unowned)
                trace, groups = self._trace(launch)
                description = self._describe(launch, stdin, directory, trace, groups)
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                opened.callback(theirs.close)
                unowned.callback(ours.close)
                host = _popen([theirs.fileno(), *([stdin] if launch.stdin else [])])
                unowned.pop_all()
            except OSError as error:
                raise ProcessStartError(
                    exhausted_resource(error) or f"the tool host could not be started: {error.strerror}"
                ) from error
            tree = ProcessTree(host, ours, launch, on_output, on_end=self._ended, trace=trace)
            self._register(tree, directory)
        return tree, description

    def _private_directory(self, launch: Launch, unowned: ExitStack) -> str:
        """Where a restricted program may write, "" for others; `unowned` removes it. Raises OSError."""
        if launch.mode is not Mode.RESTRICTED or self._private is None:
            return ""
        if self._report.tier == "A":
            return self._private.path
        directory = self._private.make()
        unowned.callback(remove, directory)
        return directory

    def _trace(self, launch: Launch) -> tuple[orphans.CallMarks, list[Described]]:
        """By what the call's processes are known, and the control groups that it is to make."""
        in_memory = toolhost.PRIVATE_BYTES + toolhost.SHARED_BYTES if self._report.tier == "A" else 0
        groups = [] if self._groups is None else self._groups.describe(launch.limits, in_memory)
        return orphans.CallMarks(orphans.new_number(), tuple(folder for folder, *_ in groups)), groups

    def _restriction(self, directory: str, hidden: tuple[str, ...]) -> dict[str, Any]:
        """What a restricted program is held by. In tier B it must not see those of other calls either.

        In tier A directories are masked, which is quicker than to leave them out of what may be read.
        """
        if self._report.tier == "B":
            protected = (*hidden, os.path.dirname(directory))
        else:
            protected = tuple(path for path in hidden if not os.path.isdir(path))
        return {
            "tier": self._report.tier,
            "abi": self._report.landlock_abi,
            "private": os.fsencode(directory),
            "protected": [os.fsencode(path) for path in protected],
        }

    def _describe(
        self, launch: Launch, stdin: int, directory: str, trace: orphans.CallMarks, groups: list[Described]
    ) -> bytes:
        """The launch as the tool host reads it."""
        limits = launch.limits
        restricted = launch.mode is Mode.RESTRICTED
        closed = restricted and self._report.tier == "A"
        namespace = self._report.pid_namespace if closed else self._namespace and not restricted
        hides = closed or (namespace and self._report.hides_protected)
        hidden = self._files.to_hide(launch.cwd) if hides or restricted else ()
        env = {**launch.env, orphans.VARIABLE: str(trace.number), **(_at_home_in(directory) if restricted else {})}
        description: dict[str, Any] = {
            "argv": [_bytes(argument) for argument in launch.argv],
            "cwd": _bytes(launch.cwd),
            "env": {_bytes(name): _bytes(value) for name, value in env.items()},
            "stdin": stdin,
            "namespace": namespace,
            "mark": trace.number,
            "groups": groups,
            "hide": [os.fsencode(path) for path in hidden] if hides else [],
            "restrict": self._restriction(directory, hidden) if restricted else None,
            "limits": {name: getattr(limits, name) for name in limits.__struct_fields__},
        }
        return marshal.dumps(description)

    def _register(self, tree: ProcessTree, directory: str) -> None:
        """Own the tree from here on; after close it is killed before it can begin."""
        with self._lock:
            self._live.add(tree)
            if directory and self._report.tier == "B":
                self._directories[tree] = directory
            closed = self._closed
        if closed:
            tree.kill()

    def _ended(self, tree: ProcessTree, host: subprocess.Popen[bytes], left: orphans.CallMarks | None) -> None:
        """Give up what the tree had; `left`: by what its processes are known that may still live."""
        with self._lock:
            directory = self._directories.pop(tree, None)
            if left is not None:
                self._orphaned.append(left)
        if directory is not None:
            remove(directory)
        with self._lock:
            self._live.discard(tree)
            if host.returncode is None:
                self._lingering.append(host)

    def _reap_lingering(self) -> None:
        """Reap tool hosts that were still busy with a leaked tree when their call was given up."""
        with self._lock:
            self._lingering = [host for host in self._lingering if host.poll() is None]


@contextmanager
def _memory_file(content: bytes) -> Generator[BinaryIO]:
    """An anonymous file with this content, at its start: a program's stdin that nobody has to feed."""
    with open(os.memfd_create("stdin"), "w+b") as file:
        file.write(content)
        file.seek(0)
        yield file


def _at_home_in(directory: str) -> dict[str, str]:
    """Where programs look for a place to write."""
    return {"HOME": directory, "TMPDIR": directory, "PYTHONDONTWRITEBYTECODE": "1"}


def _bytes(text: str) -> bytes:
    """Text for exec; raises ProcessStartError if no program could be given it."""
    try:
        encoded = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ProcessStartError("an argument is not Unicode text") from error
    if b"\0" in encoded:
        raise ProcessStartError("an argument contains NUL")
    return encoded


def _popen(inherited: list[int]) -> subprocess.Popen[bytes]:
    """Start the host: vfork and exec, a session of its own, nothing of the server's environment or files.

    The first of the files that it inherits is its control socket.
    """
    program = _program()
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", START.format(program), str(inherited[0])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
        start_new_session=True,
        pass_fds=[program, *inherited],
    )


@functools.cache
def _program() -> int:
    """The tool host, compiled, as a file in memory that lives as long as this process and that nobody can change.

    Compiling takes longer than the interpreter needs to start, and not every machine lets compiled files be stored.
    """
    source = Path(str(toolhost.__file__))
    code = compile(source.read_bytes(), source.name, "exec", dont_inherit=True, optimize=2)
    file = os.memfd_create("bedrock-toolhost", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(file, "wb", closefd=False) as memory:
        memory.write(marshal.dumps(code))
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return file
