"""The diff that people see of a patch."""

import pytest

from actors.adapters.tools.workers import patch_text as patch_diff
from actors.adapters.tools.workers.patch_text import Edit, unified

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
