"""`python -m tests.fault`: every attack from every sandbox, as a table; fails if one that should not work does.

Writes reports/sandbox.json, from which `make security-table` makes the table of docs/security.md.
"""

import json
import os
import sys
import time

from actors.adapters.sandbox.probe import landlock_abi
from tests.fault.escapes import OPEN, REPORT, USERS, Outcomes, cases, measure, surprises


def main() -> int:
    wrong: list[str] = []
    measured: dict[str, Outcomes] = {}
    for user in USERS:
        outcomes = measure(user, (*cases("AB", tuple(range(1, 8))), "storms"))
        show(user, outcomes)
        wrong += [f"{user}: {each}" for case, outcome in outcomes.items() for each in surprises(case, outcome)]
        measured[user] = outcomes
    kernel = ".".join(os.uname().release.split(".")[:2])
    about = {"day": time.strftime("%Y-%m-%d", time.gmtime()), "kernel": kernel, "landlock_abi": landlock_abi()}
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps({**about, "outcomes": measured}, indent=1))
    print(*wrong or ["sandbox: nothing unexpected is open"], sep="\n")
    return 1 if wrong else 0


def show(user: str, outcomes: Outcomes) -> None:
    print(f"{user:44}", *(f"{case:9}" for case in outcomes))
    for name in outcomes["none"]:
        print(f"{name:44}", *(f"{outcome[name][:8]:9}" for outcome in outcomes.values()))
    opened = {case: list(outcome.values()).count(OPEN) for case, outcome in outcomes.items()}
    print(f"{'works':44}", *(f"{opened[case]:<9}" for case in outcomes), "\n")


if __name__ == "__main__":
    sys.exit(main())
