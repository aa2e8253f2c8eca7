"""Killing whole trees: from `kill()` to the tree verified dead, daemons that fled included."""

from __future__ import annotations

import time
import uuid

from actors.sandbox.probe import probe
from actors.sandbox.spawn import ToolHostSandbox
from tests.bench.figures import Report, spread
from tests.integration.sandbox.trees import TREES, eventually, launch, marked, sleepers

TIMES = 15
"""Of each kind of tree."""


def run(report: Report) -> None:
    report_of_machine = probe()
    for namespace in (True, False):
        took, survivors = [], 0
        sandbox = ToolHostSandbox(report_of_machine, pid_namespace=namespace)
        for command, size in TREES.values():
            for _ in range(TIMES):
                milliseconds, left = kill_one(sandbox, command, size)
                took.append(milliseconds)
                survivors += left
        way = "PID namespace" if namespace and sandbox.report.pid_namespace else "subreaper"
        report.add(f"tool killed → tree verified dead, {way}", "ms", survivors=survivors, **spread(took))
        starts = [start_one(sandbox) for _ in range(40)]
        report.add(f"tool start to end, `bash -c :`, {way}", "ms", **spread(starts))
        sandbox.close()


def kill_one(sandbox: ToolHostSandbox, command: str, size: int) -> tuple[float, int]:
    mark = uuid.uuid4().hex
    tree = sandbox.start(launch(command, mark), lambda _: None)
    eventually(lambda: len(sleepers(mark)) >= size, "the tree grew")
    began = time.perf_counter()
    tree.kill()
    tree.wait()
    milliseconds = (time.perf_counter() - began) * 1000
    return milliseconds, len(marked(mark))


def start_one(sandbox: ToolHostSandbox) -> float:
    began = time.perf_counter()
    sandbox.start(launch(":"), lambda _: None).wait()
    return (time.perf_counter() - began) * 1000
