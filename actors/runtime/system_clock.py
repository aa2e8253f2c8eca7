"""The implementations of the ports Clock and Ids for production: system time and random ids."""

from __future__ import annotations

import re
import secrets
import time

_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
"""32 letters and digits that are easy to tell apart.

As 256 is a multiple of 32, a random byte selects each of them equally often.
"""
_ADJECTIVES = "amber bold calm clear dry early even fair fast fine keen kind late mild neat new quick quiet".split()
_NOUNS = "ash bay beam brook cape cliff cove dale dune fern field fjord glen grove marsh mesa peak reef".split()
_CONVERSATION_ID = re.compile(rf"[{_ALPHABET}]{{16}}(-a[0-9]+)*")


class SystemClock:
    """The clock of the operating system."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


def has_form_of_id(text: str) -> bool:
    """Return whether `text` has the form of the id of a conversation or sub-agent; slugs must not have this form."""
    return _CONVERSATION_ID.fullmatch(text) is not None


class RandomIds:
    """Creates unguessable ids, and readable slugs."""

    def conversation(self) -> str:
        return _token(16)

    def message(self) -> str:
        return "m-" + _token(16)

    def slug(self) -> str:
        return f"{secrets.choice(_ADJECTIVES)}-{secrets.choice(_NOUNS)}-{_token(4)}"


def _token(length: int) -> str:
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in secrets.token_bytes(length))
