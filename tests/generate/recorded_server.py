"""A server that records which functions of ours it calls: `python -m tests.generate.recorded_server …`, as `-m server`.

On SIGUSR1, it writes the calls since the last time to the file that BEDROCK_RECORD names: a JSON list of
[thread, path, function] in the order of the calls.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from server.cli import serve

ROOT = f"{Path(__file__).parents[2]}{os.sep}"
OURS = (f"{ROOT}actors{os.sep}", f"{ROOT}server{os.sep}")
calls: list[tuple[str, str, str]] = []


def record(frame: FrameType, event: str, _: Any) -> None:
    """Note a call of a function of ours."""
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(OURS) and not code.co_name.startswith("<"):
        calls.append((threading.current_thread().name, code.co_filename[len(ROOT) :], code.co_name))


def write(*_: Any) -> None:
    """Write the calls so far, and begin again."""
    recorded, calls[:] = calls[:], []
    target = Path(os.environ["BEDROCK_RECORD"])
    target.with_suffix(".new").write_text(json.dumps(recorded))
    target.with_suffix(".new").rename(target)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, write)
    threading.setprofile(record)
    sys.setprofile(record)
    serve(prog_name="recorded server")
