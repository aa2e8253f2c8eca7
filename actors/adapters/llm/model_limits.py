"""Limits and prices of models, from three sources: models.toml, the operator's settings, and servers."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from actors.adapters.llm.provider import ANTHROPIC, ProviderConfig
from actors.common.settings_checks import read
from actors.core.content import Usage
from actors.core.context import ReasoningEffort

Row = TypeVar("Row")

# The most tokens of a context window that are reserved for an answer. Requests set this limit for their answers,
# unless the model's own limit is lower.
RESERVED_OUTPUT = 32_000
# The context window that is assumed for an unknown model of a server that speaks one of OpenAI's protocols.
ASSUMED_WINDOW = 32_768


class LongPrompt(Struct, frozen=True, forbid_unknown_fields=True, rename={"tokens": "from"}):
    """Price factors for requests of more than `tokens` input tokens; `input` applies to cache reads and writes, too."""

    tokens: int
    input: float
    output: float


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    input: float
    output: float
    cache_read: float | None = None
    """Price of input read from the cache; None means the same as `input`."""
    cache_write: float | None = None
    long: LongPrompt | None = None

    def micros(self, usage: Usage) -> int:
        """The price of `usage` in micro-dollars (millionths of a dollar)."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        prompt = usage.input_tokens * self.input + usage.cache_read_tokens * read + usage.cache_write_tokens * write
        answer = usage.output_tokens * self.output
        if self.long is not None and usage.context_tokens - usage.output_tokens > self.long.tokens:
            prompt, answer = prompt * self.long.input, answer * self.long.output
        return round(prompt + answer)


class ModelLimits(Struct, frozen=True, forbid_unknown_fields=True):
    window: int
    output: int
    input: int = 0
    """The input limit if it is smaller than the window; 0 if the window is the limit."""
    protocol: str = ""
    """The protocol of the providers that list this model; "" if none does. "openai-responses" lists "openai-chat",
    too."""
    name: str = ""
    images: bool | None = None
    reasons: bool = True
    """Whether requests may ask for the model's encrypted reasoning (only used by the protocol "openai-responses")."""
    reasoning_efforts: tuple[ReasoningEffort, ...] = ()
    temperature: bool = False
    price: Price | None = None

    @property
    def reserved_output(self) -> int:
        """The limit of output tokens that requests set: at most RESERVED_OUTPUT."""
        return min(self.output, RESERVED_OUTPUT)

    @property
    def usable_window(self) -> int:
        """The tokens that the history may fill: the smaller of input limit, and window minus reserved output."""
        return min(self.input or self.window, self.window - self.reserved_output)

    def cost_micros(self, usage: Usage) -> int:
        """The cost of `usage` in micro-dollars; 0 if the price is unknown."""
        return self.price.micros(usage) if self.price else 0


Tokens: TypeAlias = Annotated[int, Meta(ge=1, description="must be a whole number of tokens, at least 1")]


class StatedLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a model as stated by the operator (`[models."name"]`) or by a server; None for what is not stated."""

    window: Tokens | None = None
    output: Tokens | None = None
    input: Tokens | None = None
    name: str | None = None
    images: bool | None = None
    reasoning_efforts: tuple[ReasoningEffort, ...] | None = None
    temperature: bool | None = None
    price: Price | None = None

    def over(self, limits: ModelLimits, *, roomy: bool = False) -> ModelLimits:
        """`limits`, overridden by what is stated here.

        `roomy`: the output limit is a guess, which a stated window replaces by a quarter of itself, even if that is
        more.
        """
        given = {field: value for field in self.__struct_fields__ if (value := getattr(self, field)) is not None}
        if self.window is not None:
            given.setdefault("input", 0 if self.window != limits.window else limits.input)
            # If no output limit is stated, an answer may take at most a quarter of the stated window.
            quarter = max(self.window // 4, 1)
            given.setdefault("output", quarter if roomy else min(limits.output, quarter))
        given["output"] = min(given.get("output", limits.output), max(given.get("window", limits.window) // 2, 1))
        return replace(limits, **given)


def operator_limits(tables: Mapping[str, Any]) -> dict[str, StatedLimits]:
    """The limits by model name prefix, in lower case. Raises ValueError, which names the invalid key."""
    result = {}
    for name, table in tables.items():
        result[name.lower()] = read(StatedLimits, f'models."{name}"', table)
    return result


@functools.cache
def known_limits() -> dict[str, ModelLimits]:
    text = Path(__file__).with_name("models.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text)["models"], dict[str, ModelLimits])


@functools.lru_cache(maxsize=256)
def limits_of(model: str) -> ModelLimits | None:
    """The row of models.toml for a model; None if there is none."""
    return best_match(known_limits(), model)


def best_match(rows: Mapping[str, Row], model: str) -> Row | None:
    """The row whose key is the longest prefix of `model` up to a word boundary, without case and vendor, or None."""
    full = model.lower()
    prefixes = [prefix for prefix in rows if _begins(full, prefix) or _begins(full.rpartition("/")[2], prefix)]
    return rows[max(prefixes, key=len)] if prefixes else None


def _begins(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and not name[len(prefix) : len(prefix) + 1].isalnum()


@functools.cache
def assumed_limits(protocol: str) -> ModelLimits:
    """The limits of a model without a row in models.toml (REQ-BED-022).

    Servers that speak OpenAI's protocols have new models and people's own, hardly any with less than 32,768 tokens;
    over Anthropic's the smallest known window is assumed.
    """
    if protocol != ANTHROPIC:
        return ModelLimits(ASSUMED_WINDOW, ASSUMED_WINDOW // 4, temperature=True)
    smallest = min(known_limits().values(), key=lambda row: (row.usable_window, row.output))
    return ModelLimits(smallest.window, smallest.output, smallest.input, temperature=True)


def resolve_limits(
    model: str, provider: ProviderConfig, operator: Mapping[str, StatedLimits], server: StatedLimits | None
) -> tuple[ModelLimits, bool]:
    """A model's limits, and whether they are known rather than assumed (REQ-BED-022).

    The operator's settings of the model go first, then those of the provider, its server's statement, models.toml.
    """
    row = limits_of(model)
    provided = StatedLimits(window=provider.context_window or None, output=provider.max_output or None)
    said = [stated for stated in (server, provided, best_match(operator, model)) if stated is not None]
    limits, known = row or assumed_limits(provider.protocol), row is not None
    for stated in said:
        limits = stated.over(limits, roomy=row is None)
        known = known or stated.window is not None
    return limits, known


def needs_discovery(model: str, provider: ProviderConfig, operator: Mapping[str, StatedLimits]) -> bool:
    """Whether the server should be asked for the model's limits.

    Not if a setting states the window, with `discover = "never"`, or with "unknown" and a row in models.toml.
    """
    stated = best_match(operator, model)
    if provider.discover == "never" or provider.context_window or (stated is not None and stated.window):
        return False
    return provider.discover == "always" or limits_of(model) is None
