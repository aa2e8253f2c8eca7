"""The models that this server offers: which provider answers to which name, and how much fits."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from actors.llm import anthropic, openai_chat, openai_responses
from actors.llm.anthropic_answer import AnthropicReader
from actors.llm.demo import DEMO, DemoModel
from actors.llm.discovery import Discovery
from actors.llm.exchange import Exchange, Wire
from actors.llm.http import Transport
from actors.llm.http_model import HttpModel
from actors.llm.limits import known_limits, stated_by_operator
from actors.llm.openai_chat_answer import OpenAiChatReader
from actors.llm.openai_responses_answer import OpenAiResponsesReader
from actors.llm.provider import ANTHROPIC, NO_MODEL, OPENAI_CHAT, OPENAI_RESPONSES, ProviderConfig
from actors.llm.rendering import TurnCache
from actors.ports import Model, ModelInfo

_WIRES = {
    ANTHROPIC: Wire(anthropic.PATH, anthropic.turn_of, anthropic.body_of, AnthropicReader),
    OPENAI_CHAT: Wire(openai_chat.PATH, openai_chat.turn_of, openai_chat.body_of, OpenAiChatReader),
    OPENAI_RESPONSES: Wire(
        openai_responses.PATH, openai_responses.turn_of, openai_responses.body_of, OpenAiResponsesReader
    ),
}


class Catalog:
    """Implements ports.ModelCatalog over configured providers. Any thread; opens nothing.

    `default` names a served model, else it is the first provider's default, else the demo. `small` names the model for
    all small requests, or is "none", else it is that of the provider that a conversation talks to anyhow: nobody else
    gets to read what is said in it. `models` is what an operator says about models by the beginnings of their names.
    Raises ValueError, naming the setting first, for a default or small model that nobody serves and for what cannot be
    said about a model; also for two providers of one name.
    """

    def __init__(
        self,
        providers: Sequence[ProviderConfig] = (),
        *,
        default: str = "",
        small: str = "",
        models: Mapping[str, Any] | None = None,
        pace: float = 0.03,
    ) -> None:
        names = [provider.name for provider in providers]
        if len(set(names)) != len(names):
            raise ValueError("two providers have the same name")
        exchanges = (Exchange(provider, Transport(provider)) for provider in providers)
        self._served = tuple((exchange, Discovery(exchange)) for exchange in exchanges)
        self._operator = stated_by_operator(models or {})
        self._turns = TurnCache()
        self._demo = DemoModel(pace)
        self.get = functools.lru_cache(maxsize=256)(self._find)
        """The model of the provider whose setting fits the name best, the first of equals; None if none does."""
        self.small = functools.lru_cache(maxsize=256)(self._find_small)
        """See ports.ModelCatalog."""
        defaults = (provider.default_model for provider in providers)
        self._default = default or next(filter(None, defaults), DEMO)
        if self.get(self._default) is None:
            raise ValueError(f"default_model: no provider serves {self._default}")
        self._small = small
        if small not in ("", NO_MODEL) and self.get(small) is None:
            raise ValueError(f"small_model: no provider serves {small}")

    @property
    def default(self) -> str:
        return self._default

    def list(self) -> tuple[ModelInfo, ...]:
        """The models known by name, the default first, the demo last. A provider may serve more (`models = ["*"]`)."""
        names: dict[str, None] = {self._default: None}
        for provider in (exchange.provider for exchange, _ in self._served):
            names |= dict.fromkeys(filter(None, (provider.default_model, *_listed(provider), provider.small_model)))
        names.pop(DEMO, None)
        models = (self.get(name) for name in (*names, DEMO))
        return tuple(model.info for model in models if model is not None)

    def _find_small(self, name: str) -> Model | None:
        if self._small:
            return None if self._small == NO_MODEL else self.get(self._small)
        if name == DEMO:
            return self._demo
        served = self._server_of(name)
        chosen = served[0].provider.small_model if served else ""
        return self._model(chosen, *served) if served and chosen else None

    def _find(self, name: str) -> Model | None:
        if name == DEMO:
            return self._demo
        served = self._server_of(name)
        return self._model(name, *served) if served else None

    def _model(self, name: str, exchange: Exchange, discovery: Discovery) -> Model:
        wire = _WIRES[exchange.provider.protocol]
        return HttpModel(name, exchange, discovery, wire=wire, operator=self._operator, turns=self._turns)

    def _server_of(self, name: str) -> tuple[Exchange, Discovery] | None:
        """Whose settings fit a model's name best."""
        fits = ((_fit(exchange.provider, name), -index) for index, (exchange, _) in enumerate(self._served))
        fit, index = max(fits, default=(0, 0))
        if not fit or not name.strip() or not name.isprintable():
            return None
        return self._served[-index]


def _fit(provider: ProviderConfig, name: str) -> int:
    """How closely a provider's settings name a model: 0 not at all, highest for its very name."""
    fits = [len(name) + 2 if name in (provider.default_model, provider.small_model) else 0]
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
    spoken = {provider.protocol, OPENAI_CHAT} if provider.protocol == OPENAI_RESPONSES else {provider.protocol}
    known = [name for name, row in known_limits().items() if row.protocol in spoken]
    return (*spelled, *(name for name in known if name.startswith(tuple(patterns))))
