"""`make bench`: every figure that Bedrock publishes beside its goal, and reports/bench.json. About twelve minutes.

A part that fails is a row that says so, and the others go on.
"""

import argparse
import importlib
import signal
import time
import traceback

from tests.bench import goals
from tests.bench.figures import Report

PARTS = (
    "core store turns history pieces telemetry fan_out cancel flood fairness parked memory tools kill abort "
    "startup way_in console http"
).split()


PART_SECONDS = 400
"""The most that a part may take: one that waits for what never comes does not keep the others from being measured."""


def _too_long(*_: object) -> None:
    raise TimeoutError(f"not done after {PART_SECONDS} s")


def main() -> None:
    signal.signal(signal.SIGALRM, _too_long)
    arguments = argparse.ArgumentParser(prog="make bench")
    arguments.add_argument("parts", nargs="*", choices=[*PARTS, []], help="only these parts")
    report = Report("bench")
    failed = [part for part in arguments.parse_args().parts or PARTS if not _measured(part, report)]
    print(goals.table(goals.judged(report.by_name)))
    print(f"written to {report.write(goals=goals.judged(report.by_name))}")
    if failed:
        print(f"failed, and not measured: {', '.join(failed)}")


def _measured(part: str, report: Report) -> bool:
    """Measure a part, and keep what is there by then; whether it was measured to its end."""
    began = time.monotonic()
    module = importlib.import_module(f"tests.bench.{part}")
    signal.alarm(PART_SECONDS + getattr(module, "MORE_SECONDS", 0))
    try:
        module.run(report)
    except Exception as error:  # noqa: BLE001 -- minutes of other figures are not to be lost with it
        traceback.print_exc()
        report.add(f"{part}: not measured", "", not_run=f"failed: {error}")
        return False
    finally:
        signal.alarm(0)
        print(f"  ({part}: {time.monotonic() - began:.0f} s)", flush=True)
        report.write()
    return True


if __name__ == "__main__":
    main()
