"""Which texts a matching line must have: never more than is true."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from actors.adapters.tools.workers.searching.literals import FOLDED, required


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("needle", ("needle",)),
        (r"def \w+_test\(", ("_test(",)),
        ("foo|barbaz", ("foo", "barbaz")),
        ("a(?:bc|d)*longer?", ("longe",)),
        ("ab+cd{2}ef", ("ab",)),
        (r"^\s*import os$", ("import os",)),
        (r"a\.b\[0\]", ("a.b[0]",)),
        ("x{y|zz", ("x{y", "zz")),
        ("[abc]def", ("def",)),
        ("[]abc]def", ("def",)),
        (r"[\]abc]def", ("def",)),
        ("(unclosed|in group)tail", ("tail",)),
        ("(?=ahead)", ()),
        ("größer", ("gr",)),
        ("", ()),
        ("a", ()),
        ("foo|", ()),
        ("(?i)foo", ()),
        ("(?x) foo bar", ()),
        ("(?P<n>x)(?P=n)foo", ()),
        (r"\x41foo", ()),
        (r"\1234", ()),
        ("foo(?#|)", ()),
    ],
)
def test_what_is_required(pattern: str, texts: tuple[str, ...]) -> None:
    assert required(pattern) == texts


def test_letters_that_fold_to_others_are_not_required_when_case_is_ignored() -> None:
    assert required("Task Names", ignore_case=True) == (" name",)
    assert required("kiss", ignore_case=True) == ()


def test_no_other_ascii_letter_matches_what_is_not_ascii() -> None:
    beyond = "".join(map(chr, range(128, sys.maxunicode + 1)))
    letters = {chr(code) for code in range(33, 127)}
    assert {each for each in letters if re.search(re.escape(each), beyond, re.IGNORECASE)} == FOLDED


PIECES = st.sampled_from(
    [
        *"aabbcKi 12.^$|()[]{}?*+-\\,",
        *r"(?: (?i) (?P<n> (?= (?<! (?s: {2} {0,1} [^ [a-c] \w \b \x41 \101 \t".split(),
        *r"\. \( \| \] ab foo ä +? *+".split(),
    ]
)
ATOMS = st.sampled_from(
    [*"aaabbbcK .]}$", *r"ab ab foo bar foo bar ä \. \( \| \w \x41 \t [a|c] []a] [^]()] { a{x|".split()]
)
REPEATED = st.sampled_from(["", "", "?", "*", "+", "{2}", "{0,1}", "{,2}", "*?", "++"])
GROUPS = st.sampled_from(["(", "(?:", "(?i:", "(?=", "(?!", "(?>"])


def larger(smaller: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.builds("{}{}){}".format, GROUPS, smaller, REPEATED)
    repeated = st.builds("{}{}".format, ATOMS, REPEATED)
    return st.lists(smaller | group | repeated, min_size=2, max_size=3).map("".join) | st.builds(
        "{}|{}".format, smaller, smaller
    )


PATTERNS = st.recursive(st.lists(ATOMS, min_size=2, max_size=4).map("".join), larger, max_leaves=4) | st.lists(
    PIECES, max_size=9
).map("".join)


def expression(pattern: str, flags: int) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern, flags)
    except re.error:
        return None


@pytest.mark.filterwarnings("ignore:Possible (nested set|set):FutureWarning")
@settings(max_examples=250, deadline=None)
@given(PATTERNS, st.booleans(), st.data())
def test_a_line_that_matches_has_one_of_the_texts(pattern: str, ignore_case: bool, data: st.DataObject) -> None:
    compiled = expression(pattern, re.IGNORECASE if ignore_case else 0)
    required_texts = required(pattern, ignore_case=ignore_case)
    if compiled is None or not required_texts:
        return
    line = data.draw(st.from_regex(compiled))
    if compiled.search(line):
        event("matches")
        seen = line.encode().lower() if ignore_case else line.encode()
        assert any(text.encode() in seen for text in required_texts)
