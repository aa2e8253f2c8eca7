"""Programs that run as tools, each in a tree that can always be killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from actors.core.context import Mode


class ProcessLimits(Struct, frozen=True):
    """What one tool may use; 0: no limit."""

    wall_seconds: float = 0
    cpu_seconds: int = 0
    memory_bytes: int = 2 << 30
    """Of each process, and of all together."""
    file_bytes: int = 1 << 30
    open_files: int = 1024
    processes: int = 512


class Launch(Struct, frozen=True):
    """A program to run as a tool."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    """Complete but for BEDROCK_CALL, the call's number: nothing of the server's environment is added. In restricted
    mode HOME and TMPDIR become the private directory of the call, the only place where it can write, which is gone
    when the call is."""
    mode: Mode
    limits: ProcessLimits = ProcessLimits()
    stdin: bytes = b""
    output_bytes: int = 128 * 1024
    """Of merged stdout and stderr: kept at most, head and tail."""


class ProcessEnd(Struct, frozen=True):
    """How a program ended, and that nothing of its tree is left."""

    exit_code: int | None
    """None if a signal ended it."""
    signal: int | None
    head: bytes
    """The output, or its first part when some was cut."""
    tail: bytes
    """The last part when some was cut, else b""."""
    cut_bytes: int
    """How much was left out between head and tail."""
    duration_ms: int
    reaped: tuple[int, ...]
    """Process ids (as the server sees them) of the tree that had to be killed."""
    killed: bool = False
    """kill() or a limit ended it."""
    leaked: bool = False
    """True: the tree could not be confirmed dead within the bound."""
    limit: str = ""
    """The limit that ended it: "wall", "processes" or "memory", "" if none."""


class ProcessStartError(Exception):
    """The program provably did not begin (fork failed, …): safe to try again."""


class SandboxUnavailableError(Exception):
    """A restriction was asked for that cannot be kept here: nothing was started (fail closed)."""


class RunningProcess(Protocol):
    """A program and its whole tree, inside its tool host."""

    def kill(self) -> None:
        """SIGKILL the whole tree. Any thread; never blocks; twice is once."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the program's process group, as a shell's job control would. Any thread; never blocks;
        nothing happens once the program has ended."""
        ...

    def wait(self) -> ProcessEnd:
        """Block until the program ended and its tree is gone (tool thread). Once."""
        ...


class SandboxReport(Struct, frozen=True):
    """What this machine can enforce, probed at start."""

    tier: str
    """"A", "B" or "none"."""
    landlock_abi: int
    pid_namespace: bool
    reason: str = ""
    """Why the tier is not better, for people."""
    hides_protected: bool = False
    """Whether the sandbox keeps unrestricted tools, too, from `Sandbox.protected`."""
    by_setting: bool = False
    """Whether an operator asked for just this tier, so that a better one may be possible."""
    kernel_bounds_processes: bool = False
    """Whether the kernel bounds the processes of a call; else its tool host counts them, and ends it."""
    kernel_bounds_memory: bool = False
    """Likewise the memory of all its processes together."""

    @property
    def restriction_available(self) -> bool:
        return self.tier != "none"


class Sandbox(Protocol):
    """Starts programs so that they can always be stopped."""

    @property
    def report(self) -> SandboxReport: ...

    @property
    def protected(self) -> tuple[str, ...]:
        """Real paths that no tool may read or change, with all beneath: the server's data, keys and settings."""
        ...

    def start(self, launch: Launch, on_output: Callable[[bytes], None]) -> RunningProcess:
        """Start `launch` (tool thread). `on_output` is called on a thread of the sandbox, in order, never after
        `wait` returned.

        Raises ProcessStartError or SandboxUnavailableError.
        """
        ...
