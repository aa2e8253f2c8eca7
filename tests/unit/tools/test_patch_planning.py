"""A patch before anything is written: what it finds, what it changes, and how that is shown."""

from textwrap import indent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.adapters.tools.workers import patch as patch_plan
from actors.adapters.tools.workers import patch_text as patch_diff
from actors.adapters.tools.workers.patch import Plan, plan, reindented
from actors.adapters.tools.workers.patch_files import PatchRefusedError
from actors.adapters.tools.workers.patch_text import (
    MOST_COUNTED,
    Edit,
    Haystack,
    NoMatchError,
    Sought,
    TextMatch,
    find,
    unified,
)

PYTHON = "class A:\n    def one(self):\n        return 1\n\n    def two(self):\n        return 2\n"
TABS = "void f() {\n\tif (x) {\n\t\ty();\n\t}\n}\n"


def match(text: str, old: str, new: str | None = "", *, fixed: bool = False) -> TextMatch:
    return find(Haystack(text), Sought(old, new, fixed))


def replaced(text: str, old: str, new: str) -> str:
    found = match(text, old, new)
    return text[: found.start] + (found.new or "") + text[found.end :]


def mismatch(text: str, old: str, new: str | None = "") -> str:
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
    assert f"appears {times} times;" in mismatch(text, old)


def test_a_text_that_is_not_there_is_refused() -> None:
    assert "not found" in mismatch("abc", "x")
    assert "not found" in mismatch("", "x")
    assert "not found" in mismatch("abc\n", "   \n"), "nothing but white space is looked for exactly"


def test_an_exact_place_goes_before_one_that_is_indented_otherwise() -> None:
    assert replaced("  x = 1\nx = 1 + y\n", "  x = 1\n", "z\n") == "z\nx = 1 + y\n"


def test_what_is_indented_otherwise_is_found_and_the_new_text_moved_alike() -> None:
    old, new = "def two(self):\n    return 2\n", "def two(self):\n    return 22\n\n\ndef three(self):\n    pass\n"
    expected = PYTHON.replace("return 2\n", "return 22\n\n\n    def three(self):\n        pass\n")
    assert replaced(PYTHON, old, new) == expected
    assert match(PYTHON, old, new).how == "with different indentation"
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
    assert match(text, old, new).how == "with different trailing whitespace"


def test_blanks_in_a_line_and_several_places_are_not_overlooked() -> None:
    assert "not found" in mismatch("foobar", "foo ")
    assert "not found" in mismatch("a  b\n", "a b\n")
    assert "not found" in mismatch("a\n\tb", "a\n ")
    assert "2 times (ignoring trailing whitespace)" in mismatch("a \nb\n\na  \nb\n", "a\nb\n")


def test_spaces_are_found_as_tabs() -> None:
    assert replaced(TABS, "    y();\n", "    z();\n") == TABS.replace("y", "z")


def test_a_place_that_is_indented_otherwise_begins_with_its_line() -> None:
    assert "not found" in mismatch("a = foo()\n", "    foo()\n")
    assert replaced("\tfoo()\n", "    foo()\n", "") == ""


def test_the_new_line_at_the_end_of_the_old_text_counts() -> None:
    assert "not found" in mismatch("\tfoo()", "    foo()\n")
    assert replaced("\tfoo()", "    foo()", "    bar()") == "\tbar()"


def test_two_places_that_are_indented_otherwise_are_refused() -> None:
    text = "if a:\n\tx()\nelse:\n\t\tx()\n"
    assert "appears 2 times (ignoring indentation)" in mismatch(text, "    x()\n")


def test_a_new_text_that_cannot_be_moved_alike_is_refused() -> None:
    assert "not found" in mismatch("\tfoo()\n", "    foo()\n", "bar()\n")


def test_a_new_text_that_is_indented_by_itself_or_comes_from_elsewhere_is_not_moved() -> None:
    assert match("\tfoo()\n", "    foo()\n", "bar()\n", fixed=True).new == "bar()\n"
    assert match("\tfoo()\n", "    foo()\n", None) == TextMatch(0, 7, None, "with different indentation")


def test_shared_lines_at_the_edges_may_be_wrong() -> None:
    text = "one\ntwo\nthree\n"
    assert replaced(text, "wrong\ntwo\n", "wrong\n2\n") == "one\n2\nthree\n"
    assert replaced(text, "two\nwrong\n", "2\nwrong\n") == "one\n2\nthree\n"
    assert replaced(text, "wrong\ntwo\nwrong\n", "wrong\n2\nwrong\n") == "one\n2\nthree\n"
    assert match(text, "wrong\ntwo\n", "wrong\n2\n").how == "without its first line"


def test_lines_at_the_edges_that_differ_are_not_overlooked() -> None:
    text = "one\ntwo\nthree\n"
    for new in ("2\n", "wrong2\n2\n", "", None):
        assert "not found" in mismatch(text, "wrong\ntwo\n", new)


def test_what_is_left_without_the_edges_must_be_unique_and_visible() -> None:
    assert "appears 2 times (without its first line)" in mismatch("two\ntwo\n", "wrong\ntwo\n", "wrong\n2\n")
    assert "not found" in mismatch("\n", "wrong\n\n", "wrong\nx\n")
    assert "not found" in mismatch("zwei\n", "wrong\nwei\n", "wrong\n2\n"), "the rest begins with its line"


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
        assert "not found" in mismatch("a…b", old)
    assert "not found" in mismatch("é", "\u0065\u200b"), "the accent is part of it"


def test_two_lookalikes_are_refused() -> None:
    assert "appears 2 times (ignoring lookalike characters)" in mismatch("“a” „a‟", '"a"')


def test_a_text_of_nothing_visible_is_no_lookalike() -> None:
    assert "not found" in mismatch("a\u00a0b", "\u200b")
    assert "not found" in mismatch("abc", "\u200b")


# --- What patches make of a text, and what they are refused for ---


def apply(content: bytes | None, *patches: dict[str, Any], clipboards: dict[str, str] | None = None) -> Plan:
    return plan(content, list(patches), clipboards or {}, "f")


def replace(old: str, new: str | None = None, **fields: Any) -> dict[str, Any]:
    text = {} if new is None else {"newText": new}
    return {"operation": "replace", "oldText": old} | text | fields


def append(new: str, **fields: Any) -> dict[str, Any]:
    return {"operation": "append_eof", "newText": new} | fields


def prepend(new: str, **fields: Any) -> dict[str, Any]:
    return {"operation": "prepend_bof", "newText": new} | fields


def overwrite(new: str, **fields: Any) -> dict[str, Any]:
    return {"operation": "overwrite", "newText": new} | fields


def refusal(content: bytes | None, *patches: dict[str, Any], clipboards: dict[str, str] | None = None) -> str:
    with pytest.raises(PatchRefusedError) as refused:
        apply(content, *patches, clipboards=clipboards)
    return str(refused.value)


def test_all_patches_are_found_in_the_original() -> None:
    assert apply(b"a b", replace("a", "b"), replace("b", "a")).content == b"b a"
    assert "not found" in refusal(b"a", replace("a", "b"), replace("b", "c"))


def test_appends_and_prepends_keep_their_order_whatever_is_between_them() -> None:
    patches = [append("1"), prepend("A"), replace("x", "y"), append("2"), prepend("B")]
    assert apply(b"x", *patches).content == b"ABy12"
    assert apply(b"", append("1"), overwrite("o"), prepend("A"), append("2")).content == b"Ao12"


@pytest.mark.parametrize(
    "patches",
    [
        [replace("abc", "x"), replace("cd", "y")],
        [replace("cd", "y"), replace("abc", "x")],
        [replace("b", "x"), replace("b", "x")],
        [replace("abcd", "x"), replace("b", "y")],
        [overwrite("x"), replace("b", "y")],
        [overwrite("x"), overwrite("y")],
    ],
)
def test_overlapping_patches_are_refused(patches: list[dict[str, Any]]) -> None:
    assert "the same text" in refusal(b"abcd", *patches)


def test_two_overwrites_of_nothing_are_refused_and_neighbours_are_not() -> None:
    assert "the same text" in refusal(b"", overwrite("x"), overwrite("y"))
    assert apply(b"abcd", replace("ab", "1"), replace("cd", "2")).content == b"12"


def test_a_missing_file_is_created_by_all_but_replace() -> None:
    for patch in (append("x"), prepend("x"), overwrite("x")):
        assert apply(None, patch).content == b"x"
    assert "does not exist" in refusal(None, replace("a", "b"))


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (replace("", "x"), "non-empty oldText"),
        ({"operation": "replace", "newText": "x"}, "non-empty oldText"),
        (append("x", toClipboard="c"), "toClipboard works only with replace"),
        (overwrite("x", oldText="y"), "oldText works only with replace"),
        (replace("a"), "newText or fromClipboard is missing"),
        ({"operation": "append_eof"}, "newText or fromClipboard is missing"),
        (append("x", fromClipboard="c"), 'no clipboard "c" (existing: none)'),
        (replace("nope", "x"), "oldText not found"),
    ],
)
def test_what_does_not_fit_together_is_refused(patch: dict[str, Any], why: str) -> None:
    assert why in refusal(b"a", patch)


def test_an_empty_clipboard_name_is_none() -> None:
    done = apply(b"a", replace("a", "b", toClipboard="", fromClipboard=""), append("c", toClipboard="", oldText=""))
    assert (done.content, done.clipboards) == (b"bc", {})


def test_the_refused_patch_is_named_by_its_number_if_there_are_several() -> None:
    assert refusal(b"a", append("x"), replace("b", "x")).startswith("patch 2 of 2: oldText not found")
    assert refusal(b"a", replace("b", "x")).startswith("oldText not found")


def test_clipboards_hold_what_was_found_and_later_patches_see_them() -> None:
    move = [replace("two\n", toClipboard="t"), append("", fromClipboard="t")]
    assert apply(b"two\nthree\n", *move) == Plan(
        b"three\ntwo\n", {"t": "two\n"}, [], "--- f\n+++ f\n@@ -1,2 +1,2 @@\n+three\n two\n-three\n"
    )
    assert "no clipboard" in refusal(b"two\n", *move[::-1])
    assert apply(b"", append("", fromClipboard="old"), clipboards={"old": "kept"}).content == b"kept"


def test_the_clipboard_goes_before_the_new_text() -> None:
    assert apply(b"a", replace("a", "b", fromClipboard="c"), clipboards={"c": "kept"}).content == b"kept"


def test_the_same_clipboard_for_both_copies_and_can_reindent_in_place() -> None:
    copied = apply(b"  a\n  b\n", replace("  a\n  b\n", toClipboard="c", fromClipboard="c"))
    assert (copied.content, copied.clipboards, copied.diff) == (b"  a\n  b\n", {"c": "  a\n  b\n"}, "")
    turned: dict[str, Any] = {"reindent": {"strip": "  ", "add": "\t"}}
    moved = apply(b"  a\n  b\n", replace("  a\n  b\n", toClipboard="c", fromClipboard="c", **turned))
    assert (moved.content, moved.clipboards) == (b"\ta\n\tb\n", {"c": "  a\n  b\n"})


def test_an_inexact_match_is_reported_and_so_is_its_clipboard() -> None:
    done = apply(b"\tfoo()\n", replace("    foo()\n", "    bar()\n", toClipboard="c"))
    assert done.content == b"\tbar()\n"
    assert done.clipboards == {"c": "\tfoo()\n"}
    assert done.notes == [
        "<note>oldText was found with different indentation.</note>",
        '<note>clipboard "c" holds the text of the file, which differs from oldText.</note>',
    ]
    assert apply(b"foo()\n", replace("foo()\n", "bar()\n", toClipboard="c")).notes == []


def test_reindent_with_a_text_that_was_found_otherwise_indents_what_was_written() -> None:
    patch = replace("    foo()\n", "bar()\n", reindent={"add": "\t\t"})
    assert apply(b"\tfoo()\n", patch).content == b"\t\tbar()\n"
    trimmed = replace("no\nfoo()\n", "no\nbar()\n", reindent={"add": " "})
    assert apply(b"foo()\n", trimmed).content == b" bar()\n"


def test_reindent_strips_and_adds_line_by_line() -> None:
    assert reindented("  a\n\n    b\n", "  ", "\t") == "\ta\n\n\t  b\n"
    assert reindented("a", "", "> ") == "> a"
    with pytest.raises(PatchRefusedError, match="line 2 does not begin with '  '"):
        reindented("  a\n b\n", "  ", "")


def test_crlf_is_kept() -> None:
    done = apply(b"one\r\ntwo\r\n", replace("one\ntwo", "1\n2"), append("three\r\n"))
    assert done.content == b"1\r\n2\r\nthree\r\n"
    assert "\r" not in done.diff
    stored = apply(b"one\r\ntwo", replace("one\ntwo", "x", toClipboard="c"))
    assert stored.clipboards == {"c": "one\ntwo"}


@pytest.mark.parametrize(
    ("patches", "after"),
    [
        ([replace("a\nb", "A\nB")], b"A\r\nB\nc\r\nd\n"),
        ([replace("b\nc", "b\nnew\nc")], b"a\r\nb\nnew\nc\r\nd\n"),
        ([replace("a\nb\nc\n", "a\nnew\nb\nc\n")], b"a\r\nnew\r\nb\nc\r\nd\n"),
        ([replace("a\nb\n", "")], b"c\r\nd\n"),
        ([replace("b\nc", "B\nx\ny\nC")], b"a\r\nB\nx\ny\nC\r\nd\n"),
        ([replace("a", "1\n2"), replace("c\nd\n", "C\nD\n")], b"1\r\n2\r\nb\nC\r\nD\n"),
        ([replace("a\r\nb\r\n", "A\r\nB\r\n")], b"A\r\nB\nc\r\nd\n"),
        ([prepend("0\n"), append("e\n")], b"0\r\na\r\nb\nc\r\nd\ne\n"),
        ([overwrite("a\nb\nx\nd\n")], b"a\r\nb\nx\r\nd\n"),
    ],
)
def test_a_line_of_a_file_with_both_line_ends_keeps_its_own(patches: list[dict[str, Any]], after: bytes) -> None:
    done = apply(b"a\r\nb\nc\r\nd\n", *patches)
    assert done.content == after
    assert "\r" not in done.diff
    assert not done.notes


def test_mixed_line_ends_are_left_alone() -> None:
    assert apply(b"a\r\nb\nc\r\n", replace("b\n", "x\n")).content == b"a\r\nx\nc\r\n"
    assert apply(b"a\r\nb\nc\r\n", replace("a\r\n", "x\r\n")).content == b"x\r\nb\nc\r\n"
    assert apply(None, overwrite("a\r\nb\r\n")).content == b"a\r\nb\r\n"
    assert apply(b"a\n", append("b\r\n")).content == b"a\nb\r\n"


def test_a_missing_newline_at_the_end_stays_missing_and_appending_to_it_is_reported() -> None:
    assert apply(b"a\nb", replace("a", "x")).content == b"x\nb"
    done = apply(b"a", append("b\n"))
    assert done.content == b"ab\n"
    assert done.notes == ["<note>the file had no final newline, so its last line was extended.</note>"]
    assert apply(b"a\n", append("b")).notes == []


def test_a_byte_order_mark_stays_first() -> None:
    assert apply(b"\xef\xbb\xbfa", prepend("b")).content == b"\xef\xbb\xbfba"
    assert apply(b"\xef\xbb\xbfa", overwrite("b")).content == b"\xef\xbb\xbfb"


def test_a_byte_order_mark_does_not_double() -> None:
    assert apply(b"\xef\xbb\xbfa", prepend("\ufeffb")).content == b"\xef\xbb\xbfba"
    assert apply(b"\xef\xbb\xbfa", overwrite("\ufeffb")).content == b"\xef\xbb\xbfb"
    assert apply(b"a", overwrite("\ufeffb")).content == b"\xef\xbb\xbfb"


def test_a_file_that_is_not_utf_8_is_refused() -> None:
    assert "not UTF-8 text (byte 1)" in refusal(b"a\xff", append("x"))


@pytest.mark.parametrize(
    "mark", ["Code generated by x", "DO NOT EDIT", "Generated by y", "auto-generated", "// @generated"]
)
def test_generated_files_are_changed_with_a_warning(mark: str) -> None:
    done = apply(f"# {mark}\n".encode(), append("x\n"))
    assert len(done.notes) == 1
    assert done.notes[0].startswith("<warning>f looks generated")
    far = apply(b"x" * patch_plan.MARKED + mark.encode() + b"\n", append("x\n"))
    assert far.notes == []


def test_files_and_clipboards_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_plan, "MAX_FILE", 100)
    monkeypatch.setattr(patch_plan, "MAX_CLIPBOARDS", 10)
    assert apply(b"x" * 50, append("y" * 50)).content == b"x" * 50 + b"y" * 50
    assert "larger than" in refusal(b"x" * 50, append("y" * 51))
    assert "larger than" in refusal(None, *[append("", fromClipboard="c")] * 11, clipboards={"c": "x" * 10})
    assert "clipboards would hold" in refusal(
        b"abcdef", replace("abcdef", "", toClipboard="n"), clipboards={"c": "12345"}
    )
    assert apply(b"abcdef", replace("abcdef", "", toClipboard="c"), clipboards={"c": "12345"}).clipboards


def test_names_of_clipboards_count_and_are_listed_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_plan, "MAX_CLIPBOARDS", 10)
    assert apply(b"abc", replace("abc", "", toClipboard="1234567")).clipboards
    assert "clipboards would hold" in refusal(b"abc", replace("abc", "", toClipboard="12345678"))
    long = {str(number) + "x" * 10_000: "" for number in range(20)}
    told = refusal(b"", append("", fromClipboard="y" * 10_000), clipboards=long)
    assert len(told) < 3_000


LINES = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=6)


@given(
    kept=st.lists(st.tuples(st.sampled_from(["x", "y"]), st.booleans()), min_size=1, max_size=6), old=LINES, new=LINES
)
def test_all_lines_around_a_change_end_as_before(kept: list[tuple[str, bool]], old: list[str], new: list[str]) -> None:
    around = "".join(line + "\n" * (not crlf) + "\r\n" * crlf for line, crlf in kept).encode()
    middle = "".join(["[", *(f"{line}\n" for line in old), "]"])
    changed = "".join(["[", *(f"{line}\n" for line in new), "]"])
    done = apply(around + middle.encode() + b"\r\n" + around, replace(middle, changed))
    assert done.content.startswith(around + b"[")
    assert done.content.endswith(b"]\r\n" + around)
    assert done.content[len(around) :].replace(b"\r\n", b"\n").startswith(changed.encode())


# --- The diff that people see of a patch ---


TEN = "".join(f"{number}\n" for number in range(10))


def diff(old: str, *edits: Edit, created: bool = False) -> str:
    return unified("f", old, list(edits), created=created)


def test_a_change_has_three_lines_around_it() -> None:
    assert diff(TEN, Edit(10, 11, "five")) == "--- f\n+++ f\n@@ -3,7 +3,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"


def test_changes_far_apart_have_hunks_of_their_own_and_near_ones_share() -> None:
    assert diff(TEN, Edit(0, 2, ""), Edit(20, 20, "10\n")).count("@@ -") == 2
    assert diff(TEN, Edit(0, 2, ""), Edit(14, 15, "x")).count("@@ -") == 1


def test_a_new_file_comes_from_nothing_and_an_emptied_one_goes_to_nothing() -> None:
    assert diff("", Edit(0, 0, "a\nb"), created=True) == (
        "--- /dev/null\n+++ f\n@@ -0,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file\n"
    )
    assert diff("a\n", Edit(0, 2, "")) == "--- f\n+++ f\n@@ -1 +0,0 @@\n-a\n"


def test_nothing_is_shown_of_nothing() -> None:
    assert diff(TEN, Edit(0, 2, "0\n")) == ""
    assert diff("", Edit(0, 0, ""), created=True) == ""


def test_only_newlines_end_lines() -> None:
    assert diff("a\x0cb\u2028c\n", Edit(0, 1, "x")) == "--- f\n+++ f\n@@ -1 +1 @@\n-a\x0cb\u2028c\n+x\x0cb\u2028c\n"


def test_a_long_diff_is_cut_at_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_diff, "MAX_DIFF", 40)
    assert diff("", Edit(0, 0, TEN * 10), created=True).endswith("+5\n+6\n[93 more lines of the diff not shown]\n")


def test_a_long_line_is_cut_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_diff, "MAX_DIFF", 40)
    assert len(diff("", Edit(0, 0, "x" * 1000), created=True)) < 120


def test_what_is_too_long_to_compare_is_replaced_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    edit = Edit(0, 20, "x\n" + TEN[2:18] + "y\n")
    assert diff(TEN, edit).count("\n-") == 2
    monkeypatch.setattr(patch_diff, "MAX_COMPARED", 3)
    assert diff(TEN, edit).count("\n-") == 10
