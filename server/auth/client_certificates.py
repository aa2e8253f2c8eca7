"""Authentication by client certificates (mutual TLS), which a listener with `client_ca` requests.

gRPC reports the names in a certificate, but not its expiry, and it cuts off a name at a zero byte, so that an
attacker's certificate could pass for that of another host or user: certificates are parsed here for both.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from server.auth.principals import Caller, Principal, principals_of

KNOWN_CERTIFICATES = 1_024
"""How many certificates the cache holds.

All calls on one connection have the same certificate, so it is parsed once.
"""


class CertificateDetails(Struct, frozen=True):
    """What authentication needs to know about a certificate, besides its names."""

    cut_name: bool
    """Whether a name in the certificate contains a zero byte, at which gRPC would cut it off."""
    expires_at: float
    """When the certificate expires, in seconds since 1970."""


@functools.lru_cache(KNOWN_CERTIFICATES)
def certificate_details(pem: bytes) -> CertificateDetails | None:
    """Return the details of a certificate in PEM format; None if it cannot be parsed."""
    from cryptography import x509  # noqa: PLC0415 -- of the extra `mtls`

    def names() -> Iterator[str]:
        """Yield the names that gRPC reports."""
        for attribute in certificate.subject:
            yield attribute.value if isinstance(attribute.value, str) else attribute.value.decode("latin-1")
        for extension in certificate.extensions:
            if isinstance(extension.value, x509.SubjectAlternativeName):
                for kind in (x509.DNSName, x509.RFC822Name, x509.UniformResourceIdentifier):
                    yield from extension.value.get_values_for_type(kind)

    try:
        certificate = x509.load_pem_x509_certificate(pem)
        cut = any("\0" in name for name in names())
        return CertificateDetails(cut, certificate.not_valid_after_utc.timestamp())
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return None


KINDS = {"uri": "peer_uri", "dns": "peer_dns", "email": "peer_email", "cn": "x509_common_name"}
"""The kinds of names in a certificate, each with the key under which gRPC reports such names."""
NAME = re.compile(r"(uri|dns|email|cn):.+")
CERTIFICATE = "x509_pem_cert"


class ClientCertificates:
    """Maps names in certificates, such as `uri:spiffe://example.org/ada`, to the principals in the settings."""

    def __init__(self, principals: Mapping[str, Principal], *, now: Callable[[], float] = time.time) -> None:
        self._principals, self._now = principals, now

    def caller_of(self, by_token: Caller | None, connection: Mapping[str, Iterable[bytes]]) -> Caller | None:
        """Return the caller of a connection; None if the call must be refused.

        `by_token` is the caller found by the token.

        A certificate of a principal is accepted alone or with a token of the same principal. It is refused once it has
        expired, even if the connection stays open longer. A certificate of no principal, such as a gateway's, does not
        count: the token decides.
        """
        if not any(connection.get(CERTIFICATE, ())):
            return by_token
        named = {principal.name: principal for principal in self._named(connection)}
        if not named:
            return by_token

        shown = [certificate_details(each) for each in connection[CERTIFICATE]]
        ends = min(0.0 if each is None or each.cut_name else each.expires_at for each in shown)
        if not self._now() < ends:
            return None
        if len(named) > 1 or (by_token is not None and by_token.principal not in named):
            return None
        (principal,) = named.values()
        return replace(by_token or Caller(principal.name, principal.role), certificate_ends=ends)

    def _named(self, connection: Mapping[str, Iterable[bytes]]) -> Iterable[Principal]:
        for kind, key in KINDS.items():
            for name in connection.get(key, ()):
                found = self._principals.get(f"{kind}:{name.decode('utf-8', 'replace')}")
                if found is not None:
                    yield found


def client_certificates(table: Mapping[str, Any], principals: Mapping[str, Principal]) -> dict[str, Principal]:
    """Read the table [client_certificates], and return the principal for each name in a certificate.

    Raises:
        ValueError: An entry is wrong; the text is "client_certificates: why".
    """
    for name in table:
        if not NAME.fullmatch(name):
            kinds = ", ".join(f"{kind}:" for kind in KINDS)
            raise ValueError(f"client_certificates: {name!r} must begin with one of {kinds}, and go on with a name")
    return principals_of("client_certificates", table, principals)
