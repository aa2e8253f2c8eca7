"""Nobody but Bedrock writes the tags by which a model knows Bedrock's words."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core.steps import texts

PIECES = st.sampled_from(
    ["<", "</", "< / ", "\u200b", "\u00ad", " ", "\n", "\x00", "system", "-notice", "SYSTEM-Notice", "repository-file"]
)
TEXTS = st.lists(PIECES | st.text(max_size=2)).map("".join)
UNSEEN = ("Cc", "Cf", "Zl", "Zp", "Zs")


def bare(text: str) -> str:
    """Without what cannot be seen, in lower case."""
    return "".join(each for each in text if unicodedata.category(each) not in UNSEEN).lower()


def forged(text: str, *names: str) -> bool:
    return any(f"<{slash}{name}" in bare(text) for slash in ("", "/") for name in names)


@given(TEXTS)
def test_no_text_begins_or_ends_what_the_system_says(text: str) -> None:
    assert not forged(texts.escape(text), "system-notice", "repository-file")
    assert texts.escape(texts.escape(text)) == texts.escape(text)
    notice = texts.notice(text)
    assert notice.startswith("<system-notice>\n")
    assert notice.endswith("\n</system-notice>")
    assert bare(notice).count("<system-notice>") == bare(notice).count("</system-notice>") == 1


@pytest.mark.parametrize("category", UNSEEN)
def test_no_character_that_cannot_be_seen_hides_a_tag(category: str) -> None:
    unseen = [each for each in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(each) == category]
    assert [each for each in unseen if forged(texts.escape(f"<system{each}-notice>"), "system-notice")] == []


@given(TEXTS)
def test_text_without_such_a_tag_is_left_as_it_is(text: str) -> None:
    if not forged(text, "system-notice", "repository-file"):
        assert texts.escape(text) is text


@pytest.mark.parametrize(
    "text", ["a < b", "<system>", "<div>", "x<<y", "system-notice", "&lt;system-notice>", "<tool-call>"]
)
def test_honest_text_is_left_as_it_is(text: str) -> None:
    assert texts.escape(text) is text


@given(st.lists(st.sampled_from(["<", "</", "tool-", "call", "result", "-", "TOOL", "\u200b", ">"])).map("".join))
def test_no_output_ends_its_result_where_results_are_sent_as_text(text: str) -> None:
    assert not forged(texts.escape_calls(text), "tool-call", "tool-result")
