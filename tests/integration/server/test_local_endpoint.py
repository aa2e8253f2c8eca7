"""The socket and the address file of a running server are put back when they are removed."""

import errno
import fcntl
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bedrock._shared.settings import no_listener_error, resolve
from bedrock.cli.spawned_server import server_answers
from bedrock.errors import ServerNotRunning, ServerUnreachable
from bedrock.local_server import check_socket, server_process

from server import local_endpoint
from server.auth.tokens import TokenUnusableError
from server.local_endpoint import LocalSocket


@pytest.fixture
def data() -> Iterator[Path]:
    """Private, and short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="bedrock-") as folder:
        path = Path(folder, "data")
        path.mkdir(mode=0o700)
        yield path


@pytest.fixture(params=["in the data directory", "elsewhere"])
def path(request: pytest.FixtureRequest, data: Path) -> Iterator[Path]:
    """A socket that is listened on."""
    made = data / "bedrock.sock"
    if request.param == "elsewhere":
        (data.parent / "run" / "bedrock").mkdir(mode=0o700, parents=True)
        made = data.parent / "run" / "bedrock" / "x.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(made))
        listening.listen()
        yield made


def connects(path: Path) -> bool:
    check_socket(path)
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def test_a_socket_that_was_removed_is_reached_again(data: Path, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    published = LocalSocket(data, path)
    published.look()
    assert caplog.records == []
    for _ in range(2):
        path.unlink()
        published.look()
        assert connects(path)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert f"{path} was removed" in caplog.text
    published.withdraw()
    assert not (data / "address").exists()
    assert not list(data.glob("*.spare"))


def test_its_directory_is_made_again_for_its_owner_alone_but_not_the_data_directory(data: Path, path: Path) -> None:
    published = LocalSocket(data, path)
    shutil.rmtree(path.parent)
    published.look()
    if path.parent == data:
        assert not data.exists()  # of which the store tells
    else:
        assert connects(path)


def test_what_is_in_its_place_is_not_touched_and_reported_once(
    data: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    published = LocalSocket(data, path)
    path.unlink()
    path.write_text("mine")
    published.look()
    published.look()
    (record,) = caplog.records
    assert record.levelno == logging.CRITICAL
    assert "restart it" in record.getMessage()
    assert path.read_text() == "mine"
    path.unlink()
    published.look()
    assert connects(path)


def test_a_file_system_without_hard_links_is_reported(
    data: Path, path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    published = LocalSocket(data, path)
    path.unlink()
    published.look()
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL]


@pytest.mark.parametrize("how", ["removed", "other", "directory", "fifo"])
def test_the_address_is_written_again(data: Path, path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    published = LocalSocket(data, path)
    address = data / "address"
    before = address.read_text()
    address.unlink()
    match how:
        case "other":
            address.write_text("unix:/elsewhere")
        case "directory":
            address.mkdir()
        case "fifo":
            os.mkfifo(address)
        case _:
            pass
    published.look()
    if how == "directory":
        assert [record.levelno for record in caplog.records] == [logging.CRITICAL]
        published.withdraw()
        assert address.is_dir()
    else:
        assert address.read_text() == before


@pytest.mark.parametrize("gateway", ["", "http://127.0.0.1:1"])
def test_what_cannot_be_replaced_by_the_address_of_the_gateway_refuses_the_start(
    data: Path, path: Path, gateway: str
) -> None:
    (data / "gateway").mkdir()
    with (
        pytest.raises(TokenUnusableError, match=r"gateway cannot be (removed|written): Is a directory"),
        local_endpoint.published(data, path, gateway),
    ):
        pass
    assert not (data / "address").exists(), "no client is led to a server that has not started"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO])
def test_a_server_that_lacks_what_it_needs_to_look_does_not_take_its_address_for_removed(
    data: Path, path: Path, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    published = LocalSocket(data, path)

    def fail(_: Path, **_limits: int) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("server.local_endpoint.read_believed", fail)
    published.look()
    assert bool(caplog.records) == (number == errno.EIO)


def test_another_data_directory_in_its_place_is_left_alone(data: Path, path: Path) -> None:
    published = LocalSocket(data, path)
    data.rename(data.with_name("moved"))
    data.mkdir(mode=0o700)
    (data / "address").write_text("of another server")
    published.look()
    published.withdraw()
    assert (data / "address").read_text() == "of another server"


@pytest.mark.parametrize("missing", ["socket", "address"])
def test_clients_tell_of_a_server_that_runs_but_cannot_be_reached(
    data: Path, path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    LocalSocket(data, path)
    environ = {"BEDROCK_DATA_DIR": str(data)}
    (path if missing == "socket" else data / "address").unlink()
    lock = data / "lock"
    lock.write_text(f"{os.getpid()}\n")
    assert server_process(data) == 0  # left behind, and not locked
    with pytest.raises(ServerNotRunning, match="no Bedrock server is running"):
        resolve(environ=environ)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ServerUnreachable, match=rf"is running \(process {os.getpid()}, ") as told:
            resolve(environ=environ)
        assert "start the server again" in told.value.hint
        assert "bedrock serve" not in told.value.hint
        monkeypatch.setenv("BEDROCK_DATA_DIR", str(data))
        monkeypatch.delenv("BEDROCK_ADDRESS", raising=False)
        with pytest.raises(ServerUnreachable):
            server_answers(None)
        if missing == "socket":
            assert isinstance(no_listener_error(f"unix:{path}", environ), ServerUnreachable)
            assert not isinstance(no_listener_error("unix:/elsewhere/s", environ), ServerUnreachable)
