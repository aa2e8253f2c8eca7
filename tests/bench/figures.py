"""Figures: measured values with their machine, printed a line each and written to reports/bench.json."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the values lie; the largest for few values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: Sequence[float]) -> dict[str, float]:
    """p50, p99 and max of some values, and how many there are."""
    return {
        "p50": round(percentile(values, 0.5), 3),
        "p99": round(percentile(values, 0.99), 3),
        "max": round(max(values), 3),
        "n": len(values),
    }


def floor_of(values: Sequence[float]) -> dict[str, float]:
    """p50 and p99 of the same measured at a program that does nothing else."""
    return {"floor_p50": round(percentile(values, 0.5), 3), "floor_p99": round(percentile(values, 0.99), 3)}


class Report:
    """Collects the figures of one run, and beside them the machine as it was before."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.started = time.monotonic()
        self.machine = machine()
        self.figures: list[dict[str, Any]] = []
        print("machine: " + ", ".join(f"{key} {value}" for key, value in self.machine.items()))

    def add(self, name: str, unit: str, **values: Any) -> None:
        """Print one figure and keep it."""
        self.figures.append({"name": name, "unit": unit, **values})
        shown = "  ".join(
            f"{key}={value:,}" if isinstance(value, int | float) else f"{key}={value}" for key, value in values.items()
        )
        print(f"{name:<44} {unit:<16} {shown}", flush=True)

    @property
    def by_name(self) -> dict[str, dict[str, Any]]:
        return {figure["name"]: figure for figure in self.figures}

    def write(self, **more: Any) -> Path:
        """Write reports/<target>.json: the machine, the date, the commit, the time it took, the figures, and `more`."""
        path = ROOT / "reports" / f"{self.target}.json"
        path.parent.mkdir(exist_ok=True)
        seconds = round(time.monotonic() - self.started, 1)
        whole = {**self.machine, "seconds": seconds, "figures": self.figures, **more}
        path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
        return path


def machine() -> dict[str, Any]:
    """Return the machine, its load, the commit and the date, on which a figure depends."""
    return {
        "cpu": next((v for v in _lines("/proc/cpuinfo", "model name")), platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used, its waited-for children included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int, field: str = "VmRSS") -> float:
    """Resident memory of a process; `VmHWM`: the most there ever was."""
    for value in _lines(f"/proc/{pid}/status", field):
        return round(int(value.split()[0]) / 1024, 1)
    return 0.0


def _lines(path: str, key: str) -> Iterable[str]:
    for line in Path(path).read_text().splitlines():
        if line.startswith(key):
            yield line.split(":", 1)[1].strip()


def _commit() -> str:
    run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"
