"""What a server does to its own process."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PR_GET_DUMPABLE = 3


def test_processes_of_the_same_user_cannot_look_into_the_server() -> None:
    program = (
        "import ctypes; from server.operating_system import tune_process; tune_process(); "
        f"print(ctypes.CDLL(None).prctl({PR_GET_DUMPABLE}, 0, 0, 0, 0))"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "0"


def test_what_stays_is_left_out_of_garbage_collection() -> None:
    program = (
        "import gc; from server.operating_system import spare_what_stays; kept = [[] for _ in range(1000)]; "
        "spare_what_stays(); print(len(gc.get_objects()) < 1000 <= gc.get_freeze_count())"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"


def test_garbage_is_collected_seldom_but_collected() -> None:
    program = (
        "import gc; from server.operating_system import NEW_OBJECTS, spare_what_stays; spare_what_stays(); "
        "began = []; gc.callbacks.append(lambda phase, info: began.append(phase)); "
        "kept = [[] for _ in range(NEW_OBJECTS // 2)]; seldom = not began; "
        "kept += [[] for _ in range(NEW_OBJECTS)]; print(seldom and bool(began))"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"
