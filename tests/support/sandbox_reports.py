"""What the sandbox of this machine can do, found out once in a process of the tests: each probe starts programs."""

from functools import cache

from actors.adapters.sandbox.probe import probe
from actors.ports import SandboxReport


@cache
def sandbox_report(setting: str = "auto") -> SandboxReport:
    """Return what `probe` says of a setting."""
    return probe(setting)
