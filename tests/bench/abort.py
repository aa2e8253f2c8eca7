"""Aborting a model request: from the cancel to the end of the call with its socket shut, phase by phase."""

from __future__ import annotations

import time

from actors.llm.provider import Timeouts
from tests.bench.figures import Report, spread
from tests.unit.llm.asking import Asking, model
from tests.unit.llm.scripted_server import ScriptedServer
from tests.unit.llm.test_abort import PHASES

TIMES = 60
PATIENT = Timeouts(connect=120, first_byte=120, idle=120)


def run(report: Report) -> None:
    hangs = 0
    for phase, script in PHASES.items():
        took = []
        for _ in range(TIMES):
            with ScriptedServer(script) as server:
                asking = Asking(model("anthropic", server.url, timeouts=PATIENT))
                server.reached.wait(10)
                if phase not in {"before_headers", "inside_headers"}:
                    asking.sink.heard.wait(10)
                began = time.perf_counter()
                hangs += not asking.cancelled()
                took.append((time.perf_counter() - began) * 1000)
        report.add(f"abort of a model request, {phase.replace('_', ' ')}", "ms", hangs=hangs, **spread(took))
