"""Tokens that no answer accounts for: requests that were abandoned, and small ones beside the conversation (§2.12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.notifications import UsageChanged
from actors.core.steps.transition_builder import Draft

if TYPE_CHECKING:
    from actors.core.context import ConvContext
    from actors.core.events import UsageReported
    from actors.core.result import TransitionResult
    from actors.core.states import State


def spend(state: State, context: ConvContext, event: UsageReported) -> TransitionResult:
    """Add it to its sum, whatever the conversation does or whether it is over; nothing of it is in the window.

    Runs have only what their sub-agents spent: what an abandoned request spent is told when its run is over already.
    """
    draft = Draft(state, context, event.at)
    ledger = draft.ledger
    if event.aside:
        draft.ledger = replace(ledger, aside_usage=ledger.aside_usage + event.usage)
    else:
        draft.ledger = replace(ledger, total_usage=ledger.total_usage + event.usage)
    if event.run and event.run == draft.run:
        draft.ledger = replace(draft.ledger, run_usage=ledger.run_usage + event.usage)
    draft.place_state()
    draft.notify(UsageChanged(ledger.used_tokens, context.usable_window, draft.ledger.total_usage, ledger.warned))
    return draft.stay_unseen(replace(state, ledger=draft.ledger))
