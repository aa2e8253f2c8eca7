"""The list of tokens of principals, as hashes: `bedrock token` writes it, the server reads it."""

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
"""The name under which the list is stored: as a file in the data directory, or as a document in the database."""
PREFIX = "bedrock"
"""The prefix of all tokens of principals, by which secret scanners recognise tokens in published files."""
SECRET_BYTES = 32


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token of a principal, without its secret."""

    id: str
    principal: str
    role: Role
    digest: str
    """SHA-256 of the secret, in hexadecimal digits.

    A slow hash is not needed, because the secret has 256 random bits.
    """
    created_at: int
    """When the token was created, in milliseconds since 1970."""
    expires_at: int = 0
    """When the token expires, in milliseconds since 1970; 0 for never."""
    note: str = ""

    def valid(self, now: int) -> bool:
        """Return whether the token has not expired at the time `now`, in milliseconds since 1970."""
        return not self.expires_at or now < self.expires_at


class TokenContent(Protocol):
    """Where the list of tokens is stored: a file or a database.

    The methods do blocking I/O, and raise TokenUnusableError or StoreError.
    """

    @property
    def shown(self) -> str:
        """The path of the file or the name of the document in the database, for error messages."""
        ...

    def read(self) -> bytes | None:
        """Return the list as JSON; None if no list was ever written."""
        ...

    def update(self, change: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the list by the result of `change(list)`; if the result is None, leave the list unchanged.

        May call `change` more than once.
        """
        ...


class PrincipalTokens:
    """Reads and changes the list of tokens. The methods do blocking I/O, and raise TokenUnusableError if that fails."""

    def __init__(self, content: TokenContent) -> None:
        self._content = content

    def read(self) -> tuple[Token, ...]:
        """Return the tokens; () if no list was ever written.

        Also raises StoreUnavailableError if the database does not answer.
        """
        try:
            return self._decoded(self._content.read())
        except StoreUnavailableError:
            raise
        except StoreError as error:
            raise TokenUnusableError(str(error)) from None

    def create(self, principal: str, role: Role, now: int, *, expires_at: int = 0, note: str = "") -> tuple[Token, str]:
        """Add a token, and return it with its text. The text contains the secret, and is not stored anywhere."""
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
        """Give a token a new secret, and return its new text; None if there is no such token."""
        secret = secrets.token_urlsafe(SECRET_BYTES)

        def rotated(tokens: list[Token]) -> bool:
            places = [place for place, token in enumerate(tokens) if token.id == token_id]
            for place in places:
                tokens[place] = msgspec.structs.replace(tokens[place], digest=_digest(secret))
            return bool(places)

        return f"{PREFIX}_{token_id}_{secret}" if self._change(rotated) else None

    def revoke(self, token_id: str) -> bool:
        """Remove a token, and return whether it existed."""

        def removed(tokens: list[Token]) -> bool:
            kept = [token for token in tokens if token.id != token_id]
            found = len(kept) < len(tokens)
            tokens[:] = kept
            return found

        return self._change(removed)

    def _change(self, change: Callable[[list[Token]], T]) -> T:
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
    """The tokens of principals in a file of the data directory, for a server that shares its store with no other."""

    def __init__(self, path: Path) -> None:
        self._file = PrivateFile(path)
        super().__init__(self._file)

    def version(self) -> object:
        """Return a value that changes whenever the file or its permissions change. Costs one system call."""
        return self._file.version()

    async def read_again(self) -> None:
        """Return at once, because `version` and `read` always look at the file."""


def matching(tokens: dict[str, Token], text: bytes) -> Token | None:
    """Return the token whose text, with the secret, is `text`; None if there is none. Compares in constant time.

    `tokens` maps token ids to tokens.
    """
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
