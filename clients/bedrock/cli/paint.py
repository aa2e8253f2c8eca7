"""Text for terminals: coloured where that is welcome, and never able to play tricks on the reader."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate, takewhile
from typing import TextIO, TypeAlias

import click

Width: TypeAlias = Callable[[], int]
"""How many columns a line may have, asked each time: a terminal can change its size. Any thread."""

PLAIN_OPTION = click.option("--plain", is_flag=True, help="No colours, and Markdown as it was written.")

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# What makes one emoji of several: terminals do not agree about how wide that is, and those beside each other are plain.
_JOINER = re.compile("(?<=[\ufe0f\U0001f000-\U0001faff])\u200d")
# Everything that moves the cursor, rings, hides or reorders: C0 and C1 controls, and what changes writing direction.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Paint:
    """Adds colours, or leaves text as it is."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    @classmethod
    def for_stream(cls, stream: TextIO, environ: Mapping[str, str] = os.environ, *, plain: bool = False) -> Paint:
        """Colour for a terminal, unless somebody wants it plain, or NO_COLOR or a dumb terminal says so."""
        return cls(stream.isatty() and not plain and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb")

    def dim(self, text: str) -> str:
        """What may be overlooked."""
        return self._style(text, dim=True)

    def bold(self, text: str) -> str:
        """What should be noticed."""
        return self._style(text, bold=True)

    def good(self, text: str) -> str:
        """What went well."""
        return self._style(text, fg="green")

    def bad(self, text: str) -> str:
        """What went wrong."""
        return self._style(text, fg="red")

    def careful(self, text: str) -> str:
        """What needs a decision, or will be tried again."""
        return self._style(text, fg="yellow")

    def name(self, text: str) -> str:
        """What something is called."""
        return self._style(text, fg="cyan")

    def _style(self, text: str, *, dim: bool | None = None, bold: bool | None = None, fg: str | None = None) -> str:
        return click.style(text, dim=dim, bold=bold, fg=fg) if self.enabled and text else text


def harmless(text: str) -> str:
    """Make text of a model or a tool safe to print: line breaks and tabs stay, colours go, other controls show. Emoji
    that are joined are shown beside each other.
    """
    text = _JOINER.sub("", _COLOUR.sub("", text)).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub(_escape, text)


def literal(text: str) -> str:
    """Show every control character of what somebody is asked to allow; only line breaks and tabs stay."""
    return _CONTROL.sub(_escape, text)


def flat(text: str) -> str:
    """A text on one line, safe to print."""
    return " ".join(harmless(text).split())


def one_line(text: str, width: int) -> str:
    """The beginning of a text on one line of at most `width` columns, cut at a blank if that leaves most of it."""
    line = flat(text)
    if cells(line) <= width:
        return line
    begun = line[: fitting(line, width - 1)]
    blank = begun.rfind(" ") if line[len(begun) :][:1] != " " else -1
    return (begun[:blank] if blank >= 2 * len(begun) // 3 else begun).rstrip() + "…"[:width]


def cut(text: str, width: int) -> str:
    """The beginning of a line, at most `width` columns of it; its blanks stay."""
    return text if cells(text) <= width else text[: fitting(text, width - 1)] + "…"[:width]


def cells(text: str) -> int:
    """How many columns a text without controls takes at most, whatever the terminal makes of joined characters."""
    if text.isascii():
        return len(text)
    return sum(map(_cells_of(), text))


def fitting(text: str, width: int) -> int:
    """How many characters of a text fit into `width` columns."""
    if text.isascii():
        return max(0, min(len(text), width))
    taken = accumulate(map(_cells_of(), text))
    return sum(1 for _ in takewhile(lambda total: total <= width, taken))


def _cells_of() -> Callable[[str], int]:
    """What tells the columns of one character; a selector that may widen the one before counts for one."""
    from rich.cells import get_character_cell_size  # noqa: PLC0415 -- costs more than most commands

    return lambda character: 1 if character == "\ufe0f" else get_character_cell_size(character)


def _escape(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def columns(stream: TextIO) -> Width | None:
    """Return what tells how wide lines should be; None where nobody looks at a terminal."""
    return partial(_columns, stream) if stream.isatty() else None


def _columns(stream: TextIO) -> int:
    """All but the last column: a cursor that stands behind it is where terminals disagree."""
    try:
        size = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # it is closed, or only says that it is a terminal
        size = 0
    return max(1, (size or shutil.get_terminal_size().columns) - 1)
