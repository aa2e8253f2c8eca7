"""Makes the unified diff of known edits, in a time that depends mostly on the size of the change, not of the file."""

from bisect import bisect_right
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import accumulate
from typing import NamedTuple

CONTEXT = 3
"""Unchanged lines shown around a change."""

MAX_COMPARED = 2000
"""The maximum number of old and new lines together that are compared for a change, since this takes quadratic time.

A larger change is shown as one replacement of all its lines.
"""

MAX_DIFF = 64 * 1024
"""Maximum characters of a diff that are shown."""

NO_NEWLINE = "\n\\ No newline at end of file\n"


class Edit(NamedTuple):
    """The replacement of the characters from `start` to `end` (exclusive) of the old text by `new`."""

    start: int
    end: int
    new: str


class LineChange(NamedTuple):
    """The replacement of the lines from `first` to `end` (exclusive, counted from 0) of the old text by `lines`."""

    first: int
    end: int
    lines: list[str]


def lines_of(text: str) -> list[str]:
    r"""Split text into lines with their newlines; only "\n" ends a line."""
    *whole, rest = text.split("\n")
    return [line + "\n" for line in whole] + ([rest] if rest else [])


def applied(old: str, edits: list[Edit], start: int = 0, end: int | None = None) -> str:
    """Return old[start:end] with `edits` applied, which must be sorted, lie in this range and not overlap."""
    pieces: list[str] = []
    for edit in edits:
        pieces += [old[start : edit.start], edit.new]
        start = edit.end
    return "".join([*pieces, old[start : len(old) if end is None else end]])


def unified(path: str, old: str, edits: list[Edit], *, created: bool) -> str:
    """Return the diff to show to users; "" if nothing changes. `edits` must be sorted and not overlap."""
    lines = lines_of(old)
    changes = [change for stretch in touched(old, lines, edits) for change in compared(lines, stretch)]
    text = "".join(hunks(lines, changes))
    head = f"--- {'/dev/null' if created else path}\n+++ {path}\n"
    return head + bounded(text) if text else ""


def bounded(text: str) -> str:
    """Return as many whole lines as fit into MAX_DIFF characters, then the number of omitted lines if there are any."""
    if len(text) <= MAX_DIFF:
        return text
    kept = text[: text.rfind("\n", 0, MAX_DIFF) + 1]
    return f"{kept}[{text.count(chr(10), len(kept))} more lines of the diff not shown]\n"


def touched(old: str, lines: list[str], edits: list[Edit]) -> Iterator[LineChange]:
    """Yield each run of lines that edits touch, with the lines that replace it; the runs do not overlap."""
    starts = [0, *accumulate(map(len, lines))]
    stretches: list[tuple[int, int, list[Edit]]] = []
    for edit in edits:
        first, end = line_at(starts, edit.start), min(line_at(starts, edit.end) + 1, len(lines))
        if stretches and first <= stretches[-1][1]:
            before, until, inside = stretches[-1]
            stretches[-1] = before, max(end, until), [*inside, edit]
        else:
            stretches.append((first, end, [edit]))
    for first, end, inside in stretches:
        yield LineChange(first, end, lines_of(applied(old, inside, starts[first], starts[end])))


def line_at(starts: list[int], position: int) -> int:
    """Return the index of the line that contains `position`; the last line if `position` is the end of the text."""
    return max(0, min(bisect_right(starts, position) - 1, len(starts) - 2))


def compared(lines: list[str], stretch: LineChange) -> Iterator[LineChange]:
    """Yield the changes within a run of lines, without the lines that are equal in the old and the new text."""
    first, end, new = stretch
    while first < end and new and lines[first] == new[0]:
        first, new = first + 1, new[1:]
    while first < end and new and lines[end - 1] == new[-1]:
        end, new = end - 1, new[:-1]
    old = lines[first:end]
    if len(old) + len(new) > MAX_COMPARED:
        yield LineChange(first, end, new)
        return
    for tag, i, j, k, m in SequenceMatcher(None, old, new).get_opcodes():
        if tag != "equal":
            yield LineChange(first + i, first + j, new[k:m])


def hunks(lines: list[str], changes: list[LineChange]) -> Iterator[str]:
    """Yield the text of each hunk; changes whose contexts overlap share a hunk."""
    groups: list[list[LineChange]] = []
    for change in changes:
        if groups and change.first - groups[-1][-1].end <= 2 * CONTEXT:
            groups[-1].append(change)
        else:
            groups.append([change])
    shift = 0
    for group in groups:
        yield hunk(lines, group, shift)
        shift += sum(grown(change) for change in group)


def grown(change: LineChange) -> int:
    """Return how many lines the change adds; negative if it removes more than it adds."""
    return len(change.lines) - (change.end - change.first)


def hunk(lines: list[str], group: list[LineChange], shift: int) -> str:
    """Return the text of one hunk; `shift` is the number of lines that the hunks before it have added."""
    begin, end = max(0, group[0].first - CONTEXT), min(len(lines), group[-1].end + CONTEXT)
    shown: list[str] = []
    position = begin
    for change in group:
        shown += [" " + line for line in lines[position : change.first]]
        shown += ["-" + line for line in lines[change.first : change.end]]
        shown += ["+" + line for line in change.lines]
        position = change.end
    shown += [" " + line for line in lines[position:end]]
    length = end - begin + sum(grown(change) for change in group)
    head = f"@@ -{span(begin, end - begin)} +{span(begin + shift, length)} @@\n"
    return head + "".join(line if line.endswith("\n") else line + NO_NEWLINE for line in shown)


def span(begin: int, length: int) -> str:
    """Return a range of lines as in a hunk's header, counted from 1; an empty range names the line before it."""
    if length == 1:
        return str(begin + 1)
    return f"{begin + 1 if length else begin},{length}"
