"""Converts streaming text into lines that are safe to print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bedrock.cli.text.safe_text import SafeText, for_terminal
from bedrock.cli.text.style import Paint, Width, cells, fitting

if TYPE_CHECKING:
    from collections.abc import Callable

    from bedrock.cli.text.output import Write


class Flow(Protocol):
    """The interface of objects that convert a streaming text to lines."""

    text: str
    """All text received so far."""

    @property
    def tail(self) -> list[SafeText]:
        """The text that `feed` has not returned yet, as lines."""
        ...

    def feed(self, piece: str) -> list[SafeText]:
        """Take a piece of text and return the lines that it completes."""
        ...

    def finish(self, text: str | None = None) -> list[SafeText]:
        """Return the remaining lines, and make the object ready for another text.

        Args:
            text: The complete text; None if it is the text received so far. If it does not begin with the text received
                so far, the lines of the complete text are returned, from its beginning.
        """
        ...

    def drop(self) -> list[SafeText]:
        """Return the remaining lines without rendering them, because the text was discarded.

        Then the object is ready for another text.
        """
        ...


class LineFlow:
    """Breaks streaming text into lines that are safe to print, without rendering Markdown. Implements `Flow`."""

    def __init__(self, width: Width | None = None, clean: Callable[[str], SafeText] = for_terminal) -> None:
        """Prepare. `width` returns the maximum columns of a line, which is broken at blanks; None for no maximum.

        `clean` makes a line safe to print.
        """
        self._width = width
        self._clean = clean
        self._tail = ""
        self.text = ""

    @property
    def tail(self) -> list[SafeText]:
        """The incomplete last line."""
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
        """End the incomplete last line, and return it; [] if there is none.

        Call this before something else is printed below. Text that is fed later begins on a new line.
        """
        tail, self._tail = self.tail, ""
        return tail

    def finish(self, text: str | None = None) -> list[SafeText]:
        """Return the remaining lines, and begin again with an empty text; see `Flow.finish`."""
        lines: list[SafeText] = []
        if text is not None and text != self.text:
            if text.startswith(self.text):
                lines = self.feed(text[len(self.text) :])
            else:
                self._tail = ""
                lines = self.feed(text)
        lines += self.flush()
        self.text = ""
        return lines

    def drop(self) -> list[SafeText]:
        """Return the remaining lines, and begin again with an empty text; see `Flow.drop`."""
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


def flow_of(paint: Paint, width: Width | None) -> Flow:
    """Return the `Flow` for an agent's text: rendered Markdown if there are colours and a width, else plain lines."""
    if not paint.enabled or width is None:
        return LineFlow(width, paint.clean)
    from bedrock.cli.text.markdown_stream import MarkdownFlow  # noqa: PLC0415 -- loads rich, which not every command needs

    return MarkdownFlow(paint, width)


class Say(Protocol):
    """A function that prints a line.

    Continuation lines are indented by `indent` columns; if that is None, they are aligned with the text of
    the first line, behind its bullet or number.
    """

    def __call__(self, line: SafeText, *, indent: int | None = None) -> None:
        """Print a line; `indent` is the indent of its continuation lines, in columns."""


def folding(write: Write, width: Width | None) -> Say:
    """Return a function that prints a line, broken into lines of at most `width` columns; None for no limit."""

    def fold(line: SafeText, *, indent: int | None = None) -> None:
        if width is None or cells(line.expandtabs()) <= (room := width()):
            write(line)
            return
        from bedrock.cli.text.markdown_blocks import folded  # noqa: PLC0415 -- loads nearly all of rich

        for piece in folded(line, room, indent):
            write(piece)

    return fold
