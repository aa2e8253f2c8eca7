"""Renders the content of a Markdown block with `rich`: emphasis, code, links, tables, quotes."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, ClassVar

from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, HorizontalRule, Markdown
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from bedrock.cli.text.safe_text import SafeText, for_terminal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.segment import Segment

    from bedrock.cli.text.style import Paint, Width

#: Maximum columns of a horizontal rule.
RULE_WIDTH = 40

_HTML_BLOCK = re.compile(r"(?m)^<")
"""Matches the start of a line that Markdown would parse as an HTML block."""

_JOINER = re.compile("(?<=[\ufe0f\U0001f000-\U0001faff])\u200d")
_JOINT = "\U000e0001"
"""Replaces the character that joins several emoji into one (U+200D) while the width of lines is computed. Each emoji
then counts separately, because some terminals show them so, and a line must fit there, too.
"""

_MARK = re.compile(r" *(?:[│●◦?·⋯↻■✓✗>•] )?(?: *\d+\. )? *")
"""Matches what precedes the text of a line: a bar, a bullet, a number or spaces."""

_THEME = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "italic",
        "markdown.h5": "italic",
        "markdown.h6": "italic",
        "markdown.code": "cyan",
        "markdown.code_block": "default",
        "markdown.link": "underline",
        "markdown.link_url": "dim",
        "markdown.block_quote": "dim",
        "markdown.hr": "dim",
        "markdown.table.header": "bold",
        "markdown.table.border": "dim",
    }
)


class _PlainHeading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _PlainRule(HorizontalRule):
    """A horizontal rule that is short, so that it is not mistaken for a border."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("─" * min(RULE_WIDTH, options.max_width), console.get_style("markdown.hr"))


class _Block(Markdown):
    """Markdown for a terminal: nothing is omitted, and line breaks are preserved."""

    elements: ClassVar = {**Markdown.elements, "heading_open": _PlainHeading, "hr": _PlainRule}

    def __init__(self, text: str) -> None:
        super().__init__(_HTML_BLOCK.sub(r"\\<", text), hyperlinks=False)
        for token in self.parsed:
            for child in token.children or ():
                child.type = {"softbreak": "hardbreak", "html_inline": "text"}.get(child.type, child.type)


def markdown(text: str, width: int) -> list[SafeText]:
    """Render one block to lines of at most `width` columns, with no control sequences except colours.

    HTML tags are shown as text, and each link is followed by its address.
    """
    console = _console()
    block = _Block(_JOINER.sub(_JOINT, text))
    lines = console.render_lines(block, console.options.update(width=width, height=None), pad=False)
    return _trimmed([_line(segments) for segments in lines])


def code_line(lines: Sequence[str], language: str) -> SafeText:
    """Return the last of `lines` of code with the colours of its syntax; the lines before it are only its context."""
    last = for_terminal(lines[-1].expandtabs(4))
    syntax = _syntax(language)
    if syntax is None or not last.strip():
        return last
    text = syntax.highlight("\n".join(line.expandtabs(4) for line in lines))
    *_, shown = (line for line in text.split("\n") if line.plain.strip())
    return _line(shown.render(_console())) if shown.plain.rstrip() == last.rstrip() else last


def folded(line: SafeText, width: int, indent: int | None = None) -> list[SafeText]:
    """Break a line, which may have colours, into lines of at most `width` columns.

    All lines but the first are indented by `indent` columns or, if that is None, aligned with the text of the first
    line, behind its bullet or number. The bar at the left of tool output is repeated on each line.
    """
    text = Text.from_ansi(_JOINER.sub(_JOINT, line))
    text.expand_tabs(8)
    if text.cell_len <= width:
        return [line]
    if indent is None:
        mark = _MARK.match(text.plain)
        indent = mark.end() if mark is not None else 0
    at = indent if indent < width // 2 else 0
    first, body = text[:at], text[at:]
    rest = first if "│" in first.plain else Text(" " * first.cell_len)
    console = _console()
    pieces = body.wrap(console, width - first.cell_len)
    fronts = [first, *[rest] * len(pieces)]
    return [_line((front + piece).render(console)) for front, piece in zip(fronts, pieces, strict=False)]


def frame(paint: Paint, indent: str, language: str) -> SafeText:
    """Return the short horizontal line to print above or below a code block, with the language if it is known."""
    return paint.text(indent, paint.dim(f"  ── {language}".rstrip() if language else "  ──"))


@lru_cache(maxsize=16)
def _syntax(language: str) -> Syntax | None:
    lexer = Syntax("", language).lexer if language else None
    return None if lexer is None else Syntax("", lexer, theme="ansi_dark", background_color="default")


@cache
def _console() -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, color_system="standard", legacy_windows=False, theme=_THEME, width=80
    )


def _line(segments: Iterable[Segment]) -> SafeText:
    """Join segments of `rich` into coloured text. Replace control characters, which HTML entities may have added."""
    parts: list[str] = []
    for text, style, _ in reversed([segment for segment in segments if not segment.control]):
        clean = for_terminal(text.replace("\n", "").replace(_JOINT, "\u200d"))
        shown = clean if parts else clean.rstrip()
        if shown:
            parts.append(style.render(shown, color_system=ColorSystem.STANDARD) if style else shown)
    return SafeText("".join(reversed(parts)))


def _trimmed(lines: list[SafeText]) -> list[SafeText]:
    while lines and not lines[0]:
        lines = lines[1:]
    while lines and not lines[-1]:
        lines = lines[:-1]
    return lines


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
            return [*done, *self._spaced([frame(self._paint, found["indent"], found["language"])])]
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
            return [frame(self._paint, " " * fence.indent, "")]
        fence.lines = [*fence.lines[1 - CONTEXT_LINES :], line[min(_indent(line), fence.indent) :]]
        shown = code_line(fence.lines, fence.language)
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
        lines = markdown("\n".join([first, *rest]), max(self._width() - len(before), 10)) or [SafeText()]
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
