"""What is known about models: windows, output limits, prices. Facts live in models.toml."""

from __future__ import annotations

import functools
import tomllib
from importlib.resources import files

import msgspec
from msgspec import Struct

from actors.core.content import Usage

#: Tokens kept free for an answer, and asked for at most.
RESERVED_OUTPUT = 32_000


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars per million tokens, at the provider's own list price for short prompts."""

    input: float
    output: float
    cache_read: float = 0.0
    cache_write: float = 0.0


class ModelLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """One row of models.toml. Tokens throughout."""

    window: int
    output: int
    input: int = 0
    """The input limit where it is smaller than the window; 0: none of its own."""
    protocol: str = ""
    """Set: the model is listed for providers of this protocol."""
    name: str = ""
    """For people."""
    images: bool = False
    price: Price | None = None

    @property
    def reserved_output(self) -> int:
        """What a request asks for at most."""
        return min(self.output, RESERVED_OUTPUT)

    @property
    def usable_window(self) -> int:
        """What the history may fill: the input limit, or the window minus the reserved output."""
        return min(self.input or self.window, self.window - self.reserved_output)

    def cost_micros(self, usage: Usage) -> int:
        """Micro-dollars for `usage`; 0 if the price is unknown."""
        if self.price is None:
            return 0
        return round(
            usage.input_tokens * self.price.input
            + usage.output_tokens * self.price.output
            + usage.cache_read_tokens * self.price.cache_read
            + usage.cache_write_tokens * self.price.cache_write
        )


@functools.cache
def known_limits() -> dict[str, ModelLimits]:
    """All rows by the prefix of the names they are for."""
    text = files("actors.llm").joinpath("models.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text)["models"], dict[str, ModelLimits])


def limits_of(model: str) -> ModelLimits | None:
    """The row whose prefix is the longest one of `model`, ending at a word's end; None if there is none.

    Case and a vendor in front ("anthropic/claude-…") don't matter.
    """
    name = model.lower().rpartition("/")[2]
    fitting = [prefix for prefix in known_limits() if _begins(name, prefix)]
    return known_limits()[max(fitting, key=len)] if fitting else None


def _begins(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and not name[len(prefix) : len(prefix) + 1].isalnum()


@functools.cache
def smallest_limits() -> ModelLimits:
    """The limits assumed for a model that no row fits (REQ-BED-022)."""
    smallest = min(known_limits().values(), key=lambda row: (row.usable_window, row.output))
    return ModelLimits(smallest.window, smallest.output, smallest.input)
