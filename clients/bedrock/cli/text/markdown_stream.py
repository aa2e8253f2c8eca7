"""Renders streaming Markdown: complete blocks are printed once, the incomplete one is redrawn.

A text is processed block by block: a paragraph, an item of a list, a heading, a table, a line of code. Line breaks stay
as they were written, because models use them for layout. `rich` renders the content of a block.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bedrock.cli.text import markdown_blocks as rendering
from bedrock.cli.text.safe_text import SafeText, for_terminal

if TYPE_CHECKING:
    from bedrock.cli.text.style import Paint, Width

#: How many lines of code are parsed to colour the last of them. A construct that began before these lines, such as a
#: long string, is not recognised.
CONTEXT_LINES = 40
#: The indent of code.
CODE_INDENT = "    "

_FENCE = re.compile(r"(?P<indent> *)(?P<mark>`{3,}|~{3,})[ \t]*(?P<language>[^\s`]*)[^`]*")
_HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_RULE = re.compile(r" {0,3}([-*_])(\s*\1){2,}\s*")
_ITEM = re.compile(r"(?P<mark>[-*+]|\d{1,9}[.)])(\s+(?P<rest>.*)|$)")


@dataclass(slots=True)
class _Fence:
    """An open code block."""

    indent: int
    mark: str
    language: str
    lines: list[str]

    def closed_by(self, line: str) -> bool:
        found = line.strip()
        return found.startswith(self.mark) and not found.strip(self.mark[0])


class MarkdownFlow:
    """Converts streaming Markdown into coloured lines. Implements `Flow`."""

    def __init__(self, paint: Paint, width: Width) -> None:
        """Prepare. Lines have at most `width` columns, except code, which is not wrapped."""
        self._paint = paint
        self._width = width
        self._begin()

    def _begin(self) -> None:
        self.text = ""
        self._partial = ""
        self._block: list[SafeText] = []
        self._fence: _Fence | None = None
        self._gap = False
        """Whether an empty line belongs before the next block."""
        self._in_list = False
        self._begun = False
        self._drawn: tuple[tuple[int, int], list[SafeText]] = ((0, 0), [])

    @property
    def tail(self) -> list[SafeText]:
        """The incomplete block, as rendered so far."""
        if self._drawn[0] != (now := (len(self.text), self._width())):
            self._drawn = (now, self._draw())
        return self._drawn[1]

    def feed(self, piece: str) -> list[SafeText]:
        """Take a piece of text and return the lines of the blocks that it completes."""
        self.text += piece
        *complete, self._partial = (self._partial + piece).split("\n")
        return [shown for line in complete for shown in self._take(line)]

    def finish(self, text: str | None = None) -> list[SafeText]:
        """Return the remaining lines, and begin again with an empty text; see `Flow.finish`."""
        lines: list[SafeText] = []
        if text is not None and text != self.text:
            if not text.startswith(self.text):
                self._begin()
            lines = self.feed(text[len(self.text) :])
        if self._partial:
            lines += self._take(self._partial)
        lines += self._end()
        self._begin()
        return lines

    def drop(self) -> list[SafeText]:
        """Return the remaining lines without rendering them, and begin again with an empty text; see `Flow.drop`."""
        rest = [*self._block, *_clean(self._partial)] if self._partial else self._block
        self._begin()
        return rest

    def _draw(self) -> list[SafeText]:
        partial = _clean(self._partial) if self._partial else []
        if self._fence is not None:
            return [self._paint.text(" " * self._fence.indent, CODE_INDENT, line) for line in partial]
        shown = self._render([*self._block, *partial])
        return [SafeText(), *shown] if self._gap and shown else shown

    def _take(self, line: str) -> list[SafeText]:
        return [shown for part in _clean(line) for shown in self._take_clean(part)]

    def _take_clean(self, line: SafeText) -> list[SafeText]:
        if self._fence is not None:
            return self._code(self._fence, line)
        if not line.strip():
            done = self._end()
            self._gap = self._begun
            return done
        if found := _FENCE.fullmatch(line):
            done = self._end()
            self._fence = _Fence(min(len(found["indent"]), self._width() // 3), found["mark"], found["language"], [])
            return [*done, *self._spaced([rendering.frame(self._paint, found["indent"], found["language"])])]
        if self._is_indented_code(line):
            return self._spaced([self._paint.dim(line.expandtabs(4))])
        if not self._continues(line):
            done = self._end()
            self._in_list = _is_item(line) or (self._in_list and line.startswith(" "))
            self._block = [line]
            alone = _HEADING.match(line) or _RULE.fullmatch(line)
            return [*done, *self._end()] if alone else done
        self._block.append(line)
        return self._end() if _RULE.fullmatch(line) else []

    def _continues(self, line: str) -> bool:
        if not self._block or _HEADING.match(line) or _is_item(line):
            return False
        first = self._block[0]
        if _RULE.fullmatch(line):  # hyphens below a paragraph make the paragraph a heading
            return set(line.strip()) == {"-"} and not _is_item(first)
        return _is_item(first) or _indent(first) == _indent(line)

    def _is_indented_code(self, line: str) -> bool:
        return not self._in_list and not self._block and line.startswith(("    ", "\t"))

    def _code(self, fence: _Fence, line: str) -> list[SafeText]:
        if fence.closed_by(line):
            self._fence = None
            return [rendering.frame(self._paint, " " * fence.indent, "")]
        fence.lines = [*fence.lines[1 - CONTEXT_LINES :], line[min(_indent(line), fence.indent) :]]
        shown = rendering.code_line(fence.lines, fence.language)
        return [self._paint.text(" " * fence.indent, CODE_INDENT, shown) if shown else SafeText()]

    def _end(self) -> list[SafeText]:
        """Close the open block and return its lines; [] if no block is open, as within a code block."""
        if self._fence is not None:
            return []
        block, self._block = self._block, []
        return self._spaced(self._render(block))

    def _spaced(self, lines: list[SafeText]) -> list[SafeText]:
        if not lines:
            return []
        gap, self._gap, self._begun = self._gap, False, True
        return [SafeText(), *lines] if gap else lines

    def _render(self, block: list[SafeText]) -> list[SafeText]:
        if not block:
            return []
        indent = min(_indent(block[0]), self._width() // 3)
        first, *rest = (line.strip() for line in block)
        before = mark = " " * indent
        if _is_item(first) and (found := _ITEM.match(first)):
            bullet = found["mark"] if found["mark"][0].isdigit() else "•"
            first, mark, before = found["rest"] or "", f"{before}{bullet} ", f"{before}{' ' * (len(bullet) + 1)}"
        lines = rendering.markdown("\n".join([first, *rest]), max(self._width() - len(before), 10)) or [SafeText()]
        fronts = [mark, *[before] * (len(lines) - 1)]
        return [
            self._paint.text(front if line else front.rstrip(), line) for front, line in zip(fronts, lines, strict=True)
        ]


def _clean(line: str) -> list[SafeText]:
    return for_terminal(line.removesuffix("\r")).lines()


def _is_item(line: str) -> bool:
    return bool(_ITEM.match(line.lstrip())) and not _RULE.fullmatch(line)


def _indent(line: str) -> int:
    line = line.expandtabs(4)
    return len(line) - len(line.lstrip(" "))
