"""Text that arrives in pieces becomes lines, none lost and none twice."""

from __future__ import annotations

import pytest
from bedrock.cli.text.style import LineFlow, cells
from hypothesis import given
from hypothesis import strategies as st


def test_a_line_is_complete_with_its_end() -> None:
    flow = LineFlow()
    assert flow.feed("Hello ") == []
    assert flow.tail == ["Hello "]
    assert flow.feed("world\nand") == ["Hello world"]
    assert flow.finish() == ["and"]
    assert flow.tail == []


def test_long_lines_break_at_blanks() -> None:
    flow = LineFlow(lambda: 10)
    assert flow.feed("one two three four") == ["one two"]
    assert flow.tail == ["three four"]


def test_words_that_are_too_long_are_cut() -> None:
    flow = LineFlow(lambda: 4)
    assert flow.feed("abcdefghij") == ["abcd", "efgh"]
    assert flow.finish() == ["ij"]


@pytest.mark.parametrize(("pieces", "whole", "rest"), [("Hel", "Hello", ["Hello"]), ("", "Hello", ["Hello"])])
def test_what_was_missed_is_added_at_the_end(pieces: str, whole: str, rest: list[str]) -> None:
    flow = LineFlow()
    flow.feed(pieces)
    assert flow.finish(whole) == rest


def test_a_text_that_turned_out_otherwise_is_shown_whole() -> None:
    flow = LineFlow()
    flow.feed("Hullo\n")
    assert flow.finish("Hello\nworld") == ["Hello", "world"]


@given(st.lists(st.text(alphabet="ab漢 \n", max_size=9)), st.integers(min_value=1, max_value=12))
def test_no_character_is_lost(pieces: list[str], width: int) -> None:
    flow = LineFlow(lambda: width)
    lines = [line for piece in pieces for line in flow.feed(piece)]
    lines += flow.finish()
    assert all(cells(line) <= max(width, 2) for line in lines)
    assert "".join(lines).replace(" ", "") == "".join(pieces).replace(" ", "").replace("\n", "")
