"""Reads and creates the file with the local token, whose holder has all rights of the user that runs the server."""

from __future__ import annotations

import os
import secrets
import stat
from typing import TYPE_CHECKING

from bedrock.local_server import NotPrivateError, open_believed

if TYPE_CHECKING:
    from pathlib import Path

TOKEN_BYTES = 32


class TokenUnusableError(Exception):
    """The token's file cannot be used. The message explains why, and contains no part of the token."""


def read_or_create_token(path: Path) -> str:
    """Return the token in the file `path`. A missing file is created with a new token, and only its owner can read it.

    Raises TokenUnusableError if other users can read the file, or if it cannot be read or written.
    """
    try:
        return _read(path)
    except FileNotFoundError:
        return _create(path)
    except OSError as error:
        raise _unreadable(path, error) from None


def read_token(path: Path) -> str:
    """Return the token in a file that an operator or another program has written.

    Raises TokenUnusableError if the file is missing, has no token, or can be read by other users.
    """
    try:
        return _read(path, named=True)
    except FileNotFoundError:
        raise TokenUnusableError(f"there is no token file {path}") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> TokenUnusableError:
    return TokenUnusableError(f"the token file {path} cannot be read: {error.strerror}")


def open_secret(path: Path, *, named: bool = False) -> int:
    """Open a file with secrets for reading, and return its descriptor. An operator's file is `named` in the settings.

    Raises TokenUnusableError if other users can read it or may have written it, and OSError if it cannot be opened.
    """
    try:
        descriptor = open_believed(path, named=named)
    except NotPrivateError as error:
        raise TokenUnusableError(str(error)) from None
    if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
        os.close(descriptor)
        raise TokenUnusableError(f"{path} can be read by others: chmod 600 it")
    return descriptor


def _read(path: Path, *, named: bool = False) -> str:
    with os.fdopen(open_secret(path, named=named), "rb") as file:
        token = file.read(1024).decode("ascii", "replace").strip()
    if len(token) < TOKEN_BYTES:
        raise TokenUnusableError(f"the token file {path} holds no token: remove it, and a new one is made")
    return token


def _create(path: Path) -> str:
    token = secrets.token_urlsafe(TOKEN_BYTES)
    write_private(path, token + "\n")
    return token


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable only by its owner. Raises TokenUnusableError if it cannot be written."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise TokenUnusableError(f"{path} cannot be written: {error.strerror}") from None
