"""Where the CPU time of a turn goes, by parts of the program: the same turns by a server under a profiler.

The profiler makes a turn dearer, and parts of many short functions more so: shares show where to look, no more. How
many Python functions a turn calls hardly depends on the machine, nor on what else runs there.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.clients import on_loop
from tests.bench.profilers import CALLS
from tests.bench.running_server import provider, running_server
from tests.bench.turns import bedrock
from tests.support.published_counts import read_counts

if TYPE_CHECKING:
    from tests.bench.figures import Report

LOADS = ((1, 60), (50, 6))
"""Conversations, and turns of each."""


def run(report: Report) -> None:
    for conversations, turns in LOADS:
        of = f"{conversations} conversation{'s' if conversations > 1 else ''}"
        shares, called = f"profile: CPU of a turn by part, {of}", f"profile: Python calls of a turn, {of}"
        if sys.version_info >= (3, 12):
            for name in (shares, called):
                report.add(name, "", not_run="needs Python 3.11: later ones have one profiler for all threads")
            continue
        spent, calls = _counted(conversations, turns)
        report.add(
            shares, "%", **_largest_first({part: 100 * each / sum(spent.values()) for part, each in spent.items()})
        )
        report.add(called, "", value=round(sum(calls.values())), **_largest_first(calls))


def _counted(conversations: int, turns: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the microseconds and the calls of a turn, by part."""
    with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder:
        where = str(Path(folder) / "profile")
        module = "tests.bench.profiled_server"
        with provider() as url, running_server(url, module=module, PROFILE_SOCKET=where) as running:
            on_loop(bedrock(running, conversations, 1))
            before = read_counts(where)
            taken = on_loop(bedrock(running, conversations, turns))
            after = read_counts(where)
    each = {name: (after[name] - before[name]) / taken.turns for name in after}
    calls = {name.removeprefix(CALLS): count for name, count in each.items() if name.startswith(CALLS)}
    return {part: each[part] for part in calls}, calls


def _largest_first(values: dict[str, float]) -> dict[str, float]:
    return dict(sorted(((part, round(value, 1)) for part, value in values.items()), key=lambda item: -item[1]))
