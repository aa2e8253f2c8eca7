"""The laws of patch: its diff is what it did, copies are copies, and the order of a call's patches does not matter."""

import re
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from actors.adapters.tools.workers.patch import Plan, plan, reindented
from actors.adapters.tools.workers.patch_text import lines_of, places
from tests.property.profiles import profile

texts = st.text(alphabet="ab\t \nécßﬁ…“", max_size=60)
inserted = st.text(alphabet="xy \n", max_size=12)
prefixes = st.sampled_from(["", " ", "    ", "\t", "> ", "ab"])
patches_law = profile(500)


def apply(text: str, *patches: dict[str, Any], clipboards: dict[str, str] | None = None) -> Plan:
    return plan(text.encode(), list(patches), clipboards or {}, "f")


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]], str]:
    """A text, replaces and insertions that fit it, and what must come of them."""
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8, unique=True)))
    patches: list[dict[str, Any]] = []
    expected, position = "", 0
    for start, end in zip(cuts[::2], cuts[1::2], strict=False):
        old, new = text[start:end], draw(inserted)
        if len(places(text, old)) == 1:
            patches.append({"operation": "replace", "oldText": old, "newText": new})
            expected, position = expected + text[position:start] + new, end
    first, last = draw(inserted), draw(inserted)
    patches.append({"operation": "prepend_bof", "newText": first})
    patches.append({"operation": "append_eof", "newText": last})
    return text, patches, first + expected + text[position:] + last


def patched(text: str, diff: str) -> str:
    """What a unified diff makes of a text, checked line by line as the program `patch` does."""
    old, new, done = lines_of(text), [], 0
    body = re.split(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n", diff, flags=re.MULTILINE)
    for head in range(1, len(body), 5):
        start, taken, begins, given_lines = (1 if part is None else int(part) for part in body[head : head + 4])
        start -= taken > 0
        new += old[done:start]
        assert len(new) == begins - (given_lines > 0)
        before, behind = len(new), start
        lines = re.sub(r"\n\\ No newline at end of file\n", "\0", body[head + 4]).replace("\0", "\0\n")
        for line in lines_of(lines):
            sign, content = line[0], line[1:].replace("\0\n", "")
            if sign in " -":
                assert old[behind] == content
                behind += 1
            if sign in " +":
                new.append(content)
        assert (behind - start, len(new) - before) == (taken, given_lines)
        done = behind
    return "".join(new + old[done:])


@patches_law
@given(calls())
def test_replaces_and_insertions_do_what_they_say_and_the_diff_says_what_they_did(
    call: tuple[str, list[dict[str, Any]], str],
) -> None:
    text, patches, expected = call
    done = apply(text, *patches)
    assert done.content.decode() == expected
    assert patched(text, done.diff) == expected
    assert (done.diff == "") is (text == expected)


@patches_law
@given(calls(), st.randoms(use_true_random=False))
def test_the_order_of_patches_does_not_matter(call: tuple[str, list[dict[str, Any]], str], random: Any) -> None:
    text, patches, expected = call
    random.shuffle(patches)
    assert apply(text, *patches).content.decode() == expected


@patches_law
@given(calls())
def test_a_file_of_cr_lf_lines_becomes_what_it_would_with_newlines(call: tuple[str, list[dict[str, Any]], str]) -> None:
    text, patches, expected = call
    done = apply(text.replace("\n", "\r\n"), *patches)
    assert done.content.decode() == (expected.replace("\n", "\r\n") if "\n" in text else expected)


@patches_law
@given(texts, texts, texts)
def test_copying_to_a_clipboard_and_back_changes_nothing(before: str, middle: str, behind: str) -> None:
    old = f"z{middle}"
    text = before + old + behind
    copy = {"operation": "replace", "oldText": old, "toClipboard": "c", "fromClipboard": "c"}
    done = apply(text, copy)
    assert (done.content.decode(), done.clipboards, done.diff) == (text, {"c": old}, "")
    moved = apply("", {"operation": "overwrite", "fromClipboard": "c"}, clipboards=done.clipboards)
    assert moved.content.decode() == old


@patches_law
@given(texts, prefixes, prefixes)
def test_reindenting_back_is_the_identity(text: str, one: str, other: str) -> None:
    with_one = reindented(text, "", one)
    assert reindented(with_one, one, "") == text
    if other or one not in with_one.split("\n"):
        assert reindented(reindented(with_one, one, other), other, one) == with_one


@patches_law
@given(texts, prefixes)
def test_what_is_indented_otherwise_is_changed_as_if_it_were_not(text: str, margin: str) -> None:
    assume("zz" not in text)
    margin = margin.replace("> ", "  ").replace("ab", "\t\t")
    old, new = "zz1\n  zz2\n", "zz3\n\n    zz4\n"
    whole = f"{text}\n{reindented(old, '', margin)}{text}"
    patch = {"operation": "replace", "oldText": reindented(old, "", "   "), "newText": reindented(new, "", "   ")}
    assert apply(whole, patch).content.decode() == f"{text}\n{reindented(new, '', margin)}{text}"
