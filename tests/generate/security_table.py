"""`python -m tests.generate.security_table`: the table of docs/security.md, from the last run of `make fault`.

make fault PARTS=sandbox && make security-table
"""

import json
import sys
from typing import Any

from tests.fault.attacks import CLASSES, STORMS
from tests.fault.escapes import OPEN, REPORT, SECURITY

BEGIN, END = "<!-- tried: begin -->\n", "<!-- tried: end -->"
KINDS = {**CLASSES, "too many processes, too much memory": list(STORMS)}


def table(report: dict[str, Any]) -> str:
    """How many attempts there were, and how many work, by what they are after: for both modes, by tier and user."""
    version = report["landlock_abi"]
    when = f"Linux {report['kernel']} with Landlock {version}, {report['day']}; how many of the attempts work"
    restricted = f"{when} in restricted mode:\n\n{of_mode(report, '')}"
    return f"{restricted}\nAnd in workspace mode:\n\n{of_mode(report, 'w')}"


def of_mode(report: dict[str, Any], suffix: str) -> str:
    """The rows of one mode, whose cases end with `suffix`."""
    columns = {
        f"tier {tier}, {'root' if user == 'root' else 'user'}": outcomes[f"{tier}{report['landlock_abi']}{suffix}"]
        for tier in "AB"
        for user, outcomes in report["outcomes"].items()
    }
    rows = [
        [what, str(len(names)), *(worked(outcome, names) for outcome in columns.values())]
        for what, names in KINDS.items()
    ]
    everything = [name for names in KINDS.values() for name in names]
    rows.append(["all", str(len(everything)), *(worked(outcome, everything) for outcome in columns.values())])
    head = ["what they are after", "attempts", *columns]
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *rows])


def worked(outcome: dict[str, str], names: list[str]) -> str:
    return str(sum(outcome[name] == OPEN for name in names))


def main() -> int:
    if not REPORT.exists():
        print(f"{REPORT.name} is missing: make fault PARTS=sandbox makes it", file=sys.stderr)
        return 1
    before, _, rest = SECURITY.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    SECURITY.write_text(f"{before}{BEGIN}{table(json.loads(REPORT.read_text()))}{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
