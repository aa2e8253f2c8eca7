"""Decodes live output from chunks of bytes to chunks of text."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Utf8Stream:
    """Decodes chunks of UTF-8 without splitting characters. Not thread-safe."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> None:
        """Decode a chunk and pass its text to `show`."""
        self._pass_on(self._decoder.decode(data))

    def finish(self) -> None:
        """Pass a replacement character to `show` if the last character is incomplete."""
        self._pass_on(self._decoder.decode(b"", final=True))

    def _pass_on(self, text: str) -> None:
        if text:
            self._show(text)
