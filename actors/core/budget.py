"""Budgets of a conversation: how much of them is used, and how much remains for its sub-agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.context import Budget

if TYPE_CHECKING:
    from actors.core.states import Ledger


def spent(budget: Budget, ledger: Ledger, ratio: float = 1.0) -> str:
    """Return the limit of which this part is used up, as a text such as "5000 tokens per run"; "" if there is none."""
    if 0 < budget.run_tokens * ratio <= ledger.run_usage.context_tokens:
        return f"{budget.run_tokens} tokens per run"
    return spent_for_good(budget, ledger, ratio)


def spent_for_good(budget: Budget, ledger: Ledger, ratio: float = 1.0) -> str:
    """Return the limit of the whole conversation of which this part is used up, as a text such as "$1.50", or "".

    A new run does not reset these limits.
    """
    whole = ledger.total_usage + ledger.aside_usage
    if 0 < budget.conversation_tokens * ratio <= whole.context_tokens:
        return f"{budget.conversation_tokens} tokens"
    if 0 < budget.conversation_cost_micros * ratio <= whole.cost_micros:
        return f"${budget.conversation_cost_micros / 1_000_000:.2f}"
    return ""


def share(budget: Budget, ledger: Ledger, among: int) -> Budget:
    """Return the budget for each of `among` sub-agents: an equal part of what is left of the parent's budget.

    Call this only while `spent` returns "".
    """
    whole = ledger.total_usage + ledger.aside_usage
    limits = (
        (budget.run_tokens, ledger.run_usage.context_tokens),
        (budget.conversation_tokens, whole.context_tokens),
    )
    tokens = [limit - used for limit, used in limits if limit]
    money = budget.conversation_cost_micros
    return Budget(
        conversation_tokens=max(1, min(tokens) // among) if tokens else 0,
        conversation_cost_micros=max(1, (money - whole.cost_micros) // among) if money else 0,
    )
