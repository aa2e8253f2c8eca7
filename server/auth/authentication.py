"""Finds the principal and the role of a caller by token, client certificate, or the operator's authorizer.

A listener with `client_ca` asks clients for certificates (mutual TLS). They are parsed here for two reasons: gRPC does
not report when a certificate expires, and it truncates the names in a certificate at a zero byte, so that an attacker's
certificate could pass for another host's or user's. The HTTP gateway forwards the certificates that its own clients
present.

The authorizer is a class named in the settings. It runs on threads, with a time limit; if it fails, the client's call
is refused.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import importlib
import logging
import secrets
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from actors.common.machine import run_in_thread
from actors.ports.sandbox import NO_PERMISSIONS, Permissions
from server.auth.authorizer.authorizer_port import Authorizer, Decision, Identity, Peer
from server.auth.principals import LOCAL, OWNER, Caller, Issuer, Principal, Role
from server.auth.tokens import PREFIX, SharedTokens, Token, TokenFile, TokenUnusableError, matching
from server.certificates import SHOWN_TO_GATEWAY
from server.contract.errors import AuthorizerUnavailableError
from server.settings.config import AuthorizerSettings

if TYPE_CHECKING:
    from server.auth.issued_tokens import IssuedTokens  # requires the extra `jwt`
# The number of parsed certificates that are cached: all calls on one connection have the same certificate.
KNOWN_CERTIFICATES = 1_024


class CertificateDetails(Struct, frozen=True):
    names: frozenset[str]
    cut_name: bool
    expires_at: float


@functools.lru_cache(KNOWN_CERTIFICATES)
def certificate_details(pem: bytes) -> CertificateDetails | None:
    """The details of a certificate in PEM format; None if it cannot be parsed."""
    from cryptography import x509  # noqa: PLC0415 -- from the extra `mtls`
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    kinds: dict[str, Any] = {"dns": x509.DNSName, "email": x509.RFC822Name, "uri": x509.UniformResourceIdentifier}

    def names() -> Iterator[str]:
        for attribute in certificate.subject:
            value = attribute.value if isinstance(attribute.value, str) else attribute.value.decode("latin-1")
            yield f"{'cn' if attribute.oid == NameOID.COMMON_NAME else ''}:{value}"
        for extension in certificate.extensions:
            if isinstance(extension.value, x509.SubjectAlternativeName):
                for kind, type_ in kinds.items():
                    yield from (f"{kind}:{value}" for value in extension.value.get_values_for_type(type_))

    try:
        certificate = x509.load_pem_x509_certificate(pem)
        found = list(names())
        known = frozenset(name.partition("\0")[0] for name in found)
        return CertificateDetails(
            known, any("\0" in name for name in found), certificate.not_valid_after_utc.timestamp()
        )
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return None


CERTIFICATE = "x509_pem_cert"
"""The key under which gRPC reports a client's certificate, as PEM."""


class ClientCertificates:
    """Maps names in certificates, such as `uri:spiffe://example.org/ada`, to the principals in the settings."""

    def __init__(self, principals: Mapping[str, Principal], *, now: Callable[[], float] = time.time) -> None:
        self._principals, self._now = principals, now

    def caller_of(self, by_token: Caller | None, connection: Mapping[str, Iterable[bytes]]) -> Caller | None:
        """The caller on a connection; None if the call must be refused.

        `by_token` is the caller whom the token identifies. A principal's certificate is accepted alone or with a token
        of the same principal, until it expires, even on an open connection. A certificate that belongs to no known
        principal, such as a gateway's, is ignored.
        """
        shown = [found for each in connection.get(CERTIFICATE, ()) if (found := certificate_details(each)) is not None]
        known = (self._principals.get(name) for each in shown for name in each.names)
        named = {principal.name: principal for principal in known if principal is not None}
        if not named:
            return by_token

        ends = min(0.0 if each.cut_name else each.expires_at for each in shown)
        if not self._now() < ends:
            return None
        if len(named) > 1 or (by_token is not None and by_token.principal not in named):
            return None
        (principal,) = named.values()
        return replace(by_token or Caller(principal.name, principal.role), certificate_ends=ends)


log = logging.getLogger(__name__)

# Minimum seconds between two checks for changed tokens. A revoked token is refused after this time at the latest.
REFRESH_SECONDS = 1.0


caller: ContextVar[Caller] = ContextVar("caller")
subject: ContextVar[str] = ContextVar("subject", default="")
"""The id of the conversation that the current call is about, once it is known."""

# How many characters of the hash of a token's secret a `Caller` keeps, to notice when the token is rotated.
SECRET_CHARS = 16
BY_AUTHORIZER = "authorizer"
"""The value of `Caller.token` if the authorizer has identified the caller for a limited time."""
OWN_USER = Caller(LOCAL, Role.OPERATOR)


class Authentication:
    """Authenticates callers by tokens, certificates, and the operator's authorizer.

    `tokens` holds the tokens of `principals`; `issued` verifies tokens from `issuers`. Use only on the event loop,
    except `permissions`.
    """

    def __init__(
        self,
        own_token: str,
        tokens: TokenFile | SharedTokens | None = None,
        principals: Mapping[str, Principal] | None = None,
        *,
        issuers: Mapping[str, Issuer] | None = None,
        issued: IssuedTokens | None = None,
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
        """The operator's class that authenticates and authorizes callers; None if the settings name none."""
        self.looks_further = certificates is not None or authorizer is not None
        """Whether `caller_on` must be called after `caller_of`, for certificates or an authorizer."""
        self.gateway_secret = secrets.token_urlsafe(32)
        """A secret known only to this server's HTTP gateway. No header of the gateway's clients can pass for it."""
        self._now_ms, self._monotonic = now_ms, monotonic
        self._tokens: dict[str, Token] = {}
        self._version: object = None
        self._failure = ""
        self._due = 0.0

    def caller_of(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller | None:
        """The caller whose token is in the metadata. Compares in constant time.

        "Bearer" may be in any case and followed by several spaces (RFC 6750, RFC 9110).
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
        self._due = 0.0
        self._refresh()
        return self._holder(text)

    async def caller_after_refresh(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller | None:
        """Fetch the tokens and issuers' keys again, and return the caller of a token that `caller_of` did not know."""
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
        """The caller identified by token, certificate or authorizer; None if the call must be refused.

        `by_token` comes from `caller_of`, `connection` is gRPC's authentication context, and `address` is the client's
        address, which the authorizer gets. Raises AuthorizerUnavailableError.
        """
        metadata = tuple(metadata)
        who = by_token
        if who is None and self.authorizer is not None and not self._by_certificate_alone(metadata, connection):
            certificate = b"".join(connection.get(CERTIFICATE, ())).decode("ascii", "replace")
            who = self._identified(await self.authorizer.identity(metadata, Peer(address, certificate)))
        if self._certificates is None or (who is None and bearer(metadata) is not None):
            return who  # a call with a wrong token is refused (None), even if it has a valid certificate
        return self._certificates.caller_of(who, connection)

    def shown_to_gateway(self, metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, tuple[bytes]]:
        """What gRPC would report about a certificate presented to the HTTP gateway; {} without one.

        A proxy may connect to the Unix socket and forward headers from strangers, so only the secret is trusted.
        """
        secret = self.gateway_secret.encode()
        for key, value in metadata:
            if key == SHOWN_TO_GATEWAY and isinstance(value, bytes):
                known, certificate = value[: len(secret)], value[len(secret) :]
                if hmac.compare_digest(known, secret):
                    return {CERTIFICATE: (ssl.DER_cert_to_PEM_cert(certificate).encode(),)}
        return {}

    def _by_certificate_alone(
        self, metadata: tuple[tuple[str, str | bytes], ...], connection: Mapping[str, Iterable[bytes]]
    ) -> bool:
        certificates = self._certificates
        return (
            certificates is not None
            and bearer(metadata) is None
            and certificates.caller_of(None, connection) is not None
        )

    def _identified(self, identity: Identity | None) -> Caller | None:
        """The caller that an authorizer has identified; None if expired, not a principal, or the server's own user."""
        if identity is None or identity.principal == LOCAL:
            return None
        principal = self._principals.get(identity.principal) or self._of_issuer(identity.principal)
        if principal is None:
            log.warning("caller refused: the authorizer returned the unknown principal %r", identity.principal)
            return None
        role = identity.role if identity.role is not None and principal.role.includes(identity.role) else principal.role
        ends = identity.expires_at
        if ends and not self._now_ms() < ends * 1000:
            return None
        return Caller(principal.name, role, BY_AUTHORIZER if ends else "", expires_at=ends)

    def accepts(self, caller: Caller) -> bool:
        """Whether a caller's token and certificate are still valid and give the same rights as before."""
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
        """A principal's permissions, NO_PERMISSIONS for an unknown one. Implements `PermissionsOf`. Thread-safe."""
        found = self._principals.get(principal) or self._of_issuer(principal)
        return NO_PERMISSIONS if found is None else found.permissions

    def _of_issuer(self, principal: str) -> Principal | None:
        issuer, _, value = principal.partition(":")
        template = self._issuers[issuer].template if issuer in self._issuers else None
        return None if template is None else template.principal(value)

    def _caller(self, token: Token) -> Caller | None:
        """The caller for a token; None if the token has expired or the settings no longer name its principal."""
        principal = self._principals.get(token.principal)
        if principal is None or not token.valid(self._now_ms()):
            return None
        role = token.role if principal.role.includes(token.role) else principal.role
        return Caller(principal.name, role, token.id, secret=token.digest[:SECRET_CHARS])

    def _refresh(self) -> None:
        """Read the principals' tokens again if they have changed. If that fails, no principal's token is accepted."""
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
                log.error("cannot read principals' tokens, so all of them are rejected: %s", error)
            self._tokens, self._version, self._failure = {}, None, str(error)  # version None: read again at next check
        else:
            self._version, self._failure = version, ""


def bearer(metadata: Iterable[tuple[str, str | bytes]]) -> bytes | None:
    """The bearer token in a call's metadata; None if there is none."""
    given = next((value for key, value in metadata if key == "authorization"), "")
    raw = given.encode() if isinstance(given, str) else given
    scheme, _, text = raw.partition(b" ")
    return text.lstrip(b" ") if scheme.lower() == b"bearer" else None


def authorizer_class(settings: AuthorizerSettings) -> Callable[..., Authorizer]:
    """Import the authorizer's class. Raises ValueError ("authorizer.class: why") if it is missing or lacks a method."""
    module, _, attribute = settings.name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        why = f"no module named {error.name}" if error.name else type(error).__name__
        raise ValueError(f"authorizer.class: {settings.name} cannot be imported: {why}") from error
    except Exception as error:
        raise ValueError(f"authorizer.class: {settings.name} cannot be imported: {type(error).__name__}") from error
    if not callable(found):
        raise ValueError(f"authorizer.class: {settings.name} is not a class")
    if isinstance(found, type):
        _check_methods(settings, found)
    return cast("Callable[..., Authorizer]", found)


def made_authorizer(settings: AuthorizerSettings) -> Authorizer:
    """Create the authorizer. Raises ValueError, without the constructor's message, which may contain secrets."""
    kind = authorizer_class(settings)
    try:
        made = kind(**settings.options)
    except Exception as error:
        raise ValueError(f"authorizer.options: {settings.name} cannot be created: {type(error).__name__}") from error
    _check_methods(settings, made)
    return made


def _check_methods(settings: AuthorizerSettings, found: object) -> None:
    for method in ("authenticate", "authorize"):
        if not callable(getattr(found, method, None)):
            raise ValueError(f"authorizer.class: {settings.name} has no method {method}")


T = TypeVar("T")

# The maximum number of concurrent calls of one method; a call that never returns keeps its slot. `authenticate` and
# `authorize` have separate slots: strangers trigger the former, and must not keep known callers from the latter.
MAX_CALLS = 16
MAX_REASON_CHARS = 500
# Minimum seconds between two log lines about one type of exception, because strangers can cause many exceptions.
LOG_SECONDS = 10.0


class AuthorizerCalls:
    """Calls the authorizer, each for at most `seconds`. Use on one event loop. Raises AuthorizerUnavailableError."""

    def __init__(self, authorizer: Authorizer, seconds: float) -> None:
        self._authorizer = authorizer
        self._seconds = seconds
        self._logged: dict[type[Exception], float] = {}
        """The monotonic time of the last log line about each type of exception."""
        self._for_strangers, self._for_callers = asyncio.Semaphore(MAX_CALLS), asyncio.Semaphore(MAX_CALLS)

    async def identity(self, metadata: Iterable[tuple[str, str | bytes]], peer: Peer) -> Identity | None:
        said: dict[str, str] = {}
        for name, value in metadata:
            if isinstance(value, str):
                said.setdefault(name, value)
        question = functools.partial(self._authorizer.authenticate, said, peer)
        found: Any = await self._ask(question, self._for_strangers)
        if found is None or (isinstance(found, Identity) and _is_sound(found)):
            return found
        raise self._failed(TypeError("authenticate must return an Identity or None"))

    async def refusal(self, principal: str, role: Role, method: str, resource: str) -> str | None:
        question = functools.partial(self._authorizer.authorize, principal, role, method, resource)
        found: Any = await self._ask(question, self._for_callers)
        if not isinstance(found, Decision) or not isinstance(found.reason, str):
            raise self._failed(TypeError("authorize must return a Decision"))
        if found.allowed is True:
            return None
        shown = "".join(each if each.isprintable() else " " for each in found.reason[:MAX_REASON_CHARS])
        return shown or "this server's authorizer does not allow that"

    async def _ask(self, question: Callable[[], T], free: asyncio.Semaphore) -> T:
        """Run `question` on a thread. The time limit includes the wait for a slot in `free`.

        Raises AuthorizerUnavailableError.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def done(result: T | None, error: Exception | None) -> None:
            free.release()
            if answer.done():  # the caller no longer waits
                return
            if error is None:
                answer.set_result(result)  # type: ignore[arg-type]
            else:
                answer.set_exception(error)

        def ask() -> None:
            result: T | None = None
            failure: Exception | None = None
            try:
                result = question()
            except StopIteration as error:  # a future does not accept a StopIteration
                failure = RuntimeError(f"the authorizer raised {type(error).__name__}")
            except Exception as error:  # noqa: BLE001 -- the authorizer's code may raise anything
                failure = error
            except BaseException as error:  # noqa: BLE001 -- such as SystemExit, which must not end this server
                failure = RuntimeError(f"the authorizer raised {type(error).__name__}")
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(done, result, failure)

        try:
            async with asyncio.timeout(self._seconds):
                await free.acquire()
                try:
                    run_in_thread(ask, "bedrock-authorizer")
                except RuntimeError:
                    free.release()
                    raise
                return await answer
        except Exception as error:  # noqa: BLE001 -- the authorizer raised something, or took too long
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> AuthorizerUnavailableError:
        now, kind = time.monotonic(), type(error)
        if now - self._logged.get(kind, float("-inf")) < LOG_SECONDS:
            return AuthorizerUnavailableError()
        self._logged[kind] = now
        log.error("the authorizer failed: %s", type(error).__name__, exc_info=error)
        return AuthorizerUnavailableError()


def _is_sound(identity: Identity) -> bool:
    """Whether the attributes have the declared types; the operator's class may not have been type-checked."""
    principal: Any = identity.principal
    role: Any = identity.role
    ends: Any = identity.expires_at
    return isinstance(principal, str) and isinstance(role, Role | None) and isinstance(ends, int | float)
