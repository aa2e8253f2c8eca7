"""`python -m tests.fault`: every attack from every sandbox, as a table; fails if one that should not work does."""

from __future__ import annotations

import sys

from tests.fault.escapes import OPEN, USERS, Outcomes, cases, measure, surprises


def main() -> int:
    wrong = []
    for user in USERS:
        outcomes = measure(user, cases("AB", tuple(range(1, 8))))
        show(user, outcomes)
        wrong += [f"{user}: {each}" for case, outcome in outcomes.items() for each in surprises(case, outcome)]
    print(*wrong or ["sandbox: nothing unexpected is open"], sep="\n")
    return 1 if wrong else 0


def show(user: str, outcomes: Outcomes) -> None:
    print(f"{user:36}", *(f"{case:13}" for case in outcomes))
    for name in outcomes["none"]:
        print(f"{name:36}", *(f"{outcome[name][:12]:13}" for outcome in outcomes.values()))
    opened = {case: list(outcome.values()).count(OPEN) for case, outcome in outcomes.items()}
    print(f"{'works':36}", *(f"{opened[case]:<13}" for case in outcomes), "\n")


if __name__ == "__main__":
    sys.exit(main())
