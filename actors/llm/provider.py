"""Where models are asked: one provider's address, credentials and manners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct, convert
from msgspec.structs import fields

ANTHROPIC = "anthropic"
OPENAI_CHAT = "openai-chat"
PROTOCOLS = (ANTHROPIC, OPENAI_CHAT)

ANTHROPIC_URL = "https://api.anthropic.com"
OPENAI_URL = "https://api.openai.com/v1"


class Secret:
    """A text that is shown only to whom it is for: its repr, str and format are masked."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return "Secret(***)" if self._text else "Secret()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("a secret is not serialised")


class Timeouts(Struct, frozen=True, forbid_unknown_fields=True):
    """How long each phase of a request may take. Seconds."""

    connect: float = 10.0
    """Name resolution excluded, TLS handshake per step."""
    first_byte: float = 300.0
    """From the request until the end of the answer's headers, also if they drip in."""
    idle: float = 300.0
    """Between two pieces of the answer; pings count as pieces."""
    total: float = 3600.0
    """The answer as a whole, headers on; 0: no limit."""

    def __post_init__(self) -> None:
        if min(self.connect, self.first_byte, self.idle) <= 0 or self.total < 0:
            raise ValueError("time-outs must be positive")


class ProviderConfig(Struct, frozen=True, kw_only=True):
    """One provider. Construction raises ValueError naming the field that is wrong."""

    name: str
    protocol: str
    """"anthropic" or "openai-chat"; declared, never guessed."""
    base_url: str
    """Up to, without, "/v1/messages" (anthropic) or "/chat/completions" (openai-chat)."""
    api_key: Secret = Secret()
    """Empty: no credentials are sent."""
    key_source: str = ""
    """Where the key came from, for advice: e.g. "ANTHROPIC_API_KEY"."""
    bearer: bool = False
    """Anthropic only: send "Authorization: Bearer" instead of "x-api-key"."""
    models: tuple[str, ...] = ("*",)
    """Names that are served; one that ends with "*" stands for all that begin so."""
    default_model: str = ""
    timeouts: Timeouts = Timeouts()
    headers: Mapping[str, Secret] = {}
    """Sent with every request."""
    proxy: Secret = Secret()
    """"http://[user:password@]host:port"; the environment's proxies are never used."""
    ca_bundle: str = ""
    """PEM file of the authorities to trust instead of the usual ones; certificates are always verified."""
    context_window: int = 0
    """Tokens; overrides the table for all models of this provider."""
    max_output: int = 0
    """Tokens; likewise."""
    api_version: str = "2026-10-21"
    """Anthropic only."""
    prompt_cache: bool = True
    """Anthropic only: ask for automatic prompt caching."""
    max_tokens_field: str = "max_tokens"
    """OpenAI only: newer OpenAI models want "max_completion_tokens"."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a provider needs a name")
        self._check("protocol", self.protocol in PROTOCOLS, f"must be one of {', '.join(PROTOCOLS)}")
        for field, schemes, text in (
            ("base_url", ("http", "https"), self.base_url),
            ("proxy", ("http", ""), self.proxy.reveal()),
        ):
            try:
                url = urlsplit(text)
                valid = url.scheme in schemes and bool(url.hostname or not text) and url.port != 0
            except ValueError:
                valid = False
            self._check(field, valid, f"must be an {' or '.join(filter(None, schemes))} URL with a host")
        url = urlsplit(self.base_url)
        self._check("base_url", not (url.username or url.password), "must not contain credentials; use api_key")
        self._check("base_url", not (url.query or url.fragment), "must not have a query or fragment")

    def _check(self, field: str, valid: bool, text: str) -> None:
        if not valid:
            raise ValueError(f"providers.{self.name}.{field}: {text}")

    @property
    def secrets(self) -> tuple[str, ...]:
        """Everything that must never be shown."""
        return tuple(s.reveal() for s in (self.api_key, self.proxy, *self.headers.values()) if s)

    def url(self, path: str) -> str:
        return self.base_url.rstrip("/") + path

    def request_headers(self) -> dict[str, str]:
        """What every request carries, credentials included."""
        headers = {"content-type": "application/json", "user-agent": "phoenix-bedrock"}
        if self.protocol == ANTHROPIC:
            headers["anthropic-version"] = self.api_version
        if self.api_key and self.protocol == ANTHROPIC and not self.bearer:
            headers["x-api-key"] = self.api_key.reveal()
        elif self.api_key:
            headers["authorization"] = f"Bearer {self.api_key.reveal()}"
        return headers | {name.lower(): value.reveal() for name, value in self.headers.items()}


def provider_from_mapping(name: str, settings: Mapping[str, Any]) -> ProviderConfig:
    """Read one provider from plain configuration data, e.g. a TOML table.

    `api_key`, `proxy` and the values of `headers` are plain texts there. Raises ValueError naming the key; its text
    holds no value.
    """
    known = {field.name: field.type for field in fields(ProviderConfig)}
    arguments: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in known or key == "name":
            raise ValueError(f"providers.{name}.{key}: unknown setting")
        try:
            match key:
                case "api_key" | "proxy":
                    arguments[key] = Secret(convert(value, str))
                case "headers":
                    arguments[key] = {k: Secret(v) for k, v in convert(value, dict[str, str]).items()}
                case _:
                    arguments[key] = convert(value, known[key])
        except (TypeError, ValueError):
            raise ValueError(f"providers.{name}.{key}: has the wrong type") from None
    for key in ("protocol", "base_url"):
        if key not in arguments:
            raise ValueError(f"providers.{name}.{key}: is missing")
    return ProviderConfig(name=name, **arguments)


def providers_from_env(env: Mapping[str, str]) -> tuple[ProviderConfig, ...]:
    """The providers that the usual environment variables describe, Anthropic first; () without any."""
    found = (_anthropic_from_env(env), _openai_from_env(env))
    return tuple(provider for provider in found if provider is not None)


def _anthropic_from_env(env: Mapping[str, str]) -> ProviderConfig | None:
    key, token, url = env.get("ANTHROPIC_API_KEY"), env.get("ANTHROPIC_AUTH_TOKEN"), env.get("ANTHROPIC_BASE_URL")
    if not (key or token or url):
        return None
    return ProviderConfig(
        name="anthropic",
        protocol=ANTHROPIC,
        base_url=url or ANTHROPIC_URL,
        api_key=Secret(key or token or ""),
        key_source="ANTHROPIC_API_KEY" if key or not token else "ANTHROPIC_AUTH_TOKEN",
        bearer=bool(token and not key),
        models=("*",) if url else ("claude-*",),
        default_model=env.get("ANTHROPIC_MODEL") or "claude-sonnet-5-5",
    )


def _openai_from_env(env: Mapping[str, str]) -> ProviderConfig | None:
    key, url = env.get("OPENAI_API_KEY"), env.get("OPENAI_BASE_URL")
    if not (key or url):
        return None
    return ProviderConfig(
        name="openai",
        protocol=OPENAI_CHAT,
        base_url=url or OPENAI_URL,
        api_key=Secret(key or ""),
        key_source="OPENAI_API_KEY",
        models=("*",) if url else ("gpt-*", "o1*", "o3*", "o4*", "chatgpt-*"),
        # A server of one's own often has one model and takes any name for it.
        default_model=env.get("OPENAI_MODEL") or ("default" if url else "gpt-5.2"),
        max_tokens_field="max_tokens" if url else "max_completion_tokens",
    )
