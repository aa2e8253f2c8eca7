"""The bill of materials that the server's wheel carries, from uv's: `uv export --format cyclonedx1.5 | python -m … `.

Without what differs each time (serial number, time of writing) and without the addresses of files: uv.lock has their
hashes.
"""

import json
import sys
from typing import Any


def reduced(bill: dict[str, Any]) -> dict[str, Any]:
    """Return a bill that is the same whenever it is made of the same lock file."""
    kept = {name: value for name, value in bill.items() if name != "serialNumber"}
    kept["metadata"] = {name: value for name, value in bill["metadata"].items() if name != "timestamp"}
    kept["components"] = [
        {name: value for name, value in component.items() if name != "externalReferences"}
        for component in bill["components"]
    ]
    return kept


if __name__ == "__main__":
    json.dump(reduced(json.load(sys.stdin)), sys.stdout, indent=1)
    sys.stdout.write("\n")
