"""The list of tokens of principals, as hashes: `bedrock token` writes it, the server reads it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from actors.ports import StoreError, StoreUnavailableError
from server.auth.local_token import TokenUnusableError
from server.auth.principals import Role
from server.auth.private_file import PrivateFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 0.5
"""Seconds between two reads of the tokens in the database.

A revoked token is refused at the latest after this time plus REFRESH_SECONDS of `server.auth.authentication`.
"""
PAUSE_SECONDS = 0.05
"""Minimum seconds between two reads of the tokens, even if many calls with unknown tokens arrive."""
PATIENCE_SECONDS = 2.0
"""Maximum seconds that a call with an unknown token waits until the tokens have been read again."""


class SharedTokens:
    """Reads the tokens in the database periodically, on a thread of its own. Use in the event loop only.

    While the database does not answer, the last known tokens stay valid; calls that need the database fail anyway.
    """

    def __init__(self, tokens: PrincipalTokens) -> None:
        """Read the tokens, and start the thread that reads them again.

        Raises TokenUnusableError or StoreUnavailableError if they cannot be read.
        """
        self._stored = tokens
        self._guard = threading.Lock()  # guards _tokens, _failure, _version and _waiting
        self._tokens, self._failure = tokens.read(), ""
        self._version = 0
        self._waiting: list[Callable[[], object]] = []
        self._wanted, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="shared-tokens", daemon=True)
        self._thread.start()

    def version(self) -> object:
        """Return a number that grows whenever a read has found changed tokens."""
        with self._guard:
            return self._version

    def read(self) -> tuple[Token, ...]:
        """Return the tokens as of the last read. Raises TokenUnusableError if the database contains no valid list."""
        with self._guard:
            if self._failure:
                raise TokenUnusableError(self._failure)
            return self._tokens

    async def read_again(self) -> None:
        """Wait until the tokens have been read once more, but at most PATIENCE_SECONDS."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not done.done():  # already done if the wait has timed out
                done.set_result(None)

        def tell() -> None:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(end)

        with self._guard:
            self._waiting.append(tell)
            self._wanted.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(done, PATIENCE_SECONDS)

    def close(self) -> None:
        """End the thread once a read in progress has finished. Blocks until then. May be called more than once."""
        self._closed.set()
        self._wanted.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._closed.wait(PAUSE_SECONDS):
            self._wanted.wait(FOLLOW_SECONDS)
            with self._guard:
                self._wanted.clear()
                waiting, self._waiting = self._waiting, []
            self._look()
            for tell in waiting:
                tell()

    def _look(self) -> None:
        """Read the tokens once, and keep the result for `read`.

        If the database does not answer, keep the old result.
        """
        try:
            found, failure = self._stored.read(), ""
        except StoreUnavailableError:
            return
        except TokenUnusableError as error:
            found, failure = (), str(error)
        with self._guard:
            if (found, failure) != (self._tokens, self._failure):
                self._tokens, self._failure = found, failure
                self._version += 1


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
