"""Where the address and the token come from, and that a token does not leave the machine unprotected."""

from __future__ import annotations

from pathlib import Path

import pytest
from bedrock._shared.settings import data_directory, resolve
from bedrock.errors import Misconfigured


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "bedrock"
    directory.mkdir()
    (directory / "token").write_text("from-file\n")
    (directory / "address").write_text("127.0.0.1:5000\n")
    return directory


def test_without_anything_the_default_is_tried_without_a_token(environ: dict[str, str]) -> None:
    settings = resolve(environ=environ)
    assert (settings.target, settings.token, settings.tls) == ("127.0.0.1:7421", "", False)


def test_a_local_server_is_found_by_its_files(environ: dict[str, str], data: Path) -> None:
    settings = resolve(environ=environ)
    assert (settings.target, settings.token) == ("127.0.0.1:5000", "from-file")


def test_the_environment_goes_before_the_files(environ: dict[str, str], data: Path) -> None:
    settings = resolve(environ=environ | {"BEDROCK_ADDRESS": "localhost:1", "BEDROCK_TOKEN": "from-env"})
    assert (settings.target, settings.token) == ("localhost:1", "from-env")


def test_arguments_go_before_the_environment(environ: dict[str, str], data: Path) -> None:
    settings = resolve("[::1]:2", "given", environ=environ | {"BEDROCK_ADDRESS": "x:1", "BEDROCK_TOKEN": "from-env"})
    assert (settings.target, settings.token) == ("[::1]:2", "given")


def test_an_empty_token_is_none_at_all(environ: dict[str, str], data: Path) -> None:
    assert resolve(token="", environ=environ).token == ""


def test_the_data_directory_can_be_chosen(tmp_path: Path) -> None:
    assert data_directory({"BEDROCK_DATA_DIR": "/x", "XDG_STATE_HOME": "/y"}) == Path("/x")
    assert data_directory({"XDG_STATE_HOME": "/y"}) == Path("/y/bedrock")
    assert data_directory({}) == Path.home() / ".local/state/bedrock"


def test_the_local_token_is_not_given_to_other_machines(environ: dict[str, str], data: Path) -> None:
    for address in ("example.com:7421", "https://example.com", "http://example.com", "10.0.0.1:1"):
        assert resolve(address, environ=environ).token == ""


def test_a_token_is_not_sent_in_the_clear_to_other_machines(environ: dict[str, str]) -> None:
    with pytest.raises(Misconfigured, match=r"https://example\.com:7421"):
        resolve("example.com:7421", "secret", environ=environ)
    assert resolve("https://example.com", "secret", environ=environ).tls
    assert not resolve("http://example.com:80", "secret", environ=environ).tls


def test_the_port_may_be_left_out(environ: dict[str, str]) -> None:
    assert resolve("https://example.com", environ=environ).target == "example.com:7421"
    assert resolve("[::1]", environ=environ).target == "[::1]:7421"


def test_a_token_does_not_appear_in_texts(environ: dict[str, str]) -> None:
    assert "secret" not in repr(resolve(token="secret", environ=environ))


@pytest.mark.parametrize("token", ["two\nlines", "carriage\r", "naïve", "nul\0"])
def test_a_token_that_cannot_be_sent_is_reported_without_being_shown(environ: dict[str, str], token: str) -> None:
    with pytest.raises(Misconfigured, match="the token has characters") as refused:
        resolve(token=token, environ=environ)
    assert token not in str(refused.value)


def test_an_unreadable_token_file_is_reported(environ: dict[str, str], data: Path) -> None:
    (data / "token").unlink()
    (data / "token").mkdir()
    with pytest.raises(Misconfigured, match="token"):
        resolve(environ=environ)


def test_certificates_are_read(environ: dict[str, str], tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_bytes(b"PEM")
    assert resolve("https://example.com", ca_file=authority, environ=environ).ca == b"PEM"
    with pytest.raises(Misconfigured, match="missing"):
        resolve("https://example.com", environ=environ | {"BEDROCK_CA_FILE": "/missing"})
