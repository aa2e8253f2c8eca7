"""What it costs to run a program as a tool: `bash -c :` from its start to its end, held in each way that is published.

Output is read on pooled threads, as in a server.
"""

import os
import time
from collections.abc import Callable

from actors.adapters.sandbox.probe import probe
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.core.context import Mode
from actors.ports import Launch, SandboxUnavailableError
from tests.bench.figures import Report, spread
from tests.support.trees import launch, sandbox_of

TIMES = int(os.environ.get("BEDROCK_STARTS", "200"))
"""Programs run in each way, one after the other."""

WARM_UP = 5
"""Programs run before that are not counted."""

WAYS = {
    "PID namespace": ("namespace", Mode.UNRESTRICTED),
    "Tier B": ("B", Mode.RESTRICTED),
    "Tier A": ("A", Mode.RESTRICTED),
}


def run(report: Report) -> None:
    plain = probe("none")
    for name, (way, mode) in WAYS.items():
        try:
            sandbox = sandbox_of(way, plain)
        except SandboxUnavailableError as why:
            report.add(f"tool start to end, {name}", "ms", not_here=str(why))
            continue
        _measure(report, name, _run(sandbox, launch(":", mode=mode)))
        sandbox.close()


def _measure(report: Report, name: str, once: Callable[[], None]) -> None:
    for _ in range(WARM_UP):
        once()
    report.add(f"tool start to end, {name}", "ms", **spread([_timed(once) for _ in range(TIMES)]))


def _timed(once: Callable[[], None]) -> float:
    began = time.perf_counter()
    once()
    return (time.perf_counter() - began) * 1000


def _run(sandbox: ToolHostSandbox, program: Launch) -> Callable[[], None]:
    def once() -> None:
        end = sandbox.start(program, lambda _: None).wait()
        assert end.exit_code == 0, end

    return once
