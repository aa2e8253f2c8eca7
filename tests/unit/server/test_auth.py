"""The token: made once, readable for its owner only, compared as a whole."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from server.auth.authentication import OWN_USER, Authentication
from server.auth.tokens import TokenUnusableError, read_or_create_token, write_private

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from server.auth.principals import Caller


def test_the_first_start_makes_a_token_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = read_or_create_token(path)
    assert len(token) >= 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_later_starts_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert read_or_create_token(path) == read_or_create_token(path)


def test_every_server_has_its_own(tmp_path: Path) -> None:
    assert read_or_create_token(tmp_path / "a") != read_or_create_token(tmp_path / "b")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_token_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    token = read_or_create_token(path)
    path.chmod(mode)
    with pytest.raises(TokenUnusableError, match="chmod 600") as refusal:
        read_or_create_token(path)
    assert token not in str(refusal.value)


@pytest.mark.parametrize("text", ["", "short", "\n\n"])
def test_an_empty_token_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    write_private(path, text)
    with pytest.raises(TokenUnusableError, match="contains no token"):
        read_or_create_token(path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_no_token(tmp_path: Path, make: Callable[..., None]) -> None:
    make(tmp_path / "token", 0o700)
    with pytest.raises(TokenUnusableError, match=r"token cannot be read: not a regular file"):
        read_or_create_token(tmp_path / "token")


def test_a_token_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    with pytest.raises(TokenUnusableError, match="cannot be written"):
        read_or_create_token(tmp_path / "missing" / "token")


TOKEN = "t" * 43


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ((("authorization", f"Bearer {TOKEN}"),), OWN_USER),
        ((("user-agent", "x"), ("authorization", f"Bearer {TOKEN}")), OWN_USER),
        ((("authorization", f"bearer {TOKEN}"),), OWN_USER),
        ((("authorization", f"BEARER  {TOKEN}"),), OWN_USER),
        ((("authorization", f"Basic {TOKEN}"),), None),
        ((("authorization", f"Bearer{TOKEN}"),), None),
        ((("authorization", f" {TOKEN}"),), None),
        ((("authorization", f"bearer {TOKEN.upper()}"),), None),
        ((("authorization", TOKEN),), None),
        ((("authorization", f"Bearer {TOKEN}x"),), None),
        ((("authorization", f"Bearer {TOKEN[:-1]}"),), None),
        ((("authorization", "Bearer "),), None),
        ((("authorization", "Bearer ä"),), None),
        ((("authorization-bin", b"x"),), None),
        ((), None),
    ],
)
def test_only_the_whole_token_opens(metadata: tuple[tuple[str, str | bytes], ...], expected: Caller | None) -> None:
    assert Authentication(TOKEN).caller_of(metadata) == expected
