"""The history of a conversation: checks its validity, and converts it to the turns of a model request.

A provider's view (the history as one request contains it) is append-only. Taken as a sequence of (role, block) pairs,
the view of an answered request is a prefix of every later view, so that everything a provider has cached or signed
stays valid. Turns are this sequence, split where the role changes. Only the last turn of a view, which is always the
user's, can grow: by messages that follow a cancelled or failed request. Two rules ensure this: an answer is placed
directly after the messages that its request contained (`Message.through_sequence`), and error messages, which are never
sent to a model, are omitted.
Results of tools are cut where the window has too little room for them; the same results are cut alike in every request.
One block of an unanswered request can disappear: the text "Continue.", which is added to the end of a request that
would otherwise have no new block. A change of the model changes the view once, because the former model's reasoning is
omitted and its window may have another size; so does a request that the provider found too long.
"""

from __future__ import annotations

from actors.core.history.chain import ChainCheck, open_calls, violations
from actors.core.history.provider_view import (
    GrowingView,
    ImageBudget,
    Prefix,
    ProviderView,
    Turn,
    provider_view,
    summary_view,
    within_limits,
)
from actors.core.history.result_budget import UNLIMITED, Room, cut_text, shares

__all__ = [
    "UNLIMITED",
    "ChainCheck",
    "GrowingView",
    "ImageBudget",
    "Prefix",
    "ProviderView",
    "Room",
    "Turn",
    "cut_text",
    "open_calls",
    "provider_view",
    "shares",
    "summary_view",
    "violations",
    "within_limits",
]
