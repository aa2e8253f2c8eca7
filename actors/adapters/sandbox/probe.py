"""Finds out at server startup which of the kernel's sandbox features work, by trying them."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from msgspec.structs import replace

from actors.adapters.sandbox import escape_check, fork_server
from actors.adapters.sandbox.host import call_limits, kernel, syscall_filter
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.core.context import Mode
from actors.ports import Launch, ProcessLimits, ProcessStartError, SandboxReport, SandboxUnavailableError

log = logging.getLogger(__name__)

# "auto" uses the best sandbox that works; "A" demands one with namespaces, "B" one without; "none" means no sandbox.
SETTINGS = ("auto", "A", "B", "none")

PROBE_SECONDS = 10.0


def probe(setting: str = "auto") -> SandboxReport:
    """Try the kernel's features in short-lived processes. Blocks for some hundred ms.

    Raises SandboxUnavailableError if `setting` demands what this machine does not support.
    """
    nothing = _namespaces(landlock_abi())
    if setting == "none":
        reason = "sandbox = none turns the sandbox off; auto uses the strongest one that works"
        return replace(nothing, reason=reason, by_setting=True)
    return _with_workspace(_best(nothing) if setting == "auto" else _forced(nothing, setting))


def _with_workspace(report: SandboxReport) -> SandboxReport:
    if not report.restriction_available:
        return replace(report, workspace_reason=report.reason)
    if report.landlock_abi < kernel.TRUNCATION_ABI:
        reason = f"Landlock ABI {report.landlock_abi} cannot restrict file truncation; this requires Linux 6.2 or newer"
        return replace(report, workspace_reason=reason)
    offered = replace(report, workspace_available=True)
    failure = why_not(offered, Mode.WORKSPACE)
    if not failure:
        return offered
    reason = f"the broker cannot supervise the system calls of tools ({failure}); this requires Linux 5.14 or newer"
    return replace(report, workspace_reason=reason)


def with_separation(report: SandboxReport) -> SandboxReport:
    """Test whether the files and processes of several principals can be kept apart; add the result to the report."""
    if not report.restriction_available:
        reason = report.reason
    elif report.tier == "B" and report.landlock_abi < kernel.SIGNALS_ABI:
        reason = f"Landlock ABI {report.landlock_abi} does not block signals to other processes; Linux 6.12 does"
    else:
        reason = why_not(report, Mode.RESTRICTED, apart=True)
    return replace(report, separation_reason=reason)


def with_limits(report: SandboxReport, controllers: Collection[str]) -> SandboxReport:
    """The report, adapted to calls whose control groups have these controllers.

    Without the controller "pids", only newer kernels limit the number of processes, and only in namespaces.
    """
    alone = report.pid_namespace and report.tier != "B" and call_limits.counts_per_namespace()
    return replace(
        report, kernel_bounds_processes="pids" in controllers or alone, kernel_bounds_memory="memory" in controllers
    )


def landlock_abi() -> int:
    """The ABI version of Landlock in this kernel; 0 if there is none."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return max(0, int(libc.syscall(kernel.NR_LANDLOCK_CREATE, None, 0, kernel.LANDLOCK_CREATE_RULESET_VERSION)))
    except (OSError, AttributeError):
        return 0


def can_make_pid_namespace() -> bool:
    """Whether a tool host can create a PID namespace, tested in a separate process."""
    try:
        tried = subprocess.run(
            fork_server.command("probe"),
            pass_fds=[fork_server.program()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_SECONDS,
            check=False,
            env={},
        )
    except (OSError, subprocess.SubprocessError):
        log.exception("cannot test for PID namespaces; assuming that there are none")
        return False
    return tried.stdout == b"1"


def _namespaces(abi: int) -> SandboxReport:
    hiding = SandboxReport(tier="none", landlock_abi=abi, pid_namespace=True, hides_protected=True)
    if not why_not(hiding):
        return hiding
    return SandboxReport(tier="none", landlock_abi=abi, pid_namespace=can_make_pid_namespace())


def _best(nothing: SandboxReport) -> SandboxReport:
    failure = why_not(replace(nothing, tier="A", pid_namespace=True))
    if not failure:
        return replace(nothing, tier="A", pid_namespace=True)
    weaker = why_not(replace(nothing, tier="B"))
    if weaker:
        return replace(nothing, reason=f"this machine cannot restrict tools: {_advice_on_landlock(nothing, weaker)}")
    reason = (
        f"namespaces cannot be used for tools ({failure}): allow user namespaces (sysctl user.max_user_namespaces, "
        "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; in a container, its seccomp "
        "profile forbids them)"
    )
    return replace(nothing, tier="B", reason=reason + _advice_on_signals(nothing.landlock_abi))


def _forced(nothing: SandboxReport, tier: str) -> SandboxReport:
    asked = replace(nothing, tier=tier, pid_namespace=nothing.pid_namespace or tier == "A", by_setting=True)
    failure = why_not(asked)
    if failure:
        text = f"this machine does not support sandbox = {tier}: {_advice_on_landlock(nothing, failure)}"
        raise SandboxUnavailableError(text)
    reason = "sandbox = B limits the sandbox to tier B" + _advice_on_signals(nothing.landlock_abi)
    return asked if tier == "A" else replace(asked, reason=reason)


def _advice_on_landlock(report: SandboxReport, failure: str) -> str:
    if not report.landlock_abi:
        return "the kernel does not support Landlock; this requires Linux 5.13 or newer with landlock in lsm="
    if os.uname().machine not in syscall_filter.ARCHITECTURES:
        return f"the system call filter does not support {os.uname().machine}, only x86_64 and aarch64"
    return failure


def _advice_on_signals(abi: int) -> str:
    if abi >= kernel.SIGNALS_ABI:
        return ""
    return f"; Landlock ABI {abi} does not block signals to other processes of the same user; Linux 6.12 does"


def why_not(report: SandboxReport, mode: Mode | None = None, *, apart: bool = False) -> str:
    """Run a program that tries to break out; return what succeeded ("" for nothing), or the error if it could not run.

    The default for `mode` is the narrowest mode in the report. With `apart`, the program may read only its own
    directory.
    """
    narrowest = Mode.RESTRICTED if report.restriction_available else Mode.UNRESTRICTED
    try:
        with tempfile.TemporaryDirectory(prefix="bedrock-probe-") as folder:
            secret = Path(folder, "protected", "secret")
            secret.parent.mkdir()
            secret.write_text("secret")
            Path(folder, "workspace").mkdir()
            return _tried(report, mode or narrowest, secret, apart)
    except (SandboxUnavailableError, ProcessStartError, OSError) as error:
        return str(error)


def _tried(report: SandboxReport, mode: Mode, secret: Path, apart: bool) -> str:
    folder = secret.parents[1]
    outside, own, neighbour = folder / "outside", folder / "workspace", folder / "neighbour" / "file"
    neighbour.parent.mkdir()
    neighbour.touch()
    arguments = (mode.value, str(secret), str(outside), *((str(neighbour),) if apart else ()))
    program = (sys.executable, "-I", "-S", str(escape_check.__file__), *arguments)
    sandbox = ToolHostSandbox(report, protected=[str(secret.parent)])
    try:
        limits = ProcessLimits(wall_seconds=PROBE_SECONDS)
        readable = (str(own),) if apart else None
        launch = Launch(argv=program, cwd=str(own), env={}, mode=mode, limits=limits, readable=readable)
        end = sandbox.start(launch, lambda _: None).wait()
    finally:
        sandbox.close()
    if end.exit_code == 0 and end.head == escape_check.CONFINED and not outside.exists():
        return ""
    return end.head.decode("utf-8", "replace").strip() or "the program that tests it ended early"
