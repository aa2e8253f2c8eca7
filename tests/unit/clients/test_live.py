"""A block at the bottom of a terminal: what scrolls by stays whole, and the block is never there twice."""

import io
import re

from bedrock.cli.display.live_block import LiveBlock
from bedrock.cli.text.safe_text import SafeText


def screen(written: str) -> list[str]:
    """What a terminal shows that knows just what the block uses."""
    rows, row = [""], 0
    for part in re.split(r"(\x1b\[\d*[AJ]|\n|\r)", written):
        if part == "\n":
            row += 1
            rows[row:] = rows[row:] or [""]
        elif part.endswith("A") and part.startswith("\x1b"):
            row -= int(part[2:-1])
        elif part == "\x1b[J":
            rows[row:] = [""]
        elif part != "\r":
            rows[row] += part
    return rows[:-1]


def test_lines_scroll_by_above_the_block() -> None:
    out = io.StringIO()
    block = LiveBlock(out)
    block.write(SafeText("one"))
    block.show([SafeText("a"), SafeText("b")])
    block.write(SafeText("two"))
    assert screen(out.getvalue()) == ["one", "two", "a", "b"]
    block.show([SafeText("a"), SafeText("B"), SafeText("c")])
    block.write(SafeText("three"))
    assert screen(out.getvalue()) == ["one", "two", "three", "a", "B", "c"]
    block.show([])
    block.write(SafeText("four"))
    assert screen(out.getvalue()) == ["one", "two", "three", "four"]


def test_unchanged_lines_are_not_redrawn() -> None:
    out = io.StringIO()
    block = LiveBlock(out)
    block.show([SafeText("a")])
    drawn = out.getvalue()
    block.show([SafeText("a")])
    assert out.getvalue() == drawn
