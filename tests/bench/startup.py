"""Start to ready, the memory of a server that does nothing, and what the program itself takes to start."""

import subprocess
import sys
import time
from pathlib import Path

from tests.bench.figures import ROOT, Report, rss_mib, spread
from tests.bench.running_server import clean_environment, running_server

TIMES = 5
SETTLED = 1.0
"""Seconds after which a ready server has done what it does next: it connects to MCP servers, and trims its heap."""
COMMANDS = {"--help": ("--help",), "list": ("list",)}
"""Of the program: one that needs no server, and one that asks it."""


def run(report: Report) -> None:
    seconds, memory = [], []
    commands: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(TIMES):
        with running_server() as running:
            seconds.append(running.ready_seconds)
            time.sleep(SETTLED)
            memory.append(rss_mib(running.process.pid))
            for name, arguments in COMMANDS.items():
                commands[name].append(_program(arguments, running.data))
    report.add("start to ready", "s", **spread(seconds))
    report.add("resident memory, idle", "MiB", **spread(memory))
    for name, took in commands.items():
        report.add(f"bedrock {name}", "ms", **spread(took))


def _program(arguments: tuple[str, ...], data: Path) -> float:
    """Return how many milliseconds the program takes from its start to its end."""
    began = time.perf_counter()
    subprocess.run(
        [Path(sys.executable).with_name("bedrock"), *arguments],
        cwd=ROOT,
        env=clean_environment() | {"BEDROCK_DATA_DIR": str(data)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    return (time.perf_counter() - began) * 1000
