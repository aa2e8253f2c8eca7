"""The services of a server; a test replaces what it is about."""

from typing import Any

from actors.adapters.workspace.local import LocalWorkspace
from actors.core.context import Mode
from actors.ports import NoFaultPoints, SandboxReport
from actors.publishing.hub import EventHub
from actors.runtime.services import RandomIds, Services, SystemClock, Timers
from tests.support.stores import new_store


class NoSandbox:
    """Starts no processes (ports.Sandbox)."""

    report = SandboxReport("none", 0, pid_namespace=False, reason="tests run no processes")
    protected: tuple[str, ...] = ()

    def mode_refusal(self, mode: Mode, directory: str) -> str:
        offered = {
            Mode.RESTRICTED: self.report.restriction_available,
            Mode.WORKSPACE: self.report.workspace_available,
            Mode.UNRESTRICTED: True,
        }
        return "" if offered[mode] else f"{self.report.reason} in {directory}"

    def start(self, launch: object, on_output: object) -> Any:
        raise AssertionError("no process is started here")


def in_memory(*, models: Any, toolbox: Any, **replaced: Any) -> Services:
    """Return services over a new store; their timers are to be closed."""
    clock = replaced.pop("clock", None) or SystemClock()
    parts: dict[str, Any] = {
        "bus": EventHub(),
        "sandbox": NoSandbox(),
        "ids": RandomIds(),
        "faults": NoFaultPoints(),
        "workspace": LocalWorkspace(),
        "timers": Timers(clock),
    }
    parts |= {name: part for name, part in replaced.items() if part is not None}
    parts["store"] = parts.get("store") or new_store()
    return Services(models=models, toolbox=toolbox, clock=clock, **parts)
