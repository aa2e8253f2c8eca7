"""What a server does to its own process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PR_GET_DUMPABLE = 3


def test_processes_of_the_same_user_cannot_look_into_the_server() -> None:
    program = (
        "import ctypes; from server.tuning import tune_process; tune_process(); "
        f"print(ctypes.CDLL(None).prctl({PR_GET_DUMPABLE}, 0, 0, 0, 0))"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "0"
