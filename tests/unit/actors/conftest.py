"""What the units of the actors stand on: an empty store, a clock that stands still, ids that count."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
from pykka import ActorDeadError, ActorRegistry

from actors.core.context import ToolGroup, ToolTraits
from actors.ports import CancelToken, ModelAnswer, ModelInfo, ModelRequest, ModelSink, ToolContext, ToolOutput, ToolSpec
from actors.runtime.services import Services, SystemClock
from tests.support.catalogs import OneModelCatalog
from tests.support.patience import eventually
from tests.support.services import in_memory
from tests.support.toolboxes import FunctionTool, NothingKept


class StandingClock(SystemClock):
    """It is always the same moment, until a test says otherwise."""

    now = 1_000

    def now_ms(self) -> int:
        return self.now


class CountingIds:
    def __init__(self) -> None:
        self._count = itertools.count(1)

    def conversation(self) -> str:
        return f"c{next(self._count)}"

    def message(self) -> str:
        return f"m{next(self._count)}"

    def slug(self) -> str:
        return f"slug-{next(self._count)}"


class Models(OneModelCatalog):
    """A catalog that is its own only model, which does what `answer` says."""

    info = ModelInfo("known", "Known", "tests", "demo", 100_000, 8_000, 90_000)

    def __init__(self) -> None:
        super().__init__(self)
        self.answer: Callable[[ModelRequest, ModelSink, CancelToken], ModelAnswer]

    def respond(self, request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        return self.answer(request, sink, cancel)


class Box(NothingKept):
    """Tools by name, each a function that a test gives."""

    def __init__(self) -> None:
        self.tools: dict[str, Callable[[ToolContext], ToolOutput]] = {}
        self.instant: set[str] = set()

    def specs(self, *, sub_agent: bool) -> tuple[ToolSpec, ...]:
        return tuple(ToolSpec(name, {}, ToolTraits(name, ToolGroup.OTHER, writes=True)) for name in self.tools)

    def get(self, name: str) -> Any:
        run = self.tools.get(name)
        return FunctionTool(run, instant=name in self.instant) if run else None

    def parse(self, name: str, raw: str) -> Mapping[str, Any]:
        return {"raw": raw}


class Inbox:
    """In the place of an actor's ref: keeps the messages that it gets."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self._news = threading.Condition()

    @property
    def actor_inbox(self) -> Inbox:
        return self

    def is_alive(self) -> bool:
        return True

    def put_all(self, envelopes: Iterable[Any]) -> None:
        for envelope in envelopes:
            self.tell(envelope.message)

    def tell(self, message: Any) -> None:
        with self._news:
            self.messages.append(message)
            self._news.notify_all()

    def wait_for(self, kind: type[Any], count: int = 1) -> list[Any]:
        """The messages of a class, once there are so many."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.of(kind)) >= count, 10), self.messages
            return self.of(kind)

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def services() -> Iterator[Services]:
    made = in_memory(models=Models(), toolbox=Box(), clock=StandingClock(), ids=CountingIds())
    yield made
    for actor in ActorRegistry.get_all():
        with suppress(ActorDeadError):
            actor.stop(block=False)
    eventually(lambda: not ActorRegistry.get_all(), "every actor has stopped")
    made.timers.close()
    made.store.close()
