"""Laws of a job's scrollback: it is a window on the lines of all output, whatever the pieces it came in."""

import itertools
from dataclasses import dataclass
from functools import cached_property

from hypothesis import given
from hypothesis import strategies as st

from actors.adapters.tools.bash.scrollback import LineWindow, Scrollback
from tests.property.profiles import profile
from tests.property.tape import tapes

KEPT, LINE, SHOWN = 60, 8, 24

PIECES = (b"\n", b"a", b"bc", b"\n\n", b"0123456", b"01234567", "é".encode(), "😀".encode(), b"\xff", b"\x80")
TEXT = tapes(25, 25).map(lambda tape: b"".join(tape.some(PIECES, 24)))
CUTS = tapes(9, 9).map(lambda tape: tape.some(range(201), 8))
LINES = st.integers(1, 40)
OFFSETS = st.integers(0, 60)


@dataclass
class Naive:
    """All lines, split and dropped one by one."""

    output: bytes
    finished: bool
    kept_lines: int | None = None

    @cached_property
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
        lines, last = self.lines
        first = 0
        while first < len(lines) and sum(len(line) + 1 for line in lines[first:]) + len(last) > KEPT:
            if first == len(lines) - 1 and not last:
                break
            first += 1
        return first if self.kept_lines is None else max(first, len(lines) - self.kept_lines)

    def tail(self, count: int) -> LineWindow:
        lines, last = self.lines
        first = start = self.first()
        start = max(first, len(lines) - (count - 1 if last else count))
        while start < len(lines) and len(self.text(start, len(lines)) + last) > SHOWN:
            start += 1
        return LineWindow(self.text(start, len(lines)) + last, start, len(lines), first > 0, bool(last))

    def since(self, line: int) -> LineWindow:
        lines, last = self.lines
        start = end = min(max(line, self.first()), len(lines))
        if len(self.text(start, len(lines)) + last) <= SHOWN:
            return LineWindow(self.text(start, len(lines)) + last, start, len(lines), line < self.first(), bool(last))
        while end < len(lines) and len(self.text(start, end + 1)) <= SHOWN:
            end += 1
        return LineWindow(self.text(start, end), start, end, line < self.first(), more=True)

    def text(self, start: int, end: int) -> bytes:
        return b"".join(line + b"\n" for line in self.lines[0][start:end])


def fed(output: bytes, cuts: list[int], *, finished: bool) -> Scrollback:
    scrollback = Scrollback(KEPT, LINE, SHOWN)
    bounds = sorted({0, len(output), *(cut for cut in cuts if cut < len(output))})
    for start, end in itertools.pairwise(bounds):
        scrollback.feed(output[start:end])
    if finished:
        scrollback.finish()
    return scrollback


@profile(2_500)
@given(TEXT, CUTS, st.booleans(), LINES, OFFSETS)
def test_windows_are_those_of_the_naive_model(
    output: bytes, cuts: list[int], finished: bool, lines: int, offset: int
) -> None:
    scrollback, naive = fed(output, cuts, finished=finished), Naive(output, finished)
    assert scrollback.tail(lines) == naive.tail(lines)
    assert scrollback.since(offset) == naive.since(offset)
    assert scrollback.end == len(naive.lines[0])


@profile(1_000)
@given(TEXT, CUTS, CUTS, LINES, OFFSETS)
def test_any_split_of_the_output_gives_the_same_lines(
    output: bytes, cuts: list[int], others: list[int], lines: int, offset: int
) -> None:
    one, other = fed(output, cuts, finished=False), fed(output, others, finished=False)
    assert one.tail(lines) == other.tail(lines)
    assert one.since(offset) == other.since(offset)


@profile(500)
@given(TEXT, CUTS, st.integers(0, 10), OFFSETS)
def test_a_tombstone_keeps_the_last_lines_under_their_numbers(
    output: bytes, cuts: list[int], kept: int, offset: int
) -> None:
    scrollback = fed(output, cuts, finished=True)
    scrollback.keep_last(kept)
    naive = Naive(output, finished=True, kept_lines=kept)
    assert scrollback.since(offset) == naive.since(offset)
    assert scrollback.tail(99) == naive.tail(99)


@profile(500)
@given(TEXT, CUTS)
def test_following_with_since_reads_every_kept_line_once(output: bytes, cuts: list[int]) -> None:
    scrollback = fed(output, cuts, finished=True)
    windows = [scrollback.since(0)]
    while windows[-1].more:
        windows.append(scrollback.since(windows[-1].end))
    naive = Naive(output, finished=True)
    assert b"".join(window.text for window in windows) == naive.text(naive.first(), len(naive.lines[0]))
