"""Lines at the bottom of a terminal that are redrawn in place, and how many rows they may take."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TextIO

from bedrock.cli.text.safe_text import SafeText, without_colours
from bedrock.cli.text.style import cells

# Seconds between updates of lines that change with the time.
TICK = 0.5
# The text or tool output that is streaming in is shown in at most TAIL_LINES lines, and in at most 1 / TAIL_SHARE of
# the terminal's rows. Lines that have scrolled off the screen can no longer be erased. Therefore, few enough lines are
# shown to fit even if the terminal becomes half as wide and each line takes two rows.
TAIL_LINES, TAIL_SHARE = 8, 4

# Environment variables set by terminals that rewrap lines when they become narrower.
_BREAK_LINES = ("TMUX", "VTE_VERSION", "KITTY_WINDOW_ID", "KONSOLE_VERSION", "ALACRITTY_WINDOW_ID", "WT_SESSION")
_PROGRAMS = ("tmux", "iTerm.app", "Apple_Terminal", "WezTerm", "ghostty", "vscode", "rio", "WarpTerminal")
_NAMES = re.compile(r"(tmux|alacritty|foot|konsole|vte|gnome|wezterm|contour|rio)\b|xterm-(kitty|ghostty)")


def reflows(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal rewraps lines when it becomes narrower. xterm and the Linux console truncate them."""
    if environ.get("XTERM_VERSION"):
        return False
    named = _NAMES.match(environ.get("TERM", "")) is not None
    return named or environ.get("TERM_PROGRAM") in _PROGRAMS or any(environ.get(name) for name in _BREAK_LINES)


def rows_taken(cells: Iterable[int], columns: int) -> int:
    """The number of rows needed for lines with the widths `cells`, in a terminal that wraps at `columns`."""
    return sum(max(1, -(-taken // max(1, columns))) for taken in cells)


def tail_room(rows: int) -> int:
    """How many lines of a terminal with `rows` rows show the text or tool output that is streaming in."""
    return min(rows // TAIL_SHARE, TAIL_LINES)


class LiveBlock:
    """Lines below the printed output, redrawn in place by control sequences that every terminal has."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._reflow = reflows()
        self._lines: Sequence[SafeText] = ()
        self._columns = 0

    def write(self, line: SafeText) -> None:
        self._draw(self._lines, above=line + "\n")

    def show(self, lines: Sequence[SafeText]) -> None:
        if list(lines) != list(self._lines):
            self._draw(lines)

    @asynccontextmanager
    async def updated(self, lines: Callable[[], Sequence[SafeText]]) -> AsyncGenerator[None]:
        """Show the result of `lines`, refreshed every TICK seconds. Erase it when the ``async with`` block ends."""

        async def update() -> None:
            while True:
                self.show(lines())
                await asyncio.sleep(TICK)

        updating = asyncio.create_task(update())
        try:
            yield
        finally:
            updating.cancel()
            self.show(())

    def _draw(self, lines: Sequence[SafeText], above: SafeText | None = None) -> None:
        rows = self._rows()
        erase = f"\x1b[{rows}A\r\x1b[J" if rows else ""
        self._stream.write(SafeText("".join([erase, above or "", *(f"{line}\n" for line in lines)])))
        self._stream.flush()
        self._lines = tuple(lines)
        self._columns = shutil.get_terminal_size().columns

    def _rows(self) -> int:
        """How many rows the block takes now: a terminal that became narrower may have wrapped its lines."""
        columns = shutil.get_terminal_size().columns if self._reflow else self._columns
        return rows_taken((cells(without_colours(line)) for line in self._lines), columns)
