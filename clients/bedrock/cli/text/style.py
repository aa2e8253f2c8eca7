"""Makes text for users: safe for the stream that it is printed to, coloured if wanted, and fitted to the width."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate, takewhile
from typing import Any, TextIO, TypeAlias

import click

from bedrock.cli.text.safe_text import SafeText, for_pipe, for_terminal

Width: TypeAlias = Callable[[], int]
"""A function that returns the maximum columns of a line.

It asks the terminal at each call, because the terminal may have been resized. Safe to call from any thread.
"""

PLAIN_OPTION = click.option("--plain", is_flag=True, help="No colours, and Markdown as it was written.")


class Paint:
    """Makes text fit for one stream: safe to print, and coloured if that is wanted.

    Parts that are `SafeText` already are taken as they are; every other `str` is made safe.
    """

    def __init__(self, enabled: bool, *, terminal: bool = True) -> None:
        """Create the paint for one stream.

        Args:
            enabled: Whether to colour.
            terminal: Whether the text goes to a terminal, where more characters act as controls.
        """
        self.enabled = enabled
        self.clean = for_terminal if terminal else for_pipe
        """The function that makes text safe for the stream."""

    @classmethod
    def for_stream(cls, stream: TextIO, environ: Mapping[str, str] = os.environ, *, plain: bool = False) -> Paint:
        """Return the paint for a stream: coloured at a terminal, unless `plain`, NO_COLOR or TERM=dumb."""
        terminal = stream.isatty()
        coloured = terminal and not plain and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        return cls(coloured, terminal=terminal)

    def text(self, *parts: str) -> SafeText:
        """Join texts; those that are not `SafeText` are made safe to print."""
        return SafeText("".join(map(self.clean, parts)))

    def flat(self, text: str) -> SafeText:
        """Return a text on one line: every run of white space becomes one space."""
        return SafeText(" ".join(self.clean(text).split()))

    def dim(self, text: str) -> SafeText:
        """Return a text in dim letters, for what is of low importance."""
        return self._style(text, dim=True)

    def bold(self, text: str) -> SafeText:
        """Return a text in bold letters."""
        return self._style(text, bold=True)

    def good(self, text: str) -> SafeText:
        """Return a text in green, for a success."""
        return self._style(text, fg="green")

    def bad(self, text: str) -> SafeText:
        """Return a text in red, for a failure."""
        return self._style(text, fg="red")

    def careful(self, text: str) -> SafeText:
        """Return a text in yellow, for something that needs a decision or will be tried again."""
        return self._style(text, fg="yellow")

    def name(self, text: str) -> SafeText:
        """Return a name in cyan."""
        return self._style(text, fg="cyan")

    def _style(self, text: str, **style: Any) -> SafeText:
        safe = self.clean(text)
        return SafeText(click.style(safe, **style)) if self.enabled and safe else safe


def one_line(text: str, width: int) -> SafeText:
    """Return the beginning of a text on one line of at most `width` columns.

    A long text is truncated at a space, if at least two thirds of it remain, and gets an ellipsis.
    """
    line = SafeText(" ".join(for_terminal(text).split()))
    if cells(line) <= width:
        return line
    begun = line[: fitting(line, width - 1)]
    blank = begun.rfind(" ") if line[len(begun) :][:1] != " " else -1
    return SafeText((begun[:blank] if blank >= 2 * len(begun) // 3 else begun).rstrip() + "…"[:width])


def cut(text: str, width: int) -> str:
    """Truncate a line to at most `width` columns; whitespace is preserved."""
    return text if cells(text) <= width else text[: fitting(text, width - 1)] + "…"[:width]


def cut_start(text: str, width: int) -> str:
    """Truncate a line at its start to at most `width` columns, which keeps the most specific part of a path."""
    if cells(text) <= width:
        return text
    return "…"[:width] + (text[-kept:] if (kept := fitting(text[::-1], width - 1)) else "")


def cells(text: str) -> int:
    """Return the maximum width of a text in terminal columns. The text contains no control characters.

    Characters that a terminal may join, such as emoji, count separately.
    """
    if text.isascii():
        return len(text)
    return sum(map(_cells_of(), text))


def fitting(text: str, width: int) -> int:
    """Return how many characters of a text fit into `width` columns."""
    if text.isascii():
        return max(0, min(len(text), width))
    taken = accumulate(map(_cells_of(), text))
    return sum(1 for _ in takewhile(lambda total: total <= width, taken))


def _cells_of() -> Callable[[str], int]:
    """Return a function that returns the width of a character in terminal columns.

    A variation selector counts as one column, because it may widen the character before it.
    """
    from rich.cells import get_character_cell_size  # noqa: PLC0415 -- the import takes longer than most commands

    return lambda character: 1 if character == "\ufe0f" else get_character_cell_size(character)


def columns(stream: TextIO) -> Width | None:
    """Return a function that returns the maximum columns of a line on a stream; None if the stream is no terminal."""
    return partial(_columns, stream) if stream.isatty() else None


def _columns(stream: TextIO) -> int:
    """Return the terminal's width minus one, because terminals differ in where the cursor is after the last column."""
    try:
        size = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # the stream is closed, or not really a terminal
        size = 0
    return max(1, (size or shutil.get_terminal_size().columns) - 1)
