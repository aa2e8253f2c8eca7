"""Token accounting: adds the tokens of model responses, aborted requests, side queries and sub-agents to the totals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core import window
from actors.core.notifications import ContextWarning, UsageChanged
from actors.core.steps.transition_builder import TransitionBuilder

if TYPE_CHECKING:
    from actors.core.content import Usage
    from actors.core.context import ConvContext
    from actors.core.events import UsageReported
    from actors.core.result import TransitionResult
    from actors.core.states import State


def account_usage(builder: TransitionBuilder, usage: Usage | None, *, fills_window: bool) -> None:
    """Add the tokens of a response to the totals. Notify clients when the context window becomes nearly full.

    `fills_window` is False for failed attempts and summary requests: their tokens cost money, but do not fill the
    context window of a later request.
    """
    if usage is None:
        return
    ledger, context = builder.ledger, builder.context
    used = usage.context_tokens if fills_window else ledger.used_tokens
    warned = window.near_full(used, context)
    builder.ledger = replace(
        ledger,
        used_tokens=used,
        warned=warned,
        total_usage=ledger.total_usage + usage,
        run_usage=ledger.run_usage + usage if ledger.live else ledger.run_usage,
    )
    builder.notify(UsageChanged(used, context.usable_window, builder.ledger.total_usage, warned))
    if warned and not ledger.warned:
        builder.notify(ContextWarning(used, context.usable_window))


def add_reported_usage(state: State, context: ConvContext, event: UsageReported) -> TransitionResult:
    """Add tokens that no response accounts for: those of aborted requests, side queries and sub-agents.

    This is accepted in every state, terminal ones included, and never counts towards the context window. Only the usage
    of sub-agents is added to the run's total: an aborted request reports its usage after its run has ended.
    """
    builder = TransitionBuilder(state, context, event.at)
    ledger = builder.ledger
    if event.aside:
        builder.ledger = replace(ledger, aside_usage=ledger.aside_usage + event.usage)
    else:
        builder.ledger = replace(ledger, total_usage=ledger.total_usage + event.usage)
    if event.run and event.run == builder.run:
        builder.ledger = replace(builder.ledger, run_usage=ledger.run_usage + event.usage)
    builder.place_state()
    builder.notify(UsageChanged(ledger.used_tokens, context.usable_window, builder.ledger.total_usage, ledger.warned))
    return builder.stay_silently(replace(state, ledger=builder.ledger))
