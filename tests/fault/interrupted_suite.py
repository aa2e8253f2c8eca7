"""`python -m tests.fault.interrupted_suite`: the tests are killed at random moments, and run again each time.

Fails if a run that was not killed fails, or if anything of a killed run is there after the last one.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import leftovers

ROOT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.interrupted_suite", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="how often the tests are killed")
    parser.add_argument("--seconds", type=float, default=60.0, help="when the latest kill comes")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("tests", nargs="*", default=["tests"], help="what pytest is to run")
    given = parser.parse_args(arguments)
    moments = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as place:
        for number in range(given.kills):
            after = moments.uniform(0.5, given.seconds)
            _run_and_kill(given.tests, place, after)
            print(f"kill {number + 1} of {given.kills} after {after:.1f} s", flush=True)
        last = _start(given.tests, place).wait()
        left = [str(each) for each in Path(place).glob("bedrock-*/*")] if last == 0 else []
        left += [f"process {pid}" for pid in _processes_of(place)]
    print(f"the last run ended with {last}", *(f"left behind: {each}" for each in left), sep="\n")
    return 1 if last or left else 0


def _run_and_kill(tests: list[str], place: str, after: float) -> None:
    running = _start(tests, place)
    try:
        running.wait(after)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def _start(tests: list[str], place: str) -> subprocess.Popen[bytes]:
    environ = {name: value for name, value in os.environ.items() if name != leftovers.MARK}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-x", *tests],
        cwd=ROOT,
        env={**environ, "PYTEST_DEBUG_TEMPROOT": place},
        start_new_session=True,
    )


def _processes_of(place: str) -> list[int]:
    """The processes that have the mark of any of these runs; what was just killed is given a moment to be gone."""
    deadline = time.monotonic() + 5
    while (found := _marked(f"{leftovers.MARK}={place}/".encode())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _marked(beginning: bytes) -> list[int]:
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            variables = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(variable.startswith(beginning) for variable in variables):
            found.append(int(entry))
    return found


if __name__ == "__main__":
    sys.exit(main())
