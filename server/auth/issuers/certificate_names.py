"""Names in certificates that gRPC would tell only in part: it ends each at its first zero byte."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CONSTRUCTED = 0x20
"""The bit of a tag whose content is further elements."""
OCTETS = 0x04
ALTERNATIVE_NAMES = (0x06, b"\x55\x1d\x11")
"""The identifier of the extension with a certificate's alternative names: 2.5.29.17."""
TEXTS = {0x0C: "utf-8", 0x13: "latin-1", 0x14: "latin-1", 0x16: "latin-1", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
"""The tags of texts, each with its encoding."""
NAMES = {0x81: "latin-1", 0x82: "latin-1", 0x86: "latin-1"}
"""Those of alternative names: e-mail addresses, hosts and URIs."""


def has_cut_name(pem: bytes) -> bool:
    """Whether a name in a certificate has a zero byte, which makes it look shorter; or it cannot be read."""
    try:
        return _has_zero(ssl.PEM_cert_to_DER_cert(pem.decode("ascii")), TEXTS)
    except (ValueError, IndexError, RecursionError):
        return True


def _has_zero(der: bytes, texts: dict[int, str]) -> bool:
    """Whether one of the texts has a zero. Raises IndexError or ValueError if this is not DER."""
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
    """Yield the tag and the content of each element."""
    place = 0
    while place < len(der):
        tag, length = der[place], der[place + 1]
        place += 2
        if length & 0x80:  # the length of the length
            end = place + (length & 0x7F)
            length, place = int.from_bytes(der[place:end], "big"), end
        if place + length > len(der):
            raise ValueError("an element ends too early")
        yield tag, der[place : place + length]
        place += length
