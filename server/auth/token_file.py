"""The tokens of principals: a file with their hashes, which `bedrock token` writes and the server reads."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from server.auth.local_token import TokenUnusableError
from server.auth.principals import Role
from server.auth.private_file import PrivateFile

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

FILE = "tokens.json"
PREFIX = "bedrock"
"""Tokens begin with it, so that programs which search for leaked secrets can know them."""
SECRET_BYTES = 32


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token of a principal, without its secret."""

    id: str
    principal: str
    role: Role
    digest: str
    """SHA-256 of the secret, in hexadecimal digits: enough for a secret of 256 random bits."""
    created_at: int
    """In milliseconds since 1970, like `expires_at`."""
    expires_at: int = 0
    """0: never."""
    note: str = ""

    def valid(self, now: int) -> bool:
        """Whether it has not expired at `now`, in milliseconds since 1970."""
        return not self.expires_at or now < self.expires_at


class TokenFile:
    """The file with the hashes of all tokens."""

    def __init__(self, path: Path) -> None:
        self._file = PrivateFile(path)

    def read(self) -> tuple[Token, ...]:
        """Return the tokens; () if there is no file. Blocks for the disk. Raises TokenUnusableError."""
        content = self._file.read()
        try:
            return () if content is None else msgspec.json.decode(content, type=tuple[Token, ...])
        except msgspec.DecodeError:
            raise TokenUnusableError(f"{self._file.path} holds no list of tokens: restore it, or remove it") from None

    def version(self) -> tuple[int, ...]:
        """Return what changes with each change of the file, or of who may read it. Costs one system call."""
        return self._file.version()

    def create(self, principal: str, role: Role, now: int, *, expires_at: int = 0, note: str = "") -> tuple[Token, str]:
        """Add a token; return it and its text, which is kept nowhere. Raises TokenUnusableError."""
        with self._changing() as tokens:
            known = {token.id for token in tokens}
            while (name := secrets.token_hex(4)) in known:
                pass
            secret = secrets.token_urlsafe(SECRET_BYTES)
            token = Token(name, principal, role, _digest(secret), now, expires_at, note)
            tokens.append(token)
        return token, f"{PREFIX}_{name}_{secret}"

    def rotate(self, token_id: str) -> str | None:
        """Give a token another secret and return its new text; None if there is none. Raises TokenUnusableError."""
        with self._changing() as tokens:
            for place, token in enumerate(tokens):
                if token.id == token_id:
                    secret = secrets.token_urlsafe(SECRET_BYTES)
                    tokens[place] = msgspec.structs.replace(token, digest=_digest(secret))
                    return f"{PREFIX}_{token_id}_{secret}"
        return None

    def revoke(self, token_id: str) -> bool:
        """Remove a token; return whether there was one. Raises TokenUnusableError."""
        with self._changing() as tokens:
            kept = [token for token in tokens if token.id != token_id]
            found = len(kept) < len(tokens)
            tokens[:] = kept
        return found

    @contextmanager
    def _changing(self) -> Generator[list[Token]]:
        """Yield the tokens for a change that is written at the end, while no other program makes one."""
        with self._file.changing():
            before = self.read()
            tokens = list(before)
            yield tokens
            if tuple(tokens) != before:
                self._file.write(msgspec.json.encode(tokens))


def matching(tokens: dict[str, Token], text: bytes) -> Token | None:
    """Return the token whose text this is. Takes the same time for every wrong secret of a token."""
    prefix, _, rest = text.partition(b"_")
    name, _, secret = rest.partition(b"_")
    token = tokens.get(name.decode("ascii", "replace")) if prefix == PREFIX.encode() else None
    if token is None:
        return None
    return token if hmac.compare_digest(_digest_of(secret), token.digest.encode()) else None


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _digest_of(secret: bytes) -> bytes:
    return hashlib.sha256(secret).hexdigest().encode()
