"""The ports that start tools' processes and confine them, and the permissions of principals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from actors.core.context import Mode

# Files and directories in the working directory that stay read-only in workspace mode, like `.git`, because editors and
# git execute their contents without asking. A setting can replace the list.
WORKSPACE_PROTECTED = (
    *(".envrc", ".vscode", ".idea", "node_modules/.bin"),
    *(".husky", ".githooks", ".devcontainer", ".zed", ".cursor", ".claude", ".mcp.json"),
)

# Files and directories with users' keys and passwords, which no tool may read; a setting can change the list.
DENY_READ = (
    "~/.ssh", "~/.aws", "~/.azure", "~/.config/gcloud", "~/.config/gh", "~/.docker/config.json", "~/.git-credentials",
    "~/.gnupg", "~/.kube", "~/.local/share/keyrings", "~/.netrc", "~/.password-store",
    "~/.pgpass", "~/.pypirc",
)  # fmt: skip


# Files and directories that programs need and that contain no user data; a setting can change the list.
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


class ProcessLimits(Struct, frozen=True):
    """Resource limits of one tool call; 0 means no limit."""

    wall_seconds: float = 0
    cpu_seconds: int = 0
    memory_bytes: int = 2 << 30
    """A limit in bytes that applies twice: to the memory of each process, and to that of all processes together."""
    file_bytes: int = 1 << 30
    open_files: int = 1024
    processes: int = 512


class ServiceStreams(Struct, frozen=True):
    """The descriptors that become stdin and stdout of a service, a program that outlives tool calls.

    The caller keeps the other ends, and closes these after `Sandbox.start`.
    """

    stdin: int
    stdout: int


class Launch(Struct, frozen=True):
    """A program to run as a tool call, or as a service that outlives calls."""

    argv: tuple[str, ...]
    """The program and its arguments. With `python`, the source of a Python program and its arguments."""
    cwd: str
    env: Mapping[str, str]
    """The complete environment, except for BEDROCK_CALL.

    Except in unrestricted mode, HOME and TMPDIR are a private directory, which is removed at the end of the call. It is
    the only place where the program can write, apart from `cwd` in workspace mode.
    """
    mode: Mode
    limits: ProcessLimits = ProcessLimits()
    python: bool = False
    """Whether argv[0] is Python source.

    The source runs in a restricted fork of the process that starts programs. This is faster than starting an
    interpreter, but all these runs have the same memory layout.
    """
    stdin: bytes = b""
    output_bytes: int = 128 * 1024
    """The maximum bytes of stdout and stderr that are kept; longer output keeps only its beginning and its end."""
    readable: tuple[str, ...] | None = None
    """The paths that the program can read besides system paths and its private directory; None: everything that the
    server's user can read. If this is set, the program sees only its user's processes.
    """
    service: ServiceStreams | None = None
    """The streams of a service; None for a tool call. The output of a service is its stderr alone. It is killed with
    its tree, at the latest when the server ends."""


class ProcessEnd(Struct, frozen=True):
    """How a program ended. All processes of its tree have exited, unless `leaked` is True."""

    exit_code: int | None
    """The exit code of the program; None if a signal terminated it."""
    signal: int | None
    head: bytes
    """The output, or its first part if the middle was left out."""
    tail: bytes
    """The last part of the output if the middle was left out, else b""."""
    cut_bytes: int
    duration_ms: int
    reaped: tuple[int, ...]
    """The ids of the killed processes of the tree, in the server's PID namespace."""
    killed: bool = False
    leaked: bool = False
    """Whether some processes of the tree could not be confirmed dead before the time limit."""
    limit: str = ""
    """The limit that ended the program: "wall" (time), "processes", "memory", "lease" (of the database), or ""."""


class ProcessStartError(Exception):
    """The program certainly did not start, for example because fork failed; a retry is safe."""


class SandboxUnavailableError(Exception):
    """A requested restriction cannot be enforced on this machine, so nothing was started."""


class RunningProcess(Protocol):
    """A running program with all processes that it has started."""

    def kill(self) -> None:
        """Send SIGKILL to the whole process tree. Idempotent. Thread-safe; never blocks."""
        ...

    def signal(self, number: int) -> None:
        """Signal the program's process group, unless it has ended. Thread-safe; never blocks."""
        ...

    def wait(self) -> ProcessEnd:
        """Block until the program and all its descendants have exited. Call this only once, on the tool's thread."""
        ...


class SandboxReport(Struct, frozen=True):
    """The restrictions that this machine can enforce, as tested at the start of the server."""

    tier: str
    """The kind of isolation: "A" (namespaces), "B" (Landlock and seccomp only) or "none"."""
    landlock_abi: int
    pid_namespace: bool
    reason: str = ""
    """Why no better isolation than this tier is possible, as human-readable text."""
    hides_protected: bool = False
    """Whether even tools in unrestricted mode cannot access the paths in `Sandbox.protected`."""
    by_setting: bool = False
    kernel_bounds_processes: bool = False
    """Whether the kernel limits the number of processes of a call; otherwise Bedrock itself counts them."""
    kernel_bounds_memory: bool = False
    """Whether the kernel limits the memory of all processes of a call together."""
    workspace_available: bool = False
    """Whether workspace mode can be enforced, except in directories for which `Sandbox.mode_refusal` gives a reason."""
    workspace_reason: str = ""
    """Why workspace mode cannot be enforced, as human-readable text."""

    separation_reason: str = ""
    """Why `Launch.readable` cannot be enforced, as human-readable text; "" if it can be enforced or was not tested."""

    @property
    def restriction_available(self) -> bool:
        """Whether restricted mode can be enforced."""
        return self.tier != "none"


class Sandbox(Protocol):
    """Starts programs in process trees that can always be killed."""

    @property
    def report(self) -> SandboxReport:
        """The restrictions that this machine can enforce. Thread-safe."""
        ...

    @property
    def protected(self) -> tuple[str, ...]:
        """The real paths of files and directories that no tool may access: the server's data, keys and settings."""
        ...

    def mode_refusal(self, mode: Mode, directory: str) -> str:
        """Why programs cannot run in this mode in this directory; "" if they can. Thread-safe."""
        ...

    def start(self, launch: Launch, on_output: Callable[[bytes], None]) -> RunningProcess:
        """Start a program, on a tool's thread. Raises ProcessStartError or SandboxUnavailableError.

        `on_output` gets the output on a thread of the sandbox, in order, and never after `wait` has returned.
        """
        ...


class ConfinedSandbox:
    """Implements Sandbox for one principal, so that no tool can forget to check the principal's permissions."""

    def __init__(self, sandbox: Sandbox, permissions: Permissions) -> None:
        self._sandbox = sandbox
        self._permissions = permissions

    @property
    def report(self) -> SandboxReport:
        return self._sandbox.report

    @property
    def protected(self) -> tuple[str, ...]:
        return self._sandbox.protected

    def mode_refusal(self, mode: Mode, directory: str) -> str:
        return self._permissions.refusal(mode) or self._sandbox.mode_refusal(mode, directory)

    def start(self, launch: Launch, on_output: Callable[[bytes], None]) -> RunningProcess:
        """Start a program if the principal may use its mode; the program can read only what the principal may read."""
        if refusal := self._permissions.refusal(launch.mode):
            raise SandboxUnavailableError(f"{launch.mode.value} mode: {refusal}")
        return self._sandbox.start(replace(launch, readable=self._permissions.roots), on_output)


class Permissions(Struct, frozen=True):
    """The permissions of a principal. By default, everything is allowed."""

    modes: frozenset[Mode] = frozenset(Mode)
    """The permission modes (what tools may do) that the principal's conversations may have."""
    roots: tuple[str, ...] | None = None
    """The real paths of the directories to which the principal's conversations are confined; None: no limit."""
    models: tuple[str, ...] | None = None
    """The models that the principal may use, as patterns such as `claude-*`; None: all."""
    mcp_servers: tuple[str, ...] | None = None
    """The operator's MCP servers whose tools the principal's conversations are offered; None: all."""

    def refusal(self, mode: Mode) -> str:
        """Why the principal's conversations may not have this mode, as human-readable text; "" if they may."""
        if mode not in self.modes:
            return "this principal is not allowed to use it"
        if self.roots is not None and mode is not Mode.RESTRICTED:
            return "it cannot isolate principals' files from each other; run a separate server for each principal"
        return ""

    def allows_model(self, name: str) -> bool:
        return self.models is None or any(fnmatchcase(name, pattern) for pattern in self.models)

    def allows_mcp_server(self, name: str) -> bool:
        """Whether the principal's conversations are offered the tools of this MCP server of the operator."""
        return self.mcp_servers is None or name in self.mcp_servers


ALL_PERMISSIONS = Permissions()

# The permissions of a principal that the settings no longer mention.
NO_PERMISSIONS = Permissions(modes=frozenset(), roots=(), models=(), mcp_servers=())


def everything(principal: str) -> Permissions:  # noqa: ARG001 -- the port's signature
    """Grants all permissions; for servers that have only one principal."""
    return ALL_PERMISSIONS


class PermissionsOf(Protocol):
    """Returns the permissions of each principal. Thread-safe; never blocks."""

    def __call__(self, principal: str) -> Permissions: ...
