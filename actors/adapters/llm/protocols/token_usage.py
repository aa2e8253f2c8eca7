"""Counts the tokens of a request: what the provider reported, and an estimate of what it did not.

Most providers report usage only at the end of an answer, some report counts that cannot be. What is missing is
estimated from the size of the texts in the request and in its answer. The estimate does not know which input tokens the
provider had in its cache, so all are counted at the full price.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from actors.adapters.llm.protocols.lenient_json import whole_number
from actors.core.content import Usage
from actors.core.window import content_tokens, tokens_of
from actors.ports.models import fixed_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.adapters.llm.model_limits import ModelLimits
    from actors.ports import ModelRequest

log = logging.getLogger(__name__)

MAX_TOKENS = 1 << 40
"""Higher token counts are reduced to this limit, so that sums of counts fit into 64 bits. No real count reaches it."""


class UsageFields(Struct, frozen=True):
    """Where a protocol reports its token counts, as names of fields; dots lead to fields inside of them."""

    prompt: str
    output: str
    cache_read: tuple[str, ...]
    """Of several, the first one with a count other than 0 is used."""
    cache_write: str
    reasoning: str = ""
    """Some servers leave the reasoning out of the count of the output."""
    prompt_has_cache: bool = True
    """Whether the count of the prompt includes what was read from and written to the cache."""

    def usage(self, reported: Mapping[str, Any], request: ModelRequest, limits: ModelLimits, received: int) -> Usage:
        """Return the usage, without its cost, that was reported for an answer of `received` bytes to `request`.

        A count that is missing, or that cannot be, is estimated; a prompt that the model has answered is not larger
        than its window.
        """
        read = next(filter(None, (token_count(reported, path) for path in self.cache_read)), 0)
        written = token_count(reported, self.cache_write) or 0
        prompt, output = token_count(reported, self.prompt), token_count(reported, self.output)
        if prompt is None or prompt + (0 if self.prompt_has_cache else read + written) > limits.window:
            _note(reported, self.prompt, request)
            prompt, read, written = prompt_tokens(request), 0, 0
        if output is None or output > limits.window:
            _note(reported, self.output, request)
            output = tokens_of(received)
        output = max(output, token_count(reported, self.reasoning) or 0)
        if self.prompt_has_cache:
            read = min(read, prompt)
            written = min(written, prompt - read)
            prompt -= read + written
        return Usage(prompt, output, read, written)


def _note(reported: Mapping[str, Any], field: str, request: ModelRequest) -> None:
    if reported.get(field) is not None:
        fields = {"request": request.request_id, "field": field}
        log.warning("a token count cannot be right, and is estimated", extra=fields)


def merged(known: dict[str, Any] | None, usage: object) -> dict[str, Any] | None:
    """Return the usage after one more report, whose fields replace those of earlier ones.

    A count of 0 replaces none: some servers end an answer with zeros. A report that is not an object is ignored.
    """
    if not isinstance(usage, dict):
        return known
    known = known or {}
    return known | {field: value for field, value in usage.items() if value or not known.get(field)}


def token_count(usage: object, path: str = "") -> int | None:
    """Return the count at `path` in a provider's token usage, at most MAX_TOKENS; None if there is no possible count.

    Whole numbers are accepted in any spelling, so that an odd usage never makes an answer fail.
    """
    for name in path.split(".") if path else ():
        usage = usage.get(name) if isinstance(usage, dict) else None
    count = whole_number(usage)
    return None if count is None or count < 0 else min(count, MAX_TOKENS)


def prompt_tokens(request: ModelRequest) -> int:
    """Estimate the input tokens of a request.

    The result is at least the token count that the provider last reported for the conversation (`counted_tokens`).
    """
    said = content_tokens(block for turn in request.turns for block in turn.content)
    return max(request.counted_tokens, fixed_tokens(request.system, request.tools) + said)
