"""Text for terminals: coloured where that is welcome, and never able to play tricks on the reader."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import TextIO, TypeAlias

import click

Width: TypeAlias = Callable[[], int]
"""How many columns a line may have, asked each time: a terminal can change its size. Any thread."""

PLAIN_OPTION = click.option("--plain", is_flag=True, help="No colours, and Markdown as it was written.")

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
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
    """Make text of a model or a tool safe to print: line breaks and tabs stay, colours go, other controls show."""
    text = _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub(_escape, text)


def literal(text: str) -> str:
    """Show every control character of what somebody is asked to allow; only line breaks and tabs stay."""
    return _CONTROL.sub(_escape, text)


def flat(text: str) -> str:
    """A text on one line, safe to print."""
    return " ".join(harmless(text).split())


def one_line(text: str, width: int) -> str:
    """The beginning of a text on one line of at most `width` characters."""
    line = flat(text)
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


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
