"""Makes text for users: safe for the stream that it is printed to, coloured if wanted, and fitted to the width."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate, takewhile
from typing import Any, TextIO, TypeAlias

import click

from bedrock.cli.text.safe_text import SafeText, for_pipe, for_terminal

# A function that returns the width of a line. It asks the terminal at each call, as that may have been resized.
# Thread-safe.
Width: TypeAlias = Callable[[], int]


class Paint:
    """Prepares text for one stream: makes it safe, unless it is `SafeText` already, and colours it if wanted."""

    def __init__(self, enabled: bool, *, terminal: bool = True) -> None:
        """`enabled` turns on colours.

        `terminal` means that the stream is a terminal, where more characters are unsafe.
        """
        self.enabled = enabled
        self.clean = for_terminal if terminal else for_pipe

    @classmethod
    def for_stream(cls, stream: TextIO, environ: Mapping[str, str] = os.environ) -> Paint:
        """The paint for a stream: coloured at a terminal, unless NO_COLOR or TERM=dumb."""
        terminal = stream.isatty()
        coloured = terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        return cls(coloured, terminal=terminal)

    def text(self, *parts: str) -> SafeText:
        return SafeText("".join(map(self.clean, parts)))

    def flat(self, text: str) -> SafeText:
        return SafeText(" ".join(self.clean(text).split()))

    def dim(self, text: str) -> SafeText:
        return self._style(text, dim=True)

    def bold(self, text: str) -> SafeText:
        return self._style(text, bold=True)

    def good(self, text: str) -> SafeText:
        return self._style(text, fg="green")

    def bad(self, text: str) -> SafeText:
        return self._style(text, fg="red")

    def careful(self, text: str) -> SafeText:
        """Yellow text, for something that needs a decision or will be tried again."""
        return self._style(text, fg="yellow")

    def name(self, text: str) -> SafeText:
        return self._style(text, fg="cyan")

    def _style(self, text: str, **style: Any) -> SafeText:
        safe = self.clean(text)
        return SafeText(click.style(safe, **style)) if self.enabled and safe else safe


def one_line(text: str, width: int) -> SafeText:
    """A text on one line. A long one is cut, preferably at a space in its last third, and ends with an ellipsis."""
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
    """The maximum width of a text without controls; characters that may join, such as emoji, count separately."""
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
    """A function that returns a character's width. A variation selector counts as 1: it may widen what precedes it."""
    from rich.cells import get_character_cell_size  # noqa: PLC0415 -- the import takes longer than most commands

    return lambda character: 1 if character == "\ufe0f" else get_character_cell_size(character)


def columns(stream: TextIO) -> Width | None:
    """A function that returns the maximum columns of a line on a stream; None if the stream is not a terminal."""
    return partial(_columns, stream) if stream.isatty() else None


def _columns(stream: TextIO) -> int:
    """The terminal's width minus one: terminals differ in where they put the cursor after the last column."""
    try:
        size = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # the stream is closed, or not really a terminal
        size = 0
    return max(1, (size or shutil.get_terminal_size().columns) - 1)


class LineFlow:
    """Breaks streaming text into lines that are safe to print, without rendering Markdown."""

    def __init__(self, width: Width | None = None, clean: Callable[[str], SafeText] = for_terminal) -> None:
        """`width` returns the columns at which lines break (None: no maximum); `clean` makes a line safe."""
        self._width = width
        self._clean = clean
        self._begin()

    def _begin(self) -> None:
        self.text = self._tail = ""

    @property
    def tail(self) -> list[SafeText]:
        return self._cleaned([self._tail]) if self._tail else []

    def feed(self, piece: str) -> list[SafeText]:
        """Take a piece of text and return the lines that it completes."""
        self.text += piece
        *complete, self._tail = (self._tail + piece).split("\n")
        lines: list[str] = []
        for line in complete:
            lines.extend(self._wrap(line))
        *full, self._tail = self._wrap(self._tail)
        return self._cleaned([*lines, *full])

    def flush(self) -> list[SafeText]:
        """End the incomplete last line, before something else is printed below."""
        tail, self._tail = self.tail, ""
        return tail

    def finish(self, text: str | None = None) -> list[SafeText]:
        """Return the remaining lines; the object is then ready for another text.

        `text` is the complete text. If it does not begin with the text received so far, all its lines are returned.
        """
        lines: list[SafeText] = []
        if text is not None and text != self.text:
            if not text.startswith(self.text):
                self._begin()
            lines = self.feed(text[len(self.text) :])
        lines += self.flush()
        self._begin()
        return lines

    def drop(self) -> list[SafeText]:
        """Return the remaining lines, and begin again with an empty text, because the text was discarded."""
        return self.finish()

    def _wrap(self, line: str) -> list[str]:
        if self._width is None:
            return [line]
        lines, width = [], self._width()
        while cells(line) > width:
            full = max(1, fitting(line, width))
            at = line.rfind(" ", 1, full + 1)
            lines.append(line[:at] if at > 0 else line[:full])
            line = line[at + 1 :] if at > 0 else line[full:]
        return [*lines, line]

    def _cleaned(self, lines: list[str]) -> list[SafeText]:
        return [part for line in lines for part in self._clean(line.removesuffix("\r")).lines()]


# Maximum number of diff lines that are shown.
DIFF_LINES = 40

_HEAD = ("--- ", "+++ ")


def diff_lines(diff: str, paint: Paint) -> Iterator[SafeText]:
    """Yield the coloured lines of a unified diff without its header; of a long diff only the first lines."""
    lines = diff.rstrip("\n").split("\n")
    body = lines[2:] if len(lines) > 1 and lines[0].startswith(_HEAD[0]) and lines[1].startswith(_HEAD[1]) else lines
    for line in body[:DIFF_LINES]:
        yield changed_line(paint.clean(line).replace("\n", " "), paint)
    if len(body) > DIFF_LINES:
        yield paint.dim(f"… {len(body) - DIFF_LINES} more lines")


def changed_line(line: str, paint: Paint, unmarked: Callable[[str], SafeText] | None = None) -> SafeText:
    """Colour one line of a diff by its first character. `unmarked` colours an unchanged line; if None, it is dimmed."""
    painters: dict[str, Callable[[str], SafeText]] = {"+": paint.good, "-": paint.bad, "@": paint.name}
    return painters.get(line[:1], unmarked or paint.dim)(line.expandtabs(4))


def extent(diff: str) -> str:
    """How many lines a diff adds and removes, e.g. "+3 -1"."""
    body = [line for line in diff.split("\n") if not line.startswith(_HEAD)]
    added, gone = (sum(line.startswith(sign) for line in body) for sign in "+-")
    return f"+{added} -{gone}"
