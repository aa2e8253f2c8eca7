"""Renders the content of a Markdown block with `rich`: emphasis, code, links, tables, quotes."""

from __future__ import annotations

import io
import re
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

    from bedrock.cli.text.style import Paint

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
