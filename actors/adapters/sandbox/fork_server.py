"""Starts tool hosts, the processes that run tool calls, by forking a process that has loaded all modules.

This is faster than starting an interpreter for each host.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import marshal
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence, Set
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import cast

from actors.adapters.sandbox.host import kernel
from actors.adapters.sandbox.process_tree import HostProcess

_FOLDER = Path(__file__).parent
# Seconds that the fork server has to accept a request; after that, it is killed and a new one is started.
SEND_SECONDS = 10.0

# The tool host's modules, each listed after the modules that it imports; the main module, `toolhost`, is loaded last.
MODULES = (
    "host.kernel", "host.process_walk", "host.call_limits", "host.syscall_filter", "host.reported_calls",
    "host.writable_trees", "host.write_broker", "host.confinement", "host.call_processes",
)  # fmt: skip

# The Python source that loads the compiled program from the descriptor `{}` and runs it. The program is not loaded from
# its files, because these may have changed since the server started.
START = """
import marshal, posix, sys
def add(name, code):
    made = sys.modules["actors.adapters.sandbox." + name] = type(sys)("actors.adapters.sandbox." + name)
    exec(code, made.__dict__)
*modules, main = marshal.loads(posix.pread({}, 1 << 24, 0))
add("host", "")
for module in modules:
    add(*module)
exec(main[1])
"""


class ForkServer:
    """Provides tool hosts by forking a helper process, the fork server. Thread-safe.

    The fork server never runs a call itself, so no data from one call reaches another. It starts with the first
    request, and again if it has ended. Hosts are its siblings (children of this process) and survive it. Where the
    kernel forbids this, each host is a new interpreter.
    """

    def __init__(self, cpus: Set[int] | None = None, lease: int | None = None) -> None:
        """`cpus` are the CPUs that hosts may use; None means the CPUs of this process.

        `lease` is a descriptor of the file with the time at which hosts end, or None; the descriptor is duplicated.
        Raises OSError.
        """
        self._cpus = cpus
        self._lease = None if lease is None else os.dup(lease)
        self._lock = threading.Lock()  # guards the fields below
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._forks = True
        self._closed = False
        self._starts = 0
        program()  # loads the program now, so that the first call need not wait for it

    def request(self, control: int, streams: Sequence[int], *, python: bool) -> tuple[int, HostProcess | None]:
        """Request a tool host that the server controls through `control`; with `python`, it runs Python source itself.

        `streams` has descriptors for stdin, for stdin and stdout, or none. Returns the number of the fork server's
        process (for `replace`), and the host. The host is None if it was forked, because its pid is not known until its
        first message. Raises OSError.
        """
        wanted, files = kernel.PYTHON if python else kernel.PROGRAM, [control, *streams]
        with self._lock:
            if self._closed:
                raise OSError(errno.ESHUTDOWN, "the server is shutting down")
            if not self._forks:
                return self._starts, self._started_directly(files)
            self._reap_unreported()
            try:
                socket.send_fds(self._connected(), [wanted], files)
            except (BrokenPipeError, ConnectionResetError, TimeoutError):
                self._stop()
                socket.send_fds(self._connected(), [wanted], files)
            return self._starts, None

    def replace(self, number: int) -> None:
        """End the fork server's process with this number because it has not served a request."""
        with self._lock:
            if number == self._starts:
                self._stop()

    def stop_forking(self) -> None:
        """Stop forking: from now on, every host is started as a new interpreter."""
        with self._lock:
            self._forks = False
            self._stop()

    def close(self) -> None:
        """End the fork server's process and refuse requests; hosts continue to run. Idempotent."""
        with self._lock:
            self._closed = True
            self._stop()
            if self._lease is not None:
                os.close(self._lease)
                self._lease = None

    def _connected(self) -> socket.socket:
        if self._channel is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    self._process = self._start_interpreter("forks", [theirs.fileno()])
                except BaseException:
                    ours.close()
                    raise
            ours.settimeout(SEND_SECONDS)
            self._channel = ours
            self._starts += 1
        return self._channel

    def _started_directly(self, files: list[int]) -> HostProcess:
        process = self._start_interpreter("host", files)
        process.returncode = 0  # so that Popen does not reap the process, which the caller does
        return HostProcess(process.pid)

    def _start_interpreter(self, role: str, files: list[int]) -> subprocess.Popen[bytes]:
        process = start_interpreter(role, files, self._lease)
        if self._cpus is not None:
            with suppress(OSError):  # the process has already ended, or none of these CPUs is usable
                os.sched_setaffinity(process.pid, self._cpus)
        return process

    def _stop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reap_unreported()
            self._process = None

    def _reap_unreported(self) -> None:
        """Reap hosts that ended before they reported their pid; they are still in the fork server's process group."""
        if self._process is not None:
            with suppress(ChildProcessError):
                while os.waitpid(-self._process.pid, os.WNOHANG)[0]:
                    pass


def start_interpreter(role: str, inherited: list[int], lease: int | None) -> subprocess.Popen[bytes]:
    """Run the compiled tool host (vfork and exec) in a new session. Raises OSError.

    It inherits only LD_LIBRARY_PATH and these files: the program, the lease and `inherited`. The numbers of the files
    are its arguments. LD_BIND_NOW makes it resolve all library functions at its start, so that its forked copies need
    not do so.
    """
    files = [-1 if lease is None else lease, *inherited]
    return subprocess.Popen(
        command(role, *files),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={"LD_BIND_NOW": "1", **{name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}},
        start_new_session=True,
        pass_fds=[program(), *(file for file in files if file >= 0)],
    )


def command(role: str, *files: int) -> list[str]:
    """The command line for the role "forks", "host" or "probe". The process must inherit `files` and `program()`."""
    return [sys.executable, "-I", "-S", "-c", START.format(program()), role, *map(str, files)]


@functools.cache
def program() -> int:
    """A descriptor for the tool host's compiled program, which stays open while this process runs."""
    return sealed(codes())


def codes() -> list[tuple[str, CodeType]]:
    """The tool host's compiled modules, by their names in this package.

    They come from Python's bytecode cache if possible, because compiling takes ten times as long. They are not
    imported, because the server needs few of them.
    """
    loaders = (SourceFileLoader(name, str(path_of(name))) for name in (*MODULES, "toolhost"))
    return [(loader.name, cast("CodeType", loader.get_code(loader.name))) for loader in loaders]


def path_of(module: str) -> Path:
    return _FOLDER / f"{module.replace('.', '/')}.py"


def sealed(modules: Sequence[tuple[str, CodeType]]) -> int:
    """Write the tool host's compiled modules to a sealed file in memory, and return the file's descriptor."""
    file = os.memfd_create("bedrock-toolhost", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(file, "wb", closefd=False) as memory:
        memory.write(marshal.dumps(list(modules)))
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return file
