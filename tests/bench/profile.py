"""Where the CPU time of a turn goes, by parts of the program: the same turns by a server under a profiler.

The profiler makes a turn dearer, and parts of many short functions more so: shares show where to look, no more.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.clients import on_loop
from tests.bench.running_server import provider, running_server
from tests.bench.turns import bedrock
from tests.e2e.published_counts import read_counts

if TYPE_CHECKING:
    from tests.bench.figures import Report

LOADS = ((1, 60), (50, 6))
"""Conversations, and turns of each."""


def run(report: Report) -> None:
    for conversations, turns in LOADS:
        name = f"profile: CPU of a turn by part, {conversations} conversation{'s' if conversations > 1 else ''}"
        if sys.version_info >= (3, 12):
            report.add(name, "%", not_run="needs Python 3.11: later ones have one profiler for all threads")
        else:
            report.add(name, "%", **_shares(conversations, turns))


def _shares(conversations: int, turns: int) -> dict[str, float]:
    """Return the share of each part, the largest first."""
    with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder:
        where = str(Path(folder) / "profile")
        module = "tests.bench.profiled_server"
        with provider() as url, running_server(url, module=module, PROFILE_SOCKET=where) as running:
            on_loop(bedrock(running, conversations, 1))
            before = read_counts(where)
            on_loop(bedrock(running, conversations, turns))
            after = read_counts(where)
    spent = {part: after[part] - before[part] for part in after}
    shares = {part: round(100 * each / sum(spent.values()), 1) for part, each in spent.items()}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
