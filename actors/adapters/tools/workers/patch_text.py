"""Finds the text that a patch replaces, and makes the unified diff of known edits. No file is accessed."""

import re
import unicodedata
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

CONTEXT = 3

# Maximum number of lines, old and new together, that are compared, because comparing takes quadratic time. A larger
# change is shown as one replacement of all its lines.
MAX_COMPARED = 2000

MAX_DIFF = 64 * 1024

NO_NEWLINE = "\n\\ No newline at end of file\n"


class Edit(NamedTuple):
    """The replacement of the old text's characters from `start` to `end` (exclusive) with `new`."""

    start: int
    end: int
    new: str


class LineChange(NamedTuple):
    """The replacement of the old text's lines from `first` to `end` (exclusive, counted from 0) with `lines`."""

    first: int
    end: int
    lines: list[str]


def lines_of(text: str) -> list[str]:
    *whole, rest = text.split("\n")
    return [line + "\n" for line in whole] + ([rest] if rest else [])


def applied(old: str, edits: list[Edit], start: int = 0, end: int | None = None) -> str:
    """Apply `edits` to old[start:end]; they must be sorted, lie in this range, and not overlap."""
    pieces: list[str] = []
    for edit in edits:
        pieces += [old[start : edit.start], edit.new]
        start = edit.end
    return "".join([*pieces, old[start : len(old) if end is None else end]])


def unified(path: str, old: str, edits: list[Edit], *, created: bool) -> str:
    """The diff to show to users; "" if nothing changes. `edits` must be sorted and must not overlap."""
    lines = lines_of(old)
    changes = [change for stretch in touched(old, lines, edits) for change in compared(lines, stretch)]
    text = "".join(hunks(lines, changes))
    head = f"--- {'/dev/null' if created else path}\n+++ {path}\n"
    return head + bounded(text) if text else ""


def bounded(text: str) -> str:
    if len(text) <= MAX_DIFF:
        return text
    kept = text[: text.rfind("\n", 0, MAX_DIFF) + 1]
    return f"{kept}[{text.count(chr(10), len(kept))} more lines of the diff not shown]\n"


def touched(old: str, lines: list[str], edits: list[Edit]) -> Iterator[LineChange]:
    """Yield each run of lines that edits touch, with the replacement lines; the runs do not overlap."""
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
    """The index of the line that contains `position`; the last line if `position` is the end of the text."""
    return max(0, min(bisect_right(starts, position) - 1, len(starts) - 2))


def compared(lines: list[str], stretch: LineChange) -> Iterator[LineChange]:
    """Yield the changes within a run of lines, without lines that are equal in the old and the new text."""
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
    return len(change.lines) - (change.end - change.first)


def hunk(lines: list[str], group: list[LineChange], shift: int) -> str:
    """The text of one hunk; `shift` is the number of lines added by the hunks before it."""
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
    """A range of lines as it is written in a hunk's header, counted from 1; an empty range names the line before it."""
    if length == 1:
        return str(begin + 1)
    return f"{begin + 1 if length else begin},{length}"


FIRST, LAST, BOTH = "its first line", "its last line", "its first and last line"

# Maximum number of positions that are counted; for more positions, the message says "more than 999".
MOST_COUNTED = 999

# Maximum number of a file's different indentations that are tried, most frequent first.
MAX_LEVELS = 64

# Maps characters to the characters that they look like. Full width forms, ligatures, spaces, the ellipsis and accents
# are missing here, because Unicode's NFKD handles them.
LOOKALIKES = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u00b4\u02b9\u02bc", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2043\ufe58", "-"),
        **dict.fromkeys("\u2044\u2215", "/"),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
        **dict(zip("асеорхуіјѕАВСЕНІЈКМОРЅТХ", "aceopxyijsABCEHIJKMOPSTX", strict=True)),  # noqa: RUF001
        **dict(zip("οΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "oABEZHIKMNOPTYX", strict=True)),  # noqa: RUF001
    }
)


class NoMatchError(Exception):
    """The text was not found, or was found more than once; the message says which, and how often."""


class Sought(NamedTuple):
    """The text to find, and its replacement."""

    old: str
    new: str | None
    fixed: bool = False
    """Whether the indentation of the replacement must be kept as it is."""


class TextMatch(NamedTuple):
    """The position at which the text was found."""

    start: int
    end: int
    new: str | None
    """The replacement, adapted to differences between the old text and the text found, for example in indentation."""
    how: str = ""
    """A text for the model that names the differences that were ignored; "" if there were none."""


class Folded:
    """A text with lookalike characters replaced by one normal form, and the original position of each character."""

    def __init__(self, text: str) -> None:
        table = {character: fold(character) for character in set(text)}
        self.text = "".join(table[character] for character in text)
        self._origins: array[int] | None = None
        if any(len(written) != 1 for written in table.values()):
            self._origins = array("L", (position for position, one in enumerate(text) for _ in table[one]))

    def origin(self, start: int, end: int) -> tuple[int, int] | None:
        """The range of the original text that became text[start:end]; None if it would split an original character."""
        origins = self._origins
        if origins is None:
            return start, end
        if start > 0 and origins[start - 1] == origins[start]:
            return None
        if end < len(origins) and origins[end - 1] == origins[end]:
            return None
        return origins[start], origins[end - 1] + 1


class Haystack:
    """A file's text, with derived data that is computed on first use."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def levels(self) -> list[str]:
        found = Counter(re.findall(r"^[ \t]*(?=[^\s])", self.text, re.MULTILINE))
        return [level for level, _ in found.most_common(MAX_LEVELS)]

    @cached_property
    def folded(self) -> Folded:
        return Folded(self.text)

    @cached_property
    def stripped(self) -> str:
        return stripped(self.text)


def stripped(text: str) -> str:
    return "\n".join(line.rstrip(" \t") for line in text.split("\n"))


def fold(character: str) -> str:
    """The form of a character that is the same for all its lookalikes."""
    plain = unicodedata.normalize("NFKD", character.translate(LOOKALIKES))
    return plain.translate(LOOKALIKES).replace("\r", "")


def find(haystack: Haystack, sought: Sought) -> TextMatch:
    for way in (exactly, with_other_blanks, otherwise_indented, without_edges, as_lookalike):
        match = way(haystack, sought)
        if match is not None:
            return match
    raise NoMatchError("oldText not found; read the file again and copy the text exactly")


def places(text: str, wanted: str) -> list[int]:
    """The positions in `text` at which `wanted` begins, including overlapping ones; at most MOST_COUNTED + 1."""
    found: list[int] = []
    position = text.find(wanted)
    while position >= 0 and len(found) <= MOST_COUNTED:
        found.append(position)
        position = text.find(wanted, position + 1)
    return found


def line_starts(text: str, wanted: str) -> list[int]:
    """Like `places`, but only matches at the start of a line; at most MOST_COUNTED + 2."""
    inner = [position + 1 for position in places(text, "\n" + wanted)]
    return [0, *inner] if text.startswith(wanted) else inner


def only(found: list[int], how: str = "") -> int | None:
    """The only position in `found`, or None if there is none. Raises NoMatchError if there are several."""
    if len(found) > 1:
        times = f"more than {MOST_COUNTED}" if len(found) > MOST_COUNTED else str(len(found))
        aside = f" ({how})" if how else ""
        raise NoMatchError(f"oldText appears {times} times{aside}; add lines around it until it is unique")
    return found[0] if found else None


def exactly(haystack: Haystack, sought: Sought) -> TextMatch | None:
    start = only(places(haystack.text, sought.old))
    return None if start is None else TextMatch(start, start + len(sought.old), sought.new)


def with_other_blanks(haystack: Haystack, sought: Sought) -> TextMatch | None:
    """Find the text, ignoring blanks at line ends; unchanged lines keep their blanks.

    Raises NoMatchError for several matches.
    """
    old, text = stripped(sought.old), haystack.stripped
    if not old.strip():
        return None
    found = places(text, old)
    to_line_end = sought.old.rpartition("\n")[2] != old.rpartition("\n")[2]
    if to_line_end:
        found = [start for start in found if text[start + len(old) : start + len(old) + 1] in ("", "\n")]
    start = only(found, "ignoring trailing whitespace")
    if start is None:
        return None
    lines = haystack.text.split("\n")
    begin, _ = in_lines(lines, text, start)
    end, line_end = in_lines(lines, text, start + len(old))
    end = line_end if to_line_end else end
    new = sought.new and unchanged_kept(sought.old, sought.new, haystack.text[begin:end])
    return TextMatch(begin, end, new, "with different trailing whitespace")


def in_lines(lines: list[str], text: str, position: int) -> tuple[int, int]:
    """Convert a position in `text` to positions in the original text: of the same character, and of its line's end.

    `lines` are the original text's lines; `text` is the same text without blanks at line ends.
    """
    number = text.count("\n", 0, position)
    start = sum(map(len, lines[:number])) + number
    return start + position - (text.rfind("\n", 0, position) + 1), start + len(lines[number])


def unchanged_kept(old: str, new: str, found: str) -> str:
    """`new`, but with the first and last lines that it shares with `old` taken from the text `found`."""
    olds, news, founds = (text.split("\n") for text in (old, new, found))
    head, tail = equal_edges(olds, news)
    return "\n".join([*founds[:head], *news[head : len(news) - tail], *founds[len(founds) - tail :]])


def equal_edges(olds: list[str], news: list[str]) -> tuple[int, int]:
    most = min(len(olds), len(news))
    head = next((number for number in range(most) if olds[number] != news[number]), most)
    tail = next((number for number in range(most - head) if olds[-1 - number] != news[-1 - number]), most - head)
    return head, tail


def otherwise_indented(haystack: Haystack, sought: Sought) -> TextMatch | None:
    """Find the text at a different indentation, and indent the replacement to match.

    Raises NoMatchError for several matches.
    """
    margin = common_margin(sought.old)
    if margin is None:
        return None
    old, new = bare(sought.old, margin), sought.new
    moves = new is not None and not sought.fixed
    if moves:
        new = bare(new or "", margin)
    if old is None or (moves and new is None):
        return None
    found = [(start, level) for level in haystack.levels for start in line_starts(haystack.text, indented(old, level))]
    if only([start for start, _ in found], "ignoring indentation") is None:
        return None
    start, level = found[0]
    inserted = indented(new, level) if moves and new is not None else new
    return TextMatch(start, start + len(indented(old, level)), inserted, "with different indentation")


def common_margin(text: str) -> str | None:
    """The whitespace with which all non-blank lines of `text` begin; None if all lines are blank."""
    margins = [line[: len(line) - len(line.lstrip(" \t"))] for line in text.split("\n") if line.strip()]
    if not margins:
        return None
    least, most = min(margins), max(margins)
    shared = next((place for place, one in enumerate(least) if not most.startswith(one, place)), len(least))
    return least[:shared]


def bare(text: str, margin: str) -> str | None:
    """`text` without `margin` at the start of non-blank lines; None if such a line does not begin with `margin`."""
    lines = text.split("\n")
    if any(line.strip() and not line.startswith(margin) for line in lines):
        return None
    return "\n".join(line[len(margin) :] if line.strip() else line for line in lines)


def indented(text: str, margin: str) -> str:
    return "\n".join(margin + line if line.strip() else line for line in text.split("\n"))


def without_edges(haystack: Haystack, sought: Sought) -> TextMatch | None:
    """Find the text without its first line, its last line or both, if the replacement has the same line there.

    Raises NoMatchError for several matches.
    """
    refused: NoMatchError | None = None
    for name, old, new in trimmed(sought.old, sought.new or ""):
        search = places if name == LAST else line_starts
        try:
            start = only(search(haystack.text, old), f"without {name}")
        except NoMatchError as several:
            refused = refused or several
            continue
        if start is not None:
            return TextMatch(start, start + len(old), new, f"without {name}")
    if refused is not None:
        raise refused
    return None


def trimmed(old: str, new: str) -> list[tuple[str, str, str]]:
    """Variants of both texts without the first line, last line, or both, if these are equal; each with a name.

    Variants whose old text is only whitespace are left out.
    """
    olds, news = lines_of(old), lines_of(new)
    if len(olds) < 2 or not news:
        return []
    first, last = olds[0] == news[0], olds[-1] == news[-1]
    both = first and last and len(news) > 1
    cuts = ((FIRST, first, slice(1, None)), (LAST, last, slice(None, -1)), (BOTH, both, slice(1, -1)))
    left = [(name, "".join(olds[cut]), "".join(news[cut])) for name, shared, cut in cuts if shared]
    return [variant for variant in left if variant[1].strip()]


def as_lookalike(haystack: Haystack, sought: Sought) -> TextMatch | None:
    """Find the text, treating lookalike characters as equal. Raises NoMatchError for several matches."""
    if all(text.isascii() and "\r" not in text for text in (haystack.text, sought.old)):
        return None
    wanted = Folded(sought.old).text
    if not wanted.strip():
        return None
    folded = haystack.folded
    origins = [folded.origin(start, start + len(wanted)) for start in places(folded.text, wanted)]
    found = [origin for origin in origins if origin is not None]
    if only([start for start, _ in found], "ignoring lookalike characters") is None:
        return None
    return TextMatch(*found[0], sought.new, "with lookalike characters")
