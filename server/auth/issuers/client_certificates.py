"""Authentication by client certificates (mutual TLS), which a listener with `client_ca` requests."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from server.auth.principals import Caller, principals_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from server.auth.principals import Principal

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
        from server.auth.issuers.certificate_details import certificate_details  # noqa: PLC0415 -- extra `mtls`

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
