"""Finds out limits and prices of models by asking the provider's server.

The first request to a model with unknown limits asks the server; the answer is cached until the process ends.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from actors.adapters.llm.model_limits import Price, StatedLimits
from actors.adapters.llm.protocols.token_usage import token_count
from actors.adapters.llm.provider import Timeouts
from actors.adapters.llm.transport.connections import TransportError
from actors.core.errors import ErrorKind
from actors.ports import CancelToken, ModelAbortedError, ModelFailedError

if TYPE_CHECKING:
    from actors.adapters.llm.provider_client import ProviderClient

log = logging.getLogger(__name__)

#: Time limits in seconds for asking a server. They are short, since a model request waits for the answer.
PATIENCE = Timeouts(connect=3, first_byte=5, idle=5, total=10)
#: Seconds before a failed discovery is tried again.
AGAIN_SECONDS = 60.0
#: Maximum bytes of a list of models that are read.
_MAX_LIST = 16 << 20


class _Meta(Struct):
    n_ctx: Any = None


class _Architecture(Struct):
    input_modalities: Any = None


class _Entry(Struct):
    """One model in a server's list, with the fields that different servers use.

    The servers are llama.cpp, vLLM, OpenRouter, Anthropic, Ollama and LM Studio.
    """

    id: Any = None
    name: Any = None
    aliases: Any = None
    type: Any = None
    loaded_context_length: Any = None
    meta: _Meta | None = None
    max_model_len: Any = None
    context_length: Any = None
    max_input_tokens: Any = None
    max_tokens: Any = None
    top_provider: dict[str, Any] | None = None
    pricing: dict[str, Any] | None = None
    architecture: _Architecture | None = None


class _List(Struct):
    data: list[_Entry] | None = None
    models: list[_Entry] | None = None


_LIST = msgspec.json.Decoder(_List)

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
            again = time.monotonic() - self._failed_at.get(model, float("-inf")) >= AGAIN_SECONDS
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
            raise TransportError(ErrorKind.SERVER_ERROR, f"HTTP {reply.status}")


class _NotLoadedError(Exception):
    """The server reports context windows of loaded models only, and has not loaded this model yet."""


def limits_in_list(body: bytes, model: str, *, loaded: bool = False) -> StatedLimits | None:
    """Return the limits of `model` in a server's list of models; None if the list states no limits of this model.

    In the list, ":latest" may follow the name. If the list has only one entry, that entry is used whatever its name is,
    except if `loaded` is True, which means that the server lists only the models that it has loaded. Raises
    msgspec.DecodeError if `body` is no list of models.
    """
    found = _LIST.decode(body)
    entries = found.models if found.data is None else found.data
    if entries is None:
        raise msgspec.DecodeError("it is no list of models")
    names = (model, f"{model}:latest")
    named = [each for each in entries if any(said in names for said in (each.id, each.name, *_texts(each.aliases)))]
    entry = next(iter(named or (entries if len(entries) == 1 and not loaded else ())), None)
    if entry is None:
        return None
    provided = entry.top_provider or {}
    windows = (
        entry.meta and entry.meta.n_ctx, entry.max_model_len, entry.loaded_context_length, entry.context_length,
        entry.max_input_tokens,
    )  # fmt: skip
    outputs = (token_count(provided, "max_completion_tokens"), token_count(entry.max_tokens))
    modalities = entry.architecture and _texts(entry.architecture.input_modalities)
    sees = "image" in modalities if modalities else None
    stated = StatedLimits(
        window=next(filter(None, map(token_count, windows)), None),
        output=next(filter(None, outputs), None),
        images=True if entry.type == "vlm" else sees,
        price=_price(entry.pricing or {}),
    )
    return stated if stated != StatedLimits() else None


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _price(pricing: dict[str, Any]) -> Price | None:
    """Return the prices in an OpenRouter entry; None if it has no fixed prices for input and output.

    OpenRouter's prices are texts in dollars per token; negative numbers mean that prices vary.
    """
    names = ("prompt", "completion", "input_cache_read", "input_cache_write")
    prompt, completion, read, write = (_per_million(pricing.get(name)) for name in names)
    return Price(prompt, completion, read, write) if prompt is not None and completion is not None else None


def _per_million(text: object) -> float | None:
    try:
        dollars = float(text) if isinstance(text, str) else -1.0
    except ValueError:
        return None
    return dollars * 1_000_000 if 0 <= dollars < 1 else None
