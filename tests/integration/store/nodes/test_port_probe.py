"""Only a refused connection says that nobody listens any more."""

import socket

import pytest

from actors.adapters.store.postgres.nodes.node_watch import refuses
from tests.support.patience import PATIENCE


def test_a_port_refuses_once_its_process_has_closed_it() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=5) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert not refuses(address, seconds=PATIENCE), "taken by the kernel, as for a process that is stopped"
    assert refuses(address, seconds=PATIENCE)


def test_all_addresses_of_a_name_have_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as open_, socket.create_server(("127.0.0.1", 0)) as closed:
        places = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", each.getsockname()) for each in (closed, open_)]
        closed.close()
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
        assert not refuses("name:1", seconds=PATIENCE)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places[:1])
        assert refuses("name:1", seconds=PATIENCE)


@pytest.mark.parametrize(
    "address", ["", "no port", "host.invalid:1", "127.0.0.1:99999", "127.0.0.1:x", "unix:here:/tmp/x"]
)
def test_what_is_no_address_says_nothing(address: str) -> None:
    assert not refuses(address, seconds=0.1)
