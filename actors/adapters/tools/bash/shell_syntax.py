"""Finds the simple commands in a shell text, with a parser that recovers from syntax that it does not know.

The commands found may differ from those that bash runs. The parser takes unbounded time and memory for some long texts,
so long texts are parsed in pieces. Variables are not expanded, and scripts in files are not read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from actors.core.approval import SHELLS

if TYPE_CHECKING:
    from tree_sitter import Node, Parser


_SINGLE = re.compile(r"'([^']*)'?")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"?', re.DOTALL)
_SPECIAL = re.compile(r"([*?\[~])")


class Wrapper(Struct, frozen=True):
    """A program that runs another command, which follows the program's own options and operands."""

    valued: frozenset[str] = frozenset()
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
    """A word without its quotes; quoted `*`, `?`, `[` and `~` are marked with a backslash."""
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
    """A word without the backslashes that `unquoted` puts before quoted characters."""
    return re.sub(r"\\([*?\[~])", r"\1", word)


def unwrapped(words: list[str]) -> list[str]:
    """The command without wrappers such as sudo, env or timeout, and without directories; [] if nothing is left."""
    while words:
        name = plain(words[0]).rpartition("/")[2]
        wrapper = WRAPPERS.get(name)
        if wrapper is None:
            return [name, *words[1:]]
        words = _wrapped_words(wrapper, words[1:])
    return []


def _wrapped_words(wrapper: Wrapper, words: list[str]) -> list[str]:
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
    """The shell text that a command such as `bash -c` or `eval` runs; None if there is none."""
    name = words[0]
    if name == "eval":
        return " ".join(map(plain, words[1:]))
    if name in SHELLS:
        for position, word in enumerate(words[1:-1], 1):
            if re.fullmatch(r"-[a-z]*c", word):
                return plain(words[position + 1])
    return None


# Maximum bytes to parse at once, which takes 0.1 s and 40 MiB in the worst case.
PIECE_BYTES = 2048

_HEREDOC = re.compile(r"<<-?[ \t]*['\"\\]?([A-Za-z_]\w*)['\"]?")


class IntricateTextError(Exception):
    pass


def commands(text: str, until: float, wanted: Callable[[str], object] = bool) -> Iterator[list[str]]:
    """Yield the words of every simple command, at any depth, as `unquoted` returns them.

    A long text is parsed in pieces, and only pieces for which `wanted` returns true are parsed. Raises
    IntricateTextError when this thread's CPU time passes `until`.
    """
    parser = new_parser()
    for source in _pieces_of(text):
        if not wanted(source.decode(errors="replace")):
            continue
        if time.thread_time() > until:
            raise IntricateTextError
        nodes: list[tuple[Node, list[Node]]] = [(parser.parse(source).root_node, [])]
        while nodes:
            node, behind = nodes.pop()
            if node.type == "command":
                words = _words(node) + behind
                yield [unquoted(source[word.start_byte : word.end_byte].decode(errors="replace")) for word in words]
            nodes.extend(_below(node, behind))


def new_parser() -> Parser:
    """A parser for bash; the first call imports its modules."""
    import tree_sitter_bash  # noqa: PLC0415 -- not at the top: saves 0.4 MiB in a server that runs no agents
    from tree_sitter import Language, Parser  # noqa: PLC0415

    return Parser(Language(tree_sitter_bash.language()))


def _pieces_of(text: str) -> Iterator[bytes]:
    """The text in pieces of at most PIECE_BYTES. If it has to be split, here-documents are left out."""
    source = text.encode()
    if len(source) <= PIECE_BYTES:
        yield source
        return
    piece = b""
    for line in _without_heredocs(text.replace("\\\n", " ").splitlines()):
        rest = line.encode()
        if len(piece) + len(rest) >= PIECE_BYTES:
            yield piece
            piece = b""
        while len(rest) >= PIECE_BYTES:
            cut = rest.rfind(b" ", 0, PIECE_BYTES) + 1 or PIECE_BYTES
            yield rest[:cut]
            rest = rest[cut:]
        piece += rest + b"\n"
    yield piece


def _without_heredocs(lines: list[str]) -> Iterator[str]:
    last = {line.strip(): number for number, line in enumerate(lines)}
    closings: list[str] = []
    for number, line in enumerate(lines):
        if closings:
            if line.strip() == closings[0]:
                del closings[0]
            continue
        begun: list[str] = _HEREDOC.findall(line)
        closings = [closing for closing in begun if last.get(closing, 0) > number]
        yield _HEREDOC.sub("", line) if closings else line


def _below(node: Node, behind: list[Node]) -> Iterator[tuple[Node, list[Node]]]:
    """The children of a node, each with those arguments of the child's command that are outside the child.

    Such arguments follow a redirection, and the grammar makes them part of that. `behind` are such arguments of the
    node.
    """
    children = node.named_children
    if node.type == "redirected_statement":
        behind = behind + [word for child in children for word in _words_of_redirection(child)]
        passed_to = 0
    elif node.type in {"list", "pipeline", "negated_command"}:
        passed_to = len(children) - 1
    else:
        behind, passed_to = [], 0
    return ((child, behind if position == passed_to else []) for position, child in enumerate(children))


def _words(command: Node) -> list[Node]:
    name = command.child_by_field_name("name")
    return [*([name] if name is not None else []), *command.children_by_field_name("argument")]


def _words_of_redirection(node: Node) -> list[Node]:
    if node.type not in {"file_redirect", "heredoc_redirect", "herestring_redirect"}:
        return []
    return node.children_by_field_name("destination")[1:] + node.children_by_field_name("argument")
