"""Where patch finds a text: exactly, or else by one thing overlooked, and never if that could mean two places."""

from textwrap import indent

import pytest

from actors.adapters.tools.workers.patch_text import MOST_COUNTED, Haystack, NoMatchError, Sought, TextMatch, find

PYTHON = "class A:\n    def one(self):\n        return 1\n\n    def two(self):\n        return 2\n"
TABS = "void f() {\n\tif (x) {\n\t\ty();\n\t}\n}\n"


def match(text: str, old: str, new: str | None = "", *, fixed: bool = False) -> TextMatch:
    return find(Haystack(text), Sought(old, new, fixed))


def replaced(text: str, old: str, new: str) -> str:
    found = match(text, old, new)
    return text[: found.start] + (found.new or "") + text[found.end :]


def refusal(text: str, old: str, new: str | None = "") -> str:
    with pytest.raises(NoMatchError) as refused:
        match(text, old, new)
    return str(refused.value)


def test_an_exact_place_is_taken_as_it_is() -> None:
    assert match("abc", "b", "x") == TextMatch(1, 2, "x")


@pytest.mark.parametrize(
    ("text", "old", "times"),
    [("abab", "ab", "2"), ("aaa", "aa", "2"), ("abababa", "aba", "3"), ("x" * 2000, "x", f"more than {MOST_COUNTED}")],
)
def test_several_places_are_refused_and_overlapping_ones_counted(text: str, old: str, times: str) -> None:
    assert f"appears {times} times;" in refusal(text, old)


def test_a_text_that_is_not_there_is_refused() -> None:
    assert "not found" in refusal("abc", "x")
    assert "not found" in refusal("", "x")
    assert "not found" in refusal("abc\n", "   \n"), "nothing but white space is looked for exactly"


def test_an_exact_place_goes_before_one_that_is_indented_otherwise() -> None:
    assert replaced("  x = 1\nx = 1 + y\n", "  x = 1\n", "z\n") == "z\nx = 1 + y\n"


def test_what_is_indented_otherwise_is_found_and_the_new_text_moved_alike() -> None:
    old, new = "def two(self):\n    return 2\n", "def two(self):\n    return 22\n\n\ndef three(self):\n    pass\n"
    expected = PYTHON.replace("return 2\n", "return 22\n\n\n    def three(self):\n        pass\n")
    assert replaced(PYTHON, old, new) == expected
    assert match(PYTHON, old, new).how == "indented otherwise"
    assert replaced(PYTHON, indent(old, " " * 6), indent(new, " " * 6)) == expected


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        ("a  \nb\nc\t\nd\n", "a\nb  \nc\n", "a\nX\nc\n", "a  \nX\nc\t\nd\n"),
        ("a  \nb\nc\t\nd\n", "a\nb  \nc", "X\nb\nc", "X\nb\nc\t\nd\n"),
        ("x\n   \ny\n", "x\n\ny", "x\n\nz", "x\n   \nz\n"),
        ("x\n\ny\n", "x\n   \ny", "z", "z\n"),
        ("foo\t\nbar", "foo ", "x", "x\nbar"),
        ("if foo  \n  bar", "foo\n  bar", "x", "if x"),
        ("a\n", "a\n ", "b", "b"),
    ],
)
def test_blanks_at_the_ends_of_lines_are_overlooked_and_kept_where_nothing_changes(
    text: str, old: str, new: str, expected: str
) -> None:
    assert replaced(text, old, new) == expected
    assert match(text, old, new).how == "with other blanks at the ends of lines"


def test_blanks_in_a_line_and_several_places_are_not_overlooked() -> None:
    assert "not found" in refusal("foobar", "foo ")
    assert "not found" in refusal("a  b\n", "a b\n")
    assert "not found" in refusal("a\n\tb", "a\n ")
    assert "2 times (ignoring blanks at the ends of lines)" in refusal("a \nb\n\na  \nb\n", "a\nb\n")


def test_spaces_are_found_as_tabs() -> None:
    assert replaced(TABS, "    y();\n", "    z();\n") == TABS.replace("y", "z")


def test_a_place_that_is_indented_otherwise_begins_with_its_line() -> None:
    assert "not found" in refusal("a = foo()\n", "    foo()\n")
    assert replaced("\tfoo()\n", "    foo()\n", "") == ""


def test_the_new_line_at_the_end_of_the_old_text_counts() -> None:
    assert "not found" in refusal("\tfoo()", "    foo()\n")
    assert replaced("\tfoo()", "    foo()", "    bar()") == "\tbar()"


def test_two_places_that_are_indented_otherwise_are_refused() -> None:
    text = "if a:\n\tx()\nelse:\n\t\tx()\n"
    assert "appears 2 times (ignoring indentation)" in refusal(text, "    x()\n")


def test_a_new_text_that_cannot_be_moved_alike_is_refused() -> None:
    assert "not found" in refusal("\tfoo()\n", "    foo()\n", "bar()\n")


def test_a_new_text_that_is_indented_by_itself_or_comes_from_elsewhere_is_not_moved() -> None:
    assert match("\tfoo()\n", "    foo()\n", "bar()\n", fixed=True).new == "bar()\n"
    assert match("\tfoo()\n", "    foo()\n", None) == TextMatch(0, 7, None, "indented otherwise")


def test_shared_lines_at_the_edges_may_be_wrong() -> None:
    text = "one\ntwo\nthree\n"
    assert replaced(text, "wrong\ntwo\n", "wrong\n2\n") == "one\n2\nthree\n"
    assert replaced(text, "two\nwrong\n", "2\nwrong\n") == "one\n2\nthree\n"
    assert replaced(text, "wrong\ntwo\nwrong\n", "wrong\n2\nwrong\n") == "one\n2\nthree\n"
    assert match(text, "wrong\ntwo\n", "wrong\n2\n").how == "without its first line"


def test_lines_at_the_edges_that_differ_are_not_overlooked() -> None:
    text = "one\ntwo\nthree\n"
    for new in ("2\n", "wrong2\n2\n", "", None):
        assert "not found" in refusal(text, "wrong\ntwo\n", new)


def test_what_is_left_without_the_edges_must_be_unique_and_visible() -> None:
    assert "appears 2 times (without its first line)" in refusal("two\ntwo\n", "wrong\ntwo\n", "wrong\n2\n")
    assert "not found" in refusal("\n", "wrong\n\n", "wrong\nx\n")
    assert "not found" in refusal("zwei\n", "wrong\nwei\n", "wrong\n2\n"), "the rest begins with its line"


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("say “hi”, it\u2019s", 'say "hi", it\'s'),
        ("a \u2013 b \u2014 c", "a - b - c"),
        ("wait…", "wait..."),
        ("a\u00a0b\u2009c", "a b c"),
        ("zero\u200bwidth", "zerowidth"),
        ("e\u0301te\u0301", "\u00e9t\u00e9"),
        ("\u00e9t\u00e9", "e\u0301te\u0301"),
        ("\uff21\ufb01x", "Afix"),
        ("p\u0430ss", "pass"),
        ("pass", "p\u0430ss"),
        ("a\r\nb", "a\nb"),
    ],
)
def test_lookalikes_are_found(text: str, old: str) -> None:
    assert match(f"«{text}»", old) == TextMatch(1, 1 + len(text), "", "with lookalike characters")


def test_a_lookalike_that_would_begin_or_end_within_a_character_is_not_one() -> None:
    for old in (".", "..", "a..", "..b"):
        assert "not found" in refusal("a…b", old)
    assert "not found" in refusal("é", "\u0065\u200b"), "the accent is part of it"


def test_two_lookalikes_are_refused() -> None:
    assert "appears 2 times (ignoring lookalike characters)" in refusal("“a” „a‟", '"a"')


def test_a_text_of_nothing_visible_is_no_lookalike() -> None:
    assert "not found" in refusal("a\u00a0b", "\u200b")
    assert "not found" in refusal("abc", "\u200b")
