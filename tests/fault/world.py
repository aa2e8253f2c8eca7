"""Something to attack, and sandboxes to attack it from: `python -m tests.fault.world USER CASE…` prints JSON.

USER is `root` or `nobody`: whom the server, its files and its processes belong to. A CASE is `none`, or a tier and
the version of Landlock that the kernel is taken to have, `A7`. With `storms` among them, the storms are let loose in
each, too, and each program makes all rounds of a race; else the four that attack from a workspace share them, and root
and nobody the ways to run a program elsewhere. Runs in a process of its own, because it becomes USER.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from actors.adapters.sandbox import toolhost
from actors.adapters.sandbox.host import confinement, kernel
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.core.context import Mode
from actors.ports import Launch, ProcessLimits, SandboxReport
from tests.fault import attacks

ROOT = Path(__file__).parents[2]
ATTACKS = Path(str(attacks.__file__))
NOBODY = 65534
SECONDS = 60.0
SYSV_KEY = 0x0BED0
QUEUE = "bedrock-probe-queue"


def keep_mounts() -> None:
    """Let this process and its children see mounts, and changes of mounts, that nobody else sees."""
    kernel.checked(kernel.libc.unshare(kernel.CLONE_NEWNS))
    confinement.mount(b"none", b"/", None, confinement.MS_REC | confinement.MS_PRIVATE)


def become_nobody() -> None:
    """Give up root for good, but keep a Python that can be executed: this one may be in a home of root's.

    Needs mounts of its own.
    """
    for real, shown in ((sys.base_prefix, "/mnt/python"), (str(ROOT), "/mnt/bedrock")):
        if shown == "/mnt/python":
            confinement.mount(b"tmpfs", b"/mnt", b"tmpfs", 0, b"mode=755")
        os.mkdir(shown)
        confinement.mount(os.fsencode(real), os.fsencode(shown), None, confinement.MS_BIND | confinement.MS_REC)
    sys.executable = os.path.join("/mnt/python", os.path.relpath(os.path.realpath(sys.executable), sys.base_prefix))
    toolhost.__file__ = f"/mnt/bedrock/{Path(str(toolhost.__file__)).relative_to(ROOT)}"
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    kernel.checked(kernel.libc.prctl(4, 1, 0, 0, 0))  # PR_SET_DUMPABLE: as after an exec


def attacks_path() -> str:
    shown = f"/mnt/bedrock/{ATTACKS.relative_to(ROOT)}"
    return shown if os.path.exists(shown) else str(ATTACKS)


@contextmanager
def targets() -> Iterator[dict[str, Any]]:
    """Files, sockets and processes of this user, outside of every sandbox."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="bedrock-outside-")))
        found: dict[str, Any] = {"outside": str(folder), "private": ""}
        _files(folder, found, opened)
        _sockets(folder, found, opened)
        _shared(found, opened)
        found["victim"] = _victim(opened)
        yield found


def _files(folder: Path, found: dict[str, Any], opened: ExitStack) -> None:
    folder.chmod(0o755)  # one of the user's, not the server's own
    names = [f"{name}-{route}" for name in ("removable", "movable") for route in attacks.ROUTES]
    for name in ("victim", "removable", "movable", "protected-file", *names):
        (folder / name).write_text("content")
    for name in ("folder", "protected", *(f"folder-{route}" for route in attacks.ROUTES)):
        (folder / name).mkdir()
    for name in ("secret", "token"):
        (folder / "protected" / name).write_text("secret")
    os.mkfifo(folder / "fifo")
    _keep(os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK), opened)
    os.mkfifo(folder / "full-fifo")
    full = os.open(folder / "full-fifo", os.O_RDWR)
    os.write(full, b"message")
    _keep(full, opened)
    leader, terminal = os.openpty()
    _keep(leader, opened)
    _keep(terminal, opened)
    found["terminal"] = os.ttyname(terminal)
    _workspace(folder, found, opened)
    found["protected_file"] = str(folder / "protected-file")
    found["protected_directory"] = str(folder / "protected")


def _workspace(outside: Path, found: dict[str, Any], opened: ExitStack) -> None:
    """Directories of the user, of which the first is the workspace of calls in that mode.

    They are in one of their own, which takes with it what the attacks make above a workspace or move out of it.
    """
    above = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="bedrock-workspaces-")))
    workspaces = [above / name for name in ("workspace", "workspace-2", "workspace-3")]
    for workspace in workspaces:
        workspace.mkdir()
    found["workspace"], found["workspace_2"], found["workspace_3"] = map(str, workspaces)
    (outside / "movable-workspace").write_text("content")
    for copy in attacks.COPIES:
        linked = outside / f"linked-{copy}"
        linked.write_text("content")
        attacks.lay_out(str(workspaces[0] / copy), str(linked))
    found["own"] = [str(workspaces[0] / copy / "own" / "data") for copy in attacks.COPIES]


def _keep(file: int, opened: ExitStack) -> None:
    opened.callback(os.close, file)


def _sockets(folder: Path, found: dict[str, Any], opened: ExitStack) -> None:
    found["abstract"] = f"bedrock-probe-{os.getpid()}"
    places: dict[str, tuple[int, int, Any]] = {
        "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        "tcp6": (socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
        "udp": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        "unix": (socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "unix")),
        "server": (socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "protected" / "socket")),
        "unix_datagram": (socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "unix-datagram")),
        "-": (socket.AF_UNIX, socket.SOCK_STREAM, "\0" + found["abstract"]),
    }
    for name, (family, kind, address) in places.items():
        try:
            made = opened.enter_context(socket.socket(family, kind))
            made.bind(address)
        except OSError:
            found[name] = 9  # no IPv6 here; the attack is refused everywhere
            continue
        if kind == socket.SOCK_STREAM:
            made.listen(64)
        found[name] = made.getsockname()[1] if family in {socket.AF_INET, socket.AF_INET6} else address


def _shared(found: dict[str, Any], opened: ExitStack) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    key = SYSV_KEY + os.getpid()
    number = kernel.checked(libc.shmget(key, 4096, 0o1600))
    opened.callback(libc.shmctl, number, 0, None)
    found["sysv"] = key
    memory = f"/dev/shm/bedrock-probe-{os.getpid()}"
    _keep(os.open(memory, os.O_CREAT | os.O_RDWR, 0o600), opened)
    opened.callback(os.unlink, memory)
    found["memory"] = memory
    rt = ctypes.CDLL("librt.so.1", use_errno=True)
    queue = f"{QUEUE}-{os.getpid()}"
    _keep(kernel.checked(rt.mq_open(f"/{queue}".encode(), os.O_CREAT | os.O_RDWR, 0o600, None)), opened)
    opened.callback(rt.mq_unlink, f"/{queue}".encode())
    found["queue"] = queue


def _victim(opened: ExitStack) -> int:
    """A process like the server: of the same user, and no relative of any tool."""
    victim = subprocess.Popen(["sleep", "1000"], env={"SECRET": "secret"}, start_new_session=True)
    opened.callback(victim.wait)
    opened.callback(victim.kill)
    return victim.pid


def ways(user: str, case: str, storms: bool) -> tuple[bool, ...]:
    """The ways in which a tier is attacked: by a program that is executed, by one that the tool host runs itself."""
    if storms or case.endswith("w") or user not in {"root", "nobody"}:
        return (False, True)
    return ((user == "root") == case.startswith("B"),)


def attacked(user: str, case: str, found: dict[str, Any], storms: bool) -> dict[str, str]:
    """What works from inside of one sandbox."""
    tier, abi = ("none", 0) if case == "none" else (case[0], int(case[1:].rstrip("w")))
    workspace = found["workspace"] if case.endswith("w") else ""
    report = SandboxReport(
        tier, abi, pid_namespace=tier == "A", hides_protected=False, workspace_available=bool(workspace)
    )
    protected = [found["protected_directory"], found["protected_file"], *found["own"]]
    if tier == "B" and workspace:
        _refused_as_workspace(report, found, protected)
        protected = protected[:2]
    sandbox = ToolHostSandbox(report, protected=protected, pid_namespace=tier == "A")
    try:
        with _other_call(sandbox, tier, found), tempfile.TemporaryDirectory() as scratch:
            told = {**found, "private": scratch if tier == "none" else ""}
            if tier != "none" and not storms:
                told["races"] = attacks.RACES // 4
            outcome = _run(sandbox, tier, told, workspace, ways(user, case, storms))
            if tier == "B" and workspace:
                outcome |= {name: "REFUSED" for name in outcome if name.endswith("own_data")}
            if storms:
                outcome |= {name: _stormed(sandbox, tier, name) for name in attacks.STORMS}
            return outcome
    finally:
        sandbox.close()


def _refused_as_workspace(report: SandboxReport, found: dict[str, Any], protected: list[str]) -> None:
    """Hold that tier B, which cannot mask them, takes no directory with the server's own files for a workspace."""
    sandbox = ToolHostSandbox(report, protected=protected)
    refusal = sandbox.mode_refusal(Mode.WORKSPACE, found["workspace"])
    sandbox.close()
    if not refusal:
        raise RuntimeError("a workspace has files of the server's own")


@contextmanager
def _other_call(sandbox: ToolHostSandbox, tier: str, found: dict[str, Any]) -> Iterator[None]:
    """Another restricted call at the same time, with something in its private directory."""
    if tier == "none":
        found["other_private"] = found["protected_file"]
        yield
        return
    said = threading.Semaphore(0)
    command = "echo secret > $HOME/other; echo $HOME; sleep 1000"
    other = sandbox.start(_launch(tier, ("bash", "-c", command)), lambda _: said.release())
    said.acquire(timeout=SECONDS)
    assert sandbox._private is not None
    found["other_private"] = f"{sandbox._directories.get(other, sandbox._private.path)}/other"
    try:
        yield
    finally:
        other.kill()
        other.wait()


def _ignore(output: bytes) -> None:
    """Nobody watches."""


def _launch(tier: str, argv: tuple[str, ...], workspace: str = "") -> Launch:
    """A call; `workspace`: its directory in workspace mode, "" for another mode."""
    mode = Mode.UNRESTRICTED if tier == "none" else Mode.WORKSPACE if workspace else Mode.RESTRICTED
    limits = ProcessLimits(wall_seconds=SECONDS)
    return Launch(argv=argv, cwd=workspace or "/", env={"PATH": os.defpath}, mode=mode, limits=limits)


def _run(
    sandbox: ToolHostSandbox, tier: str, found: dict[str, Any], workspace: str, ways: tuple[bool, ...]
) -> dict[str, str]:
    """What works from a program; in a tier, from one that is run in any of these ways."""
    told = json.dumps(found)
    executed = _launch(tier, (sys.executable, "-I", "-S", attacks_path(), told), workspace)
    if tier == "none":
        return _attack(sandbox, executed)
    source = Path(attacks_path()).read_text()
    forked = msgspec.structs.replace(_launch(tier, (source, told), workspace), python=True)
    outcome, *others = [_attack(sandbox, forked if way else executed) for way in ways]
    for other in others:
        outcome = {name: _weaker(name, said, other[name]) for name, said in outcome.items()}
    return outcome


def _weaker(name: str, one: str, other: str) -> str:
    """The outcome that says less for the sandbox: an attack that works, a use that does not."""
    bad = [said for said in (one, other) if (said == "OPEN") == (name in attacks.ATTACKS) or "BROKEN" in said]
    return bad[0] if bad else one


def _attack(sandbox: ToolHostSandbox, launch: Launch) -> dict[str, str]:
    end = sandbox.start(launch, _ignore).wait()
    try:
        outcome: dict[str, str] = json.loads(end.head)
    except ValueError:
        raise RuntimeError(f"the attacks ended with {end.exit_code}: {end.head!r}") from None
    return outcome


def _stormed(sandbox: ToolHostSandbox, tier: str, name: str) -> str:
    """Whether a storm could do what it tried; without a sandbox nothing is limited."""
    program = (sys.executable, "-I", "-S", attacks_path(), "{}", name)
    limits = ProcessLimits(wall_seconds=SECONDS, processes=attacks.PROCESSES, memory_bytes=attacks.MEGABYTES << 20)
    if tier == "none":
        limits = ProcessLimits(wall_seconds=SECONDS, processes=0, memory_bytes=0)
    end = sandbox.start(msgspec.structs.replace(_launch(tier, program), limits=limits), _ignore).wait()
    return "LEAKED" if end.leaked else "OPEN" if end.exit_code == 0 else end.limit or "refused"


def main(user: str, *cases: str) -> None:
    if os.geteuid() == 0:
        keep_mounts()
        if user == "nobody":
            become_nobody()
    results = {}
    storms = "storms" in cases
    for case in (case for case in cases if case != "storms"):
        with targets() as found:
            results[case] = attacked(user, case, found, storms)
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
