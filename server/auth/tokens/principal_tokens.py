"""The tokens of principals: a list of their hashes, which `bedrock token` writes and the server reads."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from actors.ports import StoreError, StoreUnavailableError
from server.auth.local_token import TokenUnusableError
from server.auth.principals import Role
from server.auth.private_file import PrivateFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

FILE = "tokens.json"
"""Its name, in the data directory or in the database."""
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


class TokenContent(Protocol):
    """Where the list of tokens is kept. Methods block; they raise TokenUnusableError or StoreError."""

    @property
    def shown(self) -> str:
        """Where that is, for people."""
        ...

    def read(self) -> bytes | None:
        """Return the list as JSON; None if nothing was ever written."""
        ...

    def update(self, change: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the list by what `change` makes of it, unless that is None. `change` may be called more than once."""
        ...


class PrincipalTokens:
    """The list of all tokens, with their hashes. Methods block, and raise TokenUnusableError."""

    def __init__(self, content: TokenContent) -> None:
        self._content = content

    def read(self) -> tuple[Token, ...]:
        """Return the tokens; () if there is no list. Raises StoreUnavailableError if the database does not answer."""
        try:
            return self._decoded(self._content.read())
        except StoreUnavailableError:
            raise
        except StoreError as error:
            raise TokenUnusableError(str(error)) from None

    def create(self, principal: str, role: Role, now: int, *, expires_at: int = 0, note: str = "") -> tuple[Token, str]:
        """Add a token; return it and its text, which is kept nowhere."""
        secret = secrets.token_urlsafe(SECRET_BYTES)

        def added(tokens: list[Token]) -> Token:
            known = {token.id for token in tokens}
            while (name := secrets.token_hex(4)) in known:
                pass
            tokens.append(token := Token(name, principal, role, _digest(secret), now, expires_at, note))
            return token

        token = self._change(added)
        return token, f"{PREFIX}_{token.id}_{secret}"

    def rotate(self, token_id: str) -> str | None:
        """Give a token another secret and return its new text; None if there is none."""
        secret = secrets.token_urlsafe(SECRET_BYTES)

        def rotated(tokens: list[Token]) -> bool:
            places = [place for place, token in enumerate(tokens) if token.id == token_id]
            for place in places:
                tokens[place] = msgspec.structs.replace(tokens[place], digest=_digest(secret))
            return bool(places)

        return f"{PREFIX}_{token_id}_{secret}" if self._change(rotated) else None

    def revoke(self, token_id: str) -> bool:
        """Remove a token; return whether there was one."""

        def removed(tokens: list[Token]) -> bool:
            kept = [token for token in tokens if token.id != token_id]
            found = len(kept) < len(tokens)
            tokens[:] = kept
            return found

        return self._change(removed)

    def _change(self, change: Callable[[list[Token]], T]) -> T:
        """Return what `change` returns, which changes the list; no change of anybody else is lost."""
        made: list[T] = []

        def changed(content: bytes | None) -> bytes | None:
            before = self._decoded(content)
            tokens = list(before)
            made[:] = [change(tokens)]
            return None if tuple(tokens) == before else msgspec.json.encode(tokens)

        try:
            self._content.update(changed)
        except StoreError as error:
            raise TokenUnusableError(str(error)) from None
        return made[0]

    def _decoded(self, content: bytes | None) -> tuple[Token, ...]:
        try:
            return () if content is None else msgspec.json.decode(content, type=tuple[Token, ...])
        except msgspec.DecodeError:
            raise TokenUnusableError(
                f"{self._content.shown} holds no list of tokens: restore it, or remove it"
            ) from None


class TokenFile(PrincipalTokens):
    """The list in the data directory of a server that shares its conversations with no other one."""

    def __init__(self, path: Path) -> None:
        self._file = PrivateFile(path)
        super().__init__(self._file)

    def version(self) -> object:
        """Return what changes with each change of the file, or of who may read it. Costs one system call."""
        return self._file.version()

    async def read_again(self) -> None:
        """Return at once: each `version` is that of this moment."""


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
