"""No way out of a sandbox but those that are known and said (RELIABILITY: the probe matrix)."""

from __future__ import annotations

from functools import cache

import pytest

from actors.adapters.sandbox.host import kernel
from actors.adapters.sandbox.probe import landlock_abi
from tests.fault.attacks import ATTACKS, USES, WORKSPACE_USES
from tests.fault.escapes import SECURITY, USERS, Outcomes, cases, known_open, measure, namespaces_possible, surprises
from tests.generate.security_table import BEGIN, END, KINDS

CASES = cases("AB", (7, 1))


def shared(number: int) -> tuple[str, ...]:
    """The cases that one of the users takes: both of them the newest Landlock, and each one of the tiers' other cases.

    Together they take every case; `make fault PARTS=sandbox` takes them all as each user, with every version.
    """
    newest = [case for case in CASES if case == "none" or case.endswith(str(min(landlock_abi(), kernel.LANDLOCK_ABI)))]
    others = [case for case in CASES if case not in newest]
    return (*newest, *others[number :: len(USERS)])


TAKEN = [(user, case) for number, user in enumerate(USERS) for case in shared(number)]


@cache
def outcomes(user: str) -> Outcomes:
    """What works as this user."""
    return measure(user, tuple(case for taker, case in TAKEN if taker == user))


@pytest.mark.parametrize(("user", "case"), TAKEN)
def test_only_what_is_said_to_work_works(user: str, case: str) -> None:
    outcome = outcomes(user)[case]
    assert outcome.keys() == ATTACKS.keys() | USES.keys() | WORKSPACE_USES.keys()
    assert surprises(case, outcome) == []


def test_every_tier_that_the_kernel_has_the_means_for_was_attacked() -> None:
    newest = min(landlock_abi(), kernel.LANDLOCK_ABI)
    tiers = ("AB" if namespaces_possible() else "B") if newest else ""
    assert {f"{tier}{newest}" for tier in tiers} <= set(CASES) == {case for _, case in TAKEN}


def test_the_table_of_what_was_tried_is_of_these_attacks_and_of_what_is_said_to_be_open() -> None:
    tables = SECURITY.read_text().partition(BEGIN)[2].partition(END)[0]
    version = int(tables.partition("Landlock ")[2].partition(",")[0])
    known = {tier: known_open(tier, version) for tier in "AB"}
    told = [
        [what, str(len(names)), *(str(len(known[tier].intersection(names))) for tier in "AABB")]
        for what, names in KINDS.items()
    ]
    everything = {name for names in KINDS.values() for name in names}
    told.append(["all", str(len(everything)), *(str(len(known[tier])) for tier in "AABB")])
    for mode in ("restricted", "workspace"):
        lines = tables.partition(f"in {mode} mode:\n\n")[2].partition("\n\n")[0].splitlines()
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        assert head[2:] == ["tier A, root", "tier A, user", "tier B, root", "tier B, user"]
        assert rows == told
    assert len(everything) >= 500
