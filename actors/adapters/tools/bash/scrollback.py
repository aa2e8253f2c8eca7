"""A bounded buffer for a job's output. Lines are numbered, and the oldest are dropped."""

from __future__ import annotations

from msgspec import Struct

# Maximum bytes that are kept. Newlines count, because otherwise any number of empty lines would be kept.
SCROLLBACK_BYTES = 4 << 20

LINE_BYTES = 64 << 10

# Maximum bytes of one LineWindow. This is more than LINE_BYTES, so that every line fits.
WINDOW_BYTES = 128 << 10

END_BYTES = 64 << 10

_STEP = 64 << 10


class LineWindow(Struct, frozen=True):
    """The lines from `start` to `end` (exclusive). Lines are numbered from 0 at the beginning of the whole output."""

    text: bytes
    start: int
    end: int
    """The number of the next line to request."""
    truncated_before: bool
    """Whether earlier lines were dropped; in the result of `Scrollback.since`, whether the requested line was
    dropped."""
    open: bool = False
    """Whether the text ends with an unfinished line, whose number is `end`."""
    more: bool = False
    """Whether there is more output, from line `end` on, that did not fit into the window."""


class Scrollback:
    """Keeps as many of the last lines as fit, and always at least one. Not thread-safe."""

    def __init__(
        self, kept_bytes: int = SCROLLBACK_BYTES, line_bytes: int = LINE_BYTES, window_bytes: int = WINDOW_BYTES
    ) -> None:
        self._kept_bytes = kept_bytes
        self._line_bytes = line_bytes
        self._window_bytes = window_bytes
        self._text = bytearray()
        # Number of bytes in the unfinished line at the end of the text.
        self._open = 0
        self._first = 0
        self.end = 0
        # The first of the dropped bytes, at most END_BYTES.
        self._head = b""
        self._dropped = 0

    def feed(self, data: bytes) -> None:
        """Append a chunk of output."""
        position = 0
        while position < len(data):
            room = self._line_bytes - self._open
            piece = data[position : position + room]
            newline = piece.rfind(b"\n")
            if newline >= 0:
                self._add_lines(piece[: newline + 1])
                position += newline + 1
            elif position + room >= len(data):
                self._text += piece
                self._open += len(piece)
                position = len(data)
            elif data[position + room] == ord("\n"):
                self._add_lines(piece + b"\n")
                position += room + 1
            else:
                self._text += piece
                self._split(data[position + room])
                position += room
        if len(self._text) > self._kept_bytes + self._kept_bytes // 4:
            self._evict()

    def finish(self) -> None:
        """End the output: an unfinished line counts as finished."""
        if self._open:
            self._add_lines(b"\n")

    def keep_last(self, lines: int) -> None:
        """Drop all finished lines except the last `lines`."""
        self._drop(self._position(max(self._first, self.end - lines)))

    def tail(self, lines: int) -> LineWindow:
        """The last `lines` lines, including an unfinished one; fewer if they do not fit into one LineWindow."""
        self._evict()
        wanted = lines - 1 if self._open else lines
        start, position = self.end, len(self._text) - self._open
        while start > max(self._first, self.end - wanted):
            before = self._text.rfind(b"\n", 0, position - 1) + 1
            if len(self._text) - before > self._window_bytes:
                break
            start, position = start - 1, before
        return LineWindow(bytes(self._text[position:]), start, self.end, self._first > 0, bool(self._open))

    def since(self, line: int) -> LineWindow:
        """The lines from number `line` on, as far as they fit into one LineWindow."""
        self._evict()
        start = min(max(line, self._first), self.end)
        position = self._position(start)
        text = bytes(self._text[position : position + self._window_bytes])
        truncated = line < self._first
        if position + len(text) == len(self._text):
            return LineWindow(text, start, self.end, truncated, bool(self._open))
        text = text[: text.rfind(b"\n") + 1]
        return LineWindow(text, start, start + text.count(b"\n"), truncated, more=True)

    def ends(self) -> tuple[bytes, bytes, int]:
        """The beginning and end of the output, and the number of bytes omitted between them.

        If none is omitted, the beginning is the whole output and the end is empty.
        """
        missing = self._dropped - len(self._head)
        text = self._head + self._text
        if not missing and len(text) <= 2 * END_BYTES:
            return text, b"", 0
        return text[:END_BYTES], text[-END_BYTES:], missing + len(text) - 2 * END_BYTES

    def _add_lines(self, text: bytes) -> None:
        self._text += text
        self.end += text.count(b"\n")
        self._open = 0

    def _split(self, following: int) -> None:
        """End the line.

        If its last bytes begin a UTF-8 character that the byte `following` continues, they move to the next line.
        """
        begun = _partial_character(self._text, following)
        position = len(self._text) - begun
        self._text[position:position] = b"\n"
        self.end += 1
        self._open = begun

    def _evict(self) -> None:
        excess = len(self._text) - self._kept_bytes
        if excess > 0:
            self._drop(self._text.index(b"\n", excess - 1) + 1)

    def _drop(self, size: int) -> None:
        self._head += self._text[: min(size, END_BYTES - len(self._head))]
        self._dropped += size
        self._first += self._text.count(b"\n", 0, size)
        del self._text[:size]

    def _position(self, line: int) -> int:
        position, left = 0, line - self._first
        while (passed := self._text.count(b"\n", position, position + _STEP)) < left:
            position, left = position + _STEP, left - passed
        for _ in range(left):
            position = self._text.index(b"\n", position) + 1
        return position


def _partial_character(text: bytearray, following: int) -> int:
    """How many bytes at the end of `text` begin a UTF-8 character that is continued by the byte `following`."""
    if following & 0xC0 == 0x80:
        for size in range(1, 4):
            if text[-size] & 0xC0 == 0xC0:
                return size
            if text[-size] & 0x80 == 0:
                break
    return 0
