"""Removes the quotes from the words of a shell command, and finds the command that sudo, env or `sh -c` runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from actors.core.approval.rule_matching import SHELLS

if TYPE_CHECKING:
    from collections.abc import Iterator

_SINGLE = re.compile(r"'([^']*)'?")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"?', re.DOTALL)
_SPECIAL = re.compile(r"([*?\[~])")


class Wrapper(Struct, frozen=True):
    """A program that runs another command, which follows the program's own options and operands."""

    valued: frozenset[str] = frozenset()
    """Options that take the next word as value."""
    operands: int = 0


def _wrapper(valued: str = "", operands: int = 0) -> Wrapper:
    return Wrapper(frozenset(valued.split()), operands)


WRAPPERS = {
    "sudo": _wrapper("-u -g -h -p -C -D -R -T -U -r -t --user --group --host --prompt --chdir --chroot"),
    "doas": _wrapper("-u -C"),
    "env": _wrapper("-u -C --unset --chdir"),
    "xargs": _wrapper("-I -n -P -L -d -a -E -s --max-args --max-procs --delimiter --arg-file"),
    "timeout": _wrapper("-s -k --signal --kill-after", operands=1),
    "nice": _wrapper("-n --adjustment"),
    "ionice": _wrapper("-c -n"),
    "stdbuf": _wrapper("-i -o -e"),
    "time": _wrapper("-f -o"),
    "exec": _wrapper("-a"),
    "flock": _wrapper("-w -E", operands=1),
    "chroot": _wrapper(operands=1),
    **dict.fromkeys("command builtin nohup setsid coproc".split(), _wrapper()),
}


def unquoted(source: str) -> str:
    """Return a word without its quotes; quoted `*`, `?`, `[` and `~` are marked by a backslash."""
    return "".join(_pieces(source))


def _pieces(source: str) -> Iterator[str]:
    position = 0
    while position < len(source):
        character = source[position]
        if character == "'" and (single := _SINGLE.match(source, position)):
            yield _SPECIAL.sub(r"\\\1", single[1])
            position = single.end()
        elif character == '"' and (double := _DOUBLE.match(source, position)):
            yield _SPECIAL.sub(r"\\\1", re.sub(r'\\([$`"\\])', r"\1", double[1].replace("\\\n", "")))
            position = double.end()
        elif character == "\\":
            following = source[position + 1 : position + 2]
            yield "" if following == "\n" else _SPECIAL.sub(r"\\\1", following)
            position += 2
        else:
            yield character
            position += 1


def plain(word: str) -> str:
    """Return the word without the backslashes by which `unquoted` marks quoted characters."""
    return re.sub(r"\\([*?\[~])", r"\1", word)


def unwrapped(words: list[str]) -> list[str]:
    """Return the command without a leading sudo, env, timeout or the like, which run it; [] if nothing else is left.

    The directories before the program's name are removed.
    """
    while words:
        name = plain(words[0]).rpartition("/")[2]
        wrapper = WRAPPERS.get(name)
        if wrapper is None:
            return [name, *words[1:]]
        words = _behind(wrapper, words[1:])
    return []


def _behind(wrapper: Wrapper, words: list[str]) -> list[str]:
    position, operands = 0, wrapper.operands
    while position < len(words):
        word = words[position]
        if word == "--":
            position += 1
            break
        if word in wrapper.valued:
            position += 1
        elif not word.startswith("-") and not re.match(r"\w+=", word):
            break
        position += 1
    return words[position + operands :]


def script(words: list[str]) -> str | None:
    """Return the shell text that this command runs, as `bash -c` and `eval` do; None if there is none."""
    name = words[0]
    if name == "eval":
        return " ".join(map(plain, words[1:]))
    if name in SHELLS:
        for position, word in enumerate(words[1:-1], 1):
            if re.fullmatch(r"-[a-z]*c", word):
                return plain(words[position + 1])
    return None
