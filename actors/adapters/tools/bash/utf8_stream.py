"""Live output: pieces of bytes become pieces of text for those who watch."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Utf8Stream:
    """Turns pieces of bytes into pieces of text, never splitting a character. One thread at a time."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> None:
        self._pass_on(self._decoder.decode(data))

    def finish(self) -> None:
        """Show what an incomplete last character left."""
        self._pass_on(self._decoder.decode(b"", final=True))

    def _pass_on(self, text: str) -> None:
        if text:
            self._show(text)
