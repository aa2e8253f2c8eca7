"""Colours unified diffs, which show how a file has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bedrock.cli.text.safe_text import SafeText
    from bedrock.cli.text.style import Paint

#: Maximum lines of a diff that are shown.
DIFF_LINES = 40

_HEAD = ("--- ", "+++ ")


def diff_lines(diff: str, paint: Paint) -> Iterator[SafeText]:
    """Yield the coloured lines of a unified diff without its header; of a long diff only the first lines."""
    lines = diff.rstrip("\n").split("\n")
    body = lines[2:] if len(lines) > 1 and lines[0].startswith(_HEAD[0]) and lines[1].startswith(_HEAD[1]) else lines
    for line in body[:DIFF_LINES]:
        yield changed_line(paint.clean(line).replace("\n", " "), paint)
    if len(body) > DIFF_LINES:
        yield paint.dim(f"… {len(body) - DIFF_LINES} more lines")


def changed_line(line: str, paint: Paint, unmarked: Callable[[str], SafeText] | None = None) -> SafeText:
    """Colour one line of a diff by its first character. `unmarked` colours an unchanged line; if None, it is dimmed."""
    painters: dict[str, Callable[[str], SafeText]] = {"+": paint.good, "-": paint.bad, "@": paint.name}
    return painters.get(line[:1], unmarked or paint.dim)(line.expandtabs(4))


def extent(diff: str) -> str:
    """Return how many lines a diff adds and removes, e.g. "+3 -1"."""
    body = [line for line in diff.split("\n") if not line.startswith(_HEAD)]
    added, gone = (sum(line.startswith(sign) for line in body) for sign in "+-")
    return f"+{added} -{gone}"
