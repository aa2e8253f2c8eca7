"""Fixtures of the client's tests: a scripted server, and clients connected to it."""

from __future__ import annotations

import _thread
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bedrock import Client, _backoff

from tests.unit.clients.fake_server import FakeBedrock, FakeServer


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep this machine's server, token and settings out of the tests."""
    for name in ("BEDROCK_ADDRESS", "BEDROCK_TOKEN", "BEDROCK_CA_FILE", "BEDROCK_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(_backoff, "FIRST_SECONDS", 0.005)


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Press Ctrl-C, for this process; whoever runs the tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield _thread.interrupt_main
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
