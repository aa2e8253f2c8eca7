"""A server that a service manager has started: it reports when clients can connect, and when it stops."""

import socket
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.one_server("it starts its own server")


def test_it_is_told_when_the_server_is_ready_and_when_it_stops(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        server = ServerProcess(tmp_path, within="env", NOTIFY_SOCKET=str(tmp_path / "notify"))
        try:
            assert manager.recv(100) == b"READY=1"
            with server.client() as client:
                assert client.server_info().version
        finally:
            server.stop()
        assert manager.recv(100) == b"STOPPING=1"
