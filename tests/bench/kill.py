"""Killing whole trees: from `kill()` to the tree verified dead, daemons that fled included; servers that are killed."""

import os
import tempfile
from pathlib import Path

from actors.adapters.sandbox.probe import probe
from actors.ports import SandboxUnavailableError
from tests.bench.figures import Report, spread
from tests.bench.killed_servers import kill_servers
from tests.support.trees import WAYS, kill_trees, sandbox_of

TREES = int(os.environ.get("BEDROCK_TREES", "1000"))
"""Killed with a PID namespace; a fifth as many in each of the other ways."""

SERVERS = int(os.environ.get("BEDROCK_KILLS", "50"))
"""Servers killed."""

NAMES = {"namespace": "PID namespace", "walk": "subreaper", "A": "Tier A", "B": "Tier B"}


def run(report: Report) -> None:
    for way in WAYS:
        _trees(report, way)
    with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder:
        took = [killed.milliseconds for killed in kill_servers(Path(folder), SERVERS)]
    report.add("server killed → no process left", "ms", **spread(took))


def _trees(report: Report, way: str) -> None:
    name = f"tool killed → tree verified dead, {NAMES[way]}"
    try:
        sandbox = sandbox_of(way, probe())
    except SandboxUnavailableError as why:
        report.add(name, "ms", not_here=str(why))
        return
    killed = list(kill_trees(sandbox, way, TREES if way == "namespace" else TREES // 5))
    sandbox.close()
    survivors = sum(one.survivors for one in killed)
    report.add(name, "ms", survivors=survivors, **spread([one.milliseconds for one in killed]))
