"""Starts a tool host for each program that runs as a tool, and tells it how the program is restricted."""

from __future__ import annotations

import marshal
import os
import socket
import threading
from collections.abc import Callable, Iterable, Set
from contextlib import ExitStack
from typing import Any

from actors.adapters.sandbox import control_groups
from actors.adapters.sandbox.control_groups import ControlGroups, Described
from actors.adapters.sandbox.fork_server import ForkServer
from actors.adapters.sandbox.host import confinement
from actors.adapters.sandbox.private_dirs import PrivateDirectories, remove
from actors.adapters.sandbox.process_tree import STAGES, ForkUnsupportedError, HostLostError, HostProcess, ProcessTree
from actors.adapters.sandbox.server_files import (
    ServerFiles,
    Workspaces,
    listed_by_programs,
    outermost,
    own_programs,
    within,
)
from actors.common.machine import exhausted_resource
from actors.core.context import Mode
from actors.ports import Launch, ProcessStartError, SandboxReport, SandboxUnavailableError
from actors.ports.cluster import Lease
from actors.ports.sandbox import SYSTEM_PATHS, WORKSPACE_PROTECTED

# Maximum seconds spent at shutdown on killing the processes that a call has left behind.
CLOSE_SECONDS = 0.5


class ToolHostSandbox:
    """Runs each program in its own tool host (implements ports.Sandbox). Thread-safe.

    Without `pid_namespace`, a program's processes are found by walking /proc. To create a PID namespace, a server that
    is not root needs a user namespace, in which programs cannot become another user (with sudo).

    The paths in `protected` and `deny_read` are hidden from restricted programs, and from all programs if
    `report.hides_protected`. In tier A, the private directory of every call is a tmpfs on the same mount point; in tier
    B, each call has a directory of its own, which is removed when the call ends.

    `cpus` are the CPUs that programs may use; None means the CPUs of this process. `system_paths` are further paths
    that programs limited to `Launch.readable` may read. `workspace_protected` has names, in addition to .git, that
    nothing may change in workspace mode. `lease` states until when programs may run; each host enforces it by itself,
    even while this process is suspended. `groups` are closed with the sandbox; limits that they cannot enforce are
    monitored by the hosts.
    """

    def __init__(
        self,
        report: SandboxReport,
        *,
        protected: Iterable[str] = (),
        workspace_protected: Iterable[str] = WORKSPACE_PROTECTED,
        deny_read: Iterable[str] = (),
        system_paths: Iterable[str] = SYSTEM_PATHS,
        pid_namespace: bool = True,
        groups: ControlGroups | None = None,
        cpus: Set[int] | None = None,
        lease: Lease | None = None,
    ) -> None:
        self._report = report
        self._files = ServerFiles(protected)
        self._unreadable = tuple(map(os.path.expanduser, deny_read))
        self._workspaces = Workspaces(workspace_protected)
        self._system = (*system_paths, *own_programs())
        self._groups = groups
        self._namespace = pid_namespace and report.pid_namespace
        self._private = PrivateDirectories(self._files.real()) if report.restriction_available else None
        self._lease = lease or Lease()
        self._fork_server = ForkServer(cpus, self._lease.fd)
        self._orphaned: list[control_groups.CallMarks] = []
        self._directories: dict[ProcessTree, str] = {}
        # Guards the collections below; never held while a process is started or waited for.
        self._lock = threading.Lock()
        self._live: set[ProcessTree] = set()
        self._lingering: list[HostProcess] = []
        self._closed = False

    @property
    def report(self) -> SandboxReport:
        return self._report

    @property
    def protected(self) -> tuple[str, ...]:
        return self._files.real()

    @property
    def unreadable(self) -> tuple[str, ...]:
        """The real paths, in addition to `protected`, that no tool may read."""
        return tuple(sorted({os.path.realpath(path) for path in self._unreadable}))

    @property
    def exposed(self) -> tuple[str, ...]:
        return self._files.in_shared_directories()

    @property
    def live(self) -> int:
        with self._lock:
            return len(self._live)

    def _check_readable(self, directory: str) -> None:
        real = os.path.realpath(directory)
        for path in self.unreadable:
            if within(real, path):
                raise SandboxUnavailableError(f"the working directory is in {path}, which tools cannot read")

    def _check_separation(self, launch: Launch, readable: tuple[str, ...]) -> None:
        """Raise SandboxUnavailableError unless the program can be limited to `readable`.

        The paths in `readable` must include the program's directory.
        """
        if launch.mode is not Mode.RESTRICTED:
            raise SandboxUnavailableError(f"{launch.mode.value} mode cannot isolate the files of several principals")
        if self._report.separation_reason:
            raise SandboxUnavailableError(
                f"this machine cannot isolate several principals ({self._report.separation_reason})"
            )
        real = os.path.realpath(launch.cwd)
        if not any(within(real, root) for root in readable):
            raise SandboxUnavailableError("the working directory is outside its principal's directories")

    def _readable(self, roots: tuple[str, ...]) -> list[bytes]:
        """`roots` and the system's paths, without any path that is inside another of them.

        A root that was replaced by a link is left out, because the link's author must not choose what can be read.
        """
        found = {*(root for root in roots if os.path.realpath(root) == root), *self._system}
        return [os.fsencode(path) for path in outermost(found)]

    def _path_of(self, launch: Launch) -> dict[str, str]:
        """The variable PATH without unreadable directories; {} if all its directories are readable or there is no PATH.

        A program that found a command in an unreadable directory would try to run that instead of searching the next
        directory.
        """
        if launch.readable is None or "PATH" not in launch.env:
            return {}
        readable = [os.fsdecode(path) for path in self._readable(launch.readable)]
        named = ((folder, os.path.realpath(folder)) for folder in launch.env["PATH"].split(":"))
        found = [folder for folder, real in named if any(within(real, path) for path in readable)]
        return {"PATH": ":".join(found) or os.defpath}

    def mode_refusal(self, mode: Mode, directory: str) -> str:
        match mode:
            case Mode.RESTRICTED if not self._report.restriction_available:
                return self._report.reason or "the sandbox does not support it"
            case Mode.WORKSPACE:
                return self._workspace_refusal(directory)
            case _:
                return ""

    def _workspace_refusal(self, directory: str) -> str:
        if not self._report.workspace_available:
            return self._report.workspace_reason or self._report.reason or "the sandbox does not support it"
        hidden = self._to_hide(directory)
        return self._workspaces.refusal(directory, (*self._files.real(), *hidden), self._unmasked(hidden))

    def _to_hide(self, directory: str) -> tuple[str, ...]:
        """The paths to hide from a call in this directory; none of them lies inside another."""
        unreadable = (path for path in self.unreadable if os.path.lexists(path))
        return tuple(outermost((*self._files.to_hide(directory), *unreadable)))

    def start(self, launch: Launch, on_output: Callable[[bytes], None]) -> ProcessTree:
        """Start a program and wait until it runs, which takes some ten milliseconds. Call only on the tool's thread.

        Raises ProcessStartError or SandboxUnavailableError if the program certainly did not start.
        """
        if not self._lease.valid():
            raise ProcessStartError(STAGES["lease"])
        if launch.mode is Mode.RESTRICTED and not self._report.restriction_available:
            raise SandboxUnavailableError(f"restricted mode is not available on this machine: {self._report.reason}")
        if launch.readable is not None:
            self._check_separation(launch, launch.readable)
        if launch.mode is not Mode.UNRESTRICTED or self._report.hides_protected:
            self._check_readable(launch.cwd)
        if launch.mode is Mode.WORKSPACE and (why := self._workspace_refusal(launch.cwd)):
            raise SandboxUnavailableError(f"workspace mode is not available in this directory: {why}")
        try:
            return self._start_once(launch, on_output)
        except (HostLostError, ForkUnsupportedError):  # the program was not started, so another host can try
            return self._start_once(launch, on_output)

    def _start_once(self, launch: Launch, on_output: Callable[[bytes], None]) -> ProcessTree:
        tree, description, number = self._spawn(launch, on_output)
        try:
            tree.begin(description)
            tree.await_begin()
        except BaseException as error:
            tree.kill()
            tree.wait()
            if isinstance(error, HostLostError):
                self._fork_server.replace(number)
            elif isinstance(error, ForkUnsupportedError):
                self._fork_server.stop_forking()
            raise
        return tree

    def close(self) -> None:
        """Kill all running programs, wait for them to exit, and refuse to start new ones. Idempotent."""
        with self._lock:
            self._closed = True
            live = tuple(self._live)
        for tree in live:
            tree.kill()
        for tree in live:
            tree.wait()
        self._fork_server.close()
        for trace in self._orphaned:
            control_groups.kill_orphans(trace, CLOSE_SECONDS, grouped=False)
            control_groups.remove_groups(trace)
        for host in self._lingering:
            host.ended_within(CLOSE_SECONDS)
        if self._private is not None:
            self._private.close()
        if self._groups is not None:
            self._groups.close()

    def _spawn(self, launch: Launch, on_output: Callable[[bytes], None]) -> tuple[ProcessTree, bytes, int]:
        """Request a tool host; return the process tree, the launch to send, and the number for ForkServer.replace."""
        with self._lock:
            self._lingering = [host for host in self._lingering if not host.ended()]
        with ExitStack() as opened:
            try:
                streams = _streams(launch, opened)
                unowned = opened.enter_context(ExitStack())
                directory = self._private_directory(launch, unowned)
                trace, groups = self._trace(launch)
                description = self._describe(launch, directory, trace, groups)
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                opened.callback(theirs.close)
                unowned.callback(ours.close)
                number, host = self._fork_server.request(theirs.fileno(), streams, python=launch.python)
                unowned.pop_all()
            except OSError as error:
                raise ProcessStartError(
                    exhausted_resource(error) or f"the tool host could not be started: {error.strerror}"
                ) from error
            tree = ProcessTree(host, ours, launch, on_output, on_end=self._ended, trace=trace)
            self._register(tree, directory)
        return tree, description, number

    def _private_directory(self, launch: Launch, unowned: ExitStack) -> str:
        """A program's private directory; "" in unrestricted mode. Raises OSError.

        In tier A, the path is the same for all calls; in tier B, a new directory is created, which is removed when
        `unowned` is closed.
        """
        if launch.mode is Mode.UNRESTRICTED or self._private is None:
            return ""
        if self._report.tier == "A":
            return self._private.path
        directory = self._private.make()
        unowned.callback(remove, directory)
        return directory

    def _trace(self, launch: Launch) -> tuple[control_groups.CallMarks, list[Described]]:
        in_memory = confinement.PRIVATE_BYTES + confinement.SHARED_BYTES if self._report.tier == "A" else 0
        groups = [] if self._groups is None else self._groups.describe(launch.limits, in_memory)
        return control_groups.CallMarks(control_groups.new_number(), tuple(folder for folder, *_ in groups)), groups

    def _restriction(self, launch: Launch, directory: str, hidden: tuple[str, ...]) -> dict[str, Any]:
        """Describe a program's restrictions for the tool host.

        In tier B, the `hidden` paths and other calls' private directories are excluded from the readable paths; in tier
        A, empty mounts cover hidden directories, which is faster.
        """
        protected = self._unmasked(hidden)
        return {
            "tier": self._report.tier,
            "abi": self._report.landlock_abi,
            "private": os.fsencode(directory),
            "protected": [os.fsencode(path) for path in protected],
            "readable": None if launch.readable is None else self._readable(launch.readable),
            "listable": os.fsencode(listed_by_programs()),
            "workspace": self._workspace(launch, directory, hidden),
        }

    def _unmasked(self, hidden: tuple[str, ...]) -> tuple[str, ...]:
        """The hidden paths that no mount covers.

        In tier B, these are all hidden paths; the parent of all private directories is added to them.
        """
        if self._report.tier == "B" and self._private is not None:
            return (*hidden, self._private.path)
        return tuple(path for path in hidden if not os.path.isdir(path))

    def _workspace(self, launch: Launch, directory: str, hidden: tuple[str, ...]) -> dict[str, Any] | None:
        if launch.mode is not Mode.WORKSPACE or self._private is None:
            return None
        return self._workspaces.describe(launch.cwd, directory, (*self._files.real(), *hidden, self._private.path))

    def _describe(
        self, launch: Launch, directory: str, trace: control_groups.CallMarks, groups: list[Described]
    ) -> bytes:
        limits = launch.limits
        restricted = launch.mode is not Mode.UNRESTRICTED
        closed = restricted and self._report.tier == "A"
        namespace = self._report.pid_namespace if closed else self._namespace and not restricted
        hides = closed or (namespace and self._report.hides_protected)
        hidden = self._to_hide(launch.cwd) if hides or restricted else ()
        home = {"HOME": directory, "TMPDIR": directory, "PYTHONDONTWRITEBYTECODE": "1"} if restricted else {}
        env = {**launch.env, **self._path_of(launch), control_groups.VARIABLE: str(trace.number), **home}
        description: dict[str, Any] = {
            "argv": [_bytes(argument) for argument in launch.argv],
            "python": launch.python,
            "cwd": _bytes(launch.cwd),
            "env": {_bytes(name): _bytes(value) for name, value in env.items()},
            "namespace": namespace,
            "mark": trace.number,
            "groups": groups,
            "hide": [os.fsencode(path) for path in hidden] if hides else [],
            "restrict": self._restriction(launch, directory, hidden) if restricted else None,
            "limits": {name: getattr(limits, name) for name in limits.__struct_fields__},
        }
        return marshal.dumps(description)

    def _register(self, tree: ProcessTree, directory: str) -> None:
        """Register a tree so that `close` kills it; if the sandbox is already closed, kill the tree immediately."""
        with self._lock:
            self._live.add(tree)
            if directory and self._report.tier == "B":
                self._directories[tree] = directory
            closed = self._closed
        if closed:
            tree.kill()

    def _ended(self, tree: ProcessTree, host: HostProcess | None, left: control_groups.CallMarks | None) -> None:
        """Release a tree's resources. `left` has the marks of its processes; None if certainly none are running."""
        with self._lock:
            directory = self._directories.pop(tree, None)
            if left is not None:
                self._orphaned.append(left)
        if directory is not None:
            remove(directory)
        with self._lock:
            self._live.discard(tree)
            if host is not None and not host.ended():
                self._lingering.append(host)


def _streams(launch: Launch, opened: ExitStack) -> tuple[int, ...]:
    if launch.service is not None:
        return launch.service.stdin, launch.service.stdout
    if not launch.stdin:
        return ()
    file = os.memfd_create("stdin")  # unlike a pipe, it needs no thread that writes
    opened.callback(os.close, file)
    with open(file, "wb", closefd=False) as memory:
        memory.write(launch.stdin)
    os.lseek(file, 0, os.SEEK_SET)
    return (file,)


def _bytes(text: str) -> bytes:
    """Encode text as exec expects it. Raises ProcessStartError if it cannot be passed to a program."""
    try:
        encoded = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ProcessStartError("an argument, environment variable or directory is not valid Unicode") from error
    if b"\0" in encoded:
        raise ProcessStartError("an argument, environment variable or directory contains a NUL")
    return encoded
