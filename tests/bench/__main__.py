"""`make bench`: every figure that Bedrock publishes, one line each, and reports/bench.json. Under ten minutes."""

from __future__ import annotations

import argparse
import importlib

from tests.bench.figures import Report, machine

PARTS = (
    "core",
    "store",
    "deletion",
    "turns",
    "history",
    "fan_out",
    "cancel",
    "flood",
    "watchers",
    "parked",
    "memory",
    "tools",
    "kill",
    "abort",
    "agents",
    "startup",
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("parts", nargs="*", choices=[*PARTS, []], help="only these parts")
    wanted = arguments.parse_args().parts or PARTS
    report = Report("bench")
    print("machine: " + ", ".join(f"{key} {value}" for key, value in machine().items()))
    for part in wanted:
        importlib.import_module(f"tests.bench.{part}").run(report)
    print(f"written to {report.write()}")


if __name__ == "__main__":
    main()
