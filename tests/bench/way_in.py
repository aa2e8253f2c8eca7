"""The way in: storms of strangers against a server with 1,024 open files, without a front and behind Envoy."""

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.attacks import storms
from tests.attacks.legitimate import Callers
from tests.bench.figures import Report, rss_mib, spread
from tests.bench.running_server import running_server
from tests.peers.front import front, program

SECONDS = 10
REST_SECONDS = 5
"""After which the memory is looked at again."""
OPEN_FILES = 1_024


def run(report: Report) -> None:
    ways = [False]
    try:
        program()
        ways.append(True)
    except FileNotFoundError as error:
        report.add("way in: behind Envoy", "", not_run=str(error))
    for behind in ways:
        for name in storms.STORMS:
            _storm(report, name, behind=behind)


def _storm(report: Report, name: str, *, behind: bool) -> None:
    with ExitStack() as opened:
        running = opened.enter_context(
            running_server(open_files=OPEN_FILES, BEDROCK_INSECURE_BEHIND_PROXY="true")  # as one that networks reach
        )
        address, certificate = running.address, None
        if behind:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="bedrock-front-")))
            envoy = opened.enter_context(front(folder, running.address))
            address, certificate = envoy.address, envoy.certificate
        callers = Callers(address, running.token, certificate)
        command = [sys.executable, "-m", "tests.attacks.storms", name, address, "--seconds", str(SECONDS)]
        before = rss_mib(running.process.pid)
        with callers.calling() as seen:
            subprocess.run(command, capture_output=True, timeout=SECONDS * 6, check=True)
            time.sleep(REST_SECONDS)
            left = rss_mib(running.process.pid) - before
        report.add(
            f"way in: {name}, {'behind Envoy' if behind else 'without a front'}",
            "ms",
            **spread(seen.took_ms),
            failed=len(seen.failed),
            outage_s=round(seen.outage, 1),
            memory_mib=round(rss_mib(running.process.pid, "VmHWM") - before, 1),
            memory_left_mib=round(left, 1),
        )
