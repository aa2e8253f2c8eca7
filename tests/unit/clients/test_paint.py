"""How wide text is at a terminal, and how it is cut: never wider than any terminal shows it."""

import pytest
from bedrock.cli.text.safe_text import for_terminal
from bedrock.cli.text.style import cells, cut, fitting, one_line
from hypothesis import given
from hypothesis import strategies as some

FAMILY = "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}\u200d\N{BOY}"
TEXTS = some.text("ab 漢é\N{WOMAN}\N{GIRL}\u200d\ufe0f\N{HEAVY BLACK HEART}\u0301", max_size=60)


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("漢字", 4), (FAMILY, 8), ("e\u0301", 1), ("❤\ufe0f", 2)])
def test_the_width_of_a_text_is_that_of_its_parts(text: str, width: int) -> None:
    assert cells(text) == width


@given(TEXTS, some.integers(0, 40))
def test_what_is_cut_fits_and_is_cut_only_where_it_must_be(text: str, width: int) -> None:
    assert cells(text[: fitting(text, width)]) <= width
    assert cells(cut(text, width)) <= width
    assert cells(one_line(text, width)) <= width
    assert cut(text, cells(text)) == text
    assert one_line(text, cells(text)) == " ".join(for_terminal(text).split())


@pytest.mark.parametrize(
    ("width", "line"),
    [(13, "one two three"), (12, "one two…"), (9, "one two…"), (8, "one two…"), (7, "one tw…"), (1, "…"), (0, "")],
)
def test_a_line_is_cut_at_a_word_if_that_leaves_most_of_it(width: int, line: str) -> None:
    assert one_line("one\n two three", width) == line
