"""Reads from a certificate what gRPC does not provide: its expiry, and whether a name contains a zero byte.

gRPC cuts off a name at a zero byte, so that an attacker's certificate could pass for that of another host or user.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from cryptography import x509
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        cut = any("\0" in name for name in _names(certificate))
        return CertificateDetails(cut, certificate.not_valid_after_utc.timestamp())
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return None


def _names(certificate: x509.Certificate) -> Iterator[str]:
    """Yield the names that gRPC reports. Raises the errors of cryptography for what it cannot read."""
    for attribute in certificate.subject:
        yield attribute.value if isinstance(attribute.value, str) else attribute.value.decode("latin-1")
    for extension in certificate.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            for kind in (x509.DNSName, x509.RFC822Name, x509.UniformResourceIdentifier):
                yield from extension.value.get_values_for_type(kind)
