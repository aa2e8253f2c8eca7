"""Waits and thresholds: when a request is tried again, how full the context is, and how much of a budget is spent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from actors.core.content import Content, Image, Reasoning, Text, ToolUse, images_of
from actors.core.context import Budget, ConvContext, Limits
from actors.core.states import Ledger


def delay(attempt: int, limits: Limits) -> int:
    """The wait before this attempt, in ms: 1 s before the second, then doubled, up to `max_retry_after_ms`."""
    return min(limits.retry_base_ms << (attempt - 2), limits.max_retry_after_ms)


def too_long(retry_after_ms: int | None, limits: Limits) -> bool:
    """Whether the provider demands a longer wait than the limit; such a request fails at once."""
    return retry_after_ms is not None and retry_after_ms > limits.max_retry_after_ms


def delay_with(retry_after_ms: int | None, attempt: int, limits: Limits) -> int:
    """The longer of the scheduled delay and the provider's Retry-After, which must not be `too_long`; in ms."""
    return max(delay(attempt, limits), retry_after_ms or 0)


def attempts_left(attempt: int, limits: Limits) -> bool:
    return attempt < limits.max_attempts


# A typical number of bytes of UTF-8 per token, for English text and code with the tokenizers of present models.
BYTES_PER_TOKEN = 4
# The tokens of an image of the largest size that is sent to models: its longer side has 1,568 pixels.
IMAGE_TOKENS = 1_600
_PROSE = bytes(byte for byte in range(128) if chr(byte).isalpha() or chr(byte).isspace())


def utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def tokens_of(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def content_tokens(content: Iterable[Content], *, images: bool = True) -> int:
    """Estimate the tokens of messages' content; `images`: whether its images are sent."""
    blocks = tuple(content)
    size = sum(utf8_size(text) for block in blocks for text in _texts(block))
    return tokens_of(size) + (IMAGE_TOKENS * sum(1 for _ in images_of(blocks)) if images else 0)


def most_tokens(text: str) -> int:
    """An upper estimate of the tokens of a program's output, which may have few bytes per token.

    At least half of what byte-level tokenizers count, whatever the text: of digits, for example, each is a token to
    many.
    """
    data = text.encode("utf-8", "replace")
    rest = len(data.translate(None, _PROSE))
    return rest + -(-(len(data) - rest) // 3)


def _texts(block: Content) -> Iterator[str]:
    match block:
        case Text(text=text):
            yield text
        case Reasoning(text=text, raw=raw):
            yield raw or text
        case ToolUse(name=name, input=arguments):
            yield name
            yield arguments
        case Image():
            return
        case _:
            yield block.output


def near_full(used: int, context: ConvContext) -> bool:
    """Whether `used` tokens reach the warning threshold (by default 80 % of the usable window)."""
    return _reaches(used, context.limits.warn_ratio, context.usable_window)


def full(used: int, context: ConvContext) -> bool:
    """Whether `used` tokens reach the limit at which a summary is due (by default 90 % of the usable window)."""
    return _reaches(used, context.limits.exhaust_ratio, context.usable_window)


def _reaches(used: int, ratio: float, usable: int) -> bool:
    """Whether `used` is at least `ratio` (rounded to 1/1000) of `usable`; False if `usable` is unknown (0)."""
    return usable > 0 and used * 1_000 >= round(ratio * 1_000) * usable


def spent(budget: Budget, ledger: Ledger, ratio: float = 1.0) -> str:
    """The first limit of which `ratio` is used up, as a text such as "5000 tokens per run"; "" if there is none."""
    if 0 < budget.run_tokens * ratio <= ledger.run_usage.context_tokens:
        return f"{budget.run_tokens} tokens per run"
    return spent_for_good(budget, ledger, ratio)


def spent_for_good(budget: Budget, ledger: Ledger, ratio: float = 1.0) -> str:
    """Like `spent`, for the limits that a new run does not reset."""
    whole = ledger.total_usage + ledger.aside_usage
    if 0 < budget.conversation_tokens * ratio <= whole.context_tokens:
        return f"{budget.conversation_tokens} tokens"
    if 0 < budget.conversation_cost_micros * ratio <= whole.cost_micros:
        return f"${budget.conversation_cost_micros / 1_000_000:.2f}"
    return ""


def share(budget: Budget, ledger: Ledger, among: int) -> Budget:
    """An equal part of what is left of the parent's budget. Call this only while `spent` returns ""."""
    whole = ledger.total_usage + ledger.aside_usage
    limits = ((budget.run_tokens, ledger.run_usage.context_tokens), (budget.conversation_tokens, whole.context_tokens))
    tokens = [limit - used for limit, used in limits if limit]
    money = budget.conversation_cost_micros
    return Budget(
        conversation_tokens=max(1, min(tokens) // among) if tokens else 0,
        conversation_cost_micros=max(1, (money - whole.cost_micros) // among) if money else 0,
    )
