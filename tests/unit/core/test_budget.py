"""Budgets: what is spent, in words, and how what is left is shared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core.content import Usage
from actors.core.context import Budget
from actors.core.events import UsageReported
from actors.core.states import Ledger
from actors.core.thresholds import share, spent, spent_for_good
from tests.machine.talk import Talk


def used(run: int = 0, whole: int = 0, aside: int = 0, cost: int = 0) -> Ledger:
    return Ledger(
        run_usage=Usage(input_tokens=run),
        total_usage=Usage(output_tokens=whole, cost_micros=cost),
        aside_usage=Usage(cache_read_tokens=aside, cost_micros=cost),
    )


@pytest.mark.parametrize(
    ("budget", "ledger", "words", "for_good"),
    [
        (Budget(), used(9, 9, 9, 9), "", ""),
        (Budget(run_tokens=10), used(run=9), "", ""),
        (Budget(run_tokens=10), used(run=10), "10 tokens per run", ""),
        (Budget(conversation_tokens=10), used(whole=5, aside=4), "", ""),
        (Budget(conversation_tokens=10), used(whole=5, aside=5), "10 tokens", "10 tokens"),
        (Budget(conversation_cost_micros=2_500_000), used(cost=1_249_999), "", ""),
        (Budget(conversation_cost_micros=2_500_000), used(cost=1_250_000), "$2.50", "$2.50"),
    ],
)
def test_what_is_spent_is_named(budget: Budget, ledger: Ledger, words: str, for_good: str) -> None:
    assert spent(budget, ledger) == words
    assert spent_for_good(budget, ledger) == for_good


AMOUNT = st.integers(0, 1_000)


@given(st.builds(Budget, AMOUNT, AMOUNT, AMOUNT), st.builds(used, AMOUNT, AMOUNT, AMOUNT, AMOUNT), st.integers(1, 10))
def test_shares_are_never_more_together_than_what_is_left_nor_no_limit_where_there_was_one(
    budget: Budget, ledger: Ledger, among: int
) -> None:
    if spent(budget, ledger):
        return
    part = share(budget, ledger, among)
    whole = ledger.total_usage + ledger.aside_usage
    if budget.run_tokens:
        left = budget.run_tokens - ledger.run_usage.context_tokens
        assert part.conversation_tokens <= max(1, left // among)
    if budget.conversation_tokens:
        assert part.conversation_tokens <= max(1, (budget.conversation_tokens - whole.context_tokens) // among)
    if budget.conversation_cost_micros:
        money = budget.conversation_cost_micros - whole.cost_micros
        assert 0 < part.conversation_cost_micros <= max(1, money // among)
    assert bool(part.conversation_tokens) == bool(budget.run_tokens or budget.conversation_tokens)
    assert bool(part.conversation_cost_micros) == bool(budget.conversation_cost_micros)
    assert part.run_tokens == 0


def test_what_a_sub_agent_used_counts_for_the_run_that_started_it_while_that_is_live() -> None:
    talk = Talk()
    talk.say("go")
    for run in ("c:1", "c:7", ""):
        talk.tell(UsageReported(talk.at(), Usage(input_tokens=10), aside=False, run=run))
    assert talk.state.ledger.run_usage == Usage(input_tokens=10)
    assert talk.state.ledger.total_usage == Usage(input_tokens=30)
    talk.text("done")
    talk.tell(UsageReported(talk.at(), Usage(input_tokens=10), aside=False, run="c:1"))
    assert talk.state.ledger.run_usage == Usage(input_tokens=10)


@pytest.mark.parametrize(
    ("budget", "ledger", "among", "part"),
    [
        (Budget(), used(9, 9, 9, 9), 3, Budget()),
        (Budget(run_tokens=10), used(run=9), 1, Budget(conversation_tokens=1)),
        (Budget(run_tokens=10), used(run=9), 2, Budget(conversation_tokens=1)),
        (Budget(run_tokens=10), used(run=8), 2, Budget(conversation_tokens=1)),
        (Budget(run_tokens=10), used(run=6), 2, Budget(conversation_tokens=2)),
        (Budget(conversation_tokens=10), used(whole=5, aside=4), 10, Budget(conversation_tokens=1)),
        (Budget(conversation_tokens=10, run_tokens=5), used(run=4), 1, Budget(conversation_tokens=1)),
        (Budget(conversation_cost_micros=3), used(cost=1), 1, Budget(conversation_cost_micros=1)),
        (Budget(conversation_cost_micros=3), used(cost=1), 2, Budget(conversation_cost_micros=1)),
        (Budget(conversation_cost_micros=9), used(cost=1), 2, Budget(conversation_cost_micros=3)),
    ],
)
def test_a_share_of_nearly_nothing_is_still_a_limit(budget: Budget, ledger: Ledger, among: int, part: Budget) -> None:
    """A share of 0 would be no limit at all; one of 1 lets a sub-agent make one request."""
    assert spent(budget, ledger) == ""
    assert share(budget, ledger, among) == part
