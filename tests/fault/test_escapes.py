"""No way out of a sandbox but those that are known and said (RELIABILITY: the probe matrix)."""

from __future__ import annotations

import pytest

from actors.sandbox import toolhost
from actors.sandbox.probe import landlock_abi
from tests.fault.attacks import ATTACKS, USES
from tests.fault.escapes import USERS, Outcomes, cases, measure, namespaces_possible, surprises

CASES = cases("AB", (7, 5, 1))


@pytest.fixture(scope="module", params=USERS)
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    return measure(request.param, CASES)


@pytest.mark.parametrize("case", CASES)
def test_only_what_is_said_to_work_works(outcomes: Outcomes, case: str) -> None:
    assert outcomes[case].keys() == ATTACKS.keys() | USES.keys()
    assert surprises(case, outcomes[case]) == []


def test_every_tier_that_the_kernel_has_the_means_for_was_attacked() -> None:
    newest = min(landlock_abi(), toolhost.LANDLOCK_ABI)
    tiers = ("AB" if namespaces_possible() else "B") if newest else ""
    assert {f"{tier}{newest}" for tier in tiers} <= set(CASES)
