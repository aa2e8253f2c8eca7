"""The catalogue of models: which provider serves a model name, and which names are offered to users.

To find the provider of a model, these criteria are tried in order until a provider meets one: the provider's settings
name the model; its server lists the model; its protocol is that of the model's family (Claude models use Anthropic
Messages, GPT models use OpenAI's protocols); its settings accept every name ("*").

If a provider's settings name no models, its server is asked for a list of models, but only when a user names a model
for which no provider is known yet. Known models therefore never wait for a server.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from actors.adapters.llm.demo import DEMO, DemoModel
from actors.adapters.llm.http_model import HttpModel, Server
from actors.adapters.llm.protocols import anthropic, openai_chat, openai_responses
from actors.adapters.llm.protocols.encoding import PrefixCache
from actors.adapters.llm.provider import (
    ANTHROPIC,
    NO_MODEL,
    OPENAI_CHAT,
    OPENAI_RESPONSES,
    PROTOCOLS,
    ProviderConfig,
    known_limits,
    limits_of,
    operator_limits,
    presets,
)
from actors.adapters.llm.provider_client import ProviderClient, WireProtocol
from actors.core.errors import ErrorKind, LlmFailure
from actors.ports import CancelToken, Model, ModelInfo

# The pattern in a provider's `models` setting that matches every model name.
ANY = "*"
# Maximum number of model names that an error message lists.
_SHOWN = 20


def family_of(name: str) -> tuple[str, ...]:
    """The protocols over which the vendor of the model `name` serves it; () if the name does not reveal the vendor."""
    return tuple(
        protocol
        for protocol, traits in PROTOCOLS.items()
        if any(_fits(pattern, name) for pattern in presets()[traits.family]["models"])
    )


def _nearest(name: str, servers: Iterable[Server]) -> list[Server]:
    """`servers`, reordered so that those that use a protocol of the model's vendor come first."""
    spoken = family_of(name)
    return sorted(servers, key=lambda server: server.provider.protocol not in spoken)


def _fit(provider: ProviderConfig, name: str) -> int:
    """How specifically a provider's settings match a model name: 0 for no match, highest for an exact match."""
    named = (provider.small_model, "" if provider.presumed else provider.default_model)
    fits = [len(name) + 2 if name in named else 0]
    for served in provider.models:
        if served == name:
            fits.append(len(name) + 2)
        elif served != ANY and _fits(served, name):
            fits.append(len(served))
    return max(fits)


def _fits(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _is_name(name: str) -> bool:
    return bool(name.strip()) and name.isprintable()


_WIRE_PROTOCOLS = {
    ANTHROPIC: WireProtocol(
        anthropic.PATH, anthropic.turn_of, anthropic.body_of, anthropic.AnthropicReader, anthropic.joint
    ),
    OPENAI_CHAT: WireProtocol(openai_chat.PATH, openai_chat.turn_of, openai_chat.body_of, openai_chat.OpenAiChatReader),
    OPENAI_RESPONSES: WireProtocol(
        openai_responses.PATH,
        openai_responses.turn_of,
        openai_responses.body_of,
        openai_responses.OpenAiResponsesReader,
    ),
}


class Catalog:
    """Implements ports.ModelCatalog over configured providers. Thread-safe; only `learn` blocks.

    If `default` is "", the providers' default models are tried in order until one is not contradicted by its server's
    list; otherwise, it is the demo model. `small` is the model for side queries, "none" for no such model; "" means the
    small model of the conversation's own provider, so that no third party sees the text. `models` maps name prefixes to
    the operator's limits and prices. `pace` is the demo model's pause between words, in seconds. Raises ValueError for
    a default or small model that no provider serves, for invalid limits, or for two providers with the same name.
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
        self._servers = tuple(Server(ProviderClient(each)) for each in providers)
        self._generation = 0  # incremented when routes may have changed, so that cached ones are not used
        self._operator = operator_limits(models or {})
        self._prefixes = PrefixCache()
        self._demo = DemoModel(pace)
        self._find = functools.lru_cache(maxsize=256)(self._found)
        self._model = functools.lru_cache(maxsize=256)(self._made)
        self._chosen, self._small = default, small
        if self.default:
            self._check("default_model", self.default)
        if small not in ("", NO_MODEL):
            self._check("small_model", small)

    @property
    def default(self) -> str:
        """The name of the default model.

        A guessed default is skipped once its server's list shows that the guess is wrong.
        """
        servers = self._servers
        otherwise = "" if any(server.refuted for server in servers) else DEMO
        return self._chosen or next(filter(None, (server.default for server in servers)), otherwise)

    def get(self, name: str) -> Model | None:
        """See ports.ModelCatalog.

        If the settings of several providers match the name equally well, the first of them wins.
        """
        return self._find(name, self._generation)

    def offers(self, name: str) -> bool:
        return self._set(name) or self._route(name) is not None

    def undecided(self, name: str) -> bool:
        if self._set(name) or not _is_name(name) or self._named_by(name) or self._listing(name):
            return False
        if presuming := self._presuming(name):
            return presuming.names is None and not presuming.failure
        if self._of_family(name):
            return False
        return any(server.lists and server.stale for server in self._servers)

    def learn(self, name: str, cancel: CancelToken) -> None:
        for server in _nearest(name, (server for server in self._servers if server.lists)):
            server.refresh(cancel)
            self._generation += 1
            if server.has(name) or cancel.cancelled:
                return

    def measure(self, name: str, cancel: CancelToken) -> None:
        model = self.get(name)
        if isinstance(model, HttpModel):
            model.ask_limits(cancel)

    def refusal(self, name: str) -> LlmFailure:
        offered = [info.name for info in self.list()]
        shown: Sequence[str] = offered
        if len(offered) > _SHOWN:
            from difflib import get_close_matches  # noqa: PLC0415 -- only for error messages

            close = get_close_matches(name, offered, n=_SHOWN, cutoff=0.3)
            shown = tuple(dict.fromkeys((*close, *offered)))[:_SHOWN]
        more = f" and {len(offered) - len(shown):,} more" if len(offered) > len(shown) else ""
        silent = [
            f"; cannot list the models of provider {server.provider.name} ({server.failure}); "
            f"if it serves this model, add the name to its `models` setting"
            for server in self._unreachable
        ]
        variables = " or ".join(f"{server.provider.name.upper()}_MODEL" for server in self._servers if server.refuted)
        none = f"no default model is configured; choose a model, or set {variables} for the server"
        which = f"model {name!r} is not available" if name else none
        text = f"{which}; available models: {', '.join(shown)}{more}{''.join(silent)}"
        return LlmFailure(ErrorKind.NETWORK if self._unreachable else ErrorKind.INVALID_REQUEST, text)

    def list(self) -> tuple[ModelInfo, ...]:
        """All known models: the default first, the demo model last.

        A provider with `models = ["*"]` also serves models that are not in this list.
        """
        names = dict.fromkeys(filter(None, (self.default,)))
        for server in self._servers:
            provider = server.provider
            names |= dict.fromkeys(filter(None, (server.default, *_spelled(provider), provider.small_model)))
            names |= dict.fromkeys(server.names or () if server.lists else ())
        names.pop(DEMO, None)
        models = (self.get(name) for name in (*names, DEMO))
        return tuple(model.info for model in models if model is not None)

    def small(self, name: str) -> Model | None:
        if self._small:
            return None if self._small == NO_MODEL else self.get(self._small)
        if name == DEMO:
            return self._demo
        server = self._presumed(name)
        chosen = server.provider.small_model if server else ""
        return self._model(chosen, server) if server and chosen else None

    def close(self) -> None:
        """Close idle connections to providers; a running request closes its own connection. Idempotent."""
        for server in self._servers:
            server.client.close()

    def forget(self, conversation_id: str) -> None:
        self._prefixes.forget(conversation_id)

    def _set(self, name: str) -> bool:
        """Whether the operator's settings name the model, so that no server needs to be asked."""
        return name == DEMO or (name in (self._chosen, self._small) and self.get(name) is not None)

    def _route(self, name: str) -> Server | None:
        """The server that serves a model; None if no such server is known, perhaps because no list was fetched yet."""
        if not _is_name(name):
            return None
        return (
            self._named_by(name)
            or self._listing(name)
            or self._presuming(name)
            or self._of_family(name)
            or self._taking_any(name)
        )

    def _presumed(self, name: str) -> Server | None:
        """The server of a model that was accepted earlier; None if unknown.

        `_route` may find no server, for example because no list has been fetched yet. If exactly one provider's
        settings name no models, that provider's server is then assumed.
        """
        silent = [server for server in self._servers if server.lists]
        return self._route(name) or (silent[0] if len(silent) == 1 and _is_name(name) else None)

    def _named_by(self, name: str) -> Server | None:
        fits = ((_fit(server.provider, name), -index) for index, server in enumerate(self._servers))
        fit, index = max(fits, default=(0, 0))
        return self._servers[-index] if fit else None

    def _listing(self, name: str) -> Server | None:
        having = _nearest(name, (server for server in self._servers if server.lists and server.has(name)))
        return having[0] if having else None

    def _presuming(self, name: str) -> Server | None:
        return next((server for server in self._servers if server.presumes(name) and not server.refuted), None)

    def _of_family(self, name: str) -> Server | None:
        """The first server that uses a protocol of the model's vendor (Anthropic's for "claude-…"), or None.

        A model with a row in models.toml needs nothing else. A model without one may be newer than this program; its
        server counts only if the server's list could not be fetched.
        """
        known, spoken = limits_of(name) is not None, family_of(name)
        for server in self._servers:
            if server.presumes(name):
                continue
            blind = bool(server.failure) and server.names is None
            if server.lists and server.provider.protocol in spoken and (known or blind):
                return server
        return None

    def _taking_any(self, name: str) -> Server | None:
        taking = _nearest(name, (server for server in self._servers if ANY in server.provider.models))
        return taking[0] if taking else None

    @property
    def _unreachable(self) -> tuple[Server, ...]:
        """The servers whose lists could not be fetched."""
        return tuple(server for server in self._servers if server.lists and server.failure)

    def _check(self, setting: str, name: str) -> None:
        """Raise ValueError if it is certain that no provider serves the model.

        Servers are not asked at startup, because they may not be running yet.
        """
        if self.get(name) is None and not self.undecided(name):
            raise ValueError(f"{setting}: no provider serves {name}")

    def _found(self, name: str, generation: int) -> Model | None:
        if name == DEMO:
            return self._demo
        server = self._presumed(name)
        return self._model(name, server) if server else None

    def _made(self, name: str, server: Server) -> Model:
        protocol = _WIRE_PROTOCOLS[server.provider.protocol]
        return HttpModel(name, server, protocol=protocol, operator=self._operator, prefixes=self._prefixes)


def _spelled(provider: ProviderConfig) -> tuple[str, ...]:
    """The names in a provider's `models` setting, and the names in models.toml that match its patterns."""
    spelled = [name for name in provider.models if not name.endswith("*")]
    patterns = [name[:-1] for name in provider.models if name.endswith("*") and name != "*"]
    offers = PROTOCOLS[provider.protocol].offers
    known = [name for name, row in known_limits().items() if row.protocol in offers]
    return (*spelled, *(name for name in known if name.startswith(tuple(patterns))))
