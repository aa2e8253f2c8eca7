"""Where the address and the token come from, whom they are believed of, and where the token goes."""

import os
import re
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bedrock._shared.settings import no_listener_error, proxy_of, resolve
from bedrock.errors import Misconfigured, ServerNotRunning
from bedrock.local_server import data_directory

ELSEWHERE = ("example.com:7421", "https://example.com", "http://example.com", "10.0.0.1:1")
LOOPBACK = ("127.0.0.1:7421", "localhost:7421", "http://127.0.0.1", "[::1]", "ipv4:127.0.0.1:7421")


@pytest.fixture
def state() -> Iterator[Path]:
    """Short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="bedrock-") as folder:
        yield Path(folder)


@pytest.fixture
def environ(state: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(state)}


@pytest.fixture
def data(state: Path) -> Iterator[Path]:
    """What a running server has written down."""
    directory = state / "bedrock"
    directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(directory / "s"))
        (directory / "token").write_text("from-file\n")
        (directory / "address").write_text(f"unix:{directory}/s\n")
        yield directory


def test_without_anything_there_is_no_server(environ: dict[str, str]) -> None:
    with pytest.raises(ServerNotRunning, match="no Bedrock server is running on this machine") as told:
        resolve(environ=environ)
    assert (told.value.code, "bedrock serve" in told.value.hint) == ("UNAVAILABLE", True)


def test_a_local_server_is_found_by_its_files(environ: dict[str, str], data: Path) -> None:
    settings = resolve(environ=environ)
    assert (settings.target, settings.token, settings.tls) == (f"unix:{data}/s", "from-file", False)


@pytest.mark.parametrize("missing", ["address", "s"])
def test_a_server_that_has_stopped_is_none(environ: dict[str, str], data: Path, missing: str) -> None:
    (data / missing).unlink()
    with pytest.raises(ServerNotRunning):
        resolve(environ=environ)


def test_the_environment_goes_before_the_files(environ: dict[str, str], data: Path) -> None:
    settings = resolve(environ=environ | {"BEDROCK_ADDRESS": "localhost:1", "BEDROCK_TOKEN": "from-env"})
    assert (settings.target, settings.token) == ("localhost:1", "from-env")


def test_arguments_go_before_the_environment(environ: dict[str, str], data: Path) -> None:
    settings = resolve("[::1]:2", "given", environ=environ | {"BEDROCK_ADDRESS": "x:1", "BEDROCK_TOKEN": "from-env"})
    assert (settings.target, settings.token) == ("[::1]:2", "given")


def test_an_empty_token_is_none_at_all(environ: dict[str, str], data: Path) -> None:
    assert resolve(token="", environ=environ).token == ""


def test_the_data_directory_can_be_chosen() -> None:
    assert data_directory({"BEDROCK_DATA_DIR": "/x", "XDG_STATE_HOME": "/y"}) == Path("/x")
    assert data_directory({"XDG_STATE_HOME": "/y"}) == Path("/y/bedrock")
    assert data_directory({"HOME": "/home/ada"}) == Path("/home/ada/.local/state/bedrock")
    assert data_directory({}) == Path.home() / ".local/state/bedrock"
    assert data_directory({"BEDROCK_DATA_DIR": "~/x"}) == Path.home() / "x"
    assert data_directory({"XDG_STATE_HOME": "state", "HOME": "/home/ada"}) == Path("/home/ada/.local/state/bedrock")


@pytest.mark.parametrize("path", ["x", "./x", "../x", "~no-such-user/x"])
def test_a_relative_data_directory_is_refused(path: str) -> None:
    environ = {"BEDROCK_DATA_DIR": path}
    text = f"BEDROCK_DATA_DIR: must be an absolute path, or begin with ~ (it is {path!r})"
    with pytest.raises(ValueError, match=re.escape(text)):
        data_directory(environ)
    for address in (None, "127.0.0.1:1"):
        with pytest.raises(Misconfigured) as refused:
            resolve(address, environ=environ)
        assert refused.value.message == text
    with pytest.raises(Misconfigured):
        no_listener_error("unix:/run/s", environ)


@pytest.mark.parametrize("address", [*LOOPBACK, *ELSEWHERE, "unix:/nowhere/s", "unix-abstract:s"])
def test_the_token_of_this_machine_goes_to_no_address_where_another_user_could_listen(
    environ: dict[str, str], data: Path, address: str
) -> None:
    assert resolve(address, environ=environ).token == ""
    assert resolve(environ=environ | {"BEDROCK_ADDRESS": address}).token == ""


@pytest.mark.parametrize("form", ["unix:{}/s", "unix://{}/s"])
def test_it_goes_through_a_socket_where_only_this_user_can_listen(
    environ: dict[str, str], data: Path, form: str
) -> None:
    address = form.format(data)
    assert resolve(address, environ=environ).token == "from-file"
    data.chmod(0o711)
    assert resolve(address, "given", environ=environ).token == "given"
    with pytest.raises(Misconfigured, match="chmod 700"):
        resolve(environ=environ)


@pytest.mark.parametrize("address", ["127.0.0.1:5000", "https://127.0.0.1:5000", "example.com:1", "unix-abstract:s"])
def test_a_server_of_this_machine_is_never_looked_for_over_tcp(
    environ: dict[str, str], data: Path, address: str
) -> None:
    (data / "address").write_text(address)
    with pytest.raises(Misconfigured, match="names no Unix socket"):
        resolve(environ=environ)


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o770, 0o701, 0o1777])
def test_nothing_is_believed_where_others_may_enter(environ: dict[str, str], data: Path, mode: int) -> None:
    data.chmod(mode)
    with pytest.raises(Misconfigured, match=r"others may (enter|have put files into) .*chmod 700"):
        resolve(environ=environ)


def test_nothing_is_believed_that_belongs_to_another_user(
    environ: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(Misconfigured, match=r"belongs to user .*, and this is user 12345"):
        resolve(environ=environ)
    assert resolve(f"unix:{data}/s", environ=environ).token == ""


def test_where_files_have_no_owners_a_server_needs_an_address(
    environ: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where the client works with servers elsewhere."""
    monkeypatch.delattr(os, "geteuid")
    assert resolve("https://example.com", "given", environ=environ).token == "given"
    assert resolve("https://example.com", environ=environ).token == ""
    with pytest.raises(Misconfigured, match="give the address of a server"):
        resolve(environ=environ)


def test_a_socket_elsewhere_is_looked_at_as_well(environ: dict[str, str], data: Path, state: Path) -> None:
    (state / "open").mkdir()
    (state / "open").chmod(0o777)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(state / "open" / "s"))
        (data / "address").write_text(f"unix:{state}/open/s")
        with pytest.raises(Misconfigured, match="others may enter") as told:
            resolve(environ=environ)
        assert "chmod" not in str(told.value)  # it may be a directory of the system


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_no_socket_is_not_connected_to(environ: dict[str, str], data: Path, kind: str) -> None:
    (data / "s").rename(data / "real")
    if kind == "file":
        (data / "s").touch()
    else:
        (data / "s").symlink_to(data / "real")
    with pytest.raises(Misconfigured, match="is no socket of this user"):
        resolve(environ=environ)


def test_a_token_is_not_sent_in_the_clear_to_other_machines(environ: dict[str, str]) -> None:
    with pytest.raises(Misconfigured, match=r"https://example\.com:7421"):
        resolve("example.com:7421", "secret", environ=environ)
    assert resolve("https://example.com", "secret", environ=environ).tls
    assert not resolve("http://example.com:80", "secret", environ=environ).tls


def test_the_port_may_be_left_out(environ: dict[str, str]) -> None:
    assert resolve("https://example.com", environ=environ).target == "example.com:7421"
    assert resolve("[::1]", environ=environ).target == "[::1]:7421"


@pytest.mark.parametrize("address", ["https://", "http://", ":7421", "https://:7421"])
def test_an_address_without_a_host_is_none(environ: dict[str, str], address: str) -> None:
    with pytest.raises(Misconfigured, match="names no host"):
        resolve(address, environ=environ)


def test_a_token_does_not_appear_in_texts(environ: dict[str, str]) -> None:
    assert "secret" not in repr(resolve("localhost", "secret", environ=environ))


@pytest.mark.parametrize("token", ["two\nlines", "carriage\r", "naïve", "nul\0"])
def test_a_token_that_cannot_be_sent_is_reported_without_being_shown(environ: dict[str, str], token: str) -> None:
    with pytest.raises(Misconfigured, match="the token has characters") as refused:
        resolve("localhost", token, environ=environ)
    assert token not in str(refused.value)


def test_an_unreadable_token_file_is_reported(environ: dict[str, str], data: Path) -> None:
    (data / "token").unlink()
    (data / "token").mkdir()
    with pytest.raises(Misconfigured, match="token"):
        resolve(environ=environ)


@pytest.mark.parametrize("name", ["address", "token"])
def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(environ: dict[str, str], data: Path, name: str) -> None:
    (data / name).unlink()
    os.mkfifo(data / name, 0o600)
    with pytest.raises(Misconfigured, match=f"{name} cannot be .*: not a regular file"):
        resolve(environ=environ)


def test_certificates_are_read(environ: dict[str, str], tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_bytes(b"PEM")
    assert resolve("https://example.com", ca_file=authority, environ=environ).ca == b"PEM"
    with pytest.raises(Misconfigured, match="missing"):
        resolve("https://example.com", environ=environ | {"BEDROCK_CA_FILE": "/missing"})


def test_a_client_shows_a_certificate_with_its_key(environ: dict[str, str], tmp_path: Path) -> None:
    own, key = tmp_path / "own.pem", tmp_path / "own.key"
    own.write_bytes(b"OWN")
    key.write_bytes(b"KEY")
    named = environ | {"BEDROCK_CERTIFICATE_FILE": str(own), "BEDROCK_KEY_FILE": str(key)}
    for found in (
        resolve("https://example.com", environ=environ, certificate_file=own, key_file=key),
        resolve("https://example.com", environ=named),
    ):
        assert (found.certificate, found.key) == (b"OWN", b"KEY")
        assert "KEY" not in repr(found)
    with pytest.raises(Misconfigured, match="needed together"):
        resolve("https://example.com", environ=environ, certificate_file=own)
    with pytest.raises(Misconfigured, match="the key file /missing cannot be read"):
        resolve("https://example.com", environ=named | {"BEDROCK_KEY_FILE": "/missing"})


@pytest.mark.parametrize(
    ("target", "variable"),
    [
        *((resolve(address, "", environ={}).target, "") for address in LOOPBACK),
        ("unix:/run/bedrock.sock", ""),
        ("10.0.0.1:7421", ""),
        ("192.168.3.4:7421", ""),
        ("172.20.0.2:7421", ""),
        ("[fd00::1]:7421", ""),
        ("dns:///bedrock.corp.example:7421", ""),
        ("bedrock.example:7421", "http_proxy"),
        ("8.8.8.8:7421", "http_proxy"),
        ("[2600::1]:7421", "http_proxy"),
    ],
)
def test_targets_nearby_and_those_of_no_proxy_are_reached_directly(target: str, variable: str) -> None:
    environ = {"http_proxy": "http://proxy.example:3128"}
    assert proxy_of(target, environ | {"no_proxy": "other.example, .corp.example"}) == variable
    assert proxy_of(target, environ | {"NO_PROXY": "corp.example"}) == variable
    assert proxy_of(target, environ | {"no_proxy": "*"}) == ""
    assert proxy_of(target, {}) == ""
    preferred = environ | {"NO_PROXY": "corp.example", "grpc_proxy": "http://p:1"}
    assert proxy_of(target, preferred) == (variable and "grpc_proxy")
