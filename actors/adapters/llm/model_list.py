"""The model names that one provider's server lists: fetched when a user names an unknown model, then cached."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

from actors.adapters.llm.provider import Timeouts
from actors.adapters.llm.transport.connections import TransportError
from actors.core.errors import ErrorKind
from actors.ports import CancelToken, ModelAbortedError, ModelFailedError

if TYPE_CHECKING:
    from actors.adapters.llm.provider_client import ProviderClient

log = logging.getLogger(__name__)

#: Time limits in seconds for fetching a server's list of models. They are short, since a client that names an unknown
#: model waits for the list.
LIST_TIMEOUTS = Timeouts(connect=2, first_byte=3, idle=3, total=5)
#: Seconds after which the list may be fetched again: models change, and a server may be running again.
AGAIN_SECONDS = 10.0
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
        return time.monotonic() - self._requested_at >= AGAIN_SECONDS

    @property
    def only(self) -> str:
        """The only model that the server has, or the only one that it has in memory; "" if there is no such model."""
        found = self.names if self.names is not None and len(self.names) == 1 else self.loaded
        return found[0] if len(found) == 1 else ""

    def __contains__(self, name: str) -> bool:
        """Return whether the server lists the model; ":latest" may be omitted from Ollama's names."""
        return self.names is not None and (name in self.names or f"{name}:latest" in self.names)

    def refresh(self, cancel: CancelToken) -> None:
        """Fetch the list unless that was done less than AGAIN_SECONDS ago. Never raises.

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
        raise msgspec.DecodeError("it is no list of models")
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
