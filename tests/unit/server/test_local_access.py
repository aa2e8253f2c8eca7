"""The way in for programs of this machine: what is believed, and where the socket is."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bedrock.local_server import LONGEST_SOCKET_PATH, NotPrivateError, check_private, check_socket, open_believed

from actors.ports.settings_checks import read_named
from server.local_endpoint import claim_directory, socket_path

if TYPE_CHECKING:
    from collections.abc import Iterator

SOMEBODY = 12_345


@pytest.fixture
def not_me(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the test has made belongs to another user."""
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)


@pytest.fixture
def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A socket in a private directory."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    monkeypatch.chdir(folder)  # its whole path may be too long
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("s")
        yield folder / "s"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_data_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    claim_directory(tmp_path / "a" / "b")
    assert mode(tmp_path / "a" / "b") == 0o700


@pytest.mark.parametrize("before", [0o755, 0o711, 0o750, 0o700])
def test_what_others_could_only_read_is_closed_to_them(tmp_path: Path, before: int) -> None:
    tmp_path.chmod(before)
    claim_directory(tmp_path)
    assert mode(tmp_path) == 0o700


@pytest.mark.parametrize("before", [0o777, 0o1777, 0o770, 0o720, 0o702])
def test_what_others_could_write_is_refused_as_it_is(tmp_path: Path, before: int) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    folder.chmod(before)
    with pytest.raises(NotPrivateError, match="chmod 700"):
        claim_directory(folder)
    assert mode(folder) == before & 0o777


@pytest.mark.usefixtures("not_me")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    before = mode(tmp_path)
    for check in (claim_directory, check_private):
        with pytest.raises(
            NotPrivateError, match=f"belongs to user {tmp_path.stat().st_uid}, and this is user {SOMEBODY}"
        ):
            check(tmp_path)
    assert mode(tmp_path) == before


PLANTED = {
    "a link": "is a link, which is not followed: look where it leads, and remove it",
    "writable": r"others may change .* \(mode 0606\): look inside, then chmod 600",
    "another user's": "belongs to user .*: look at what else others have put into .*, and remove it",
}


@pytest.fixture(params=PLANTED)
def planted(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A file of a private directory that another user may have put there, and how it is refused."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    file = folder / "token"
    match request.param:
        case "a link":
            (tmp_path / "elsewhere").touch(0o600)
            file.symlink_to(tmp_path / "elsewhere")
        case "writable":
            file.touch()
            file.chmod(0o606)
        case _:
            file.touch(0o600)
            theirs = os.stat_result((0o100600, 0, 0, 1, SOMEBODY, 0, 0, 0, 0, 0))
            monkeypatch.setattr(Path, "lstat", lambda path: theirs if path == file else os.lstat(path))
            monkeypatch.setattr(os, "fstat", lambda _: theirs)
    return file, PLANTED[request.param]


def test_a_file_that_another_user_may_have_planted_is_not_believed(planted: tuple[Path, str]) -> None:
    file, refusal = planted
    with pytest.raises(NotPrivateError, match=refusal):
        open_believed(file)


def test_a_directory_in_which_one_is_planted_is_not_used(planted: tuple[Path, str]) -> None:
    """The database, its log and whatever else is opened by name are found out before they are."""
    file, refusal = planted
    with pytest.raises(NotPrivateError, match=refusal):
        claim_directory(file.parent)


def test_a_file_with_a_name_elsewhere_is_not_used(tmp_path: Path) -> None:
    """Another user may have linked a file of this user, which the server would overwrite; a restore links within."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    (folder / "bedrock.db").touch(0o600)
    (folder / "bedrock.db.before").hardlink_to(folder / "bedrock.db")
    claim_directory(folder)
    (tmp_path / "passwd").touch(0o644)
    (folder / "lock").hardlink_to(tmp_path / "passwd")
    with pytest.raises(NotPrivateError, match="lock is a file that has a name elsewhere"):
        claim_directory(folder)


def test_a_link_is_not_followed_where_it_replaces_a_file_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").touch(0o600)
    (tmp_path / "token").symlink_to(tmp_path / "mine")
    monkeypatch.setattr(Path, "lstat", Path.stat)
    with pytest.raises(OSError, match="symbolic links"):
        open_believed(tmp_path / "token")


def test_a_file_that_an_operator_names_may_be_reached_by_a_link_of_theirs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounted").touch(0o644)
    link = tmp_path / "tls.pem"
    link.symlink_to("mounted")
    os.close(open_believed(link, named=True))
    assert read_named(link) == b""
    theirs = os.stat_result((0o120777, 0, 0, 1, SOMEBODY, 0, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "lstat", lambda _: theirs)
    with pytest.raises(NotPrivateError, match=f"belongs to user {SOMEBODY}"):
        open_believed(link, named=True)
    with pytest.raises(ValueError, match=f"belongs to user {SOMEBODY}"):
        read_named(link)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_an_operator_names_and_others_may_change_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "f").touch()
    (tmp_path / "f").chmod(mode)
    with pytest.raises(NotPrivateError, match="chmod go-w"):
        open_believed(tmp_path / "f", named=True)
    with pytest.raises(ValueError, match="chmod go-w"):
        read_named(tmp_path / "f")


def test_a_link_of_another_user_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.mkdir(mode=0o700)
    link.symlink_to(mine)
    check_private(link)
    theirs = os.stat_result((0o120777, 0, 0, 1, SOMEBODY, 0, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "lstat", lambda _: theirs)
    with pytest.raises(NotPrivateError, match=f"a link that belongs to user {SOMEBODY}"):
        check_private(link)


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        check_private(tmp_path / "file")


def test_a_socket_that_only_its_owner_reaches_is_believed(listening: Path) -> None:
    check_socket(listening)


def test_a_socket_beside_which_others_could_put_one_is_not(listening: Path) -> None:
    listening.parent.chmod(0o755)
    with pytest.raises(NotPrivateError, match="others may enter"):
        check_socket(listening)


@pytest.mark.parametrize("kind", ["file", "link", "directory"])
def test_what_is_no_socket_is_not_believed(listening: Path, kind: str) -> None:
    other = listening.with_name(kind)
    match kind:
        case "file":
            other.touch()
        case "link":
            other.symlink_to(listening)
        case _:
            other.mkdir()
    with pytest.raises(NotPrivateError, match="no socket of this user"):
        check_socket(other)


def test_the_socket_is_in_the_data_directory() -> None:
    assert socket_path(Path("/home/ada/.local/state/bedrock"), {}) == Path(
        "/home/ada/.local/state/bedrock/bedrock.sock"
    )


@pytest.mark.parametrize("data", [f"/{'long' * 26}", "/a b", "/naïve", "/50%", "/a?b", "/a#b"])
def test_a_path_that_no_socket_can_have_is_replaced_by_one_of_the_runtime_directory(data: str, tmp_path: Path) -> None:
    runtime = Path("/tmp") / tmp_path.name  # short enough for a socket
    runtime.mkdir(mode=0o700)
    try:
        there = socket_path(Path(data), {"XDG_RUNTIME_DIR": str(runtime)})
        assert there.parent == runtime / "bedrock"
        assert mode(there.parent) == 0o700
        assert len(os.fsencode(there)) <= LONGEST_SOCKET_PATH
        assert socket_path(Path(data), {"XDG_RUNTIME_DIR": str(runtime)}) == there
        assert socket_path(Path(data + "x"), {"XDG_RUNTIME_DIR": str(runtime)}) != there
    finally:
        (runtime / "bedrock").rmdir()
        runtime.rmdir()


@pytest.mark.parametrize("runtime", [None, "", "run", "/proc/nowhere", f"/{'long' * 26}"])
def test_without_a_runtime_directory_it_is_in_one_of_this_user_in_tmp(runtime: str | None) -> None:
    environ = {} if runtime is None else {"XDG_RUNTIME_DIR": runtime}
    there = socket_path(Path(f"/{'long' * 26}"), environ)
    assert there.parent == Path(f"/tmp/bedrock-{os.geteuid()}")
    check_private(there.parent)
