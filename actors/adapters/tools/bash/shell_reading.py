"""Determines which simple commands a shell text runs, for approval rules, and detects when this is uncertain.

Only an unambiguous part of the shell's language is supported: words with their quotes, lists, pipelines, comments, and
redirections to file descriptors and /dev/null. All other text is opaque: substitutions, assignments, redirections to
files, compound commands, functions, here-documents. A parser that recovers from unknown syntax, such as the one that
shell_guard uses, may read a text differently from bash; an approval rule could then allow a command that nobody
approved. The commands that such a parser finds are therefore used only to deny.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from msgspec import Struct

from actors.adapters.tools.bash.shell_syntax import IntricateTextError, commands, plain, script
from actors.core.context import ShellCommand

# Longer texts are treated as opaque.
MAX_BYTES = 16 * 1024

# Maximum CPU seconds for finding the commands in an opaque text.
PARSE_SECONDS = 0.2

MAX_DEPTH = 4

KEYWORDS = frozenset(
    "! [[ ]] case coproc do done elif else esac fi for function if in select then time until while".split()
)

_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_SEPARATOR = re.compile(r"\|\||&&|\|&|[|;&\n]")
_REDIRECTION = re.compile(
    r"(?:[0-9]?>&[0-9]|[0-9]?>>?[ \t]*/dev/null|&>>?[ \t]*/dev/null|0?<[ \t]*/dev/null)(?=[ \t\n;|&]|$)"
)
_VARIABLE = r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\}|[0-9?#])"
_PIECE = re.compile(
    r"(?P<literal>[A-Za-z0-9_./:=@%,+^-]+)|(?P<hash>#)|'(?P<single>[^']*)'"
    rf'|"(?P<double>(?:[^"\\$`]|\\.|{_VARIABLE})*)"|\\(?P<escaped>.)'
    rf"|(?P<unknown>{_VARIABLE}|[*?\[\]~{{}}!]|[^\x00-\x7f])",
    re.DOTALL,
)
_EXPANDED = re.compile(rf"\\(?P<escaped>.)|{_VARIABLE}", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class OpaqueTextError(Exception):
    pass


class _Word(Struct, frozen=True):
    text: str
    known: bool


def read(text: str) -> tuple[ShellCommand, ...]:
    """The simple commands that bash would run, in order. Raises OpaqueTextError if this is uncertain."""
    if len(text.encode(errors="replace")) > MAX_BYTES or _CONTROL.search(text):
        raise OpaqueTextError
    return tuple(_command(words) for words in _lists(text))


def find(text: str) -> tuple[ShellCommand, ...]:
    """The simple commands that can be found in any text, including those in `sh -c` scripts; there may be others.

    Returns () if finding them takes more than PARSE_SECONDS.
    """
    try:
        return tuple(_found(text, MAX_DEPTH, time.thread_time() + PARSE_SECONDS))
    except IntricateTextError:
        return ()


def _found(text: str, depth: int, until: float) -> Iterator[ShellCommand]:
    for words in commands(text, until) if depth else ():
        yield ShellCommand(tuple(map(plain, words)))
        for begin, word in enumerate(words):
            if (inner := script([plain(word).rpartition("/")[2], *words[begin + 1 :]])) is not None:
                yield from _found(inner, depth - 1, until)


def _command(words: list[_Word]) -> ShellCommand:
    known: list[str] = []
    for word in words:
        if not word.known:
            break
        known.append(word.text)
    if not known or known[0] in KEYWORDS or _ASSIGNMENT.match(known[0]):
        raise OpaqueTextError
    return ShellCommand(tuple(known), open=len(known) < len(words))


def _lists(text: str) -> Iterator[list[_Word]]:
    """Yield the words of each simple command. Raises OpaqueTextError, including for syntax errors in bash."""
    words: list[_Word] = []
    position, needed = 0, False
    while position < len(text):
        if blank := _BLANK.match(text, position):
            position = blank.end()
        elif redirection := _REDIRECTION.match(text, position):
            position = redirection.end()
            if not words:
                raise OpaqueTextError
        elif separator := _SEPARATOR.match(text, position):
            position = separator.end()
            lines = separator[0] == "\n"
            if words:
                yield words
                words, needed = [], separator[0] in {"|", "||", "&&", "|&"}
            elif not lines:
                raise OpaqueTextError
        elif comment := _COMMENT.match(text, position):
            position = comment.end()
        else:
            word, position = _word(text, position)
            words.append(word)
    if words:
        yield words
    elif needed:
        raise OpaqueTextError


def _word(text: str, position: int) -> tuple[_Word, int]:
    """The word that begins at `position`, and the position after the word. Raises OpaqueTextError."""
    pieces: list[str] = []
    known = True
    while piece := _PIECE.match(text, position):
        position = piece.end()
        content = piece[piece.lastgroup or 0]
        match piece.lastgroup:
            case "hash" if not pieces:  # whether "#" begins a comment depends on what precedes it
                raise OpaqueTextError
            case "unknown":
                known = False
            case "double":
                known &= all(found["escaped"] for found in _EXPANDED.finditer(content))
                pieces.append(_EXPANDED.sub(_unescaped, content))
            case "escaped" if content == "\n":
                pass
            case _:
                pieces.append(content)
    if position < len(text) and text[position] not in " \t\n;|&":
        raise OpaqueTextError
    return _Word("".join(pieces), known), position


def _unescaped(found: re.Match[str]) -> str:
    """The text for a backslash and the character after it in double quotes; "" for a variable."""
    escaped = found["escaped"] or ""
    if escaped == "\n":
        return ""
    return escaped if escaped in '$`"\\' else f"\\{escaped}"
