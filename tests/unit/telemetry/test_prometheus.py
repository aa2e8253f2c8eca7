"""The port with metrics, and those who hold it open."""

from __future__ import annotations

import socket
import struct
import threading
import urllib.request
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from actors.adapters.telemetry import prometheus
from tests.support.patience import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def port() -> Iterator[int]:
    with closing(prometheus.Prometheus("127.0.0.1", 0)) as exporter:
        yield exporter.port


def connected(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    connection.sendall(b"GET /metrics HTTP/1.1\r\n")
    return connection


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def readers() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def is_answered(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            return b"bedrock_" in answer.read()
    except OSError:
        return False


def test_connections_that_send_nothing_more_take_few_threads_and_make_place(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus._Handler, "timeout", PATIENCE)
    with ExitStack() as stack:
        held = [stack.enter_context(connected(port)) for _ in range(40)]
        assert is_closed(held[-1]), "at once"
        assert readers() == prometheus.MAX_READERS
        assert not is_answered(port)
    eventually(lambda: is_answered(port), "a place")
    monkeypatch.setattr(prometheus._Handler, "timeout", 0.05)
    with connected(port) as slow:
        assert is_closed(slow), "after a while"
    assert is_answered(port)


def test_a_connection_that_breaks_off_writes_nothing_to_stderr(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    with connected(port) as broken:
        eventually(readers, "its thread")
        broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(lambda: not readers(), "its end")
    assert is_answered(port)
    assert capfd.readouterr().err == ""
