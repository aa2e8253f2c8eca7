"""Draws with `rich`: Markdown while it is being written, tables, and lines that are broken to fit.

All text is sanitized before it is passed to `rich`, and again afterwards, because Markdown can contain control
characters as HTML entities. No text is interpreted as `rich` markup.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, ClassVar

from markdown_it import MarkdownIt
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Heading, Markdown
from rich.measure import Measurement
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from bedrock.cli.text.safe_text import SafeText, for_terminal
from bedrock.cli.text.style import LineFlow, Paint, Width, cut_start

if TYPE_CHECKING:
    from rich.segment import Segment

# How many lines of code are parsed to colour the last of them. A construct that began before these lines, such as a
# long string, is not recognised.
CONTEXT_LINES = 40
# The indent of code.
CODE_INDENT = "    "
# Minimum width of a truncated column, in a narrow terminal.
LEAST = 8

# The character that joins several emoji into one (U+200D). While the width of lines is computed, _JOINT replaces it, so
# that each emoji is counted: some terminals draw them separately, and a line must fit there, too.
_JOINER = re.compile("(?<=[\ufe0f\U0001f000-\U0001faff])\u200d")
_JOINT = "\U000e0001"
# Matches what precedes the text of a line: a bar, a bullet, a number or spaces.
_MARK = re.compile(r" *(?:[│●◦?·⋯↻■✓✗>•] )?(?: *\d+\. )? *")

_THEME = Theme({
    **{f"markdown.h{level}": "bold" for level in range(1, 7)}, "markdown.code": "cyan",
    **dict.fromkeys(("markdown.code_block", "markdown.item.bullet", "markdown.item.number"), "default"),
    **dict.fromkeys(("markdown.link_url", "markdown.block_quote", "markdown.hr", "markdown.table.border"), "dim"),
    "markdown.link": "underline", "markdown.table.header": "bold",
})  # fmt: skip
# Links are shown with their URLs, and link definitions as ordinary text, so that nothing is left out.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable(["reference"])


class _LeftHeading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Block(Markdown):
    """Markdown that keeps its line breaks, which models use for layout."""

    elements: ClassVar = {**Markdown.elements, "heading_open": _LeftHeading}

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.parsed = _PARSER.parse(text)
        for token in self.parsed:
            for child in token.children or ():
                child.type = "hardbreak" if child.type == "softbreak" else child.type


class _Path:
    """A path that is truncated at its start if it does not fit."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(cut_start(self._path, options.max_width))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, Text(self._path).cell_len)


def table(rows: Sequence[Sequence[str]], room: int, paths: int | None = None) -> list[SafeText]:
    """Lay out rows in `room` columns; `paths` is the index of the column with paths.

    The widest columns are truncated. The first column, which contains names, never is, so a line can be wider than
    `room`.
    """
    flat = [[_JOINER.sub(_JOINT, " ".join(for_terminal(cell).split())) for cell in row] for row in rows]
    names, *widths = (max(1, *(Text(cell).cell_len for cell in column)) for column in zip(*flat, strict=True))
    needed = names + sum(min(width, LEAST) + 2 for width in widths)
    drawn = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    drawn.add_column(min_width=names, no_wrap=True)
    for _ in widths:
        drawn.add_column()
    for row in flat:
        cells = (Text(cell, no_wrap=True, overflow="ellipsis", end="") for cell in row)
        drawn.add_row(*(_Path(str(cell)) if at == paths else cell for at, cell in enumerate(cells)))
    return _lines(drawn, max(room, needed))


def folded(line: SafeText, width: int, indent: int | None = None) -> list[SafeText]:
    """Break a line into lines of at most `width` columns.

    Further lines are indented by `indent` or, if None, aligned with the text after the bullet. The bar before a line of
    tool output is repeated.
    """
    text = Text.from_ansi(_JOINER.sub(_JOINT, line))
    text.expand_tabs(8)
    if text.cell_len <= width:
        return [line]
    if indent is None:
        mark = _MARK.match(text.plain)
        indent = mark.end() if mark is not None else 0
    at = indent if indent < width // 2 else width // 8
    first, body = text[:at], text[at:]
    rest = first if "│" in first.plain else Text(" " * first.cell_len)
    pieces = body.wrap(_console(), width - first.cell_len)
    fronts = [first, *[rest] * len(pieces)]
    return [_line((front + piece).render(_console())) for front, piece in zip(fronts, pieces, strict=False)]


class MarkdownFlow(LineFlow):
    """Converts streaming Markdown into coloured lines: code line by line, other blocks when they are complete."""

    def __init__(self, paint: Paint, width: Width) -> None:
        """`width` returns the maximum columns of a line. Code is not wrapped."""
        super().__init__(width)
        self._paint = paint
        self._columns = width

    def _begin(self) -> None:
        super()._begin()
        self._block: list[SafeText] = []
        self._fence = ""
        self._language = ""
        self._gap = self._begun = False
        self._drawn: tuple[tuple[int, int], list[SafeText]] = ((0, 0), [])

    @property
    def tail(self) -> list[SafeText]:
        if self._drawn[0] != (now := (len(self.text), self._columns())):
            partial = _clean(self._tail) if self._tail else []
            code = [self._paint.text(CODE_INDENT, line) for line in partial]
            self._drawn = now, code if self._fence else self._spaced(self._render([*self._block, *partial]))
        return self._drawn[1]

    def feed(self, piece: str) -> list[SafeText]:
        """Take a piece of text and return the lines of the blocks that it completes."""
        self.text += piece
        *complete, self._tail = (self._tail + piece).split("\n")
        return [shown for line in complete for part in _clean(line) for shown in self._add(part)]

    def flush(self) -> list[SafeText]:
        """The remaining lines; call this when the last block is complete."""
        lines = self.feed("\n") if self._tail else []
        return lines if self._fence else [*lines, *self._print(self._block)]

    def drop(self) -> list[SafeText]:
        """Return the remaining lines without rendering them, and begin again with an empty text."""
        code = [] if self._fence else self._block
        rest = [*code, *_clean(self._tail)] if self._tail else code
        self._begin()
        return rest

    def _add(self, line: SafeText) -> list[SafeText]:
        self._block.append(line)
        if self._fence:
            return self._code(line)
        begins = [
            (token.map[0], token)
            for token in _PARSER.parse("\n".join(self._block))
            if token.map and (token.level == 0 or (token.level == 1 and token.type == "list_item_open"))
        ]
        at, last = begins[-1] if begins else (0, None)
        if last is not None and last.type == "paragraph_open" and not line.strip():
            at = len(self._block)
        done, self._block = self._print(self._block[:at]), self._block[at:]
        if last is not None and last.type == "fence":
            self._fence, self._language = last.markup, last.info.partition(" ")[0]
            self._block = []
            done += self._framed(self._language)
        return done

    def _code(self, line: SafeText) -> list[SafeText]:
        if line.strip().startswith(self._fence) and not line.strip().strip(self._fence[0]):
            self._fence, self._block = "", []
            return self._framed("")
        self._block = self._block[-CONTEXT_LINES:]
        shown = _code_line(self._block, self._language)
        return [self._paint.text(CODE_INDENT, shown) if shown else SafeText()]

    def _framed(self, language: str) -> list[SafeText]:
        """The short horizontal line above or below code, with the language if it is known."""
        lines = self._spaced([self._paint.dim(f"  ── {language}".rstrip())])
        self._gap, self._begun = False, True
        return lines

    def _print(self, block: list[SafeText]) -> list[SafeText]:
        lines = self._spaced(self._render(block))
        if lines:
            self._gap, self._begun = False, True
        self._gap = self._gap or (self._begun and bool(block) and not block[-1].strip())
        return lines

    def _spaced(self, lines: list[SafeText]) -> list[SafeText]:
        return [SafeText(), *lines] if self._gap and lines else lines

    def _render(self, block: list[SafeText]) -> list[SafeText]:
        lines = _lines(_Block(_JOINER.sub(_JOINT, "\n".join(block))), max(self._columns(), 10))
        while lines and not lines[0]:
            lines = lines[1:]
        while lines and not lines[-1]:
            lines = lines[:-1]
        return lines


def _code_line(lines: Sequence[str], language: str) -> SafeText:
    """The last of `lines` of code, syntax-highlighted; the lines before it are only its context."""
    last = for_terminal(lines[-1].expandtabs(4))
    syntax = _syntax(language)
    if syntax is None or not last.strip():
        return last
    text = syntax.highlight("\n".join(line.expandtabs(4) for line in lines))
    *_, shown = (line for line in text.split("\n") if line.plain.strip())
    return _line(shown.render(_console())) if shown.plain.rstrip() == last.rstrip() else last


@lru_cache(maxsize=16)
def _syntax(language: str) -> Syntax | None:
    lexer = Syntax("", language).lexer if language else None
    return None if lexer is None else Syntax("", lexer, theme="ansi_dark", background_color="default")


@cache
def _console() -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, color_system="standard", legacy_windows=False, theme=_THEME, width=80
    )


def _lines(renderable: RenderableType, width: int) -> list[SafeText]:
    console = _console()
    options = console.options.update(width=width, height=None)
    return [_line(segments) for segments in console.render_lines(renderable, options, pad=False)]


def _line(segments: Iterable[Segment]) -> SafeText:
    """Join segments of `rich` into coloured text. Replace control characters, which HTML entities may have added."""
    parts: list[str] = []
    for text, style, _ in reversed([segment for segment in segments if not segment.control]):
        clean = for_terminal(text.replace("\n", "").replace(_JOINT, "\u200d"))
        shown = clean if parts else clean.rstrip()
        if shown:
            parts.append(style.render(shown, color_system=ColorSystem.STANDARD) if style else shown)
    return SafeText("".join(reversed(parts)))


def _clean(line: str) -> list[SafeText]:
    return for_terminal(line.removesuffix("\r")).lines()
