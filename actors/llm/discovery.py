"""What a server tells about its models: asked once per model, by the first request to it, and believed for good."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import msgspec
from msgspec import Struct

from actors.core.errors import ErrorKind
from actors.llm.answer import counted
from actors.llm.connections import TransportFailed
from actors.llm.exchange import Exchange
from actors.llm.limits import Price, Stated
from actors.llm.provider import ANTHROPIC, Timeouts
from actors.ports import CancelToken, ModelAborted, ModelFailed

log = logging.getLogger(__name__)

#: A request waits for this, so it is short; a server that is slow to tell is asked again by a later request.
PATIENCE = Timeouts(connect=3, first_byte=5, idle=5, total=10)
#: Seconds before a server that could not be asked is asked again.
AGAIN_SECONDS = 60.0
#: Bytes of a list of models.
_MAX_LIST = 16 << 20


class _Meta(Struct):
    n_ctx: Any = None


class _Architecture(Struct):
    input_modalities: Any = None


class _Entry(Struct):
    """A model as llama.cpp, vLLM, OpenRouter and Anthropic list it; each tells something else."""

    id: Any = None
    aliases: Any = None
    meta: _Meta | None = None
    max_model_len: Any = None
    context_length: Any = None
    max_input_tokens: Any = None
    max_tokens: Any = None
    top_provider: dict[str, Any] | None = None
    pricing: dict[str, Any] | None = None
    architecture: _Architecture | None = None


class _List(Struct):
    data: list[_Entry]


_LIST = msgspec.json.Decoder(_List)

#: The server has no such list; others may change their mind.
_NO_LIST = frozenset({400, 404, 405, 410, 501})


class Discovery:
    """Limits that one provider's server tells. Any thread; only `look` waits."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._lock = threading.Lock()
        self._told: dict[str, Stated | None] = {}
        self._failed_at: dict[str, float] = {}
        self._asking: set[str] = set()

    def told(self, model: str) -> Stated | None:
        """What is known by now."""
        return self._told.get(model)

    def look(self, model: str, cancel: CancelToken) -> None:
        """Ask the server, if nobody has or does. Never raises: whatever goes wrong, the model stays unknown."""
        with self._lock:
            again = time.monotonic() - self._failed_at.get(model, float("-inf")) >= AGAIN_SECONDS
            if model in self._told or model in self._asking or not again:
                return
            self._asking.add(model)
        try:
            self._told[model] = self._ask(model, cancel)
        except (TransportFailed, ModelFailed, ModelAborted, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if not cancel.cancelled:
                self._failed_at[model] = time.monotonic()
                log.info("provider %s does not tell the limits of its models", self._exchange.provider.name)
        finally:
            with self._lock:
                self._asking.discard(model)

    def _ask(self, model: str, cancel: CancelToken) -> Stated | None:
        provider = self._exchange.keys.armed(cancel)
        # Anthropic gives pages of twenty.
        url = provider.url("/v1/models?limit=1000" if provider.protocol == ANTHROPIC else "/models")
        send = self._exchange.transport.send
        with send("GET", url, provider.request_headers(), b"", cancel, timeouts=PATIENCE) as reply:
            if 200 <= reply.status < 300:
                return stated_in(reply.read_all(_MAX_LIST), model)
            if reply.status in _NO_LIST:
                return None
            raise TransportFailed(ErrorKind.SERVER_ERROR, f"HTTP {reply.status}")


def stated_in(body: bytes, model: str) -> Stated | None:
    """What a list of models says about one; the only one of a list is meant whatever its name.

    Raises msgspec.DecodeError if it is no such list.
    """
    entries = _LIST.decode(body).data
    named = [entry for entry in entries if entry.id == model or model in _texts(entry.aliases)]
    entry = next(iter(named or (entries if len(entries) == 1 else ())), None)
    if entry is None:
        return None
    provided = entry.top_provider or {}
    windows = (entry.meta and entry.meta.n_ctx, entry.max_model_len, entry.context_length, entry.max_input_tokens)
    outputs = (counted(provided, "max_completion_tokens"), counted(entry.max_tokens))
    modalities = entry.architecture and _texts(entry.architecture.input_modalities)
    stated = Stated(
        window=next(filter(None, map(counted, windows)), None),
        output=next(filter(None, outputs), None),
        images="image" in modalities if modalities else None,
        price=_price(entry.pricing or {}),
    )
    return stated if stated != Stated() else None


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _price(pricing: dict[str, Any]) -> Price | None:
    """OpenRouter's prices: texts, in dollars per token; negative where they vary."""
    names = ("prompt", "completion", "input_cache_read", "input_cache_write")
    prompt, completion, read, write = (_per_million(pricing.get(name)) for name in names)
    return Price(prompt, completion, read, write) if prompt is not None and completion is not None else None


def _per_million(text: object) -> float | None:
    try:
        dollars = float(text) if isinstance(text, str) else -1.0
    except ValueError:
        return None
    return dollars * 1_000_000 if 0 <= dollars < 1 else None
