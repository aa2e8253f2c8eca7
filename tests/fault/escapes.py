"""What works from inside of every kind of sandbox: measured, and what of it is known and said."""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from actors.adapters.sandbox.host import kernel
from actors.adapters.sandbox.probe import landlock_abi
from tests.fault.attacks import ATTACKS, STORMS, USES, WORKSPACE_USES

ROOT = Path(__file__).parents[2]
SECURITY = ROOT / "docs" / "security.md"
REPORT = ROOT / "reports" / "sandbox.json"
USERS = ("root", "nobody") if os.geteuid() == 0 else ("own",)
OPEN = "OPEN"

Outcomes = Mapping[str, Mapping[str, str]]
"""By case, `none`, `A7`, and attack."""

CLOSED_OUTSIDE = {
    "write_kernel_setting", "raw_icmp", "packet_socket", "vsock", "kernel_crypto", "mptcp_connect", "enter_namespace",
    "mount_something", "unmount_what_hides", "remount_writable", "change_root", "bpf", "open_by_handle",
    "set_host_name", "read_kernel_log", "call_as_x32", "keep_capabilities", "tcp6_connect", "set_attribute_at",
    "truncate_by_reading_openat2", "io_uring", "user_fault", "perf_events", "key_ring", "type_on_terminal",
    "change_flags", "set_attribute", "move_pages", "write_terminal", "tcp_fast_open", "make_user_namespace",
    "make_user_namespace_by_clone", "make_user_namespace_by_clone3", "trace_process", "seize_process", "read_memory",
    "open_memory", "take_file_of_process", "unix_datagram_from_raw_pair", "take_delegation", "signal_init_by_group",
    "signal_tool_host_by_group", "change_mode_of_stdin",
    "workspace_through_files_of_init",
}  # fmt: skip
"""What a kernel, its settings or the lack of rights may refuse without any sandbox."""


CLOSED_KINDS = ("socket_of_family_", "set_by_ioctl_")
"""Likewise, by the beginning of their names: not every kernel has all families, nor every file system all requests."""


def measure(user: str, cases: tuple[str, ...]) -> Outcomes:
    """Attack from each of these sandboxes, as a server of this user. Raises RuntimeError if files are left behind."""
    with tempfile.TemporaryDirectory(prefix="bedrock-world-") as temporary:
        os.chmod(temporary, 0o1777)
        done = subprocess.run(
            [sys.executable, "-m", "tests.fault.world", user, *cases],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'clients'}", "TMPDIR": temporary},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        if left := os.listdir(temporary):
            raise RuntimeError(f"the attacks left files behind: {left}")
    outcomes: Outcomes = json.loads(done.stdout)
    return outcomes


def cases(tiers: str, versions: tuple[int, ...]) -> tuple[str, ...]:
    """The sandboxes that the kernel has the features for, with versions of Landlock no newer than its own."""
    newest = min(landlock_abi(), kernel.LANDLOCK_ABI)
    known = sorted({min(version, newest) for version in versions} - {0}, reverse=True)
    possible = [tier for tier in tiers if tier == "B" or namespaces_possible()]
    restricted = [f"{tier}{version}" for tier in possible for version in known]
    workspaces = [f"{case}w" for case in restricted if int(case[1:]) >= kernel.TRUNCATION_ABI]
    return ("none", *restricted, *workspaces)


def namespaces_possible() -> bool:
    """Whether a process may make all namespaces of tier A, tried without any code of ours but the numbers."""
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None)
        made = libc.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWNET)
        os._exit(made or libc.mount(b"x", b"/tmp", b"tmpfs", 0, None))
    return os.waitpid(child, 0)[1] == 0


def known_open(tier: str, abi: int) -> set[str]:
    """The attacks that docs/security.md says work: rows `name` | from which version on they do not, if any."""
    both = _listed("What both tiers leave open", abi)
    return both if tier == "A" else both | _listed("What tier B leaves open", abi)


def known_broken(tier: str, abi: int, workspace: bool) -> set[str]:
    """What should work, and does not."""
    if tier == "B":
        return _listed("What tier B costs", abi) - ({CHANGING} if workspace else set())
    return set() if abi > 1 else {MOVING}


CHANGING = "change_mode_of_private_file"
"""Is done by the broker of a workspace."""

MOVING = "move_private_file"
"""Needs version 2 of Landlock in both tiers."""


def _listed(heading: str, abi: int) -> set[str]:
    section = SECURITY.read_text().partition(f"### {heading}\n")[2].partition("\n#")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "| `" in line]
    patterns = [name.strip("`") for name, ends, *_ in rows if not ends.isdigit() or abi < int(ends)]
    return {name for name in (*ATTACKS, *USES) for pattern in patterns if fnmatchcase(name, pattern)}


def surprises(case: str, outcome: Mapping[str, str]) -> list[str]:
    """Where a sandbox is not what is said about it; in `none`, attacks that would prove nothing."""
    if case == "none":
        return [
            f"{name} does not even work without a sandbox: {outcome[name]}"
            for name in (ATTACKS.keys() | USES.keys() | WORKSPACE_USES.keys() | (STORMS.keys() & outcome.keys()))
            - CLOSED_OUTSIDE
            if outcome[name] != OPEN and not name.startswith(CLOSED_KINDS)
        ]
    tier, abi = case[0], int(case[1:].rstrip("w"))
    tried = [*ATTACKS, *(STORMS.keys() & outcome.keys())]
    found = {name for name in tried if outcome[name] in {OPEN, "LEAKED"} or "BROKEN" in outcome[name]}
    broken = {name for name in USES if outcome[name] != OPEN}
    writable = {name for name in WORKSPACE_USES if outcome[name] == OPEN}
    wanted = set(WORKSPACE_USES) if case.endswith("w") else set[str]()
    told = {
        "does not work in a workspace": wanted - writable,
        "works without a workspace": writable - wanted,
        "is open": found - known_open(tier, abi),
        "is said to be open, but is not": known_open(tier, abi) - found,
        "does not work": broken - known_broken(tier, abi, case.endswith("w")),
        "is said not to work, but does": known_broken(tier, abi, case.endswith("w")) - broken,
    }
    return sorted(f"{name} {what} in {case}" for what, names in told.items() for name in names)
