"""Laws of what a terminal would show: whatever the output and its pieces, plain text stays and no escape does."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actors.common.terminal_text import TerminalText, rendered, without_escapes
from tests.property.profiles import profile
from tests.property.tape import tapes

PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\a\b\r\x0e\x0f\x1b\x9b"))
WITHOUT_EFFECT = st.sampled_from(
    ["\x1b[31m", "\x1b[0m", "\x1b[?25l", "\x1b[1;2;3m", "\x1b]8;;https://x\x1b\\", "\x1b]0;title\a", "\x1b(B", "\a",
     "\x0f", "\x1b[2J", "\x1b[3J", "\x1b[6n", "\x9b1m", "\x1b=", "\x1bPq#0\x1b\\", "\x1b[38;5;9m\x1b[K"]
)  # fmt: skip
PARTS = (
    "\x1b[", "\x1b]", "\x1b", "\x9b", "\\", "\a", "\b", "\r", "\n", "\r\n", "\x0e", "\x1b7", "\x1b8", "\x1bM", "\x1bD",
    *"0123;?ABCDEFGHJKXPsumhl (", "\x1b[2A", "\x1b[3B", "\x1b[J", "\x1b[K", "\x1b[1K", "\x1b[2K", "\x1b[9C", "\x1b[H",
    "a", "word", "é", "e\u0301", "\u0301", "下", "👩\u200d💻", "x" * 7, "l1\nl2\nl3\n", "\n" * 5, "y" * 23 + "\n",
)  # fmt: skip
OUTPUT = tapes(17, 17).map(lambda tape: "".join(tape.some(PARTS, 16)))
CUTS = tapes(9, 9).map(lambda tape: tape.some(range(201), 8))


@pytest.fixture(autouse=True, scope="module")
def small() -> object:
    """A screen so small that everything is met."""
    with pytest.MonkeyPatch.context() as patched:
        for name, size in {"ROWS": 4, "COLUMNS": 16, "RIGHT_EDGE": 6}.items():
            patched.setattr(f"actors.common.terminal_text.{name}", size)
        yield


def in_pieces(text: str, cuts: list[int]) -> str:
    terminal = TerminalText()
    passed = ""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        passed += terminal.feed(text[start:end])
    return passed + terminal.finish()


@profile(300)
@given(PLAIN)
def test_plain_text_stays_as_it_is(text: str) -> None:
    terminal = TerminalText()
    assert terminal.feed(text) + terminal.finish() == text
    assert not terminal.altered
    assert rendered(text) == text


@profile(300)
@given(st.lists(st.tuples(PLAIN, WITHOUT_EFFECT), max_size=12))
def test_of_text_that_moves_nothing_only_the_escapes_are_lost(pieces: list[tuple[str, str]]) -> None:
    text = "".join(plain + sequence for plain, sequence in pieces)
    assert rendered(text) == "".join(plain for plain, _ in pieces)


@profile(3_000)
@given(OUTPUT)
def test_no_escape_is_left_and_nothing_more_is_rendered(text: str) -> None:
    shown = rendered(text)
    assert not re.search("[\a\b\r\x0e\x0f\x1b\x9b]", shown)
    assert rendered(shown) == shown
    assert "\x1b" not in without_escapes(text)
    assert len(without_escapes(text)) <= len(text)


@profile(3_000)
@given(OUTPUT, CUTS)
@example("\x1b]abc\x1b[31mx\a", [8])
@example("\x1b]abc\x9b31mx\a", [8])
def test_the_pieces_of_the_output_do_not_matter(text: str, cuts: list[int]) -> None:
    assert in_pieces(text, sorted(min(cut, len(text)) for cut in cuts)) == rendered(text)
    assert in_pieces(text, list(range(1, len(text)))) == rendered(text)
