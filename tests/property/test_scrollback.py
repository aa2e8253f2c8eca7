"""Laws of a job's scrollback: it is a window on the lines of all output, whatever the pieces it came in."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from actors.tools.bash.scrollback import Scrollback, Window
from tests.property.tape import Tape, on_tapes

KEPT, LINE, SHOWN = 60, 8, 24

PIECES = (b"\n", b"a", b"bc", b"\n\n", b"0123456", b"01234567", "é".encode(), "😀".encode(), b"\xff", b"\x80")


def some_text(tape: Tape) -> bytes:
    """Up to 40 pieces; mostly few, so that often nothing is dropped."""
    return b"".join(tape.pick(PIECES) for _ in range(tape.number(tape.pick((5, 12, 40)))))


def some_cuts(tape: Tape) -> list[int]:
    """Where the output is cut into what is fed at once."""
    return [tape.number(tape.pick((20, 200))) for _ in range(tape.number(8))]


def some_lines(tape: Tape) -> int:
    return 1 + tape.number(39)


def an_offset(tape: Tape) -> int:
    return tape.number(tape.pick((8, 60)))


@dataclass
class Naive:
    """All lines, split and dropped one by one."""

    output: bytes
    finished: bool
    kept_lines: int | None = None

    def lines(self) -> tuple[list[bytes], bytes]:
        """The finished ones, and the open one."""
        *whole, last = self.output.split(b"\n")
        lines = [piece for line in whole for piece in self.split(line)]
        *more, last = self.split(last)
        lines += more
        return ([*lines, last], b"") if self.finished and last else (lines, last)

    @staticmethod
    def split(line: bytes) -> list[bytes]:
        """Into lines of 8 bytes, or a little less where that would cut a character."""
        pieces = []
        while len(line) > LINE:
            cut = LINE
            if line[cut] & 0xC0 == 0x80:
                begins = [back for back in (1, 2, 3) if line[cut - back] & 0xC0 == 0xC0]
                ascii_ = [back for back in (1, 2, 3) if line[cut - back] < 0x80]
                if begins and begins[0] < min(ascii_, default=4):
                    cut -= begins[0]
            pieces.append(line[:cut])
            line = line[cut:]
        return [*pieces, line]

    def first(self) -> int:
        """The oldest line that is kept."""
        lines, last = self.lines()
        first = 0
        while first < len(lines) and sum(len(line) + 1 for line in lines[first:]) + len(last) > KEPT:
            if first == len(lines) - 1 and not last:
                break
            first += 1
        return first if self.kept_lines is None else max(first, len(lines) - self.kept_lines)

    def tail(self, count: int) -> Window:
        lines, last = self.lines()
        first = start = self.first()
        start = max(first, len(lines) - (count - 1 if last else count))
        while start < len(lines) and len(self.text(start, len(lines)) + last) > SHOWN:
            start += 1
        return Window(self.text(start, len(lines)) + last, start, len(lines), first > 0, bool(last))

    def since(self, line: int) -> Window:
        lines, last = self.lines()
        start = end = min(max(line, self.first()), len(lines))
        if len(self.text(start, len(lines)) + last) <= SHOWN:
            return Window(self.text(start, len(lines)) + last, start, len(lines), line < self.first(), bool(last))
        while end < len(lines) and len(self.text(start, end + 1)) <= SHOWN:
            end += 1
        return Window(self.text(start, end), start, end, line < self.first(), more=True)

    def text(self, start: int, end: int) -> bytes:
        return b"".join(line + b"\n" for line in self.lines()[0][start:end])


def fed(output: bytes, cuts: list[int], *, finished: bool) -> Scrollback:
    scrollback = Scrollback(KEPT, LINE, SHOWN)
    bounds = sorted({0, len(output), *(cut for cut in cuts if cut < len(output))})
    for start, end in itertools.pairwise(bounds):
        scrollback.feed(output[start:end])
    if finished:
        scrollback.finish()
    return scrollback


@on_tapes(70, 70, 2_500)
def test_windows_are_those_of_the_naive_model(tape: Tape) -> None:
    lines, offset, finished = some_lines(tape), an_offset(tape), tape.pick((False, True))
    output, cuts = some_text(tape), some_cuts(tape)
    scrollback, naive = fed(output, cuts, finished=finished), Naive(output, finished)
    assert scrollback.tail(lines) == naive.tail(lines)
    assert scrollback.since(offset) == naive.since(offset)
    assert scrollback.end == len(naive.lines()[0])


@on_tapes(90, 90, 1_000)
def test_any_split_of_the_output_gives_the_same_lines(tape: Tape) -> None:
    lines, offset = some_lines(tape), an_offset(tape)
    output, cuts, others = some_text(tape), some_cuts(tape), some_cuts(tape)
    one, other = fed(output, cuts, finished=False), fed(output, others, finished=False)
    assert one.tail(lines) == other.tail(lines)
    assert one.since(offset) == other.since(offset)


@on_tapes(70, 70, 500)
def test_a_tombstone_keeps_the_last_lines_under_their_numbers(tape: Tape) -> None:
    kept, offset, output = tape.number(10), an_offset(tape), some_text(tape)
    scrollback = fed(output, some_cuts(tape), finished=True)
    scrollback.keep_last(kept)
    naive = Naive(output, finished=True, kept_lines=kept)
    assert scrollback.since(offset) == naive.since(offset)
    assert scrollback.tail(99) == naive.tail(99)


@on_tapes(70, 70, 500)
def test_following_with_since_reads_every_kept_line_once(tape: Tape) -> None:
    output = some_text(tape)
    scrollback = fed(output, some_cuts(tape), finished=True)
    windows = [scrollback.since(0)]
    while windows[-1].more:
        windows.append(scrollback.since(windows[-1].end))
    naive = Naive(output, finished=True)
    assert b"".join(window.text for window in windows) == naive.text(naive.first(), len(naive.lines()[0]))
