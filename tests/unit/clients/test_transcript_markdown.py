"""Markdown as it is written: each block is printed once, in any pieces the same, and nothing in it plays tricks."""

import re

import pytest
from bedrock.cli.text.drawing import MarkdownFlow
from bedrock.cli.text.style import Paint
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
WIDTH = 40


def rendered(*pieces: str) -> list[str]:
    flow = MarkdownFlow(Paint(True), lambda: WIDTH)
    fed = [line for piece in pieces for line in flow.feed(piece)]
    return [*fed, *flow.finish("".join(pieces))]


def plain(*pieces: str) -> list[str]:
    return [COLOUR.sub("", line) for line in rendered(*pieces)]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("# Title\ntext", ["Title", "text"]),
        ("Title\n-----\ntext", ["Title", "text"]),
        ("one\n\n\n\ntwo\n", ["one", "", "two"]),
        ("line\nfor line", ["line", "for line"]),
        ("  set   in\n    more", ["set   in", "more"]),
        ("- a\n- b\n  - c\n\n  of b", [" • a", " • b", "    • c", "   of b"]),
        (
            "9. nine\n10. ten words that are too many for one line",
            ["  9 nine", " 10 ten words that are too many for one", "    line"],
        ),
        ("> quoted", ["▌ quoted"]),
        ("[x]\n\n[x]: http://e.org\n\n- a", ["[x]", "", "[x]: http://e.org", "", " • a"]),
        ("[bold]no[/bold] :smile:", ["[bold]no[/bold] :smile:"]),
        ("a <b>x</b> & &lt;c>", ["a <b>x</b> & <c>"]),
        ("<script>\nx\n</script>", ["<script>", "x", "</script>"]),
        ("[here](https://e.org/x)", ["here (https://e.org/x)"]),
        ("```py\nx = 1\n\n  y\n```\nend", ["  ── py", "    x = 1", "", "      y", "  ──", "end"]),
        ("~~~\n```\n~~~", ["  ──", "    ```", "  ──"]),
        ("- x\n  ```\n  code\n  ```", [" • x", "", "    code"]),
        ("* * *", ["-" * WIDTH]),
        ("|a|b|\n|-|-|\n|1|2|", [" a  b", " ────", " 1  2"]),
    ],
)
def test_blocks_look_like_this(text: str, lines: list[str]) -> None:
    found = plain(text)
    if text.startswith("|"):  # how wide a table is drawn is for its library to say
        assert [line.split() for line in found[::2]] == [line.split() for line in lines[::2]]
    else:
        assert found == lines


def test_no_line_is_wider_than_there_is_room_where_emoji_are_joined() -> None:
    family = "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}\u200d\N{BOY}"
    lines = plain(f"{family * 3} and {family} " * 5, f"\n\n- {family * 9}")
    assert max(map(get_cwidth, lines)) <= WIDTH
    assert "".join(lines).count("\N{BOY}") == 4 * 5 + 9


def test_emphasis_and_code_have_colours() -> None:
    (line,) = rendered("**bold** `code`")
    assert line == "\x1b[1mbold\x1b[0m \x1b[36mcode\x1b[0m"


def test_a_block_is_drawn_while_it_is_written_and_printed_when_it_is_complete() -> None:
    flow = MarkdownFlow(Paint(False), lambda: WIDTH)
    assert flow.feed("Hello **wor") == []
    assert flow.tail == ["Hello **wor"]
    assert flow.feed("ld**\n") == []
    assert [COLOUR.sub("", line) for line in flow.tail] == ["Hello world"]
    printed = flow.feed("\nNext")
    assert [COLOUR.sub("", line) for line in printed] == ["Hello world"]
    assert flow.tail == ["", "Next"]


def test_code_is_printed_line_by_line() -> None:
    flow = MarkdownFlow(Paint(False), lambda: WIDTH)
    flow.feed("```\n")
    assert flow.feed("one\ntw") == ["    one"]
    assert flow.tail == ["    tw"]


def test_what_does_not_count_comes_back_as_it_was_written() -> None:
    flow = MarkdownFlow(Paint(True), lambda: WIDTH)
    flow.feed("**this\nand th")
    assert flow.drop() == ["**this", "and th"]
    assert flow.finish("**anew**") == ["\x1b[1manew\x1b[0m"]


def test_a_text_that_turned_out_otherwise_is_shown_whole() -> None:
    flow = MarkdownFlow(Paint(True), lambda: WIDTH)
    flow.feed("Hullo\n\nyou")
    assert flow.finish("Hello") == ["Hello"]


MARKS = st.sampled_from(
    [*"ab *_`#->|1.[]()<&;~\n\t\r\x1b\u202e", "```\n", "\n\n", "- ", "\x1b[2J", "&#x202e;", "&#27;"]
)


@given(st.lists(MARKS, max_size=60).map("".join), st.data())
def test_however_it_arrives_it_looks_the_same(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert rendered(*pieces) == rendered(text)


@given(st.lists(MARKS, max_size=60).map("".join))
def test_a_terminal_obeys_nothing_but_colours(text: str) -> None:
    flow = MarkdownFlow(Paint(True), lambda: WIDTH)
    shown = [*flow.feed(text), *flow.tail, *flow.finish()]
    assert not re.search("[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e]", COLOUR.sub("", "".join(shown)))
