"""Untrusted text becomes safe for where it is printed, by its type."""

import io
import json
import sys
import unicodedata

import pytest
from bedrock.cli.text.safe_text import (
    MOST_COMBINING,
    SafeStream,
    SafeText,
    for_pipe,
    for_terminal,
    install,
    json_text,
    literal,
)
from bedrock.cli.text.style import Paint
from hypothesis import given
from hypothesis import strategies as some

FAMILY = "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}\u200d\N{BOY}"
ANYTHING = some.text(some.characters(codec=None) | some.sampled_from("\x1b[]m;8\x9b\x07\r\n\t\u202e\u200d\ud800\u0301"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def obeyed(text: str) -> list[str]:
    """What of a text a terminal would obey, and not show."""
    bidirectional = ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
    return [
        each
        for each in text
        if (unicodedata.category(each) in ("Cc", "Cs") and each not in "\n\t")
        or unicodedata.bidirectional(each) in bidirectional
        or each in "\u061c\u200e\u200f\u2028\u2029"
    ]


@given(ANYTHING)
def test_a_terminal_has_nothing_to_obey(text: str) -> None:
    for safe in (for_terminal(text), literal(text), Paint(False).text(text, text)):
        assert obeyed(safe) == []
    assert obeyed(str.replace(Paint(True).bold(text), "\x1b[1m", "").replace("\x1b[0m", "")) == []


@given(ANYTHING)
def test_what_is_safe_stays_as_it_is(text: str) -> None:
    assert for_terminal(for_terminal(text)) == for_terminal(str(for_terminal(text))) == for_terminal(text)
    assert for_pipe(for_pipe(text)) == for_pipe(str(for_pipe(text))) == for_pipe(text)


@given(ANYTHING)
def test_a_pipe_loses_controls_and_nothing_else(text: str) -> None:
    kept = [each for each in text if unicodedata.category(each) != "Cc" or each in "\n\t"]
    assert for_pipe(text) == "".join("\ufffd" if unicodedata.category(each) == "Cs" else each for each in kept)


@given(some.dictionaries(ANYTHING, ANYTHING), some.booleans())
def test_json_is_escaped_and_loses_nothing(value: dict[str, str], ascii_only: bool) -> None:
    shown = json_text(json.dumps(value, ensure_ascii=ascii_only))
    assert obeyed(shown) == []
    assert json.loads(shown) == value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;http://a\x07b", "\\x1b]8;;http://a\\x07b"),
        ("\x9b2J", "\\x9b2J"),
        ("a\u202etxt.exe", "a\\u202etxt.exe"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        (FAMILY, FAMILY),
        ("❤\ufe0f\u200d\N{FIRE}", "❤\ufe0f\u200d\N{FIRE}"),
        ("क्\u200dष", "क्\u200dष"),
        ("caf\udce9", "caf\\udce9"),
        ("\x7f\b", "\\x7f\\x08"),
        ("═" * 80, "═" * 80),
        ("Z" + "\u0301" * 100 + "y", "Z" + "\u0301" * MOST_COMBINING + "…y"),
    ],
)
def test_what_a_terminal_shows(text: str, shown: str) -> None:
    assert for_terminal(text) == shown


def test_what_is_to_be_allowed_hides_nothing() -> None:
    assert literal("rm\u200b -rf\u00ad \x1b[8m/\x1b[0m\U000e0041") == (
        "rm\\u200b -rf\\xad \\x1b[8m/\\x1b[0m\\U000e0041"
    )


def test_safe_text_keeps_its_colours_where_parts_are_joined() -> None:
    paint = Paint(True)
    joined: SafeText = paint.text(paint.bold("a"), "\x1b[8mb") + "\x9bc"
    assert joined == "\x1b[1ma\x1b[0mb\\x9bc"
    assert "\x9b" + joined == "\\x9b" + joined
    assert paint.dim(joined) == f"\x1b[2m{joined}\x1b[0m"
    assert all(isinstance(line, SafeText) for line in paint.text("a\n", paint.bold("b")).lines())


def test_streams_clean_unsafe_text() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        written = SafeStream(stream)
        written.write("\x1b[2J\u202e")
        written.writelines([Paint(True).bold("safe"), SafeText("\u202e")])
    assert terminal.getvalue() == "\\x1b[2J\\u202e\x1b[1msafe\x1b[0m\\u202e"
    assert pipe.getvalue() == "[2J\u202e\x1b[1msafe\x1b[0m\u202e"
    with pytest.raises(TypeError):
        SafeStream(pipe).write(b"bytes")  # type: ignore[arg-type]


def test_streams_are_safe_once_installed_and_wrapped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", out)
    install()
    install()
    print("\x1b[2J")
    assert out.getvalue() == "\\x1b[2J\n"
