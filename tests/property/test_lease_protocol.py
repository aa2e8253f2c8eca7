"""The model of leases: nobody but the owner acts for a family, and every rule of it is needed for that."""

import os

import pytest

from tests.property.lease_protocol import Rule, search

RULES = frozenset(Rule)
STATES = int(os.environ.get("BEDROCK_LEASE_STATES", "0"))
"""How many states of two equal nodes are tried; 0: only the two smaller searches, which are whole."""


def test_only_the_owner_acts_for_a_family() -> None:
    for whole in (
        search(RULES, steps=0, faults=1, most=100_000),
        search(RULES, steps=2, faults=0, most=100_000, tools=False),
    ):
        assert (whole.violation, whole.whole) == ("", True), whole.way
    if STATES:
        found = search(RULES, steps=2, faults=2, most=STATES, equal=True)
        assert (found.violation, found.states >= STATES or found.whole) == ("", True), found.way


OWNED = "a tool of a node that does not own the family"
WITHOUT = {
    Rule.FENCE: "a commit of a node that does not own the family",
    Rule.STEP: "a commit that follows another step",
    Rule.AFTER_COMMIT: "an event that was not committed",
    Rule.IN_ORDER: "an event of a node that does not own the family, after those of another",
    Rule.HOST_STARTS: OWNED,
    Rule.HOST_ENDS: OWNED,
    Rule.DEADLINE: OWNED,
    Rule.FROM_SENDING: OWNED,
    Rule.EXPIRED: OWNED,
    Rule.REFUSED: OWNED,
    Rule.OPEN: OWNED,
    Rule.GRACE: OWNED,
    Rule.QUIET_RELEASE: OWNED,
}
"""What happens without each rule."""


@pytest.mark.parametrize("rule", Rule)
def test_without_any_of_its_rules_two_nodes_act_for_a_family(rule: Rule) -> None:
    tools = WITHOUT[rule] == OWNED
    faults = 1 if rule in {Rule.REFUSED, Rule.OPEN, Rule.GRACE} else 0
    found = search(RULES - {rule}, steps=0 if tools else 2, faults=faults, most=100_000, tools=tools)
    assert found.violation == WITHOUT[rule], found
