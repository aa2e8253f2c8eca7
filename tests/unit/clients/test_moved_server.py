"""A server that was started again at another address, with another token, is found by what it wrote for its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from bedrock import AsyncClient, Client, Event, v1

from tests.unit.clients.fake_server import NAME, FakeBedrock, FakeServer, uses_tool


class Moving:
    """A server of this machine that moves when it is told to."""

    def __init__(self, fake: FakeBedrock, data: Path) -> None:
        self._fake, self._data, self._servers = fake, data, [FakeServer(fake)]
        self._announce("first")

    def move(self) -> None:
        """Start again at another port, with another token, and answer the question that waits."""
        self._servers[-1].stop()
        self._servers.append(FakeServer(self._fake))
        self._announce("second")

    def answer(self, error: Exception, delay: float) -> None:
        """Let the tool call run that waits, when its watcher has lost the server."""
        self._fake.resolve(f"{NAME}/approvals/t1", v1.APPROVAL_DECISION_APPROVE)

    def stop(self) -> None:
        self._servers[-1].stop()

    def _announce(self, token: str) -> None:
        self._data.mkdir(exist_ok=True)
        (self._data / "address").write_text(self._servers[-1].address)
        (self._data / "token").write_text(token)


@pytest.fixture
def moving(fake: FakeBedrock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Moving]:
    monkeypatch.setenv("BEDROCK_DATA_DIR", str(tmp_path / "data"))
    moving = Moving(fake, tmp_path / "data")
    fake.answers.append(uses_tool("ls", "x", "Done.", ask=True))
    yield moving
    moving.stop()


def test_a_watcher_finds_a_server_that_has_moved(fake: FakeBedrock, moving: Moving) -> None:
    events: list[Event] = []
    with Client(on_disconnect=moving.answer) as client:
        for event in client.conversation("c1").send("Hi"):
            events.append(event)
            if event.approval:
                moving.move()
        assert client.conversation("c1").get().name == NAME
    assert events[-1].kind == "run_stopped"
    assert {metadata["authorization"] for metadata in fake.metadata} == {"Bearer first", "Bearer second"}


def test_so_it_is_with_asyncio(fake: FakeBedrock, moving: Moving) -> None:
    async def story() -> list[Event]:
        events: list[Event] = []
        async with AsyncClient(on_disconnect=moving.answer) as client:
            async for event in client.conversation("c1").send("Hi"):
                events.append(event)
                if event.approval:
                    await asyncio.to_thread(moving.move)
        return events

    assert asyncio.run(story())[-1].kind == "run_stopped"
    assert fake.metadata[-1]["authorization"] == "Bearer second"


def test_a_call_finds_a_server_that_has_moved(moving: Moving) -> None:
    with Client() as client:
        assert client.conversation("c1").get().name == NAME
        moving.move()
        assert client.conversation("c1").get().name == NAME
