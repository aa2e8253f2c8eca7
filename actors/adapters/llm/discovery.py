"""What one provider's server says of its models: their names, and their limits and prices.

Names are fetched when a user names an unknown model, limits for the first request to a model whose limits are unknown.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

from actors.adapters.llm.model_limits import Price, StatedLimits
from actors.adapters.llm.protocols.answer_builder import token_count
from actors.adapters.llm.provider import Timeouts
from actors.adapters.llm.transport.connections import TransportError
from actors.core.errors import ErrorKind
from actors.ports import CancelToken, ModelAbortedError, ModelFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from actors.adapters.llm.provider_client import ProviderClient

log = logging.getLogger(__name__)

#: Time limits in seconds for fetching a server's list of models. They are short, since a client that names an unknown
#: model waits for the list.
LIST_TIMEOUTS = Timeouts(connect=2, first_byte=3, idle=3, total=5)
#: Seconds after which the list may be fetched again: models change, and a server may be running again.
LIST_AGAIN_SECONDS = 10.0
#: Where Ollama lists the models that it has in memory.
OLLAMA_LOADED = "/api/ps"
#: Maximum bytes of a list that are read; OpenRouter's list has half a megabyte.
_MAX_BYTES = 16 << 20
#: Maximum number of names that are kept from one list.
_MAX_NAMES = 5_000


class ModelList:
    """The list of one provider's models. Safe to call from any thread; only `refresh` blocks."""

    def __init__(self, client: ProviderClient) -> None:
        self._client = client
        self._lock = threading.Lock()  # held while the list is fetched, so that concurrent callers wait for one request
        self._requested_at = float("-inf")
        self.names: tuple[str, ...] | None = None
        """The listed names; None if the server was not asked yet, or has never answered with a list."""
        self.loaded: tuple[str, ...] = ()
        """Those of several models that the server has in memory; only Ollama's reports them."""
        self.failure = ""
        """Why the last fetch failed, as the end of a sentence; "" if it succeeded."""

    @property
    def stale(self) -> bool:
        """Whether the list is old enough to be fetched again, or was never fetched."""
        return time.monotonic() - self._requested_at >= LIST_AGAIN_SECONDS

    @property
    def only(self) -> str:
        """The only model that the server has, or the only one that it has in memory; "" if there is no such model."""
        found = self.names if self.names is not None and len(self.names) == 1 else self.loaded
        return found[0] if len(found) == 1 else ""

    def __contains__(self, name: str) -> bool:
        """Return whether the server lists the model; ":latest" may be omitted from Ollama's names."""
        return self.names is not None and (name in self.names or f"{name}:latest" in self.names)

    def refresh(self, cancel: CancelToken) -> None:
        """Fetch the list unless that was done less than LIST_AGAIN_SECONDS ago. Never raises.

        Concurrent callers wait for one fetch. After a failure the previous list is kept.
        """
        with self._lock:
            if not self.stale:
                return
            names, failure = self._try_fetch(self._client.provider.list_url, cancel)
            loaded: tuple[str, ...] = ()
            if self._client.provider.presumed and names is not None and len(names) > 1:
                loaded = self._try_fetch(self._client.provider.root_url(OLLAMA_LOADED), cancel)[0] or ()
            if cancel.cancelled:
                return
            self._requested_at = time.monotonic()
            self.names, self.failure, self.loaded = names or self.names, failure, loaded
            if failure:
                log.info("provider %s does not list its models: %s", self._client.provider.name, failure)

    def _try_fetch(self, url: str, cancel: CancelToken) -> tuple[tuple[str, ...] | None, str]:
        """Fetch a list of models; return the names and "" on success, None and the reason on failure."""
        try:
            return self._fetch(url, cancel), ""
        except TransportError as failed:
            return None, failed.text
        except ModelFailedError as failed:
            return None, failed.failure.message.rstrip(".")
        except ModelAbortedError:
            return None, "the request was cancelled"
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None, "its list of models cannot be understood"

    def _fetch(self, url: str, cancel: CancelToken) -> tuple[str, ...]:
        if self._client.provider.discover == "never":
            raise TransportError('its settings say discover = "never"', ErrorKind.INVALID_REQUEST)
        provider = self._client.keys.with_key(cancel)
        send = self._client.transport.send
        with send("GET", url, provider.request_headers(), (), cancel, timeouts=LIST_TIMEOUTS) as reply:
            if not 200 <= reply.status < 300:
                raise TransportError(f"it has no list of models (HTTP {reply.status})", ErrorKind.SERVER_ERROR)
            return listed_in(reply.read_all(_MAX_BYTES))


def lists_in(body: bytes) -> list[list[dict[str, Any]]]:
    """Return a server's lists of its models, each as an object; what is neither an object nor a name is left out.

    They are in `data` and `models` (llama.cpp has both), or one stands alone. Raises msgspec.DecodeError,
    UnicodeDecodeError or RecursionError if `body` is no list of models.
    """
    found = msgspec.json.decode(body)
    if isinstance(found, dict):
        lists = [found[key] for key in ("data", "models") if isinstance(found.get(key), list)]
    else:
        lists = [found] if isinstance(found, list) else []
    if not lists:
        raise msgspec.DecodeError("not a list of models")
    return [[each for each in map(_entry, entries) if isinstance(each, dict)] for entries in lists]


def _entry(model: object) -> object:
    return {"id": model} if isinstance(model, str) else model


def names_of(entry: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of a model in a server's list: its id, or else another name, and its aliases."""
    aliases = entry.get("aliases")
    name = next((entry[key] for key in ("id", "name", "model_name") if entry.get(key)), None)
    return tuple(filter(_usable, (name, *(aliases if isinstance(aliases, list) else ()))))


def listed_in(body: bytes) -> tuple[str, ...]:
    """Return the names in a server's list of models, in the server's order. Raises what `lists_in` raises."""
    entries = itertools.chain.from_iterable(lists_in(body))
    names = dict.fromkeys(itertools.chain.from_iterable(map(names_of, entries)))
    return tuple(names)[:_MAX_NAMES]


def _usable(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and bool(name.strip()) and name.isprintable() and len(name) <= 200


#: Time limits in seconds for asking a server. They are short, since a model request waits for the answer.
PATIENCE = Timeouts(connect=3, first_byte=5, idle=5, total=10)
#: Seconds before a failed discovery is tried again.
LIMITS_AGAIN_SECONDS = 60.0
#: Maximum bytes of a list of models that are read.
_MAX_LIST = 16 << 20


#: The fields in which servers state the window of a model, those that hold for the server as it runs first: llama.cpp,
#: LM Studio, vLLM, Groq, OpenRouter, GitHub Copilot, Mistral, Anthropic and LiteLLM. Ollama's model_info has the name
#: of the model's family before the field.
_WINDOWS = (
    "n_ctx", "loaded_context_length", "max_model_len", "context_window", "context_length", "max_context_window_tokens",
    "max_context_length", "max_input_tokens", "n_ctx_train",
)  # fmt: skip
_OUTPUTS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
#: Those that state what a model could have, not what it has been loaded with.
_POSSIBLE = frozenset({"max_context_length", "n_ctx_train"})
#: Where these fields are: in the entry itself, and in objects inside it.
_PLACES = ("meta", "model_info", "limits", "top_provider")

#: HTTP statuses that mean that a server has no list of models. After one of them the server is not asked again for the
#: same model; after any other error status it is.
_NO_LIST = frozenset({400, 404, 405, 410, 501})


class Discovery:
    """Caches the limits that one provider's server states for its models.

    Safe to call from any thread; only `ask_server` blocks.
    """

    def __init__(self, client: ProviderClient) -> None:
        self._client = client
        self._lock = threading.Lock()  # guards _asking; not held while the server is asked
        self._known: dict[str, StatedLimits | None] = {}
        self._failed_at: dict[str, float] = {}
        self._asking: set[str] = set()
        self.images_refused: set[str] = set()
        """The models for which the provider has refused images, since this process was started."""

    def known(self, model: str) -> StatedLimits | None:
        """Return the limits that the server has stated for `model`; None if it was not asked, or stated none."""
        return self._known.get(model)

    def ask_server(self, model: str, cancel: CancelToken) -> None:
        """Ask the server for the limits of `model`, unless it was already asked, is being asked, or has just failed.

        Never raises. After an error the limits stay unknown.
        """
        with self._lock:
            again = time.monotonic() - self._failed_at.get(model, float("-inf")) >= LIMITS_AGAIN_SECONDS
            if model in self._known or model in self._asking or not again:
                return
            self._asking.add(model)
        try:
            self._known[model] = self._fetch(model, cancel)
        except _NotLoadedError:
            pass  # the model request that now follows loads the model, so the request after it asks again
        except (
            TransportError,
            ModelFailedError,
            ModelAbortedError,
            msgspec.DecodeError,
            UnicodeDecodeError,
            RecursionError,
        ):
            if not cancel.cancelled:
                self._failed_at[model] = time.monotonic()
                log.info("provider %s does not tell the limits of its models", self._client.provider.name)
        finally:
            with self._lock:
                self._asking.discard(model)

    def _fetch(self, model: str, cancel: CancelToken) -> StatedLimits | None:
        """Ask the server for the limits of `model`, and return them; None if the server states none.

        Raises _NotLoadedError, and the errors of the transport, the key command and the decoder.
        """
        provider = self._client.keys.with_key(cancel)
        send = self._client.transport.send
        with send("GET", provider.models_url, provider.request_headers(), (), cancel, timeouts=PATIENCE) as reply:
            if 200 <= reply.status < 300:
                stated = limits_in_list(reply.read_all(_MAX_LIST), model, loaded=bool(provider.loaded_path))
                if provider.loaded_path and (stated is None or stated.window is None):
                    raise _NotLoadedError
                return stated
            if reply.status in _NO_LIST:
                return None
            raise TransportError(f"HTTP {reply.status}", ErrorKind.SERVER_ERROR)


class _NotLoadedError(Exception):
    """The server reports context windows of loaded models only, and has not loaded this model yet."""


def limits_in_list(body: bytes, model: str, *, loaded: bool = False) -> StatedLimits | None:
    """Return the limits of `model` in a server's list of models; None if the list states no limits of this model.

    In the list, ":latest" may follow the name. If the list has only one entry, that entry is used whatever its name is,
    except if `loaded` is True, which means that the server lists windows of loaded models only. Raises what `lists_in`
    raises if `body` is no list of models.
    """
    names = {model, f"{model}:latest"}
    for entries in lists_in(body):
        named = [each for each in entries if names & {*names_of(each), *filter(_is_text, (each.get("name"),))}]
        for entry in (named or (entries if len(entries) == 1 and not loaded else ()))[:1]:
            if stated := _stated(entry, loaded=loaded):
                return stated
    return None


def _stated(entry: dict[str, Any], *, loaded: bool) -> StatedLimits | None:
    inner = [entry.get(place) for place in _PLACES]
    capabilities = entry.get("capabilities")
    if isinstance(capabilities, dict):
        inner.append(capabilities.get("limits"))
    places = [entry, *(place for place in inner if isinstance(place, dict))]
    of_family = [name for place in places for name in place if name.endswith(".context_length")]
    architecture = entry.get("architecture")
    modalities = architecture.get("input_modalities") if isinstance(architecture, dict) else None
    sees = "image" in modalities if isinstance(modalities, list) and any(map(_is_text, modalities)) else None
    stated = StatedLimits(
        window=_count_in(places, (name for name in (*_WINDOWS, *of_family) if not loaded or name not in _POSSIBLE)),
        output=_count_in(places, _OUTPUTS),
        images=True if entry.get("type") == "vlm" else sees,
        price=_price(entry.get("pricing")),
    )
    return stated if stated != StatedLimits() else None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _count_in(places: Sequence[dict[str, Any]], names: Iterable[str]) -> int | None:
    """Return the count that one of the places has by one of the names, the first name first; None if there is none."""
    return next(filter(None, (token_count(place.get(name)) for name in names for place in places)), None)


def _price(pricing: object) -> Price | None:
    """Return the prices in an OpenRouter entry; None if it has no fixed prices for input and output.

    OpenRouter's prices are texts in dollars per token; negative numbers mean that prices vary.
    """
    if not isinstance(pricing, dict):
        return None
    names = ("prompt", "completion", "input_cache_read", "input_cache_write")
    prompt, completion, read, write = (_per_million(pricing.get(name)) for name in names)
    return Price(prompt, completion, read, write) if prompt is not None and completion is not None else None


def _per_million(text: object) -> float | None:
    try:
        dollars = float(text) if isinstance(text, str) else -1.0
    except ValueError:
        return None
    return dollars * 1_000_000 if 0 <= dollars < 1 else None
