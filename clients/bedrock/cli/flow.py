"""Text that arrives in pieces, as lines."""

from __future__ import annotations


class LineFlow:
    """Breaks a stream of text into lines; what has no end yet is the tail."""

    def __init__(self, width: int | None = None) -> None:
        """Break lines at blanks to keep them within `width` characters; only at line ends if None."""
        self._width = width
        self.tail = ""
        """What has arrived of the line that is not complete."""
        self.text = ""
        """All that has arrived."""

    def feed(self, piece: str) -> list[str]:
        """Take a piece of text and return the lines that it completes."""
        self.text += piece
        *complete, self.tail = (self.tail + piece).split("\n")
        lines: list[str] = []
        for line in complete:
            lines.extend(self._wrap(line))
        *full, self.tail = self._wrap(self.tail)
        return lines + full

    def flush(self) -> list[str]:
        """Return the tail as a line, because something else is going to be printed. The text goes on."""
        tail, self.tail = self.tail, ""
        return [tail] if tail else []

    def finish(self, text: str | None = None) -> list[str]:
        """Return the rest and begin anew.

        Args:
            text: What the whole text turned out to be. If the pieces were not its beginning, all of it is returned.
        """
        lines: list[str] = []
        if text is not None and text != self.text:
            if text.startswith(self.text):
                lines = self.feed(text[len(self.text) :])
            else:
                self.tail = ""
                lines = self.feed(text)
        lines += self.flush()
        self.text = ""
        return lines

    def _wrap(self, line: str) -> list[str]:
        if self._width is None:
            return [line]
        lines = []
        while len(line) > self._width:
            at = line.rfind(" ", 1, self._width + 1)
            lines.append(line[:at] if at > 0 else line[: self._width])
            line = line[at + 1 :] if at > 0 else line[self._width :]
        return [*lines, line]
