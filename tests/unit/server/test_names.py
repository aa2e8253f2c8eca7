"""Resource names go out and come back."""

from __future__ import annotations

import pytest

from server.contract import resource_names as names


def test_what_goes_out_comes_back() -> None:
    assert names.parse_conversation(names.conversation("abc")) == "abc"
    assert names.parse_child(names.cycle("abc", "abc:3"), "requestCycles") == ("abc", "abc:3")
    assert names.parse_child(names.approval("abc", "toolu_01/x:0"), "approvals") == ("abc", "toolu_01/x:0")
    assert names.parse_model(names.model("org/model-1.5")) == "org/model-1.5"
    assert names.parse_tool(names.tool("read_file")) == "read_file"


def test_nothing_has_no_name() -> None:
    assert (names.conversation(""), names.cycle("abc", "")) == ("", "")


@pytest.mark.parametrize("name", ["conversations/a/approvals/x\n", "conversations/a/approvals/", "x" * 5_000])
def test_other_texts_are_no_names(name: str) -> None:
    assert names.parse_child(name, "approvals") is None
