"""Start to ready, and the memory of a server that does nothing."""

from __future__ import annotations

from tests.bench.figures import Report, rss_mib, spread
from tests.bench.running_server import running_server


def run(report: Report) -> None:
    seconds, memory = [], []
    for _ in range(5):
        with running_server() as running:
            seconds.append(running.ready_seconds)
            memory.append(rss_mib(running.process.pid))
    report.add("start to ready", "s", **spread(seconds))
    report.add("resident memory, idle", "MiB", **spread(memory))
