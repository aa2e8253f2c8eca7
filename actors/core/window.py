"""What fills the context window: estimates of texts and images, and the thresholds at which to warn and to summarize.

Units are tokens (REQ-BED-012, 019, 023). The estimates are for what no provider has counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.content import Content, Image, Reasoning, Text, ToolUse, images_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from actors.core.context import ConvContext

BYTES_PER_TOKEN = 4
"""A typical number of bytes of UTF-8 per token, for English text and code with the tokenizers of present models."""
IMAGE_TOKENS = 1_600
"""The tokens of an image of the largest size that is sent to models: its longer side has 1,568 pixels."""
_PROSE = bytes(byte for byte in range(128) if chr(byte).isalpha() or chr(byte).isspace())


def utf8_size(text: str) -> int:
    """Return the number of bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def tokens_of(size: int) -> int:
    """Estimate the tokens of a text of `size` bytes."""
    return -(-size // BYTES_PER_TOKEN)


def content_tokens(content: Iterable[Content], *, images: bool = True) -> int:
    """Estimate the tokens of messages' content; `images`: whether its images are sent."""
    blocks = tuple(content)
    size = sum(utf8_size(text) for block in blocks for text in _texts(block))
    return tokens_of(size) + (IMAGE_TOKENS * sum(1 for _ in images_of(blocks)) if images else 0)


def most_tokens(text: str) -> int:
    """Estimate generously how many tokens a text takes, for output of programs, which may have few bytes per token.

    A third per letter and blank, one for every other byte. That is at least half of what byte-level tokenizers count,
    whatever the text: of digits, for example, each is a token to many.
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
    """Return whether `used` tokens reach the warning threshold (by default 80 % of the usable window)."""
    return _reaches(used, context.limits.warn_ratio, context.usable_window)


def full(used: int, context: ConvContext) -> bool:
    """Return whether `used` tokens reach the limit at which a summary is due (by default 90 % of the usable window)."""
    return _reaches(used, context.limits.exhaust_ratio, context.usable_window)


def _reaches(used: int, ratio: float, usable: int) -> bool:
    """Return whether `used` is at least `ratio` (rounded to 1/1000) of `usable`; False if `usable` is unknown (0)."""
    return usable > 0 and used * 1_000 >= round(ratio * 1_000) * usable
