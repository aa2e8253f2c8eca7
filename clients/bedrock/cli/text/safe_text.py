"""Makes untrusted text safe to print.

Text from a server, a model, a tool, a file system or a command line is a plain `str`. Text that may be printed
unchanged has the type `SafeText`, which only this module and `Paint` of `bedrock.cli.text.style` create. Output
functions take `SafeText`, so mypy rejects text that was not cleaned. Text that is written by other means, such as
tracebacks, is cleaned by `SafeStream`.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO, cast

# The maximum number of combining marks on one character: no script needs more, and they would cover adjacent lines.
MOST_COMBINING = 8

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# Control characters (C0 except tab and line feed, DEL, C1) and lone surrogates.
_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff"
# Characters that change the direction of writing, which can deceive readers, and line ends other than \n.
_REORDERING = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
# Characters of zero width, which can be hidden in a word; not the joiners, which emoji and some scripts need.
_INVISIBLE = "\u00ad\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_UNSAFE_AT_TERMINALS = re.compile(f"[{_CONTROL}{_REORDERING}]")
_REORDERING_ONLY = re.compile(f"[{_REORDERING}]")
_HIDDEN = re.compile(f"[{_CONTROL}{_REORDERING}{_INVISIBLE}]")
_UNSAFE_IN_PIPES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Matches runs of symbols that may contain too many combining marks; most of these runs contain none.
_MANY_SYMBOLS = re.compile(rf"[^\w\s\x00-\x7f]{{{MOST_COMBINING + 1},}}")


class SafeText(str):
    """Printable text: its only controls are tabs, line feeds, and this program's colours.

    Only this module and `Paint` create it. An f-string that contains a SafeText is a plain `str`, which loses its
    colours when it is cleaned; use `Paint.text` to join texts.
    """

    __slots__ = ()

    def __add__(self, other: str) -> SafeText:
        return SafeText(str.__add__(self, for_terminal(other)))

    def __radd__(self, other: str) -> SafeText:
        return SafeText(str.__add__(for_terminal(other), self))

    def lines(self) -> list[SafeText]:
        """Split at line feeds. No coloured part contains a line feed, so each line keeps its colours."""
        return [SafeText(line) for line in self.split("\n")]


def for_terminal(text: str) -> SafeText:
    """Make text safe for a terminal, so that no character acts as a control.

    Line feeds and tabs stay, carriage returns become line ends; colours and excess combining marks are removed. Other
    controls, changes of direction and lone surrogates are replaced by visible marks.
    """
    if isinstance(text, SafeText):
        return text
    if text.isascii() and text.isprintable():
        return SafeText(text)
    text = _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    text = _MANY_SYMBOLS.sub(_without_surplus, text)
    return SafeText(_UNSAFE_AT_TERMINALS.sub(_mark, text))


def for_pipe(text: str) -> SafeText:
    """Remove control characters except line feeds and tabs; a lone surrogate becomes a replacement character."""
    if isinstance(text, SafeText):
        return text
    return SafeText(_SURROGATE.sub("\ufffd", _UNSAFE_IN_PIPES.sub("", text)))


def literal(text: str) -> SafeText:
    """Make every character visible, for approval: only line feeds and tabs stay, nothing is removed."""
    return _escaped(text, _mark_of)


def json_text(line: str) -> SafeText:
    """Escape unsafe characters in a line of JSON, where they occur only in strings."""
    return _escaped(line, _json_escape_of)


def _escaped(text: str, escape: Callable[[str], str]) -> SafeText:
    def surplus(found: re.Match[str]) -> str:
        return "".join(escape(each) if row > MOST_COMBINING else each for each, row in _rows(found))

    return SafeText(_MANY_SYMBOLS.sub(surplus, _HIDDEN.sub(lambda found: escape(found.group()), text)))


def without_colours(text: SafeText) -> str:
    return _COLOUR.sub("", text)


def _without_surplus(found: re.Match[str]) -> str:
    """The matched text; in each run of combining marks, "…" replaces those beyond the first MOST_COMBINING."""
    return "".join(
        "…" if row == MOST_COMBINING + 1 else each for each, row in _rows(found) if row <= MOST_COMBINING + 1
    )


def _rows(found: re.Match[str]) -> Iterator[tuple[str, int]]:
    """Yield each character of a match, with the length of the run of combining marks that ends at this character."""
    row = 0
    for character in found.group():
        row = row + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        yield character, row


def _mark(found: re.Match[str]) -> str:
    return _mark_of(found.group())


def _mark_of(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape_of(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


class SafeStream:
    """Writes `SafeText` unchanged and sanitizes other text, such as tracebacks, but not bytes (from prompt_toolkit)."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._make_safe = _for_terminal if stream.isatty() else for_pipe

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"expected str, not {type(text).__name__}")
        self._stream.write(self._make_safe(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _for_terminal(text: str) -> SafeText:
    """Replace characters that change the direction of writing with marks, even in text that was made for a pipe."""
    return SafeText(_REORDERING_ONLY.sub(_mark, for_terminal(text)))


def install() -> None:
    """Make standard output and standard error sanitize what is written to them, until the process ends."""
    sys.stdout, sys.stderr = _safe(sys.stdout), _safe(sys.stderr)


def _safe(stream: TextIO) -> TextIO:
    return stream if isinstance(stream, SafeStream) else cast("TextIO", SafeStream(stream))
