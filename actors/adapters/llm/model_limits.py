"""What is known about models: windows, output limits, prices; from models.toml, from operators, and from servers."""

from __future__ import annotations

import functools
import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.adapters.llm.provider import ProviderConfig
    from actors.core.content import Usage

Row = TypeVar("Row")

#: Tokens kept free for an answer, and asked for at most.
RESERVED_OUTPUT = 32_000


class LongPrompt(Struct, frozen=True, forbid_unknown_fields=True, rename={"tokens": "from"}):
    """What a request with more input than so many tokens costs more: factors, of cache reads and writes too."""

    tokens: int
    input: float
    output: float


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars per million tokens, at the provider's own list price."""

    input: float
    output: float
    cache_read: float | None = None
    """None: as `input`."""
    cache_write: float | None = None
    """Likewise."""
    long: LongPrompt | None = None

    def micros(self, usage: Usage) -> int:
        """Micro-dollars for `usage`."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        told = usage.input_tokens * self.input + usage.cache_read_tokens * read + usage.cache_write_tokens * write
        said = usage.output_tokens * self.output
        if self.long is not None and usage.context_tokens - usage.output_tokens > self.long.tokens:
            told, said = told * self.long.input, said * self.long.output
        return round(told + said)


class ModelLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """One row of models.toml. Tokens throughout."""

    window: int
    output: int
    input: int = 0
    """The input limit where it is smaller than the window; 0: none of its own."""
    protocol: str = ""
    """Set: the model is listed for providers of this protocol; "openai-chat" is also served over openai-responses."""
    name: str = ""
    """For people."""
    images: bool = False
    reasons: bool = True
    """False: the model takes no options about reasoning."""
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
        return self.price.micros(usage) if self.price else 0


class StatedLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody says about a model: an operator (`[models."name"]`), or its server. None: nothing."""

    window: int | None = None
    output: int | None = None
    input: int | None = None
    name: str | None = None
    images: bool | None = None
    price: Price | None = None

    def over(self, limits: ModelLimits, *, roomy: bool = False) -> ModelLimits:
        """`limits` with what is said here put over them; `roomy`: their output was only a guess."""
        given = {field: value for field in self.__struct_fields__ if (value := getattr(self, field)) is not None}
        if self.window is not None:
            given.setdefault("input", 0 if self.window != limits.window else limits.input)
            # An answer may take a quarter of a window about which nothing else is known.
            quarter = max(self.window // 4, 1)
            given.setdefault("output", quarter if roomy else min(limits.output, quarter))
        given["output"] = min(given.get("output", limits.output), max(given.get("window", limits.window) // 2, 1))
        return replace(limits, **given)


def operator_limits(tables: Mapping[str, Any]) -> dict[str, StatedLimits]:
    """Read the table `models` of the configuration. Raises ValueError naming the key."""
    result = {}
    for name, table in tables.items():
        try:
            stated = convert(table, StatedLimits)
        except ValidationError as error:
            raise ValueError(f'models."{name}": {error}') from None
        numbers = (stated.window, stated.output, stated.input)
        if any(number is not None and number < 1 for number in numbers):
            raise ValueError(f'models."{name}": windows and limits are at least 1 token')
        result[name.lower()] = stated
    return result


@functools.cache
def known_limits() -> dict[str, ModelLimits]:
    """All rows by the prefix of the names they are for."""
    text = files("actors.adapters.llm").joinpath("models.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text)["models"], dict[str, ModelLimits])


def limits_of(model: str) -> ModelLimits | None:
    """The row for a model; None if there is none."""
    return fitting(known_limits(), model)


def fitting(rows: Mapping[str, Row], model: str) -> Row | None:
    """The row whose prefix is the longest one of `model`, ending at a word's end; None if there is none.

    Case and a vendor in front ("anthropic/claude-…") don't matter.
    """
    full = model.lower()
    prefixes = [prefix for prefix in rows if _begins(full, prefix) or _begins(full.rpartition("/")[2], prefix)]
    return rows[max(prefixes, key=len)] if prefixes else None


def _begins(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and not name[len(prefix) : len(prefix) + 1].isalnum()


@functools.cache
def smallest_limits() -> ModelLimits:
    """The limits assumed for a model that no row fits (REQ-BED-022)."""
    smallest = min(known_limits().values(), key=lambda row: (row.usable_window, row.output))
    return ModelLimits(smallest.window, smallest.output, smallest.input)


def resolve_limits(
    model: str, provider: ProviderConfig, operator: Mapping[str, StatedLimits], server: StatedLimits | None
) -> tuple[ModelLimits, bool]:
    """A model's limits, and whether they are known rather than assumed (REQ-BED-022).

    What is said for the model goes before what is said for its provider, that before what its server told, and that
    before the table.
    """
    row = limits_of(model)
    provided = StatedLimits(window=provider.context_window or None, output=provider.max_output or None)
    said = [stated for stated in (server, provided, fitting(operator, model)) if stated is not None]
    limits, known = row or smallest_limits(), row is not None
    for stated in said:
        limits = stated.over(limits, roomy=row is None)
        known = known or stated.window is not None
    return limits, known


def needs_discovery(model: str, provider: ProviderConfig, operator: Mapping[str, StatedLimits]) -> bool:
    """Whether the server is to be asked for the limits of this model."""
    stated = fitting(operator, model)
    if provider.discover == "never" or provider.context_window or (stated is not None and stated.window):
        return False
    return provider.discover == "always" or limits_of(model) is None
