"""Finds the provider that serves a model name.

A provider is chosen for the first of these reasons that any provider meets: its settings name the model; its server
lists the model; its protocol is that of the model's family (Claude models use Anthropic Messages, GPT models use
OpenAI's protocols); its settings accept every name ("*").

If a provider's settings name no models, its server is asked for its list, but only when a user names a model for which
no provider was found yet, so that known models never wait for a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from actors.adapters.llm.discovery import Discovery
from actors.adapters.llm.model_limits import limits_of
from actors.adapters.llm.model_list import ModelList
from actors.adapters.llm.provider import ONLY_MODEL, PROTOCOLS, ProviderConfig, presets
from actors.adapters.llm.provider_client import ProviderClient

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from actors.ports import CancelToken

#: The pattern that matches every name.
ANY = "*"
#: Maximum number of model names that an error message lists.
_SHOWN = 20


class Server(Struct, frozen=True, eq=False):
    """A provider, with what its server has stated about its models."""

    client: ProviderClient
    discovery: Discovery
    listed: ModelList

    @property
    def provider(self) -> ProviderConfig:
        """The provider's settings."""
        return self.client.provider

    @property
    def lists(self) -> bool:
        """Whether the server's list determines the provider's models, because its settings name none."""
        return not self.provider.models

    @property
    def default(self) -> str:
        """The provider's default model; "" if it has none, or if its server does not list the guessed default.

        Instead of "default" it is the only model that the server has, or the only one that it has in memory.
        """
        if self.presumes(ONLY_MODEL) and ONLY_MODEL not in self.listed and self.listed.only:
            return self.listed.only
        return "" if self.refuted else self.provider.default_model

    @property
    def refuted(self) -> bool:
        """Whether the default model was only guessed (presumed), and the server's list shows that it is wrong."""
        presumed, names = self.provider.default_model, self.listed.names
        if not self.provider.presumed or names is None or presumed in self.listed:
            return False
        return presumed != ONLY_MODEL or len(names) != 1

    def presumes(self, name: str) -> bool:
        """Return whether `name` is this provider's default model and that default is only a guess."""
        return self.provider.presumed and name == self.provider.default_model


class ModelRouter:
    """Finds the server that serves a model. Safe to call from any thread; only `learn` blocks."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = tuple(servers)
        self.generation = 0
        """Incremented when routes may change. A cached route is valid for one generation."""

    def route(self, name: str) -> Server | None:
        """Return the server that serves a model; None if none is known to do so, e.g. as lists were not fetched yet."""
        if not _is_name(name):
            return None
        return (
            self._spelled(name)
            or self._listing(name)
            or self._presuming(name)
            or self._of_family(name)
            or self._taking_any(name)
        )

    def presumed(self, name: str) -> Server | None:
        """Return the server of a model that was accepted earlier; None if it cannot be determined.

        This is the result of `route`. If that is None, for example because no list was fetched since the start, it is
        the server of the provider whose settings name no models, if there is exactly one such provider.
        """
        silent = [server for server in self.servers if server.lists]
        return self.route(name) or (silent[0] if len(silent) == 1 and _is_name(name) else None)

    def undecided(self, name: str) -> bool:
        """Return whether `learn` may find a server for this model."""
        if not _is_name(name) or self._spelled(name) or self._listing(name):
            return False
        if presuming := self._presuming(name):
            return presuming.listed.names is None and not presuming.listed.failure
        if self._of_family(name):
            return False
        return any(server.lists and server.listed.stale for server in self.servers)

    def learn(self, name: str, cancel: CancelToken) -> None:
        """Fetch the lists of servers that may have this model, until one has it. Never raises. Blocks."""
        for server in _nearest(name, (server for server in self.servers if server.lists)):
            server.listed.refresh(cancel)
            self.generation += 1
            if name in server.listed or cancel.cancelled:
                return

    def refusal(self, name: str, offered: Sequence[str]) -> str:
        """Return the reason why no server serves a model, as text for users. `offered` are the names to suggest."""
        shown = offered
        if len(offered) > _SHOWN:
            from difflib import get_close_matches  # noqa: PLC0415 -- only for error messages

            close = get_close_matches(name, offered, n=_SHOWN, cutoff=0.3)
            shown = tuple(dict.fromkeys((*close, *offered)))[:_SHOWN]
        more = f" and {len(offered) - len(shown):,} more" if len(offered) > len(shown) else ""
        silent = [
            f"; provider {server.provider.name} cannot be asked for its models ({server.listed.failure}): "
            f"if it serves this one, say so in its setting `models`"
            for server in self.unreachable
        ]
        variables = " or ".join(f"{server.provider.name.upper()}_MODEL" for server in self.servers if server.refuted)
        none = f"no model is the default here: name one, or set {variables} for the server"
        which = f"the model {name!r} is not available" if name else none
        return f"{which}; there are: {', '.join(shown)}{more}{''.join(silent)}"

    @property
    def unreachable(self) -> tuple[Server, ...]:
        """The servers whose list could not be fetched."""
        return tuple(server for server in self.servers if server.lists and server.listed.failure)

    def _spelled(self, name: str) -> Server | None:
        """Return the server whose settings match the name best, the first one of equal matches; None if none match."""
        fits = ((_fit(server.provider, name), -index) for index, server in enumerate(self.servers))
        fit, index = max(fits, default=(0, 0))
        return self.servers[-index] if fit else None

    def _listing(self, name: str) -> Server | None:
        having = _nearest(name, (server for server in self.servers if server.lists and name in server.listed))
        return having[0] if having else None

    def _presuming(self, name: str) -> Server | None:
        return next((server for server in self.servers if server.presumes(name) and not server.refuted), None)

    def _of_family(self, name: str) -> Server | None:
        """Return the server whose protocol fits the model's name, such as "claude-…" or "gpt-…"; None if there is none.

        A model with a row in models.toml matches without the provider's list. Another name of the family matches only
        if the list cannot be fetched, because the model may be newer than this program.
        """
        known, spoken = limits_of(name) is not None, family_of(name)
        for server in self.servers:
            if server.presumes(name):
                continue
            blind = bool(server.listed.failure) and server.listed.names is None
            if server.lists and server.provider.protocol in spoken and (known or blind):
                return server
        return None

    def _taking_any(self, name: str) -> Server | None:
        taking = _nearest(name, (server for server in self.servers if ANY in server.provider.models))
        return taking[0] if taking else None


def family_of(name: str) -> tuple[str, ...]:
    """Return the protocols over which a model's maker serves it; () if the name does not show the maker."""
    return tuple(
        protocol
        for protocol, traits in PROTOCOLS.items()
        if any(_fits(pattern, name) for pattern in presets()[traits.family]["models"])
    )


def _nearest(name: str, servers: Iterable[Server]) -> list[Server]:
    """Return `servers`, with those first that use a protocol of the model's maker; otherwise in the given order."""
    spoken = family_of(name)
    return sorted(servers, key=lambda server: server.provider.protocol not in spoken)


def _fit(provider: ProviderConfig, name: str) -> int:
    """Return how closely a provider's settings name a model: 0 if they do not, the highest value for the exact name."""
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
