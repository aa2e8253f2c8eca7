"""What is hidden so that the server's files are, whatever takes their place."""

import os
from pathlib import Path

import pytest

from actors.adapters.sandbox import server_files
from actors.adapters.sandbox.server_files import ServerFiles


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of its own, whose home directory is `home`."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(server_files, "_shared", lambda: (str(tmp_path / "home"),))
    return tmp_path


def make(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(mode)
    path.write_text("secret")
    return path


def hidden(path: Path, needed: str = "/") -> list[str]:
    return list(ServerFiles([str(path)]).to_hide(needed))


def test_a_directory_is_hidden_whole(place: Path) -> None:
    (place / "data").mkdir()
    (place / "link").symlink_to("data")
    assert hidden(place / "link") == [str(place / "data")]


def test_the_directory_of_a_file_is_hidden_if_its_name_says_that_it_is_the_servers(place: Path) -> None:
    file = make(place / "home" / ".config" / "bedrock" / "config.toml")
    assert hidden(file) == [str(file.parent)]
    assert hidden(file, needed=str(file.parent)) == [str(file)], "a call that works there needs it"


def test_the_directory_of_a_file_is_hidden_if_others_have_no_right_to_it(place: Path) -> None:
    file = make(place / "ssl" / "private" / "key.pem", 0o710)
    assert hidden(file) == [str(file.parent)]
    shared = make(place / "ssl" / "key.pem")
    assert hidden(shared) == [str(shared)]
    assert ServerFiles([str(shared), str(file)]).in_shared_directories() == (str(shared),)


def test_a_home_directory_is_never_hidden_nor_what_is_private_in_it(place: Path) -> None:
    for file in (make(place / "home" / "bedrock.toml", 0o700), make(place / "home" / "work" / "b.toml", 0o700)):
        assert hidden(file) == [str(file)]


def test_a_volume_of_kubernetes_is_hidden_whole(place: Path) -> None:
    make(place / "tls" / "..2024" / "key")
    (place / "tls" / "..data").symlink_to("..2024")
    (place / "tls" / "key").symlink_to("..data/key")
    assert hidden(place / "tls" / "key") == [str(place / "tls")]


def test_the_keys_of_certbot_are_hidden_with_those_that_follow(place: Path) -> None:
    make(place / "archive" / "x" / "key1.pem")
    make(place / "live" / "x" / "unused")
    for name in ("archive", "live"):
        (place / name).chmod(0o700)
    (place / "live" / "x" / "key.pem").symlink_to("../../archive/x/key1.pem")
    assert hidden(place / "live" / "x" / "key.pem") == [str(place / "archive"), str(place / "live")]


def test_links_are_followed_at_each_call(place: Path) -> None:
    for name in ("first", "second"):
        make(place / name / "key")
    (place / "key").symlink_to("first/key")
    files = ServerFiles([str(place / "key")])
    assert files.real() == files.to_hide("/") == (str(place / "first" / "key"),)
    os.unlink(place / "key")
    (place / "key").symlink_to("second/key")
    assert files.real() == files.to_hide("/") == (str(place / "second" / "key"),)


def test_what_does_not_exist_yet_is_named(place: Path) -> None:
    assert hidden(place / "missing" / "config.toml") == [str(place / "missing" / "config.toml")]
