"""Repairs JSON text that has escapes of lone surrogates, which are not valid Unicode."""

from __future__ import annotations

import re

_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # matches a surrogate pair
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"  # matches a lone surrogate
    rb"|\\.",  # matches any other escape, so that an escaped backslash does not begin a match
    re.DOTALL,
)


def replace_lone_surrogates(data: bytes) -> bytes:
    """Return JSON text with U+FFFD in place of every escape of a lone surrogate.

    A lone surrogate cannot be encoded in UTF-8, so it can neither be stored nor sent. Text without one is returned
    unchanged.
    """
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found[1] else found[0], data)
