"""What it costs to run a program as a tool: `bash -c :` from its start to its end, held in every way there is, and a
worker. Output is read on pooled threads, as in a server."""

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from actors.adapters.sandbox.probe import probe
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.adapters.tools.program_launch import worker_source
from actors.core.context import Mode
from actors.ports import Launch, SandboxUnavailableError
from tests.bench.figures import Report, spread
from tests.support.trees import launch, sandbox_of

TIMES = int(os.environ.get("BEDROCK_STARTS", "200"))
"""Programs run in each way, one after the other."""

WARM_UP = 5
"""Programs run before that are not counted."""

TOGETHER = 8
"""Programs run at the same time."""

WAYS = {
    "PID namespace": ("namespace", Mode.UNRESTRICTED),
    "subreaper": ("walk", Mode.UNRESTRICTED),
    "Tier B": ("B", Mode.RESTRICTED),
    "Tier A": ("A", Mode.RESTRICTED),
    "Tier A, unrestricted": ("A", Mode.UNRESTRICTED),
}


def run(report: Report) -> None:
    _measure(report, "plain Popen", _plain)
    _measure(report, "plain Popen of the interpreter, -I -S", _interpreter)
    plain = probe("none")
    for name, (way, mode) in WAYS.items():
        try:
            sandbox = sandbox_of(way, plain)
        except SandboxUnavailableError as why:
            report.add(f"tool start to end, {name}", "ms", not_here=str(why))
            continue
        _measure(report, name, _run(sandbox, launch(":", mode=mode)))
        if name == "Tier A":
            _measure(report, "Tier A, read_file", _run(sandbox, _read_file(mode)))
        sandbox.close()


def _measure(report: Report, name: str, once: Callable[[], None]) -> None:
    for _ in range(WARM_UP):
        once()
    cpu = _cpu_ms()
    took = [_timed(once) for _ in range(TIMES)]
    each = (_cpu_ms() - cpu) / TIMES
    report.add(f"tool start to end, {name}", "ms", cpu_each=round(each, 2), **spread(took))
    report.add(f"  {TOGETHER} at the same time", "ms", **spread(_together(once)))


def _together(once: Callable[[], None]) -> list[float]:
    took: list[float] = []

    def work() -> None:
        took.extend(_timed(once) for _ in range(TIMES // TOGETHER))

    threads = [threading.Thread(target=work) for _ in range(TOGETHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def _timed(once: Callable[[], None]) -> float:
    began = time.perf_counter()
    once()
    return (time.perf_counter() - began) * 1000


def _cpu_ms() -> float:
    """CPU time of this process and of all its descendants that were waited for by their parents."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) * 1000


def _plain() -> None:
    subprocess.run(["bash", "-c", ":"], stdin=subprocess.DEVNULL, capture_output=True, check=True)


def _interpreter() -> None:
    """What each tool host and worker would cost in addition if it were not forked."""
    subprocess.run([sys.executable, "-I", "-S", "-c", ""], stdin=subprocess.DEVNULL, capture_output=True, check=True)


def _read_file(mode: Mode) -> Launch:
    """What the tool read_file runs."""
    return launch("", argv=(worker_source("read_file"), __file__, "1", "20"), python=True, mode=mode)


def _run(sandbox: ToolHostSandbox, program: Launch) -> Callable[[], None]:
    def once() -> None:
        end = sandbox.start(program, lambda _: None).wait()
        assert end.exit_code == 0, end

    return once
