"""What a terminal shows in the end of what programs write for it."""

import pytest

from actors.common.terminal_text import ROWS, rendered, without_escapes

BARS = "".join(f"\r{percent}%|{'#' * (percent // 10):10}|" for percent in range(0, 101, 10))


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (f"begin\n{BARS} done\nend\n", "begin\n100%|##########| done\nend\n"),
        ("\x1b[1;31merror\x1b[0m: \x1b[38;5;9mno\x1b[m\n", "error: no\n"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x07\n", "link\n"),
        ("\x1b]0;a title\x07text", "text"),
        ("a: 1\nb: 1\n\x1b[2A\x1b[2Ka: 2\n\x1b[2Kb: 2\n", "a: 2\nb: 2\n"),
        ("one\ntwo\nthree\x1b[2F\x1b[JONE", "ONE"),
        ("a long state\rshort\x1b[K\n", "short\n"),
        ("crlf\r\nlines\r\n", "crlf\nlines\n"),
        ("N\bNA\bAM\bME\bE _\bx", "NAME x"),
        ("done  \r\u4e0b\u8f7d\u4e2d", "\u4e0b\u8f7d\u4e2d"),
        ("e\u0301t\u00e9\rE", "Et\u00e9"),
        ("\x1b[2J\x1b[Hone frame\n\x1b[2J\x1b[Hanother\n", "one frame\nanother\n"),
        ("left\x1b[12Gright\x1b[5D!", "left       !ight"),
        ("\x1b7kept\x1b8K", "Kept"),
        ("not ended\x1b]8;;text", "not ended8;;text"),
        ("\x1b(0odd\x1b(B\x0e\x0f\x07 \x1b=\x1b>", "odd "),
        ("a\tb\0c\x1fd\fe", "a\tb\0c\x1fd\fe"),
        ("line\n" * 300 + f"\x1b[{3 * ROWS}Atop\n", "line\n" * (300 - ROWS) + "tope\n" + "line\n" * (ROWS - 1)),
    ],
)
def test_output_is_shown_as_a_terminal_leaves_it(output: str, shown: str) -> None:
    assert rendered(output) == shown


def test_text_without_escapes_keeps_its_line_ends_and_none_grows() -> None:
    assert without_escapes("a\r\nb\rc") == "a\r\nb\rc"
    assert without_escapes("\x1b[1ma\x1b[m\r\n") == "a\n"
    assert without_escapes("\x1b[99Ca\x1b[99C\rb") == "a\rb"
