"""Checks JSON Web Tokens of issuers, and finds the principals that they identify. Use in the event loop only."""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any

import jwt

from actors.core.content import LATEST_MS
from server.auth.issuers.issuer_keys import IssuerKeys
from server.auth.principals import Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from server.auth.issuers.issuer_tables import Issuer
    from server.auth.principals import Role

MAX_TOKEN_BYTES = 16 << 10
"""The greatest length of a token. A longer token is refused before it is parsed."""
LAST_SECOND = LATEST_MS // 1000
"""The latest expiry of a token, in seconds since 1970. A token that is valid longer is refused."""
OPTIONS: Any = {
    "require": ["exp", "iss", "aud"],
    "verify_iat": False,  # nbf says from when a token is valid; iat is for information only (RFC 7519)
    "verify_sub": False,  # `_caller` checks the type of the claim that names the principal
    "verify_jti": False,
    "enforce_minimum_key_length": True,
}


class IssuedTokens:
    """Authenticates callers by tokens of the issuers in the settings.

    Implements `Issued` of server.auth.authentication.
    """

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
        """Return the caller with this token; None if the token is invalid or its signing key is not known yet."""
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
        """Fetch the issuer's keys if the one that signed this token is unknown, and return the token's caller.

        Returns None for an invalid token, and also if the key was already known.
        """
        found = self._read(text)
        if found is None or found[1].find(*found[2:]) is not None:
            return None
        await found[1].refresh()
        return self.caller_of(text)

    def accepts(self, caller: Caller) -> bool:
        """Return whether the caller's token has not expired and the issuer has not withdrawn its signing key."""
        algorithm, _, key_id = caller.token.partition(":")
        return self._now() < caller.expires_at and self._keys[caller.issuer].find(key_id, algorithm) is not None

    def _read(self, text: bytes) -> tuple[Issuer, IssuerKeys, str, str] | None:
        """Return a token's issuer, that issuer's keys, the key id and the algorithm. Does not verify the signature.

        Returns None if the token is malformed, or if its issuer or algorithm is not in the settings.
        """
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
    """Decode the header or the claims of a token before its signature is verified. Raises ValueError or RecursionError.

    Only tokens that name a known key are parsed with PyJWT. As it handles each byte in Python, strangers could
    otherwise keep the event loop busy with long tokens.
    """
    found = json.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _caller(issuer: Issuer, claims: Mapping[str, Any], token: str) -> Caller | None:
    """Return the caller that verified claims identify; None if they identify no principal or grant no role.

    `token` is what `Caller.token` will contain: the algorithm and the id of the signing key.
    """
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
    """Return the highest role that the value of a claim grants; None if the value grants no role."""
    values = value if isinstance(value, list) else [value]
    given = [issuer.table.roles[each] for each in values if isinstance(each, str) and each in issuer.table.roles]
    return next((each for each in given if all(each.includes(other) for other in given)), None)


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return the value of a claim, given by name or by a path with dots like `realm_access.roles`; None if absent."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
