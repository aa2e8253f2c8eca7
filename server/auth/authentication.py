"""Who calls: the principal and the role that the token of a call stands for."""

from __future__ import annotations

import hmac
import logging
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from actors.ports.permissions import NOTHING
from server.auth.authorizer.authorizer_port import Peer
from server.auth.local_token import TokenUnusableError
from server.auth.principals import LOCAL, OWNER, Caller, Role
from server.auth.tokens.principal_tokens import PREFIX, matching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from actors.ports.permissions import Permissions
    from server.auth.authorizer.authorizer_calls import AuthorizerCalls
    from server.auth.authorizer.authorizer_port import Identity
    from server.auth.issuers.client_certificates import ClientCertificates
    from server.auth.issuers.issuer_tables import Issuer
    from server.auth.principals import Principal
    from server.auth.tokens.principal_tokens import Token

log = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
"""How often it is asked whether the tokens have changed, at most: a revoked token is refused after this time."""


caller: ContextVar[Caller] = ContextVar("caller")
"""Who makes the call being served."""
subject: ContextVar[str] = ContextVar("subject", default="")
"""The id of the conversation that the call being served is about, once it is known."""

SECRET_CHARS = 16
"""How much of the digest of a token's secret tells it from the one before."""
BY_AUTHORIZER = "authorizer"
"""In place of a token's id: the authorizer knows the caller, for some time."""
OWN_USER = Caller(LOCAL, Role.OPERATOR)


class Issued(Protocol):
    """The tokens of issuers. Event loop only."""

    def caller_of(self, text: bytes) -> Caller | None:
        """Return who calls; None unless the token is valid, and its key known."""
        ...

    async def caller_after_refresh(self, text: bytes) -> Caller | None:
        """Return who calls, after the issuer's keys were read again if the token names one that is not known."""
        ...

    def accepts(self, caller: Caller) -> bool:
        """Whether a token that was valid before still is."""
        ...


class TokenSource(Protocol):
    """The tokens of principals. Event loop only; nothing blocks for long."""

    def version(self) -> object:
        """Return what is another value once the tokens have changed."""
        ...

    def read(self) -> tuple[Token, ...]:
        """Return the tokens. Raises TokenUnusableError."""
        ...

    async def read_again(self) -> None:
        """Wait until `version` and `read` tell what is true now."""
        ...


class Authentication:
    """Knows callers by their tokens. Event loop only, but for `permissions`, which any thread may call.

    `tokens`: those of `principals`, read again when they have changed; None if there are no principals. `issued`: the
    tokens of `issuers`.
    """

    def __init__(
        self,
        own_token: str,
        tokens: TokenSource | None = None,
        principals: Mapping[str, Principal] | None = None,
        *,
        issuers: Mapping[str, Issuer] | None = None,
        issued: Issued | None = None,
        certificates: ClientCertificates | None = None,
        authorizer: AuthorizerCalls | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own_token = own_token.encode()
        self._source = tokens
        self._principals = {LOCAL: OWNER, **(principals or {})}
        self._issuers, self._issued = issuers or {}, issued
        self._certificates = certificates
        self.authorizer = authorizer
        """The operator's own rules; None if there are none."""
        self.looks_further = certificates is not None or authorizer is not None
        """Whether more than tokens says who calls: what `caller_on` returns counts."""
        self._now_ms, self._monotonic = now_ms, monotonic
        self._tokens: dict[str, Token] = {}
        self._version: object = None
        self._failure = ""
        """Why the tokens could not be used when it was tried last."""
        self._due = 0.0

    def caller_of(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller | None:
        """Return who calls; None without a valid token.

        Secrets are compared in constant time, so that they cannot be guessed by timing. The scheme may be written in
        any case, and be followed by more than one space (RFC 6750, RFC 9110).
        """
        text = bearer(metadata)
        if text is None:
            return None
        if hmac.compare_digest(text, self._own_token):
            return OWN_USER
        if self._issued is not None and (issued := self._issued.caller_of(text)) is not None:
            return issued
        self._refresh()
        return self._holder(text) or self._new_holder(text)

    def _holder(self, text: bytes) -> Caller | None:
        token = matching(self._tokens, text)
        return None if token is None else self._caller(token)

    def _new_holder(self, text: bytes) -> Caller | None:
        """Return who has a token that may have been created a moment ago."""
        self._due = 0.0
        self._refresh()
        return self._holder(text)

    async def caller_after_refresh(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller | None:
        """Return who makes a call whose token `caller_of` does not know: it, or the key of its issuer, may be new."""
        text = bearer(metadata)
        if text is None:
            return None
        if self._source is not None and text.startswith(PREFIX.encode()):
            await self._source.read_again()
            if (who := self._new_holder(text)) is not None:
                return who
        return None if self._issued is None else await self._issued.caller_after_refresh(text)

    async def caller_on(
        self,
        by_token: Caller | None,
        metadata: Iterable[tuple[str, str | bytes]],
        connection: Mapping[str, Iterable[bytes]],
        address: str,
    ) -> Caller | None:
        """Return who makes a call on a connection, by certificates and the authorizer, too; None if nobody may.

        `by_token`: whom its token stands for, as far as the server itself knows. Raises AuthorizerUnavailableError.
        """
        metadata = tuple(metadata)
        who = by_token
        if who is None and self.authorizer is not None and not self._by_certificate_alone(metadata, connection):
            certificate = b"".join(connection.get("x509_pem_cert", ())).decode("ascii", "replace")
            who = self._identified(await self.authorizer.identity(metadata, Peer(address, certificate)))
        if self._certificates is None or (who is None and bearer(metadata) is not None):
            return who  # no certificate can make up for a wrong token
        return self._certificates.caller_of(who, connection)

    def _by_certificate_alone(
        self, metadata: tuple[tuple[str, str | bytes], ...], connection: Mapping[str, Iterable[bytes]]
    ) -> bool:
        """Whether a call without a token has a certificate that stands for a principal."""
        certificates = self._certificates
        return (
            certificates is not None
            and bearer(metadata) is None
            and certificates.caller_of(None, connection) is not None
        )

    def _identified(self, identity: Identity | None) -> Caller | None:
        """Return the caller whom the authorizer names; None unless it is a principal of the settings."""
        if identity is None or identity.principal == LOCAL:
            return None
        principal = self._principals.get(identity.principal) or self._of_issuer(identity.principal)
        if principal is None:
            log.warning("the authorizer names a principal that the settings do not have: %r", identity.principal)
            return None
        role = identity.role if identity.role is not None and principal.role.includes(identity.role) else principal.role
        ends = identity.expires_at
        if ends and not self._now_ms() < ends * 1000:
            return None
        return Caller(principal.name, role, BY_AUTHORIZER if ends else "", expires_at=ends)

    def accepts(self, caller: Caller) -> bool:
        """Whether token and certificate of a caller that was known before are still valid, and give the same rights."""
        if caller.certificate_ends and not self._now_ms() < caller.certificate_ends * 1000:
            return False
        if not caller.token:
            return True
        if caller.token == BY_AUTHORIZER:
            return self._now_ms() < caller.expires_at * 1000
        if caller.issuer:
            return self._issued is not None and self._issued.accepts(caller)
        self._refresh()
        token = self._tokens.get(caller.token)
        return token is not None and self._caller(token) == replace(caller, certificate_ends=0.0)

    def permissions(self, principal: str) -> Permissions:
        """Return what a principal may do; NOTHING for one that the settings do not name (ports.PermissionsOf)."""
        found = self._principals.get(principal) or self._of_issuer(principal)
        return NOTHING if found is None else found.permissions

    def _of_issuer(self, principal: str) -> Principal | None:
        """Return the principal that an issuer's template makes of a name."""
        issuer, _, value = principal.partition(":")
        template = self._issuers[issuer].template if issuer in self._issuers else None
        return None if template is None else template.principal(value)

    def _caller(self, token: Token) -> Caller | None:
        """Return the caller with this token; None if it has expired, or its principal is no longer in the settings."""
        principal = self._principals.get(token.principal)
        if principal is None or not token.valid(self._now_ms()):
            return None
        role = token.role if principal.role.includes(token.role) else principal.role
        return Caller(principal.name, role, token.id, secret=token.digest[:SECRET_CHARS])

    def _refresh(self) -> None:
        """Read the tokens if they have changed. While they cannot be used, none is valid."""
        if self._source is None or self._monotonic() < self._due:
            return
        self._due = self._monotonic() + REFRESH_SECONDS
        version = self._source.version()
        if version == self._version:
            return
        try:
            self._tokens = {token.id: token for token in self._source.read()}
        except TokenUnusableError as error:
            if self._failure != str(error):
                log.error("no token of a principal is accepted: %s", error)
            self._tokens, self._version, self._failure = {}, None, str(error)  # the next time it is tried again
        else:
            self._version, self._failure = version, ""


def bearer(metadata: Iterable[tuple[str, str | bytes]]) -> bytes | None:
    """Return the token that a call was given; None if it has none."""
    given = next((value for key, value in metadata if key == "authorization"), "")
    raw = given.encode() if isinstance(given, str) else given
    scheme, _, text = raw.partition(b" ")
    return text.lstrip(b" ") if scheme.lower() == b"bearer" else None
