"""Stopping takes no longer than it may, whatever hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

HANGS = """
import sys, threading
from server import json_logs as logs
from server.app.serving import Deadline
logs.set_up("error")
with Deadline() as deadline:
    deadline.set(0.05)
    threading.Event().wait()
"""


def test_a_process_that_hangs_while_stopping_is_ended() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'clients'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "stopping took longer" in done.stderr


def test_a_process_that_stops_in_time_is_left_alone() -> None:
    quick = HANGS.replace("0.05", "600").replace("threading.Event().wait()", "pass")
    done = subprocess.run(
        [sys.executable, "-c", quick],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'clients'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
