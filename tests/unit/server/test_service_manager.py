"""What the service manager is told, and that a server works without one."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

import pytest

from server.process.operating_system import READY, STOPPING, notify

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("abstract", [True, False])
def test_lines_arrive_as_one_datagram(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, abstract: bool) -> None:
    name = f"@{tmp_path}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{tmp_path}" if abstract else name)
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify(READY, "STATUS=well")
        notify(STOPPING)
        assert [manager.recv(100), manager.recv(100)] == [b"READY=1\nSTATUS=well", b"STOPPING=1"]


def test_without_a_service_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setattr(socket, "socket", None)
    notify(READY)


def test_a_service_manager_that_is_gone_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING):
        notify(READY)
    assert "service manager could not be notified" in caplog.text


def test_one_that_does_not_read_holds_nobody_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        for _ in range(2000):
            notify("STATUS=" + "x" * 1000)
