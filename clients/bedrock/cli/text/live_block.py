"""A block of lines at the bottom of a terminal that is redrawn while other lines are printed above it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, TextIO

from bedrock.cli.text.resize import reflows, rows_taken
from bedrock.cli.text.safe_text import SafeText, without_colours
from bedrock.cli.text.style import cells

if TYPE_CHECKING:
    from collections.abc import Sequence


class LiveBlock:
    """Lines that stay below the printed output and are redrawn in place.

    Only control sequences that every terminal has are used: cursor up, and clear to the end of the screen.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._reflow = reflows()
        self._lines: Sequence[SafeText] = ()
        self._columns = 0
        """The columns of the terminal when the block was drawn."""

    def write(self, line: SafeText) -> None:
        """Print a line above the block."""
        self._draw(self._lines, above=line + "\n")

    def show(self, lines: Sequence[SafeText]) -> None:
        """Replace the lines of the block, and redraw it."""
        if list(lines) != list(self._lines):
            self._draw(lines)

    def _draw(self, lines: Sequence[SafeText], above: SafeText | None = None) -> None:
        rows = self._rows()
        erase = f"\x1b[{rows}A\r\x1b[J" if rows else ""
        self._stream.write(SafeText("".join([erase, above or "", *(f"{line}\n" for line in lines)])))
        self._stream.flush()
        self._lines = tuple(lines)
        self._columns = shutil.get_terminal_size().columns

    def _rows(self) -> int:
        """Return how many rows the block takes now.

        A terminal that became narrower may have broken lines into several.
        """
        columns = shutil.get_terminal_size().columns if self._reflow else self._columns
        return rows_taken((cells(without_colours(line)) for line in self._lines), columns)
