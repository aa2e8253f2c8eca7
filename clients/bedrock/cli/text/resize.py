"""Detects whether terminals rewrap lines when they are resized, and computes the rows that lines then take."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_BREAK_LINES = ("TMUX", "VTE_VERSION", "KITTY_WINDOW_ID", "KONSOLE_VERSION", "ALACRITTY_WINDOW_ID", "WT_SESSION")
"""Environment variables set by terminals that rewrap lines when they become narrower."""
_PROGRAMS = ("tmux", "iTerm.app", "Apple_Terminal", "WezTerm", "ghostty", "vscode", "rio", "WarpTerminal")
_NAMES = re.compile(r"(tmux|alacritty|foot|konsole|vte|gnome|wezterm|contour|rio)\b|xterm-(kitty|ghostty)")


def reflows(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the terminal rewraps lines when it becomes narrower. xterm and the Linux console truncate them."""
    if environ.get("XTERM_VERSION"):
        return False
    named = _NAMES.match(environ.get("TERM", "")) is not None
    return named or environ.get("TERM_PROGRAM") in _PROGRAMS or any(environ.get(name) for name in _BREAK_LINES)


def rows_taken(cells: Iterable[int], columns: int) -> int:
    """Return the number of rows needed for lines with the widths `cells`, in a terminal that wraps at `columns`."""
    return sum(max(1, -(-taken // max(1, columns))) for taken in cells)
