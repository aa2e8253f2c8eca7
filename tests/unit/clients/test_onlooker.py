"""Who looks at a conversation sees its sub-agents too: each is followed by its own events from its birth on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import cast

import pytest
from bedrock import AsyncConversation, Event, v1
from bedrock.cli.display import follower
from bedrock.cli.display.follower import Drawing
from bedrock.cli.text.style import Paint
from bedrock.errors import BedrockError, NotFound, Unavailable

from tests.support.fake_server import state, stopped, stored
from tests.unit.clients.test_agents import NAMES, changed, own_end, own_snapshot, report, waiting


class Streams:
    """The streams of some conversations: what a test puts in is what a watcher gets."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._queues: dict[str, asyncio.Queue[v1.Event | BedrockError | None]] = {}
        self.opened: list[str] = []

    def put(self, name: str, *events: v1.Event | BedrockError | None) -> None:
        """None ends the stream, an error breaks it."""
        for event in events:
            self._queue(name).put_nowait(event)

    async def read(self, name: str) -> AsyncGenerator[Event]:
        self.opened.append(name)
        self._changed()
        while (event := await self._queue(name).get()) is not None:
            if isinstance(event, BedrockError):
                raise event
            yield Event.from_proto(event)

    def agent(self, name: str) -> AsyncConversation:
        streams = self

        class Agent:
            def events(self, **_: object) -> AsyncGenerator[Event]:
                return streams.read(name)

        return cast("AsyncConversation", Agent())

    def _queue(self, name: str) -> asyncio.Queue[v1.Event | BedrockError | None]:
        return self._queues.setdefault(name, asyncio.Queue())


class Scene:
    """A drawing of the conversation "parent", and what it has printed."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = asyncio.Event()
        self.streams = Streams(self._changed.set)
        self.drawing = Drawing(Paint(False), self._write, live=True, refresh=self._changed.set)

    def parent(self, *events: v1.Event) -> None:
        self.streams.put("parent", *events)

    def _write(self, line: str) -> None:
        self.lines.append(line)
        self._changed.set()

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def look(self) -> None:
        async for _ in self.drawing.follow(self.streams.read("parent"), self.streams.agent):
            pass


def play(story: Callable[[Scene], Awaitable[None]]) -> Scene:
    async def run() -> Scene:
        scene = Scene()
        looking = asyncio.create_task(scene.look())
        await story(scene)
        scene.streams.put("parent", None)
        async with asyncio.timeout(10):
            await looking
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == [], "somebody still follows a sub-agent"
        return scene

    return asyncio.run(run())


def results() -> v1.Event:
    told = stored("system", v1.ContentBlock(text='Task: "x"\nResult: 42'))
    told.message_added.system_kind = v1.SYSTEM_MESSAGE_KIND_SUB_AGENT_RESULTS
    return told


def test_the_end_of_each_is_printed_before_the_message_to_the_agent() -> None:
    async def story(scene: Scene) -> None:
        scene.parent(waiting(0, 1))
        await scene.until(lambda: len(scene.streams.opened) == 3)
        scene.streams.put(NAMES[0], own_snapshot(tokens=90), own_end(4), None)
        await scene.until(lambda: scene.lines)
        scene.parent(results(), state("llm_requesting", "r"))  # which are here before the end of the last one
        scene.streams.put(NAMES[1], own_snapshot(), own_end(5, "no"), None)
        await scene.until(lambda: len(scene.lines) > 3)

    lines = play(story).lines
    assert lines[:3] == [
        "  ✓ Count the files · 4 s · 100 tokens",
        "  ✗ Find the largest · 5 s · 10 tokens: no",
        "· what the sub-agents report",
    ]


def test_one_that_is_not_there_yet_is_looked_for_again() -> None:
    async def story(scene: Scene) -> None:
        gone = NotFound("not yet")
        scene.streams.put(NAMES[0], gone, gone, None, own_snapshot(), None, own_snapshot(), own_end(1), None)
        scene.parent(waiting(0))
        await scene.until(lambda: scene.lines)

    assert play(story).lines == ["  ✓ Count the files · 1 s · 10 tokens"]


def test_one_that_never_begins_is_reported_by_its_parent() -> None:
    async def story(scene: Scene) -> None:
        scene.parent(waiting(0, 1))
        await scene.until(lambda: len(scene.streams.opened) == 3)
        scene.parent(changed(report(0, "could not be started")))
        await scene.until(lambda: scene.drawing.transcript.agents.at_work == [NAMES[1]])
        scene.streams.put(NAMES[0], NotFound("never"))
        await scene.until(lambda: scene.lines)

    assert play(story).lines == ["  ✗ Count the files: could not be started"]


def test_a_parent_that_goes_on_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "SETTLE_SECONDS", 0.01)

    async def story(scene: Scene) -> None:
        scene.parent(waiting(0), stopped("r", "interrupted"), state("idle"))
        await scene.until(lambda: "■ cancelled" in scene.lines)

    assert play(story).lines == ["■ cancelled"]


def test_a_stream_that_cannot_be_had_leaves_the_rest_alone() -> None:
    async def story(scene: Scene) -> None:
        scene.streams.put(NAMES[0], Unavailable("no more streams"))
        scene.parent(waiting(0, 1))
        await scene.until(lambda: NAMES[0] in scene.streams.opened)
        scene.parent(changed(report(0)))
        await scene.until(lambda: scene.lines)

    assert play(story).lines == ["  ✓ Count the files"]
