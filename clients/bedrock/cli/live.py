"""A block of lines at the bottom of a terminal that is drawn anew while other lines are printed above it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from bedrock.cli.text.safe_text import SafeText


class LiveBlock:
    """Draws with the two oldest tricks: cursor up, clear to the end. No line may be wider than the terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: Sequence[SafeText] = ()

    def write(self, line: SafeText) -> None:
        """Print a line above the block."""
        self._draw(self._lines, above=line + "\n")

    def show(self, lines: Sequence[SafeText]) -> None:
        """Have the block show these lines."""
        if list(lines) != list(self._lines):
            self._draw(lines)

    def _draw(self, lines: Sequence[SafeText], above: SafeText | None = None) -> None:
        erase = f"\x1b[{len(self._lines)}A\r\x1b[J" if self._lines else ""
        self._stream.write(SafeText("".join([erase, above or "", *(f"{line}\n" for line in lines)])))
        self._stream.flush()
        self._lines = tuple(lines)
