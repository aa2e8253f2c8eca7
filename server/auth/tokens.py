"""Files with secrets in the data directory: the local token, tokens of principals, and logins to MCP servers.

The holder of the local token has all rights of the user that runs the server. Tokens of principals are kept as hashes.
The commands `bedrock token` and `bedrock mcp login` change the same files while the server runs.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import hmac
import logging
import os
import secrets
import stat
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec
from bedrock.local_server import NotPrivateError, open_believed

from actors.ports import StoreError, StoreUnavailableError
from actors.ports.tools import McpLogin, McpLoginsError, McpRegistration
from server.auth.principals import Role

TOKEN_BYTES = 32


class TokenUnusableError(Exception):
    """The token's file cannot be used. The message explains why, and contains no part of the token."""


def read_or_create_token(path: Path) -> str:
    """Read the token in a file; if the file is missing, create one that only its owner can read.

    Raises TokenUnusableError.
    """
    try:
        return _read(path)
    except FileNotFoundError:
        token = secrets.token_urlsafe(TOKEN_BYTES)
        write_private(path, token + "\n")
        return token
    except OSError as error:
        raise _unreadable(path, error) from None


def read_token(path: Path) -> str:
    """Read the token in a file that somebody else has written.

    Raises TokenUnusableError if the file is missing, empty or readable by other users.
    """
    try:
        return _read(path, named=True)
    except FileNotFoundError:
        raise TokenUnusableError(f"the token file {path} does not exist") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> TokenUnusableError:
    return TokenUnusableError(f"the token file {path} cannot be read: {error.strerror}")


def open_secret(path: Path, *, named: bool = False) -> int:
    """Open a file with secrets. `named` means that the operator has named the file in the settings.

    Raises TokenUnusableError if others can read it or may have written it, and OSError.
    """
    try:
        descriptor = open_believed(path, named=named)
    except NotPrivateError as error:
        raise TokenUnusableError(str(error)) from None
    if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
        os.close(descriptor)
        raise TokenUnusableError(f"{path} can be read by others; run chmod 600 on it")
    return descriptor


def _read(path: Path, *, named: bool = False) -> str:
    with os.fdopen(open_secret(path, named=named), "rb") as file:
        token = file.read(1024).decode("ascii", "replace").strip()
    if len(token) < TOKEN_BYTES:
        raise TokenUnusableError(f"the token file {path} contains no token; remove it to create a new one")
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


MAX_FILE_BYTES = 16 << 20


class PrivateFile:
    """A JSON file that only its owner can read. Blocks; raises TokenUnusableError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def location(self) -> str:
        return str(self.path)

    def read(self) -> bytes | None:
        """The content; None without a file.

        Raises TokenUnusableError, also if other users could read or write the file.
        """
        try:
            with os.fdopen(open_secret(self.path), "rb") as file:
                return file.read(MAX_FILE_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TokenUnusableError(f"{self.path} cannot be read: {error.strerror}") from None

    def version(self) -> tuple[int, ...]:
        """A value that changes whenever the file or its permissions change. Costs one system call."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return ()
        return found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size

    @contextmanager
    def changing(self) -> Generator[None]:
        """Lock the file against changes by other programs in the `with` block. Readers never wait."""
        lock = self.path.with_name(f"{self.path.name}.lock")
        try:
            held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise TokenUnusableError(f"{lock} cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)

    def update(self, change: Callable[[bytes | None], bytes | None]) -> None:
        """Under the lock, replace the content with `change(content)`, unless that is None."""
        with self.changing():
            content = change(self.read())
            if content is not None:
                self.write(content)

    def write(self, json: bytes) -> None:
        """Replace the content atomically. Call this within `changing`."""
        write_private(self.path, msgspec.json.format(json).decode() + "\n")


log = logging.getLogger(__name__)

# Seconds between two reads of the tokens. A revoked token is refused within this time plus REFRESH_SECONDS in
# `server.auth.authentication`.
FOLLOW_SECONDS = 0.5
# Minimum seconds between two reads of the tokens, even if many calls with unknown tokens arrive.
PAUSE_SECONDS = 0.05
PATIENCE_SECONDS = 2.0
"""Maximum seconds that a call with an unknown token waits until the tokens have been read again."""


class SharedTokens:
    """Reads the tokens in the database periodically, on a thread. Use only on the event loop.

    While the database is unreachable, the last known tokens stay valid; calls that need the database fail anyway.
    """

    def __init__(self, tokens: PrincipalTokens) -> None:
        """Read the tokens, and start the thread. Raises TokenUnusableError or StoreUnavailableError."""
        self._stored = tokens
        self._guard = threading.Lock()  # guards _tokens, _failure, _version and _waiting
        self._tokens, self._failure = tokens.read(), ""
        self._version = 0
        self._waiting: list[Callable[[], object]] = []
        self._wanted, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="shared-tokens", daemon=True)
        self._thread.start()

    def version(self) -> object:
        """A number that grows whenever a read has found changed tokens."""
        with self._guard:
            return self._version

    def read(self) -> tuple[Token, ...]:
        """The tokens as of the last read. Raises TokenUnusableError if the database contains no valid list."""
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
        """End the thread after a read in progress. Blocks. Idempotent."""
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
        """Read the tokens once; keep the old ones if the database does not respond."""
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

PRINCIPALS_TOKENS = "tokens.json"
"""The name under which the list of tokens is stored: as a file in the data directory or a document in the database."""
# The prefix of all principals' tokens, by which secret scanners recognise tokens in published files.
PREFIX = "bedrock"
SECRET_BYTES = 32


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    principal: str
    role: Role
    digest: str
    """SHA-256 of the secret, in hexadecimal digits: a slow hash is not needed for 256 random bits."""
    created_at: int
    expires_at: int = 0
    note: str = ""

    def valid(self, now: int) -> bool:
        """Whether the token has not expired at the time `now`, in milliseconds since 1970."""
        return not self.expires_at or now < self.expires_at


_TOKENS = msgspec.json.Decoder(tuple[Token, ...])


class TokenContent(Protocol):
    """Where the list of tokens is stored. Blocks; raises TokenUnusableError or StoreError."""

    @property
    def location(self) -> str:
        """The path of the file or the name of the document in the database, for error messages."""
        ...

    def read(self) -> bytes | None:
        """The list as JSON; None if no list was ever written."""
        ...

    def update(self, change: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the list with `change(list)`, unless that is None. May call `change` more than once."""
        ...


class PrincipalTokens:
    """Reads and changes the list of tokens. Blocks; raises TokenUnusableError."""

    def __init__(self, content: TokenContent) -> None:
        self._content = content

    def read(self) -> tuple[Token, ...]:
        """The tokens; () if no list was ever written. Also raises StoreUnavailableError."""
        try:
            return self._decoded(self._content.read())
        except StoreUnavailableError:
            raise
        except StoreError as error:
            raise TokenUnusableError(str(error)) from None

    def create(self, principal: str, role: Role, now: int, *, expires_at: int = 0, note: str = "") -> tuple[Token, str]:
        """Add a token, and return it with its full text, which contains the secret and is stored nowhere."""
        secret = secrets.token_urlsafe(SECRET_BYTES)

        def added(tokens: list[Token]) -> Token:
            known = {token.id for token in tokens}
            while (name := secrets.token_hex(4)) in known:
                pass
            tokens.append(token := Token(name, principal, role, _digest(secret.encode()), now, expires_at, note))
            return token

        token = self._change(added)
        return token, f"{PREFIX}_{token.id}_{secret}"

    def rotate(self, token_id: str) -> str | None:
        secret = secrets.token_urlsafe(SECRET_BYTES)

        def rotated(tokens: list[Token]) -> bool:
            places = [place for place, token in enumerate(tokens) if token.id == token_id]
            for place in places:
                tokens[place] = msgspec.structs.replace(tokens[place], digest=_digest(secret.encode()))
            return bool(places)

        return f"{PREFIX}_{token_id}_{secret}" if self._change(rotated) else None

    def revoke(self, token_id: str) -> bool:
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
            return () if content is None else _TOKENS.decode(content)
        except msgspec.DecodeError:
            raise TokenUnusableError(
                f"{self._content.location} is not a valid list of tokens; restore or remove it"
            ) from None


class TokenFile(PrincipalTokens):
    """The tokens of principals in a file of the data directory, for a server that shares its store with no other."""

    def __init__(self, path: Path) -> None:
        self._file = PrivateFile(path)
        super().__init__(self._file)

    def version(self) -> object:
        """A value that changes whenever the file or its permissions change. Costs one system call."""
        return self._file.version()

    async def read_again(self) -> None:
        """Do nothing, because `version` and `read` always look at the file."""


def matching(tokens: dict[str, Token], text: bytes) -> Token | None:
    """The token whose full text (id and secret) is `text`; None if there is none. Compares in constant time."""
    prefix, _, rest = text.partition(b"_")
    name, _, secret = rest.partition(b"_")
    token = tokens.get(name.decode("ascii", "replace")) if prefix == PREFIX.encode() else None
    if token is None:
        return None
    return token if hmac.compare_digest(_digest(secret), token.digest) else None


def _digest(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()


MCP_LOGINS = "mcp-logins.json"
MCP_REGISTRATIONS = "mcp-clients.json"

Kept = TypeVar("Kept")


class _Table(Generic[Kept]):
    _decoder: msgspec.json.Decoder[dict[str, Kept]]
    _what: str
    """The word for the stored values in error messages, e.g. "logins"."""

    def __init__(self, path: Path) -> None:
        self._file = PrivateFile(path)

    def read(self) -> dict[str, Kept]:
        """The values by server name; {} without a file. Raises McpLoginsError."""
        try:
            content = self._file.read()
            return {} if content is None else self._decoder.decode(content)
        except TokenUnusableError as error:
            raise McpLoginsError(str(error)) from None
        except (ValueError, RecursionError):  # ValueError includes msgspec.DecodeError
            raise McpLoginsError(f"{self._file.path} contains no valid {self._what}; restore or remove it") from None

    @contextmanager
    def _changing(self) -> Generator[dict[str, Kept]]:
        """Yield the values to change, and write them at the end of the block; other programs wait.

        Raises McpLoginsError.
        """
        try:
            with self._file.changing():
                values = self.read()
                before = dict(values)
                yield values
                if values != before:
                    self._file.write(msgspec.json.encode(values))
        except TokenUnusableError as error:
            raise McpLoginsError(str(error)) from None

    def put(self, name: str, value: Kept) -> None:
        """Store or replace a server's value. Raises McpLoginsError."""
        with self._changing() as values:
            values[name] = value


class McpRegistrationFile(_Table[McpRegistration]):
    """OAuth client registrations with MCP servers.

    A login removes its server's registration, and stores it again on success.
    """

    _decoder, _what = msgspec.json.Decoder(dict[str, McpRegistration]), "registrations"

    def pop(self, name: str) -> McpRegistration | None:
        """Remove and return a server's registration, or None. Raises McpLoginsError."""
        with self._changing() as found:
            return found.pop(name, None)


class McpLoginFile(_Table[McpLogin]):
    """Logins to MCP servers, in a JSON file. Implements `McpLogins` of actors.ports."""

    _decoder, _what = msgspec.json.Decoder(dict[str, McpLogin]), "logins"

    def version(self) -> tuple[int, ...]:
        """A value that changes whenever the file does."""
        return self._file.version()

    def replace(self, name: str, before: McpLogin, after: McpLogin | None) -> bool:
        """Replace the login (None removes it) if it still equals `before`; False if not. Raises McpLoginsError."""
        with self._changing() as logins:
            if logins.get(name) != before:
                return False
            if after is None:
                del logins[name]
            else:
                logins[name] = after
        return True
