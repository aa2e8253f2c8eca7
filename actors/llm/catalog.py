"""The models that this server offers: which provider answers to which name, and how much fits."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from msgspec.structs import replace

from actors.llm.anthropic import AnthropicModel
from actors.llm.demo import DEMO, DemoModel
from actors.llm.http import Transport
from actors.llm.limits import ModelLimits, known_limits, limits_of, smallest_limits
from actors.llm.openai import OpenAiModel
from actors.llm.provider import ANTHROPIC, ProviderConfig
from actors.ports import Model, ModelInfo


class Catalog:
    """Implements ports.ModelCatalog over configured providers. Any thread; opens nothing.

    `default` names a served model, else it is the first provider's default, else the demo. Raises ValueError for a
    default that nobody serves, and for two providers of one name.
    """

    def __init__(self, providers: Sequence[ProviderConfig] = (), *, default: str = "", pace: float = 0.03) -> None:
        names = [provider.name for provider in providers]
        if len(set(names)) != len(names):
            raise ValueError("two providers have the same name")
        self._served = tuple((provider, Transport(provider)) for provider in providers)
        self._demo = DemoModel(pace)
        self.get = functools.lru_cache(maxsize=256)(self._find)
        """The model of the provider whose setting fits the name best, the first of equals; None if none does."""
        defaults = (provider.default_model for provider in providers)
        self._default = default or next(filter(None, defaults), DEMO)
        if self.get(self._default) is None:
            raise ValueError(f"no provider serves the default model {self._default}")

    @property
    def default(self) -> str:
        return self._default

    def list(self) -> tuple[ModelInfo, ...]:
        """The models known by name, the default first, the demo last. A provider may serve more (`models = ["*"]`)."""
        names: dict[str, None] = {self._default: None}
        for provider, _ in self._served:
            names |= dict.fromkeys(filter(None, (provider.default_model, *_listed(provider))))
        names.pop(DEMO, None)
        models = (self.get(name) for name in (*names, DEMO))
        return tuple(model.info for model in models if model is not None)

    def _find(self, name: str) -> Model | None:
        if name == DEMO:
            return self._demo
        fit, index = max(((_fit(p, name), -i) for i, (p, _) in enumerate(self._served)), default=(0, 0))
        if not fit or not name.strip():
            return None
        provider, transport = self._served[-index]
        limits, known = _limits(provider, name)
        info = _info(provider, name, limits, known=known)
        kind = AnthropicModel if provider.protocol == ANTHROPIC else OpenAiModel
        return kind(provider, transport, info, limits)


def _fit(provider: ProviderConfig, name: str) -> int:
    """How closely a provider's settings name a model: 0 not at all, highest for its very name."""
    fits = [len(name) + 2 if name == provider.default_model else 0]
    for served in provider.models:
        if served == name:
            fits.append(len(name) + 2)
        elif served.endswith("*") and name.startswith(served[:-1]):
            fits.append(len(served))
    return max(fits)


def _listed(provider: ProviderConfig) -> tuple[str, ...]:
    """The names that a provider's settings spell out, and the known ones that its patterns cover."""
    spelled = [name for name in provider.models if not name.endswith("*")]
    patterns = [name[:-1] for name in provider.models if name.endswith("*") and name != "*"]
    known = [name for name, row in known_limits().items() if row.protocol == provider.protocol]
    return (*spelled, *(name for name in known if name.startswith(tuple(patterns))))


def _limits(provider: ProviderConfig, name: str) -> tuple[ModelLimits, bool]:
    """The limits of a model, and whether they are known rather than assumed (REQ-BED-022)."""
    row = limits_of(name)
    limits = row or smallest_limits()
    if provider.context_window:
        output = min(limits.output, provider.context_window // 4)
        limits = replace(limits, window=provider.context_window, input=0, output=output)
    if provider.max_output:
        limits = replace(limits, output=min(provider.max_output, limits.window // 2))
    return limits, row is not None or provider.context_window > 0


def _info(provider: ProviderConfig, name: str, limits: ModelLimits, *, known: bool) -> ModelInfo:
    return ModelInfo(
        name=name,
        display_name=limits.name or name,
        provider=provider.name,
        protocol=provider.protocol,
        context_window=limits.window,
        max_output=limits.output,
        usable_window=limits.usable_window,
        images=limits.images,
        known=known,
    )
