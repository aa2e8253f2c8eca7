"""The history of a conversation: is its chain valid, and what does a provider see of it.

A provider's view is append-only. Read as a row of (role, block) pairs, the view of a request that was answered is the
beginning of every later view, block for block and in the same order; so what a provider cached or signed stays valid.
Turns are that row cut where the role changes: only the last turn of a view, always the user's, can grow, at its end,
by what was said after a request that was cancelled or failed. Two rules keep it that way: an answer is placed right
behind what its request contained (`Message.through_sequence`, C48), and what never reached a model, error
messages, is left out. One block of an unanswered request can vanish: the "Continue." that closed its view when
nothing else did. Changing the model changes the view once, because the former model's reasoning goes.
"""

from __future__ import annotations

from actors.core.history.chain import ChainCheck, open_calls, violations
from actors.core.history.growing_view import GrowingView
from actors.core.history.image_budget import ImageBudget, within_limits
from actors.core.history.provider_view import Prefix, ProviderView, Turn, provider_view
from actors.core.history.summary_view import summary_view

__all__ = [
    "ChainCheck",
    "GrowingView",
    "ImageBudget",
    "Prefix",
    "ProviderView",
    "Turn",
    "open_calls",
    "provider_view",
    "summary_view",
    "violations",
    "within_limits",
]
