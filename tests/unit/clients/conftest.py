"""Fixtures of the client's tests: a scripted server, and clients connected to it."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bedrock import Client, v1
from bedrock._async.transport import AsyncTransport
from bedrock._shared import reconnection
from bedrock._sync.transport import Transport
from google.protobuf.message import Message

from tests.support.fake_server import FakeBedrock, FakeServer


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep this machine's server, token and settings out of the tests."""
    for name in ("BEDROCK_ADDRESS", "BEDROCK_TOKEN", "BEDROCK_CA_FILE", "BEDROCK_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(reconnection, "FIRST_SECONDS", 0.005)


@pytest.fixture
def ctrl_c_at_sending(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ctrl-C is pressed once: when a message has been accepted, and before its sender hears of it."""
    # A shell's background job ignores SIGINT, and so would the tests that run in one.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    call, async_call, presses = Transport.call, AsyncTransport.call, iter([signal.SIGINT])

    def press(request: Message) -> None:
        for number in presses if isinstance(request, v1.SendMessageRequest) else ():
            signal.raise_signal(number)

    def interrupted(transport: Transport, method: Any, request: Message, timeout: float | None = None) -> Any:
        answer = call(transport, method, request, timeout)
        press(request)
        return answer

    async def cancelled(transport: AsyncTransport, method: Any, request: Message, timeout: float | None = None) -> Any:
        answer = await async_call(transport, method, request, timeout)
        press(request)
        await asyncio.sleep(0)  # which is where asyncio hears of it
        return answer

    monkeypatch.setattr(Transport, "call", interrupted)
    monkeypatch.setattr(AsyncTransport, "call", cancelled)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def fake() -> FakeBedrock:
    return FakeBedrock()


@pytest.fixture
def address(fake: FakeBedrock) -> Iterator[str]:
    server = FakeServer(fake)
    yield server.address
    server.stop()


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, token="secret") as client:
        yield client
