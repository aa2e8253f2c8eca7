"""The catalogue of models: which provider serves a model name, and which names are offered to users."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from actors.adapters.llm.demo.demo_model import DEMO, DemoModel
from actors.adapters.llm.discovery import Discovery
from actors.adapters.llm.http_model import HttpModel
from actors.adapters.llm.model_limits import known_limits, operator_limits
from actors.adapters.llm.model_list import ModelList
from actors.adapters.llm.protocols.anthropic import request as anthropic
from actors.adapters.llm.protocols.anthropic.response import AnthropicReader
from actors.adapters.llm.protocols.encoded_turns import PrefixCache
from actors.adapters.llm.protocols.openai_chat import request as openai_chat
from actors.adapters.llm.protocols.openai_chat.response import OpenAiChatReader
from actors.adapters.llm.protocols.openai_responses import request as openai_responses
from actors.adapters.llm.protocols.openai_responses.response import OpenAiResponsesReader
from actors.adapters.llm.provider import ANTHROPIC, NO_MODEL, OPENAI_CHAT, OPENAI_RESPONSES, PROTOCOLS, ProviderConfig
from actors.adapters.llm.provider_client import ProviderClient, WireProtocol
from actors.adapters.llm.routing import ModelRouter, Server
from actors.core.errors import ErrorKind, LlmFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors.adapters.llm.transport.connections import Later
    from actors.ports import CancelToken, Model, ModelInfo

_WIRE_PROTOCOLS = {
    ANTHROPIC: WireProtocol(anthropic.PATH, anthropic.turn_of, anthropic.body_of, AnthropicReader, anthropic.joint),
    OPENAI_CHAT: WireProtocol(openai_chat.PATH, openai_chat.turn_of, openai_chat.body_of, OpenAiChatReader),
    OPENAI_RESPONSES: WireProtocol(
        openai_responses.PATH, openai_responses.turn_of, openai_responses.body_of, OpenAiResponsesReader
    ),
}


class Catalog:
    """Implements ports.ModelCatalog over configured providers. Safe to call from any thread; only `learn` blocks.

    `default` is the name of the default model. If it is "", the default is that of the first provider that has a
    default model. If no provider has one, it is the demo model, or "" if a provider's default was only guessed and the
    server's list of models has shown that the guess was wrong.

    `small` is the name of the model for all side queries (small extra requests for titles and excerpts), or "none". If
    it is "", side queries use the small model of the conversation's own provider, so that no third party gets the
    conversation's text. `models` contains the operator's limits and prices by model name prefix. `pace` is the pause
    between two words of the demo model, in seconds. `later` runs a callback after a number of milliseconds; it is used
    to close idle connections.

    Raises ValueError for a default or small model that no provider serves, for invalid limits, and for two providers
    with the same name.
    """

    def __init__(
        self,
        providers: Sequence[ProviderConfig] = (),
        *,
        default: str = "",
        small: str = "",
        models: Mapping[str, Any] | None = None,
        pace: float = 0.03,
        later: Later | None = None,
    ) -> None:
        names = [provider.name for provider in providers]
        if len(set(names)) != len(names):
            raise ValueError("two providers have the same name")
        clients = [ProviderClient(provider, later) for provider in providers]
        self._router = ModelRouter([Server(each, Discovery(each), ModelList(each)) for each in clients])
        self._operator = operator_limits(models or {})
        self._prefixes = PrefixCache()
        self._demo = DemoModel(pace)
        self._find = functools.lru_cache(maxsize=256)(self._found)
        self._model = functools.lru_cache(maxsize=256)(self._made)
        self._chosen = default
        if self.default:
            self._check("default_model", self.default)
        self._small = small
        if small not in ("", NO_MODEL):
            self._check("small_model", small)

    @property
    def default(self) -> str:
        """The name of the default model; see ports.ModelCatalog.

        Some default models are guesses, because the settings of their provider name none. A guess is skipped once the
        list of the provider's server shows that the server does not have this model.
        """
        servers = self._router.servers
        otherwise = "" if any(server.refuted for server in servers) else DEMO
        return self._chosen or next(filter(None, (server.default for server in servers)), otherwise)

    def get(self, name: str) -> Model | None:
        """Return the model with this name, None if no provider serves it; see ports.ModelCatalog.

        If the settings of several providers match the name equally well, the first of these providers is used.
        """
        return self._find(name, self._router.generation)

    def offers(self, name: str) -> bool:
        """Return whether users can choose a model; see ports.ModelCatalog."""
        return self._set(name) or self._router.route(name) is not None

    def undecided(self, name: str) -> bool:
        """Return whether lists of servers must be fetched to know if a model is served; see ports.ModelCatalog."""
        return not self._set(name) and self._router.undecided(name)

    def learn(self, name: str, cancel: CancelToken) -> None:
        """Find out who serves a model by requesting providers' lists of models; see ports.ModelCatalog. Blocks."""
        self._router.learn(name, cancel)

    def measure(self, name: str, cancel: CancelToken) -> None:
        """Ask the server of a model for its limits, unless they are known; see ports.ModelCatalog. Blocks."""
        model = self.get(name)
        if isinstance(model, HttpModel):
            model.ask_limits(cancel)

    def refusal(self, name: str) -> LlmFailure:
        """Return the failure that tells users why a model is not available; see ports.ModelCatalog."""
        text = self._router.refusal(name, [info.name for info in self.list()])
        return LlmFailure(ErrorKind.NETWORK if self._router.unreachable else ErrorKind.INVALID_REQUEST, text)

    def list(self) -> tuple[ModelInfo, ...]:
        """Return all models whose names are known: the default first, the demo model last.

        A provider with the setting `models = ["*"]` serves any other name, too.
        """
        names = dict.fromkeys(filter(None, (self.default,)))
        for server in self._router.servers:
            provider = server.provider
            names |= dict.fromkeys(filter(None, (server.default, *_spelled(provider), provider.small_model)))
            names |= dict.fromkeys(server.listed.names or () if server.lists else ())
        names.pop(DEMO, None)
        models = (self.get(name) for name in (*names, DEMO))
        return tuple(model.info for model in models if model is not None)

    def small(self, name: str) -> Model | None:
        """Return the model for small extra requests of conversations with the model `name`; see ports.ModelCatalog.

        Returns None if there is no such model.
        """
        if self._small:
            return None if self._small == NO_MODEL else self.get(self._small)
        if name == DEMO:
            return self._demo
        server = self._router.presumed(name)
        chosen = server.provider.small_model if server else ""
        return self._model(chosen, server) if server and chosen else None

    def close(self) -> None:
        """Close the idle connections to providers; a running request closes its own connection. Idempotent."""
        for server in self._router.servers:
            server.client.close()

    def forget(self, conversation_id: str) -> None:
        """Drop what is cached for a conversation; see ports.ModelCatalog."""
        self._prefixes.forget(conversation_id)

    def _set(self, name: str) -> bool:
        """Return whether the operator's settings name the model, so that no server needs to be asked."""
        return name == DEMO or (name in (self._chosen, self._small) and self.get(name) is not None)

    def _check(self, setting: str, name: str) -> None:
        """Raise ValueError if certainly no provider serves the model `name`, which is the value of `setting`.

        A model that a server may still list is accepted: servers are not asked when Bedrock starts, because they may
        not run yet.
        """
        if self.get(name) is None and not self._router.undecided(name):
            raise ValueError(f"{setting}: no provider serves {name}")

    def _found(self, name: str, generation: int) -> Model | None:
        if name == DEMO:
            return self._demo
        server = self._router.presumed(name)
        return self._model(name, server) if server else None

    def _made(self, name: str, server: Server) -> Model:
        protocol = _WIRE_PROTOCOLS[server.provider.protocol]
        return HttpModel(
            name, server.client, server.discovery, protocol=protocol, operator=self._operator, prefixes=self._prefixes
        )


def _spelled(provider: ProviderConfig) -> tuple[str, ...]:
    """Return the names in a provider's setting `models`, and the names in models.toml that match its patterns."""
    spelled = [name for name in provider.models if not name.endswith("*")]
    patterns = [name[:-1] for name in provider.models if name.endswith("*") and name != "*"]
    offers = PROTOCOLS[provider.protocol].offers
    known = [name for name, row in known_limits().items() if row.protocol in offers]
    return (*spelled, *(name for name in known if name.startswith(tuple(patterns))))
