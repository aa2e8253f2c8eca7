"""What the kernel says of sockets: who is connected, and who listens."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from server.process.operating_system import connections, listener
from server.settings.setting_values import Listen

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["unix", "127.0.0.1", "::1"])
def listening(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    if request.param == "unix":
        monkeypatch.chdir(tmp_path)  # its whole path may be too long
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("s")
            made.listen()
            yield made
    else:
        family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
        with socket.create_server((request.param, 0), family=family) as made:
            yield made


def address_of(made: socket.socket) -> Listen:
    name = made.getsockname()
    return Listen(path=name) if isinstance(name, str) else Listen(name[0], name[1])


def test_connections_are_counted_from_their_begin_to_their_end(listening: socket.socket) -> None:
    address = address_of(listening)
    assert connections([address]) == 0
    with socket.socket(listening.family) as one, socket.socket(listening.family) as two:
        one.connect(listening.getsockname())
        with listening.accept()[0]:
            assert connections([address]) == 1
            two.connect(listening.getsockname())
            with listening.accept()[0]:
                assert connections([address, Listen("127.0.0.1", 1)]) == 2
                assert connections([Listen("127.0.0.1", 1)]) == 0
    assert connections([address]) == 0


def test_who_listens_on_a_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as made:
        port = made.getsockname()[1]
        assert listener(port) == f"process {os.getpid()} ({Path('/proc/self/comm').read_text().strip()})"
    assert listener(port) == ""
