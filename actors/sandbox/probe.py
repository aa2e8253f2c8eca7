"""What this machine can do to hold a tool, found out at start by trying it."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys

from actors.ports import SandboxReport
from actors.sandbox import toolhost

log = logging.getLogger(__name__)

PROBE_SECONDS = 10.0

LANDLOCK_CREATE_RULESET = 444
"""The same number on every architecture."""
LANDLOCK_CREATE_RULESET_VERSION = 1


def probe() -> SandboxReport:
    """Try what the kernel allows. Blocks for some ten milliseconds; never raises."""
    abi = landlock_abi()
    offers = f"the kernel offers Landlock ABI {abi}" if abi else "the kernel offers no Landlock"
    return SandboxReport(
        tier="none",
        landlock_abi=abi,
        pid_namespace=can_make_pid_namespace(),
        reason=f"this version applies no restriction to tools; {offers}",
    )


def landlock_abi() -> int:
    """The version of Landlock in this kernel, 0 without."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return max(0, int(libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_CREATE_RULESET_VERSION)))
    except (OSError, AttributeError):
        return 0


def can_make_pid_namespace() -> bool:
    """Whether a tool host can put its tool into a PID namespace; tried in a process of its own."""
    try:
        tried = subprocess.run(
            [sys.executable, "-I", "-S", str(toolhost.__file__), "probe"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_SECONDS,
            check=False,
            env={},
        )
    except (OSError, subprocess.SubprocessError):
        log.exception("the sandbox could not be probed")
        return False
    return tried.stdout == b"1"
