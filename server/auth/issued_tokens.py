"""Verifies issuers' JSON Web Tokens, and finds the principals that they identify. Use only on the event loop.

The public keys of an issuer (JWKS) are fetched and renewed in the background, and kept during outages.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import jwt
import requests
import urllib3
from bedrock.local_server import NotPrivateError, read_believed
from requests.adapters import HTTPAdapter

from actors.core.content import LATEST_MS
from server.auth.principals import ALGORITHMS, Caller, Issuer, Role
from server.certificates import CertificateUnusableError, authorities_in

log = logging.getLogger(__name__)

MAX_BYTES = 256 << 10
MAX_KEYS = 64
FETCH_SECONDS = 5.0
URL_SECONDS = 300.0
FILE_SECONDS = 2.0
# Minimum seconds between two reads from a URL, even if tokens with unknown keys keep coming or the issuer is down.
RETRY_SECONDS = 10.0
# The age in seconds at which keys that cannot be renewed expire, so that no withdrawn key stays valid forever.
STALE_SECONDS = 86_400.0


class KeysUnusableError(Exception):
    pass


class IssuerKeys:
    """The public keys of one issuer. Use only on the event loop."""

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

    def find(self, key_id: str, algorithm: str) -> jwt.PyJWK | None:
        """The key with this id and algorithm; None if it is unknown or expired.

        If the id is "", this is the only key for the algorithm. Old keys are refreshed in the background.
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
                log.warning("issuer %s: %s; the known keys stay in use for a day", self._issuer.name, error)
            self._failure = str(error)
        else:
            self._read_at, self._failure = self._monotonic(), ""
        finally:
            self._task = None


def keys_in(content: bytes, algorithms: tuple[str, ...]) -> dict[tuple[str, str], jwt.PyJWK]:
    """The allowed keys in a key set, by id and algorithm. Raises KeysUnusableError if there are none."""
    try:
        keys = json.loads(content)["keys"]
        found = [key for key in keys if isinstance(key, dict)]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise KeysUnusableError("its keys are not a JSON Web Key Set (an object with a `keys` array)") from None
    usable: dict[tuple[str, str], jwt.PyJWK] = {}
    for key in found[:MAX_KEYS]:
        for algorithm in algorithms:
            if (made := _key(key, algorithm)) is not None:
                usable.setdefault((str(key.get("kid", "")), algorithm), made)
    if not usable:
        raise KeysUnusableError(f"its key set has no public key for {', '.join(algorithms)}")
    return usable


def _key(data: Mapping[str, Any], algorithm: str) -> jwt.PyJWK | None:
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
    """Fetch an issuer's key set, on another thread.

    Raises KeysUnusableError if it is invalid, too large or too slow.
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
    """Read a file with a key set. Blocks. Raises KeysUnusableError if it cannot be read or is too large."""
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


class _Limited(HTTPAdapter):
    """Shuts each connection down FETCH_SECONDS after it was made: timeouts in `requests` limit only single reads."""

    def __init__(self) -> None:
        super().__init__()
        self._timers: list[threading.Timer] = []

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*arguments, **options)
        pool.ConnectionCls = type("Connection", (_LimitedConnection, pool.ConnectionCls), {"timers": self._timers})
        return pool

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        super().close()


class _LimitedConnection:
    timers: list[threading.Timer]
    sock: Any

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]  # of urllib3's connection
        self.timers.append(threading.Timer(FETCH_SECONDS, _shut_down, (self.sock,)))
        self.timers[-1].daemon = True
        self.timers[-1].start()


def _shut_down(connected: socket.socket) -> None:
    with suppress(OSError):  # the connection has ended
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


def _get(url: str, ca_bundle: Path | None) -> bytes:
    """Download a URL without following redirects or using proxies. Blocks.

    Raises KeysUnusableError if the status is not 200 or the response too large, and errors of requests and urllib3.
    """
    try:
        verify = True if ca_bundle is None else str(authorities_in(ca_bundle) and ca_bundle)
    except CertificateUnusableError as error:
        raise KeysUnusableError(str(error)) from None
    with requests.Session() as session:
        session.trust_env = False
        session.mount(url, _Limited())
        with session.get(url, timeout=FETCH_SECONDS, stream=True, allow_redirects=False, verify=verify) as answer:
            if answer.status_code != requests.codes.ok:
                raise KeysUnusableError(f"{url} responded with status {answer.status_code}")
            content, ends = b"", time.monotonic() + FETCH_SECONDS
            while block := answer.raw.read1(1 << 16, decode_content=False):
                content = _bounded(content + block)
                if time.monotonic() > ends:
                    raise requests.Timeout
            return content


def _reason(error: BaseException) -> str:
    """The innermost cause of a failed request, in a few words."""
    while (inner := getattr(error, "reason", None) or error.__cause__ or error.__context__) is not None:
        if not isinstance(inner, BaseException):
            break
        error = inner
    return getattr(error, "verify_message", "") or getattr(error, "strerror", None) or type(error).__name__


# Maximum length of a token. A longer one is refused before it is parsed.
MAX_TOKEN_BYTES = 16 << 10
# The latest permitted expiry of a token, in seconds since 1970. A token that expires later is refused.
LAST_SECOND = LATEST_MS // 1000
OPTIONS: Any = {
    "require": ["exp", "iss", "aud"],
    "verify_iat": False,  # nbf says from when a token is valid; iat is for information only (RFC 7519)
    "verify_sub": False,  # `_caller` checks the type of the claim that names the principal
    "verify_jti": False,
    "enforce_minimum_key_length": True,
}


class IssuedTokens:
    """Authenticates callers by tokens of the issuers in the settings. Use only on the event loop."""

    def __init__(
        self,
        issuers: Mapping[str, Issuer],
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuers = {each.table.url: (each, IssuerKeys(each, monotonic=monotonic)) for each in issuers.values()}
        self._keys = {each.name: keys for each, keys in self._issuers.values()}
        self._now = now

    def caller_of(self, text: bytes) -> Caller | None:
        """The caller with this token; None if the token is invalid or its signing key is not known yet."""
        found = self._read(text)
        if found is None:
            return None
        issuer, keys, key_id, algorithm = found
        key = keys.find(key_id, algorithm)
        if key is None:
            return None
        try:
            claims = jwt.decode(
                text,
                key,
                algorithms=[algorithm],
                audience=issuer.table.audiences,
                issuer=issuer.table.url,
                leeway=issuer.table.leeway_seconds,
                options=OPTIONS,
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return None
        return _caller(issuer, claims, f"{algorithm}:{key_id}")

    async def caller_after_refresh(self, text: bytes) -> Caller | None:
        """Fetch the keys if the token's signing key is unknown, and return the caller; None if the key was known."""
        found = self._read(text)
        if found is None or found[1].find(*found[2:]) is not None:
            return None
        await found[1].refresh()
        return self.caller_of(text)

    def accepts(self, caller: Caller) -> bool:
        """Whether the caller's token has not expired and the issuer has not withdrawn its signing key."""
        algorithm, _, key_id = caller.token.partition(":")
        return self._now() < caller.expires_at and self._keys[caller.issuer].find(key_id, algorithm) is not None

    def _read(self, text: bytes) -> tuple[Issuer, IssuerKeys, str, str] | None:
        """A token's issuer, keys, key id and algorithm, unverified; None if malformed or not in the settings."""
        if len(text) > MAX_TOKEN_BYTES or text.count(b".") != 2:
            return None
        try:
            header, claims = map(_unproven, text.split(b".")[:2])
        except (ValueError, RecursionError):
            return None
        algorithm, key_id, url = header.get("alg"), header.get("kid", ""), claims.get("iss")
        known = self._issuers.get(url) if isinstance(url, str) else None
        if known is None or algorithm not in known[0].table.algorithms or not isinstance(key_id, str):
            return None
        return *known, key_id, str(algorithm)


def _unproven(part: bytes) -> dict[str, Any]:
    """Decode header or claims before verification. Raises ValueError or RecursionError.

    PyJWT processes each byte in Python, so strangers could keep the event loop busy with long tokens. It therefore gets
    only tokens whose signing key is known.
    """
    found = json.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _caller(issuer: Issuer, claims: Mapping[str, Any], token: str) -> Caller | None:
    """The caller that verified claims identify; None without a principal or role. `token` is for `Caller.token`."""
    said, ends = claim(claims, issuer.table.principal_claim), claims["exp"]
    if not isinstance(said, str) or not isinstance(ends, int | float) or not 0 < ends <= LAST_SECOND:
        return None
    principal = issuer.principal(said)
    if principal is None:
        return None
    role: Role | None = principal.role
    if issuer.table.role_claim:
        given = _role(issuer, claim(claims, issuer.table.role_claim))
        role = given if given is None or principal.role.includes(given) else principal.role
    if role is None:
        return None
    return Caller(principal.name, role, token, issuer.name, ends + issuer.table.leeway_seconds)


def _role(issuer: Issuer, value: Any) -> Role | None:
    values = value if isinstance(value, list) else [value]
    given = [issuer.table.roles[each] for each in values if isinstance(each, str) and each in issuer.table.roles]
    return next((each for each in given if all(each.includes(other) for other in given)), None)


def claim(claims: Mapping[str, Any], name: str) -> Any:
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
