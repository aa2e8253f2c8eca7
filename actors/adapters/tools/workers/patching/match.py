"""Where a text is found in a file: exactly, or else by what models get wrong, one kind after the other.

Every way must find exactly one place. A way that finds several ends the search: a looser one could only find more.
"""

import re
import unicodedata
from array import array
from collections import Counter
from typing import NamedTuple

from actors.adapters.tools.workers.patching.diff import lines_of

FIRST, LAST, BOTH = "its first line", "its last line", "its first and last line"

MOST_COUNTED = 999
#: Places counted before it is just "more than".

MAX_LEVELS = 64
#: Indentations of a file that are tried, the most frequent first.

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
#: How quotes, dashes, slashes, what has no width, Cyrillic and Greek letters are written, beside what NFKD takes apart
#: (full width, ligatures, spaces, the ellipsis, accents).


class NoPlace(Exception):
    """The text is not found exactly once; the text says how often."""


class Sought(NamedTuple):
    """What a patch looks for."""

    old: str
    new: str | None
    #: What is to stand there; None if that comes from elsewhere.
    fixed: bool = False
    #: The new text has its indentation already.


class Match(NamedTuple):
    """The one place where a text is found."""

    start: int
    end: int
    new: str | None
    #: The new text, changed as the old one was to be found.
    how: str = ""
    #: What was overlooked to find it, for the model; "" if nothing.


class Folded:
    """A text whose lookalikes are all written the same way, and where each of its characters came from."""

    def __init__(self, text: str) -> None:
        table = {character: fold(character) for character in set(text)}
        self.text = "".join(table[character] for character in text)
        self._origins: array[int] | None = None
        if any(len(written) != 1 for written in table.values()):
            self._origins = array("L", (position for position, one in enumerate(text) for _ in table[one]))

    def origin(self, start: int, end: int) -> tuple[int, int] | None:
        """Where text[start:end] came from; None if that begins or ends within a character."""
        origins = self._origins
        if origins is None:
            return start, end
        if start > 0 and origins[start - 1] == origins[start]:
            return None
        if end < len(origins) and origins[end - 1] == origins[end]:
            return None
        return origins[start], origins[end - 1] + 1


class Haystack:
    """A file's text, and what is worked out about it only once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._levels: list[str] | None = None
        self._folded: Folded | None = None

    @property
    def levels(self) -> list[str]:
        """What lines of the file begin with, the most frequent first."""
        if self._levels is None:
            found = Counter(re.findall(r"^[ \t]*(?=[^\s])", self.text, re.MULTILINE))
            self._levels = [level for level, _ in found.most_common(MAX_LEVELS)]
        return self._levels

    @property
    def folded(self) -> Folded:
        if self._folded is None:
            self._folded = Folded(self.text)
        return self._folded


def fold(character: str) -> str:
    """How a character is written once lookalikes count as the same."""
    plain = unicodedata.normalize("NFKD", character.translate(LOOKALIKES))
    return plain.translate(LOOKALIKES).replace("\r", "")


def find(haystack: Haystack, sought: Sought) -> Match:
    """The one place of `sought.old`; raises NoPlace."""
    for way in (exactly, otherwise_indented, without_edges, as_lookalike):
        match = way(haystack, sought)
        if match is not None:
            return match
    raise NoPlace("oldText not found; read the file again and copy the text as it stands there")


def places(text: str, wanted: str) -> list[int]:
    """Where `wanted` begins in `text`, overlapping places too; MOST_COUNTED + 1 of them at most."""
    found: list[int] = []
    position = text.find(wanted)
    while position >= 0 and len(found) <= MOST_COUNTED:
        found.append(position)
        position = text.find(wanted, position + 1)
    return found


def line_starts(text: str, wanted: str) -> list[int]:
    """As `places`, of those at the beginning of a line."""
    inner = [position + 1 for position in places(text, "\n" + wanted)]
    return [0, *inner] if text.startswith(wanted) else inner


def only(found: list[int], how: str = "") -> int | None:
    """The one place, None if there is none; raises NoPlace if there are several."""
    if len(found) > 1:
        times = f"more than {MOST_COUNTED}" if len(found) > MOST_COUNTED else str(len(found))
        aside = f" ({how})" if how else ""
        raise NoPlace(f"oldText appears {times} times{aside}; add lines around it until it is unique")
    return found[0] if found else None


def exactly(haystack: Haystack, sought: Sought) -> Match | None:
    start = only(places(haystack.text, sought.old))
    return None if start is None else Match(start, start + len(sought.old), sought.new)


def otherwise_indented(haystack: Haystack, sought: Sought) -> Match | None:
    """As if all lines of the old text were indented as some line of the file is; the new one is moved alike."""
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
    return Match(start, start + len(indented(old, level)), inserted, "indented otherwise")


def common_margin(text: str) -> str | None:
    """The white space that all lines of `text` begin with; None if they are all blank."""
    margins = [line[: len(line) - len(line.lstrip(" \t"))] for line in text.split("\n") if line.strip()]
    if not margins:
        return None
    least, most = min(margins), max(margins)
    shared = next((place for place, one in enumerate(least) if not most.startswith(one, place)), len(least))
    return least[:shared]


def bare(text: str, margin: str) -> str | None:
    """`text` without `margin` before its lines, blank ones aside; None if a line has no `margin`."""
    lines = text.split("\n")
    if any(line.strip() and not line.startswith(margin) for line in lines):
        return None
    return "\n".join(line[len(margin) :] if line.strip() else line for line in lines)


def indented(text: str, margin: str) -> str:
    """`text` with `margin` before its lines, blank ones aside."""
    return "\n".join(margin + line if line.strip() else line for line in text.split("\n"))


def without_edges(haystack: Haystack, sought: Sought) -> Match | None:
    """Without the first line, the last or both, where the old and the new text agree in them."""
    refused: NoPlace | None = None
    for name, old, new in trimmed(sought.old, sought.new or ""):
        search = places if name == LAST else line_starts
        try:
            start = only(search(haystack.text, old), f"without {name}")
        except NoPlace as several:
            refused = refused or several
            continue
        if start is not None:
            return Match(start, start + len(old), new, f"without {name}")
    if refused is not None:
        raise refused
    return None


def trimmed(old: str, new: str) -> list[tuple[str, str, str]]:
    """What is left of both texts without lines that they share at their edges, if that is more than white space."""
    olds, news = lines_of(old), lines_of(new)
    if len(olds) < 2 or not news:
        return []
    first, last = olds[0] == news[0], olds[-1] == news[-1]
    both = first and last and len(news) > 1
    cuts = ((FIRST, first, slice(1, None)), (LAST, last, slice(None, -1)), (BOTH, both, slice(1, -1)))
    left = [(name, "".join(olds[cut]), "".join(news[cut])) for name, shared, cut in cuts if shared]
    return [variant for variant in left if variant[1].strip()]


def as_lookalike(haystack: Haystack, sought: Sought) -> Match | None:
    """With characters that look alike taken for the same."""
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
    return Match(*found[0], sought.new, "with lookalike characters")
