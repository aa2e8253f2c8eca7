"""What is known about providers and models before a server is asked: settings, presets.toml and models.toml.

For providers: URLs, credentials, time limits and differences between their servers. For models: limits and prices.
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from actors.common.settings_checks import is_loopback, one_of, read, unknown_key
from actors.core.content import Usage
from actors.core.context import ReasoningEffort

Row = TypeVar("Row")

ANTHROPIC = "anthropic"
OPENAI_CHAT = "openai-chat"
OPENAI_RESPONSES = "openai-responses"


class ProtocolTraits(Struct, frozen=True):
    """The traits that all servers of one wire protocol share, apart from the request format."""

    family: str
    """The name of the preset for the company that invented the protocol."""
    offers: frozenset[str]
    """The values of `protocol` in models.toml that mark models offered over this protocol."""
    auth: str = "bearer"
    list_path: str = "/models"
    version_header: str = ""


# The protocols that a provider can use, by name.
PROTOCOLS = {
    ANTHROPIC: ProtocolTraits(
        family="anthropic",
        offers=frozenset({ANTHROPIC}),
        auth="x-api-key",
        list_path="/v1/models?limit=1000",  # without the limit, a page has 20 models
        version_header="anthropic-version",
    ),
    OPENAI_CHAT: ProtocolTraits(family="openai", offers=frozenset({OPENAI_CHAT})),
    OPENAI_RESPONSES: ProtocolTraits(family="openai", offers=frozenset({OPENAI_CHAT, OPENAI_RESPONSES})),
}

# The value of the `small_model` setting for no small model.
NO_MODEL = "none"
# The model name sent if none is configured; servers with a single model often accept any name.
ONLY_MODEL = "default"

# Fields of the request body that the `extra_body` setting must not replace. Other values could make the answer
# unreadable, or change the history that the model gets.
OURS = frozenset({"model", "messages", "input", "system", "instructions", "tools", "stream", "store", "include"})

_Seconds = Annotated[float, Meta(gt=0, description="must be a number of seconds greater than 0")]
_Tokens = Annotated[int, Meta(ge=0, description="must be a whole number, 0 or more")]
HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_KEY = re.compile("[!-~]+")
NO_KEY = "contains whitespace or non-ASCII characters"
_KEY_SETTINGS = ("api_key", "api_key_env", "api_key_command")


class Secret:
    """A string that repr, str and format hide, so that it does not get into logs by accident."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    @classmethod
    def of(cls, value: object) -> Secret:
        if not isinstance(value, str):
            raise ValueError("must be a string")
        return cls(value)

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
        raise TypeError("a secret cannot be serialised")


class Timeouts(Struct, frozen=True, forbid_unknown_fields=True):
    """Time limits for the phases of a request, in seconds."""

    connect: _Seconds = 10.0
    """Time for connecting, without name resolution; each step of the TLS handshake has the same limit."""
    first_byte: _Seconds = 300.0
    """Time for sending the request, and then the same time again for receiving the complete response headers."""
    idle: _Seconds = 300.0
    """Maximum time between two chunks of the answer; a ping counts as a chunk."""
    total: Annotated[float, Meta(ge=0, description="must be a number of seconds, 0 for no limit")] = 3600.0
    """Time from the response headers to the end of the answer; 0 for no limit."""


class ProviderConfig(Struct, frozen=True, kw_only=True):
    """The settings of one provider. Raises ValueError with a message such as ".base_url: why".

    Servers of one protocol differ only in these settings, so no code depends on a provider's name. presets.toml
    contains the settings for well-known servers.
    """

    name: str
    preset: str = ""
    protocol: Annotated[str, one_of(PROTOCOLS)]
    """"anthropic", "openai-chat" or "openai-responses". Required."""
    base_url: Annotated[str, Meta(description="must be an http or https URL with a host")]
    """The part of the URL before "/v1/messages" (anthropic), "/chat/completions" or "/responses"."""
    api_key: Secret = Secret()
    api_key_env: str = ""
    api_key_command: tuple[str, ...] = ()
    """A command that prints the key, with its arguments; run for the first request, and again if the key is refused."""
    key_source: str = ""
    """Where the key comes from, e.g. "ANTHROPIC_API_KEY", for messages about a refused key."""
    auth: str = ""
    """How the key is sent: "bearer", or the name of a header. "" means "x-api-key" for anthropic, else "bearer"."""
    models: tuple[str, ...] = ()
    """The models' names. "prefix*" stands for all names with this prefix, "*" for every name.

    () stands for all models that the server lists, and for the models in models.toml that are offered over this
    protocol."""
    default_model: str = ""
    presumed: bool = False
    """Whether `default_model` is only a guess that the server's list may refute. Not a setting."""
    small_model: str = ""
    timeouts: Timeouts = Timeouts()
    headers: Mapping[str, Secret] = {}
    extra_body: Mapping[str, Any] = {}
    """Fields that are merged into the body of every request; none of OURS may be among them."""
    proxy: Secret = Secret()
    """The URL of an HTTP proxy, "http://[user:password@]host:port". Proxy settings in the environment are ignored."""
    ca_bundle: str = ""
    """The path of a PEM file with the authorities to trust instead of the default ones. Certificates are always
    verified."""
    context_window: _Tokens = 0
    """The window of this provider's models, in tokens; 0 if not set. Overrides models.toml and the server."""
    max_output: _Tokens = 0
    """The maximum output of this provider's models, in tokens; 0 if not set. Overrides models.toml and the server."""
    discover: Annotated[str, one_of(("unknown", "always", "never"))] = "unknown"
    """When to ask the server for a model's limits; "unknown" means only if models.toml has no row for the model."""
    loaded_path: str = ""
    """The path at which the server lists loaded models and their windows, e.g. "/api/ps"; "" to use "/models"
    instead."""
    profile: Annotated[str, one_of(("full", "lean"))] = "full"
    """"lean" is for slow models; it means a shorter system prompt and only the essential tools."""
    api_version: str = "2026-10-21"
    prompt_cache: bool = True
    cache_key: bool = False
    """OpenAI only: whether to send the conversation's id as "prompt_cache_key", since each key has its own cache."""
    encrypted_reasoning: bool = True
    """openai-responses only: whether to request encrypted reasoning, which can be sent back in the next request."""
    max_tokens_field: str = "max_tokens"
    """openai-chat only: the field that limits the answer. "" for no limit; newer OpenAI models need
    "max_completion_tokens"."""
    stream_usage: bool = True
    tool_choice: str = ""
    """OpenAI only: the value of "tool_choice"; "" to omit it, "auto" for servers that otherwise ignore tools."""
    system_role: str = "system"
    """openai-chat only: the role of the system prompt; some servers expect "developer"."""
    echo_reasoning: Annotated[str, one_of(("calls", "always", "never"))] = "calls"
    """openai-chat only: which answers are sent back with their reasoning; "calls" means those with tool calls."""
    structured_output: bool = False
    """Whether the server enforces a JSON Schema even if a request has tools. If not, the model answers by calling a
    tool."""
    cost_in_usage: bool = False
    """openai-chat only: whether the usage has a "cost" in dollars, which is then used instead of the price list."""

    def __post_init__(self) -> None:
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
        self._check_secrets()
        url = urlsplit(self.base_url)
        self._check("base_url", not (url.username or url.password), "must not contain credentials; use api_key")
        self._check("base_url", not (url.query or url.fragment), "must not have a query or fragment")
        self._check("auth", not self.auth or bool(HEADER.fullmatch(self.auth)), 'must be "bearer" or a header name')
        ours = self.extra_body.keys() & OURS
        self._check("extra_body", not ours, f"must not contain {', '.join(sorted(ours))}")
        self._check("loaded_path", self.loaded_path[:1] in ("", "/"), "must begin with /")
        self._check("api_key_command", all(self.api_key_command[:1]), "must begin with the program to run")

    def _check_secrets(self) -> None:
        key = self.api_key.reveal()
        if key and not is_key(key):
            self._check("api_key_env", not self.api_key_env, f"{self.api_key_env} {NO_KEY}")
            self._check("api_key", False, NO_KEY)
        for name, value in self.headers.items():
            self._check(f"headers.{name}", not re.search(r"[\r\n\0]", value.reveal()), "contains a line break or NUL")

    def _check(self, field: str, valid: bool, text: str) -> None:
        if not valid:
            raise ValueError(f".{field}: {text}")

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(s.reveal() for s in (self.api_key, self.proxy, *self.headers.values()) if s)

    @property
    def advice(self) -> str:
        """Where the key is configured, for the advice to users whose key was refused."""
        if self.key_source or self.api_key_env:
            return self.key_source or self.api_key_env
        return f"the {'api_key_command' if self.api_key_command else 'api_key'} of provider {self.name}"

    @property
    def local(self) -> bool:
        """Whether the server runs on this machine."""
        return is_loopback(urlsplit(self.base_url).hostname or "")

    def url(self, path: str) -> str:
        return self.base_url.rstrip("/") + path

    @property
    def models_url(self) -> str:
        if self.loaded_path:
            return self.root_url(self.loaded_path)
        return self.list_url

    def root_url(self, path: str) -> str:
        return urlsplit(self.base_url)._replace(path=path).geturl()

    @property
    def list_url(self) -> str:
        return self.url(PROTOCOLS[self.protocol].list_path)

    def request_headers(self) -> dict[str, str]:
        """The headers of every request, including the credentials."""
        headers = {"content-type": "application/json", "user-agent": "phoenix-bedrock"}
        traits = PROTOCOLS[self.protocol]
        if traits.version_header:
            headers[traits.version_header] = self.api_version
        auth = (self.auth or traits.auth).lower()
        if self.api_key and auth == "bearer":
            headers["authorization"] = f"Bearer {self.api_key.reveal()}"
        elif self.api_key:
            headers[auth] = self.api_key.reveal()
        return headers | {name.lower(): value.reveal() for name, value in self.headers.items()}


def is_key(text: str) -> bool:
    """Whether a string can be sent as an API key."""
    return _KEY.fullmatch(text) is not None


@functools.cache
def presets() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("presets.toml").read_text("utf-8"))


def provider_from_mapping(
    name: str, settings: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> ProviderConfig:
    """Read one provider's settings, e.g. from a TOML table.

    `api_key`, `proxy` and the values of `headers` are plain strings; `api_key_env` is looked up in `environ`. Raises a
    ValueError that names the setting but never contains its value.
    """
    where, given = f"providers.{name}", _with_preset(name, settings)
    if unknown := given.keys() - set(SETTINGS):
        raise ValueError(f"{where}.{min(unknown)}: {unknown_key(min(unknown), SETTINGS)}")
    if given.get("small_model") == NO_MODEL:
        given["small_model"] = ""
    if variable := str(given.get("api_key_env", "")):
        if not environ.get(variable):
            raise ValueError(f"{where}.api_key_env: {variable} is not set in the server's environment")
        given["api_key"] = environ[variable]
    return read(ProviderConfig, where, {**given, "name": name})


SETTINGS = tuple(name for name in ProviderConfig.__struct_fields__ if name not in ("name", "presumed"))


def _with_preset(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in missing settings from the preset, except for the source of the key if there already is one.

    Raises ValueError for an unknown preset, or for several sources of the key.
    """
    given = [key for key in _KEY_SETTINGS if settings.get(key)]
    if len(given) > 1:
        raise ValueError(f"providers.{name}.{given[1]}: cannot be combined with {given[0]}")
    if "preset" not in settings:
        return dict(settings)
    preset = settings["preset"]
    if not isinstance(preset, str) or preset not in presets():
        raise ValueError(f"providers.{name}.preset: must be one of {', '.join(presets())}")
    usual = dict(presets()[preset])
    if settings.get("base_url", usual.get("base_url")) != usual.get("base_url"):
        usual.pop("small_model", None)  # a server at another URL may not serve this model
        usual.pop("structured_output", None)
    if any(key in settings for key in _KEY_SETTINGS):
        usual.pop("api_key_env", None)
    return {**usual, **settings}


def providers_from_env(env: Mapping[str, str]) -> tuple[ProviderConfig, ...]:
    """The providers configured by the usual environment variables, Anthropic first.

    Raises a ValueError that names the variable but never contains its value.
    """
    found = (_anthropic_from_env(env), _openai_from_env(env))
    return tuple(provider for provider in found if provider is not None)


def _anthropic_from_env(env: Mapping[str, str]) -> ProviderConfig | None:
    key, token, url = env.get("ANTHROPIC_API_KEY"), env.get("ANTHROPIC_AUTH_TOKEN"), env.get("ANTHROPIC_BASE_URL")
    if not (key or token or url):
        return None
    settings: dict[str, Any] = {
        "preset": "anthropic",
        "api_key": key or token or "",
        "key_source": "ANTHROPIC_API_KEY" if key or not token else "ANTHROPIC_AUTH_TOKEN",
    }
    if token and not key:
        settings["auth"] = "bearer"
    if url:
        settings |= {"base_url": url, "models": []}
    if env.get("ANTHROPIC_MODEL"):
        settings["default_model"] = env["ANTHROPIC_MODEL"]
    return replace(_read_env("anthropic", settings, env), presumed=bool(url and not env.get("ANTHROPIC_MODEL")))


def _openai_from_env(env: Mapping[str, str]) -> ProviderConfig | None:
    """The provider configured by OPENAI_API_KEY and OPENAI_BASE_URL; None if neither is set.

    OpenAI itself is used over Responses, other servers over Chat Completions, which all of them implement.
    """
    key, url = env.get("OPENAI_API_KEY"), env.get("OPENAI_BASE_URL")
    if not (key or url):
        return None
    settings: dict[str, Any] = {"api_key": key or "", "key_source": "OPENAI_API_KEY"}
    if url:
        settings |= {"protocol": OPENAI_CHAT, "base_url": url, "default_model": ONLY_MODEL}
    else:
        settings["preset"] = "openai"
    if env.get("OPENAI_MODEL"):
        settings["default_model"] = env["OPENAI_MODEL"]
    return replace(_read_env("openai", settings, env), presumed=bool(url and not env.get("OPENAI_MODEL")))


def _read_env(name: str, settings: Mapping[str, Any], env: Mapping[str, str]) -> ProviderConfig:
    try:
        return provider_from_mapping(name, settings, env)
    except ValueError as error:
        setting, _, why = str(error).partition(": ")
        variables = {"base_url": f"{name.upper()}_BASE_URL", "api_key": settings["key_source"]}
        raise ValueError(f"{variables.get(setting.rpartition('.')[2], setting)}: {why}") from None


# --- limits and prices of models --------------------------------------------------------------------------------------

# Tokens of the context window to reserve for the answer, and the output limit to send with each request, unless the
# model's own limit is lower.
RESERVED_OUTPUT = 32_000
# The context window assumed for an unknown model on a server that speaks one of OpenAI's protocols.
ASSUMED_WINDOW = 32_768


class LongPrompt(Struct, frozen=True, forbid_unknown_fields=True, rename={"tokens": "from"}):
    """Price factors for requests with over `tokens` input tokens; `input` also applies to cache reads and writes."""

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
    """The protocol of the providers that list this model; "" if none does. Providers with "openai-responses" also list
    "openai-chat" models."""
    name: str = ""
    images: bool | None = None
    reasons: bool = True
    """Whether requests may ask for the model's encrypted reasoning (used only by the protocol "openai-responses")."""
    reasoning_efforts: tuple[ReasoningEffort, ...] = ()
    temperature: bool = False
    price: Price | None = None

    @property
    def reserved_output(self) -> int:
        """The limit on output tokens that requests set, at most RESERVED_OUTPUT."""
        return min(self.output, RESERVED_OUTPUT)

    @property
    def usable_window(self) -> int:
        """How many tokens the history may have: the smaller of the input limit and the window minus reserved output."""
        return min(self.input or self.window, self.window - self.reserved_output)

    def cost_micros(self, usage: Usage) -> int:
        """The cost of `usage` in micro-dollars; 0 if the price is unknown."""
        return self.price.micros(usage) if self.price else 0


Tokens: TypeAlias = Annotated[int, Meta(ge=1, description="must be a whole number of tokens, at least 1")]


class StatedLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """A model's limits as stated by the operator (`[models."name"]`) or by a server.

    A limit that was not stated is None.
    """

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

        `roomy` means that the output limit is a guess: if a window is stated, a quarter of it becomes the output limit,
        even if that is higher.
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
    """The operator's limits, by lower-case prefix of model names. Raises a ValueError that names the invalid key."""
    result = {}
    for name, table in tables.items():
        result[name.lower()] = read(StatedLimits, f'models."{name}"', table)
    return result


msgspec.json.Decoder(ModelLimits)  # its first use must not happen on two threads at the same time; see rows.py


@functools.cache
def known_limits() -> dict[str, ModelLimits]:
    text = Path(__file__).with_name("models.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text)["models"], dict[str, ModelLimits])


@functools.lru_cache(maxsize=256)
def limits_of(model: str) -> ModelLimits | None:
    """A model's row in models.toml; None if there is none."""
    return best_match(known_limits(), model)


def best_match(rows: Mapping[str, Row], model: str) -> Row | None:
    """The row whose key is the longest prefix of `model` up to a word boundary, or None.

    Ignores case, and a vendor's name before "/".
    """
    full = model.lower()
    prefixes = [prefix for prefix in rows if _begins(full, prefix) or _begins(full.rpartition("/")[2], prefix)]
    return rows[max(prefixes, key=len)] if prefixes else None


def _begins(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and not name[len(prefix) : len(prefix) + 1].isalnum()


@functools.cache
def assumed_limits(protocol: str) -> ModelLimits:
    """The limits of a model without a row in models.toml (REQ-BED-022).

    Servers that speak OpenAI's protocols have new and private models, hardly any of them with a window below 32,768
    tokens. For Anthropic's protocol, the smallest known window is assumed.
    """
    if protocol != ANTHROPIC:
        return ModelLimits(ASSUMED_WINDOW, ASSUMED_WINDOW // 4, temperature=True)
    smallest = min(known_limits().values(), key=lambda row: (row.usable_window, row.output))
    return ModelLimits(smallest.window, smallest.output, smallest.input, temperature=True)


def resolve_limits(
    model: str, provider: ProviderConfig, operator: Mapping[str, StatedLimits], server: StatedLimits | None
) -> tuple[ModelLimits, bool]:
    """A model's limits, and whether they are known rather than assumed (REQ-BED-022).

    The sources in order of precedence: the operator's settings for the model, those for the provider, what its server
    states, models.toml.
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

    The server is not asked if a setting states the window, if `discover` is "never", or if `discover` is "unknown" and
    models.toml has a row for the model.
    """
    stated = best_match(operator, model)
    if provider.discover == "never" or provider.context_window or (stated is not None and stated.window):
        return False
    return provider.discover == "always" or limits_of(model) is None
