"""Model requests in tests: builders of requests and providers, a recording sink, a thread that can be cancelled."""

import threading
from typing import Any

from actors.adapters.llm.catalog import Catalog
from actors.adapters.llm.http_model import HttpModel
from actors.adapters.llm.provider import ProviderConfig, Secret, Timeouts
from actors.core.content import Content, Text
from actors.core.context import ToolGroup, ToolTraits
from actors.core.history import ProviderView, Turn
from actors.ports import CancelToken, Model, ModelAbortedError, ModelAnswer, ModelFailedError, ModelRequest, ToolSpec

KEY = "sk-test-0123456789abcdef"
QUICK = Timeouts(connect=5, first_byte=5, idle=5)


class Sink:
    """Record what a model streams."""

    def __init__(self) -> None:
        self.begun = 0
        self.said: list[str] = []
        self.thought: list[str] = []
        self.heard = threading.Event()
        self.flushed: list[int] = []
        """How many pieces of text had arrived by each flush."""

    def started(self) -> None:
        self.begun += 1

    def text(self, text: str, *, reasoning: bool = False) -> None:
        (self.thought if reasoning else self.said).append(text)
        self.heard.set()

    def flush(self) -> None:
        self.flushed.append(len(self.said) + len(self.thought))


def provider(protocol: str, url: str, **settings: Any) -> ProviderConfig:
    settings = {"name": "fake", "api_key": Secret(KEY), "timeouts": QUICK, "discover": "never", **settings}
    return ProviderConfig(protocol=protocol, base_url=url, **settings)


_catalogs: list[Catalog] = []


def model(protocol: str, url: str, name: str = "claude-sonnet-4-5", **settings: Any) -> Model:
    """Return a model of a provider of its own, whose connections `close_models` closes."""
    catalog = Catalog((provider(protocol, url, **settings),))
    _catalogs.append(catalog)
    found = catalog.get(name)
    assert found is not None
    return found


def close_models() -> None:
    """Close the kept connections of all models that tests have made."""
    while _catalogs:
        _catalogs.pop().close()


def tool(name: str, **properties: str) -> ToolSpec:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return ToolSpec(f"Runs {name}.", schema, ToolTraits(name, ToolGroup.OTHER))


BASH = tool("bash", cmd="string")


def user(*blocks: Content | str) -> Turn:
    return Turn("user", tuple(Text(block) if isinstance(block, str) else block for block in blocks))


def assistant(*blocks: Content | str) -> Turn:
    return Turn("assistant", user(*blocks).content)


def request(
    *turns: Turn, tools: tuple[ToolSpec, ...] = (BASH,), system: str = "Be brief.", attempt: int = 1
) -> ModelRequest:
    return ModelRequest("c1", "c1:r7", attempt, system, tools, ProviderView(turns or (user("Hello"),)))


def body_of(config: ProviderConfig, asked: ModelRequest, name: str = "claude-sonnet-4-5") -> bytes:
    """Return the body of a request, encoded by a new model with an empty cache."""
    found = Catalog((config,)).get(name)
    assert isinstance(found, HttpModel)
    return found.body_of(asked)


def ask(asked: Model, *turns: Turn, sink: Sink | None = None, **settings: Any) -> ModelAnswer:
    return asked.respond(request(*turns, **settings), sink or Sink(), CancelToken())


def failure(asked: Model, *turns: Turn, sink: Sink | None = None) -> ModelFailedError:
    """Return the failure of a request that must fail."""
    try:
        answer = ask(asked, *turns, sink=sink)
    except ModelFailedError as failed:
        return failed
    raise AssertionError(f"it answered {answer}")


class RequestThread(threading.Thread):
    """Send a request on a thread of its own, for tests that cancel."""

    def __init__(self, asked: Model, cancel: CancelToken | None = None) -> None:
        super().__init__(daemon=True)
        self._model = asked
        self.sink = Sink()
        self.cancel = cancel or CancelToken()
        self.outcome: ModelAnswer | BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._model.respond(request(), self.sink, self.cancel)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.outcome = error

    def cancelled(self) -> bool:
        """Pull the token, wait for the end, and tell whether it ended as a cancel."""
        self.cancel.cancel()
        self.join(60)
        return not self.is_alive() and isinstance(self.outcome, ModelAbortedError)
