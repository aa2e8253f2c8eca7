"""Reads from a certificate what gRPC does not provide: its expiry, and whether a name contains a zero byte.

gRPC cuts off a name at a zero byte, so that an attacker's certificate could pass for that of another host or user.
"""

from __future__ import annotations

import functools
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

KNOWN_CERTIFICATES = 1_024
"""How many certificates the cache holds.

All calls on one connection have the same certificate, so it is parsed once.
"""

CONSTRUCTED = 0x20
"""The bit in a DER tag of an element that consists of other elements."""
OCTETS = 0x04
ALTERNATIVE_NAMES = (0x06, b"\x55\x1d\x11")
"""The DER tag and content of the object identifier 2.5.29.17: the extension with a certificate's alternative names."""
TEXTS = {0x0C: "utf-8", 0x13: "latin-1", 0x14: "latin-1", 0x16: "latin-1", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
"""The DER tags of text types, each with the encoding of the text."""
NAMES = {0x81: "latin-1", 0x82: "latin-1", 0x86: "latin-1"}
"""The DER tags of alternative names (e-mail addresses, hosts and URIs), each with the encoding."""
SEQUENCE = 0x30
UTC_TIME, GENERALIZED_TIME = 0x17, 0x18
"""The DER tags of times: UTCTime with a two-digit year from 1950 on, and GeneralizedTime with a four-digit year."""
TIMES = {UTC_TIME, GENERALIZED_TIME}


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
        der = ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))
        return CertificateDetails(_has_zero(der, TEXTS), _end_of(der))
    except (ValueError, IndexError, RecursionError, StopIteration):
        return None


def _end_of(der: bytes) -> float:
    """Return when a certificate expires, in seconds since 1970.

    The validity period is the first element of the certificate that consists of two times (RFC 5280). Raises
    StopIteration, IndexError or ValueError for malformed data.
    """
    ((_, certificate),) = _elements(der)
    _, to_be_signed = next(_elements(certificate))
    parts = (tuple(_elements(content)) for tag, content in _elements(to_be_signed) if tag == SEQUENCE)
    _, (tag, text) = next(each for each in parts if len(each) == 2 and {kind for kind, _ in each} <= TIMES)
    digits = text.decode("ascii")
    if tag == UTC_TIME:
        digits = ("19" if digits >= "50" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _has_zero(der: bytes, texts: dict[int, str]) -> bool:
    """Return whether any text in DER data contains a zero byte. `texts` maps the DER tags of texts to their encodings.

    Raises IndexError or ValueError if the data is not valid DER.
    """
    elements = tuple(_elements(der))
    holds_names = ALTERNATIVE_NAMES in elements
    for tag, content in elements:
        if tag in texts and "\0" in content.decode(texts[tag], "replace"):
            return True
        if tag & CONSTRUCTED and _has_zero(content, texts):
            return True
        if tag == OCTETS and holds_names and _has_zero(content, TEXTS | NAMES):
            return True
    return False


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each DER element on the top level.

    Raises IndexError or ValueError for invalid DER.
    """
    place = 0
    while place < len(der):
        tag, length = der[place], der[place + 1]
        place += 2
        if length & 0x80:  # long form: the lower seven bits count the bytes of the length
            end = place + (length & 0x7F)
            length, place = int.from_bytes(der[place:end], "big"), end
        if place + length > len(der):
            raise ValueError("an element ends too early")
        yield tag, der[place : place + length]
        place += length
