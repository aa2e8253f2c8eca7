"""Ten minutes of `make cluster` hold each kind of disturbance, whatever the seed."""

from collections.abc import Iterator
from itertools import islice

import pytest

from tests.soak.cluster.__main__ import SMALL_DISK_EVERY, Order
from tests.soak.cluster.disturbances import KINDS, ON_SMALL_DISK

OFTEN = [kind for kind in KINDS if kind not in ON_SMALL_DISK]
IN_A_ROUND = 6


def rounds(order: Order) -> Iterator[list[str]]:
    """What happens in each round, one after the other."""
    number = 0
    while True:
        number += 1
        kinds = list(KINDS) if number % SMALL_DISK_EVERY == 0 else OFTEN
        yield list(islice(order.during(kinds, float("inf")), IN_A_ROUND))


@pytest.mark.parametrize("seed", range(20))
def test_each_kind_happens_once_before_any_happens_twice_but_for_what_few_rounds_can_have(seed: int) -> None:
    happened = [kind for each in islice(rounds(Order(seed, list(KINDS), frozenset(ON_SMALL_DISK))), 4) for kind in each]
    often = [kind for kind in happened if kind in OFTEN]
    assert sorted(often[: len(OFTEN)]) == sorted(OFTEN)
    assert set(happened) == set(KINDS)


def test_what_did_not_happen_is_told() -> None:
    order = Order(1, list(KINDS), frozenset(ON_SMALL_DISK))
    (first,) = islice(rounds(order), 1)
    assert set(order.left_out) == set(KINDS) - set(first)
