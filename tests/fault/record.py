"""`python -m tests.fault.record PART NAME=COUNT…`: notes in reports/fault.json what `make fault` did."""

import json
import sys
import time

from tests.bench.figures import ROOT, machine

REPORT = ROOT / "reports" / "fault.json"


def record(part: str, amounts: dict[str, int]) -> None:
    """Note that this part passed, with so much of each."""
    parts = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    parts[part] = {**machine(), "date": time.strftime("%Y-%m-%d"), "amounts": amounts}
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(parts, indent=1) + "\n")


if __name__ == "__main__":
    pairs = (pair.partition("=") for pair in sys.argv[2:])
    record(sys.argv[1], {name: int(count) for name, _, count in pairs})
