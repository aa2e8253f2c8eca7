"""Fetches the public keys of a token issuer (JWKS), renews them in the background, and keeps them during outages."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING, Any

import jwt
import requests
import urllib3
from bedrock.local_server import NotPrivateError, read_believed

from server.auth.issuers.issuer_tables import ALGORITHMS
from server.process.certificates import CertificateUnusableError, authorities_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from server.auth.issuers.issuer_tables import Issuer

log = logging.getLogger(__name__)

MAX_BYTES = 256 << 10
"""Maximum size of a key set, in bytes."""
MAX_KEYS = 64
FETCH_SECONDS = 5.0
"""Maximum seconds for reading a key set."""
URL_SECONDS = 300.0
"""The age in seconds at which keys from a URL are read again."""
FILE_SECONDS = 2.0
"""The age in seconds at which keys from a file are read again."""
RETRY_SECONDS = 10.0
"""Minimum seconds between two reads from a URL, even if tokens with unknown keys keep coming or the issuer is down."""
STALE_SECONDS = 86_400.0
"""The age in seconds at which keys that cannot be renewed expire, so that no withdrawn key stays valid for ever."""


class KeysUnusableError(Exception):
    """The public keys of an issuer cannot be read or used. The text says why."""


class IssuerKeys:
    """The public keys of one issuer. Use in the event loop only."""

    def __init__(self, issuer: Issuer, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._monotonic = monotonic
        self._keys: dict[tuple[str, str], jwt.PyJWK] = {}
        self._content = b""
        self._read_at = self._tried_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        in_file = issuer.table.jwks_file is not None
        self._age = FILE_SECONDS if in_file else URL_SECONDS
        self._retry = FILE_SECONDS if in_file else RETRY_SECONDS
        self._failure = ""
        """Why the last read failed; "" if it succeeded."""

    def find(self, key_id: str, algorithm: str) -> jwt.PyJWK | None:
        """Return the key with this id for an algorithm; None if there is no such key or it has expired.

        The id "" means the only key for the algorithm. If the keys are old, this starts to read them again in the
        background, and does not wait.
        """
        now = self._monotonic()
        if now - self._read_at > self._age:
            self._begin()
        if now - self._read_at > STALE_SECONDS:
            return None
        if key_id:
            return self._keys.get((key_id, algorithm))
        usable = [key for (_, each), key in self._keys.items() if each == algorithm]
        return usable[0] if len(usable) == 1 else None

    async def refresh(self) -> None:
        """Read the keys again, unless the last attempt was too recent. Waits at most FETCH_SECONDS + 1 seconds."""
        self._begin()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=FETCH_SECONDS + 1)

    def _begin(self) -> None:
        now = self._monotonic()
        if self._task is None and now - self._tried_at >= self._retry:
            self._tried_at = now
            self._task = asyncio.create_task(self._read(), name=f"keys of {self._issuer.name}")

    async def _read(self) -> None:
        try:
            content = await content_of(self._issuer)
            if content != self._content:
                self._keys = keys_in(content, self._issuer.table.algorithms)
                self._content = content
                log.info("issuer %s: %d keys", self._issuer.name, len({key_id for key_id, _ in self._keys}))
        except KeysUnusableError as error:
            if self._failure != str(error):
                log.warning("issuer %s: %s; keys that are known are used for a day", self._issuer.name, error)
            self._failure = str(error)
        else:
            self._read_at, self._failure = self._monotonic(), ""
        finally:
            self._task = None


def keys_in(content: bytes, algorithms: tuple[str, ...]) -> dict[tuple[str, str], jwt.PyJWK]:
    """Return the keys in a key set, by key id and algorithm, for the allowed algorithms only.

    Keys of other kinds, such as symmetric ones, are ignored. Raises KeysUnusableError if `content` is no key set, or if
    no key remains.
    """
    try:
        keys = json.loads(content)["keys"]
        found = [key for key in keys if isinstance(key, dict)]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise KeysUnusableError("what it has is no key set: an object with a list `keys`") from None
    usable: dict[tuple[str, str], jwt.PyJWK] = {}
    for key in found[:MAX_KEYS]:
        for algorithm in algorithms:
            if (made := _key(key, algorithm)) is not None:
                usable.setdefault((str(key.get("kid", "")), algorithm), made)
    if not usable:
        raise KeysUnusableError(f"its key set has no public key for {', '.join(algorithms)}")
    return usable


def _key(data: Mapping[str, Any], algorithm: str) -> jwt.PyJWK | None:
    """Return a JSON Web Key as a key object; None if it is private, malformed or for another algorithm."""
    fits = data.get("kty") == "RSA" if ALGORITHMS[algorithm] == "RSA" else data.get("crv") == ALGORITHMS[algorithm]
    if not fits or data.get("kty") == "oct" or "d" in data:
        return None
    if data.get("alg", algorithm) != algorithm or data.get("use", "sig") != "sig":
        return None
    try:
        return jwt.PyJWK(dict(data), algorithm)
    except jwt.PyJWTError:
        return None


async def content_of(issuer: Issuer) -> bytes:
    """Fetch the key set of an issuer from its URL or file, on another thread, and return it unparsed.

    Raises KeysUnusableError if it cannot be read within FETCH_SECONDS, or is too large.
    """
    try:
        async with asyncio.timeout(FETCH_SECONDS):
            if issuer.table.jwks_file is not None:
                return await asyncio.to_thread(read_file, issuer.table.jwks_file)
            return await asyncio.to_thread(_get, issuer.table.jwks_url, issuer.table.ca_bundle)
    except (TimeoutError, requests.Timeout):
        raise KeysUnusableError(f"{issuer.table.jwks_url} did not answer within {FETCH_SECONDS:.0f} s") from None
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise KeysUnusableError(f"{issuer.table.jwks_url} cannot be read: {_reason(error)}") from None


def read_file(path: Path) -> bytes:
    """Return the content of the file with a key set. Does blocking I/O.

    Raises KeysUnusableError if the file cannot be read or is too large.
    """
    try:
        content = read_believed(path, named=True, most=MAX_BYTES + 1)
    except NotPrivateError as error:
        raise KeysUnusableError(str(error)) from None
    except OSError as error:
        raise KeysUnusableError(f"{path} cannot be read: {(error.strerror or '').lower()}") from None
    return _bounded(content)


def _bounded(content: bytes) -> bytes:
    if len(content) > MAX_BYTES:
        raise KeysUnusableError(f"its key set is larger than {MAX_BYTES >> 10} KiB")
    return content


def _get(url: str, ca_bundle: Path | None) -> bytes:
    """Download a URL without following redirects or using a proxy, and return the response's body. Blocks.

    Raises KeysUnusableError for a status other than 200 or too large a response; also requests' and urllib3's errors.
    """
    try:
        verify = True if ca_bundle is None else str(authorities_in(ca_bundle) and ca_bundle)
    except CertificateUnusableError as error:
        raise KeysUnusableError(str(error)) from None
    with requests.Session() as session:
        session.trust_env = False
        with session.get(url, timeout=FETCH_SECONDS, stream=True, allow_redirects=False, verify=verify) as answer:
            if answer.status_code != requests.codes.ok:
                raise KeysUnusableError(f"{url} answers with status {answer.status_code}")
            content, ends = b"", time.monotonic() + FETCH_SECONDS
            while block := answer.raw.read1(1 << 16, decode_content=False):
                content = _bounded(content + block)
                if time.monotonic() > ends:
                    raise requests.Timeout
            return content


def _reason(error: BaseException) -> str:
    """Return the cause of a failed request in a few words: the one of the innermost error, which requests wraps."""
    while (inner := getattr(error, "reason", None) or error.__cause__ or error.__context__) is not None:
        if not isinstance(inner, BaseException):
            break
        error = inner
    return getattr(error, "verify_message", "") or getattr(error, "strerror", None) or type(error).__name__
