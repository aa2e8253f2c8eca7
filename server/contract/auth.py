"""Authentication: one bearer token, one principal."""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from contextvars import ContextVar
from typing import TYPE_CHECKING

from bedrock.local_server import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PRINCIPAL = "local"
"""The principal of every client with the token."""
TOKEN_BYTES = 32

caller: ContextVar[str] = ContextVar("caller")
"""The principal of the call being served."""
subject: ContextVar[str] = ContextVar("subject", default="")
"""The id of the conversation that the call being served is about, once it is known."""


class TokenUnusableError(Exception):
    """The token's file cannot be used; the text says why and holds no part of the token."""


class TokenAuth:
    """Compares the token of a call with that of the server."""

    def __init__(self, token: str) -> None:
        self._expected = token.encode()

    def principal_of(self, metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
        """Return the caller; None without a valid token.

        Takes constant time, so that the token cannot be guessed by timing.

        The scheme may be written in any case, and be followed by more than one space (RFC 6750, RFC 9110).
        """
        given = next((value for key, value in metadata if key == "authorization"), "")
        raw = given.encode() if isinstance(given, str) else given
        scheme, _, token = raw.partition(b" ")
        same = hmac.compare_digest(token.lstrip(b" "), self._expected)
        return PRINCIPAL if same and scheme.lower() == b"bearer" else None


def read_or_create_token(path: Path) -> str:
    """Return the token in `path`; the first start creates it, readable only by its owner.

    Raises TokenUnusableError.
    """
    try:
        return _read(path)
    except FileNotFoundError:
        return _create(path)
    except OSError as error:
        raise TokenUnusableError(f"the token file {path} cannot be read: {error.strerror}") from None


def _read(path: Path) -> str:
    with os.fdopen(open_regular(path), "rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise TokenUnusableError(f"the token file {path} can be read by others: chmod 600 it, or remove it")
        token = file.read(1024).decode("ascii", "replace").strip()
    if len(token) < TOKEN_BYTES:
        raise TokenUnusableError(f"the token file {path} holds no token: remove it, and a new one is made")
    return token


def _create(path: Path) -> str:
    token = secrets.token_urlsafe(TOKEN_BYTES)
    write_private(path, token + "\n")
    return token


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all. Raises TokenUnusableError."""
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
