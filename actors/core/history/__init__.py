"""The history of a conversation: checks its validity, and converts it to the turns of a model request.

A provider's view (the history as it appears in one request) is append-only. As a sequence of (role, block) pairs,
the view of an answered request is a prefix of every later view, so that everything a provider has cached or signed
stays valid. Turns are this sequence, split where the role changes. Only the last turn of a view, which is always the
user's, can grow: by messages that follow a cancelled or failed request. Two rules ensure this: an answer is placed
directly after the messages that its request contained (`Message.through_sequence`), and error messages, which are never
sent to a model, are omitted.
Tool results are cut where the window has too little room for them, and in the same way in every request.
One block of an unanswered request can disappear: the text "Continue.", which is added to the end of a request that
would otherwise have no new block. The view also changes when the model is changed, because the former model's reasoning
is omitted and its window may have had a different size, and after a request that the provider found too long.
"""

from __future__ import annotations

from actors.core.history.chain import ChainCheck as ChainCheck
from actors.core.history.chain import open_calls as open_calls
from actors.core.history.chain import violations as violations
from actors.core.history.provider_view import GrowingView as GrowingView
from actors.core.history.provider_view import ImageBudget as ImageBudget
from actors.core.history.provider_view import Prefix as Prefix
from actors.core.history.provider_view import ProviderView as ProviderView
from actors.core.history.provider_view import Turn as Turn
from actors.core.history.provider_view import provider_view as provider_view
from actors.core.history.provider_view import summary_view as summary_view
from actors.core.history.provider_view import within_limits as within_limits
from actors.core.history.result_budget import UNLIMITED as UNLIMITED
from actors.core.history.result_budget import Room as Room
from actors.core.history.result_budget import cut_text as cut_text
from actors.core.history.result_budget import shares as shares
