"""Programs that run as tools, each with a process tree that can always be killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from actors.core.context import Mode

WORKSPACE_PROTECTED = (".envrc", ".vscode", ".idea", "node_modules/.bin")
"""Names of what people and programs run later without a look, which stay as they are in workspace mode, beside `.git`:
the default of the setting."""

DENY_READ = (
    "~/.ssh", "~/.aws", "~/.azure", "~/.config/gcloud", "~/.config/gh", "~/.docker/config.json", "~/.git-credentials",
    "~/.gnupg", "~/.kube", "~/.local/share/keyrings", "~/.netrc", "~/.password-store",
    "~/.pgpass", "~/.pypirc",
)  # fmt: skip
"""Where keys of people are kept, which no tool reads: the default of the setting."""


SYSTEM_PATHS = (
    "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/opt", "/sbin", "/usr", "/etc/alternatives",
    "/etc/bash.bashrc", "/etc/ca-certificates", "/etc/debian_version", "/etc/gitconfig", "/etc/group",
    "/etc/host.conf", "/etc/hosts",
    "/etc/inputrc", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/locale.alias",
    "/etc/localtime", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/profile",
    "/etc/profile.d", "/etc/protocols", "/etc/pki/tls/certs", "/etc/resolv.conf", "/etc/services", "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf", "/etc/pki/tls/openssl.cnf", "/etc/crypto-policies", "/etc/manpath.config",
    "/etc/terminfo", "/etc/timezone",
)  # fmt: skip
"""What programs need of a system and what holds nothing of its users: the default of the setting."""


class ProcessLimits(Struct, frozen=True):
    """Resource limits of one tool call; 0: no limit."""

    wall_seconds: float = 0
    cpu_seconds: int = 0
    memory_bytes: int = 2 << 30
    """Memory limit of each process, and of all processes of the call together."""
    file_bytes: int = 1 << 30
    open_files: int = 1024
    processes: int = 512


class ServiceStreams(Struct, frozen=True):
    """The descriptors that become stdin and stdout of a service.

    Its caller keeps the other ends of the pipes, speaks with the program through them, and closes these two after
    `Sandbox.start`.
    """

    stdin: int
    stdout: int


class Launch(Struct, frozen=True):
    """A program to run as a tool, or as a service."""

    argv: tuple[str, ...]
    """The program and its arguments; if `python`, the source of a Python program and its arguments."""
    cwd: str
    env: Mapping[str, str]
    """The complete environment; only BEDROCK_CALL, the number of the call, is added.

    In restricted mode HOME and TMPDIR become a private directory of the call. The program can write nowhere else, and
    the directory is removed at the end of the call. In workspace mode it can also write beneath `cwd`.
    """
    mode: Mode
    limits: ProcessLimits = ProcessLimits()
    python: bool = False
    """Whether argv[0] is Python source, which the tool host's own interpreter runs, isolated and restricted like any
    program. That is faster than starting another interpreter, but all such programs have the same memory layout.
    """
    stdin: bytes = b""
    output_bytes: int = 128 * 1024
    """Maximum bytes kept of the merged stdout and stderr: the beginning and the end of it."""
    readable: tuple[str, ...] | None = None
    """The only files and directories that the program can read beside those of the system and its private directory;
    None: every one that the server's user can. Processes of others are then invisible to it, too.
    """
    service: ServiceStreams | None = None
    """Set for a service, which lives longer than a call: these are its stdin and stdout instead, and only its stderr is
    output. Its end is that of any program: its tree is killed with it, and with the server.
    """


class ProcessEnd(Struct, frozen=True):
    """How a program ended. Its process tree is dead, unless `leaked`."""

    exit_code: int | None
    """The exit code of the program; None if a signal terminated it."""
    signal: int | None
    head: bytes
    """The output, or its first part if the middle was omitted."""
    tail: bytes
    """The last part of the output if the middle was omitted, else b""."""
    cut_bytes: int
    """Bytes omitted between head and tail."""
    duration_ms: int
    reaped: tuple[int, ...]
    """Ids of the killed processes of the tree, in the server's PID namespace."""
    killed: bool = False
    """Whether kill() or a limit ended it."""
    leaked: bool = False
    """Whether some process of the tree could not be confirmed dead in time."""
    limit: str = ""
    """What ended it: the limit "wall", "processes" or "memory", or the end of the server's "lease"; "" if neither."""


class ProcessStartError(Exception):
    """The program provably did not start, e.g. fork failed: safe to retry."""


class SandboxUnavailableError(Exception):
    """A requested restriction cannot be enforced on this machine; nothing was started (fail closed)."""


class RunningProcess(Protocol):
    """A running program with its process tree, inside its tool host."""

    def kill(self) -> None:
        """Send SIGKILL to the whole tree. Any thread; never blocks; idempotent."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the program's process group, as a shell's job control would.

        Any thread; never blocks; does nothing once the program has ended.
        """
        ...

    def wait(self) -> ProcessEnd:
        """Block until the program and all its descendant processes have exited (tool thread). Call it once."""
        ...


class SandboxReport(Struct, frozen=True):
    """The restrictions that this machine can enforce; probed at the start of the server."""

    tier: str
    """"A", "B" or "none"."""
    landlock_abi: int
    pid_namespace: bool
    reason: str = ""
    """Why the tier is not better, as text for people."""
    hides_protected: bool = False
    """Whether unrestricted tools cannot access `Sandbox.protected` either."""
    by_setting: bool = False
    """Whether the operator chose this tier; a better one may be possible."""
    kernel_bounds_processes: bool = False
    """Whether the kernel limits the number of processes of a call; otherwise its tool host counts them."""
    kernel_bounds_memory: bool = False
    """Whether the kernel limits the memory of all processes of a call together."""
    workspace_available: bool = False
    """Whether the workspace mode can be enforced, in directories that `Sandbox.mode_refusal` does not refuse."""
    workspace_reason: str = ""
    """Why it cannot be, as text for people."""

    separation_reason: str = ""
    """Why `Launch.readable` cannot be enforced, as text for people; "" if it can, or if that was not asked."""

    @property
    def restriction_available(self) -> bool:
        """Whether restricted mode can be enforced."""
        return self.tier != "none"


class Sandbox(Protocol):
    """Starts programs in process trees that can always be killed."""

    @property
    def report(self) -> SandboxReport:
        """The restrictions that this machine can enforce. Any thread."""
        ...

    @property
    def protected(self) -> tuple[str, ...]:
        """Real paths of files and directories that no tool may access: the server's data, keys and settings."""
        ...

    def mode_refusal(self, mode: Mode, directory: str) -> str:
        """Return why programs cannot have a mode in a directory, as text for people; "" if they can. Any thread."""
        ...

    def start(self, launch: Launch, on_output: Callable[[bytes], None]) -> RunningProcess:
        """Start a program (tool thread).

        `on_output` is called on a thread of the sandbox, in order, and never after `wait` has returned.

        Raises ProcessStartError or SandboxUnavailableError.
        """
        ...
