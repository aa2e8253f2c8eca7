"""The language of filters: what each restriction means, what binds to what, and what people are told about mistakes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from actors.core.context import Mode, Profile
from actors.core.errors import ErrorKind
from actors.core.states import ApprovalKind, AwaitingToolApproval, Error, Ledger
from actors.ports.conditions import LATEST_FIRST, Order, OrderKey, matches
from server.contract.filters import MAX_DEPTH, MAX_RESTRICTIONS, FilterError, meaning, order_of, parse
from tests.support.commit_builder import record_of

RECORD: dict[str, Any] = {
    "title": "Über die Straße",
    "slug": "calm-cove",
    "cwd": "/work/within",
    "model": "qwen2.5:7b",
    "mode": Mode.RESTRICTED,
    "labels": {"team": "docs", "app/role.x": "lead", "empty": ""},
    "created_at": 1_000,
    "profile": Profile(forked_from="c7"),
    "updated_at": 1_767_225_600_500,  # 2026-01-01T00:00:00.500Z
    "state": Error(Ledger(), "it failed", ErrorKind.NETWORK),
}


def holds(text: str, **fields: Any) -> bool:
    return matches(parse(text, meaning), record_of("c1", **RECORD | fields))


@pytest.mark.parametrize(
    "text",
    [
        "state = error",
        "state=STATE_KIND_ERROR",
        "state != IDLE",
        "busy = false",
        "NOT busy = true",
        "mode = restricted",
        "mode != MODE_UNRESTRICTED",
        "archived = false",
        'title = "Über die Straße"',
        'title:"ÜBER"',
        'title:"strasse"',
        "title:*",
        "title != Plan",
        "slug = calm-cove",
        "slug:CALM",
        "model = qwen2.5:7b",
        "model = models/qwen2.5:7b",
        "model:QWEN",
        "model != demo",
        "working_directory = /work/within",
        "working_directory:/work",
        "working_directory:/",
        'working_directory:"/work/within"',
        "working_directory != /work",
        "labels:team",
        "labels.team:*",
        "labels.team = docs",
        "labels.team = 'docs'",
        "labels.team:docs",
        "labels.team != web",
        'labels."app/role.x" = lead',
        'labels:"app/role.x"',
        'labels.empty = ""',
        "labels.none != docs",
        "NOT labels:none",
        "-labels:none",
        "create_time = 1970-01-01T00:00:01Z",
        'create_time <= "1970-01-01T01:00:01+01:00"',
        "update_time > 2026-01-01T00:00:00.499999999Z",
        "update_time < 2026-01-01t00:00:00.500000001z",
        "update_time >= 2026-01-01T00:00:00.5Z",
        "update_time != 2026-01-01T00:00:00.500000001Z",
        "update_time:*",
        "NOT archive_time:*",
        "archive_time != 1970-01-01T00:00:01Z",
        "NOT archive_time < 2030-01-01T00:00:00Z",
        "parent != conversations/c9",
        "NOT parent:*",
        "forked_from = conversations/c7",
        "forked_from:*",
        "forked_from != conversations/c8",
        "title:* slug:* labels:team",
    ],
)
def test_a_restriction_that_holds(text: str) -> None:
    assert holds(text)
    assert not holds(f"NOT ({text})")


def test_an_empty_filter_holds_for_all() -> None:
    assert holds("")
    assert holds(" \n\t")


@pytest.mark.parametrize(
    "text",
    [
        "state = idle",
        "busy = true",
        "archived = true",
        'title = "über die straße"',
        'title:"%"',
        "title = *",
        "slug:_",
        "working_directory = /work",
        "working_directory:/wor",
        "labels:none",
        "labels.team = Docs",
        "labels.none = docs",
        'labels.none = ""',
        "update_time = 2026-01-01T00:00:00.500000001Z",
        "update_time > 2026-01-01T00:00:00.5Z",
        "archive_time < 2030-01-01T00:00:00Z",
        "parent:*",
        "parent = conversations/c9",
        "forked_from = conversations/c8",
        "NOT forked_from:*",
    ],
)
def test_a_restriction_that_does_not_hold(text: str) -> None:
    assert not holds(text)
    assert holds(f"-({text})")


def test_a_sub_agent_an_archived_one_and_one_that_is_busy() -> None:
    assert holds("parent = conversations/c9 parent:*", parent_conversation_id="c9")
    assert holds("archived = true AND archive_time = 1970-01-01T00:00:00.005Z", archived_at=5)
    asking = AwaitingToolApproval(Ledger(), (), (), ApprovalKind.TOOL, "r", 5)
    assert holds("busy = true AND state = awaiting_tool_approval", state=asking)
    assert holds("NOT forked_from:* AND forked_from != conversations/c7", profile=Profile())
    assert holds('title:* OR title = ""', title="")


T, F = "slug:*", "NOT slug:*"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{T} OR {T} AND {F}", False),  # OR binds tighter than AND
        (f"{F} AND {F} OR {T}", False),
        (f"{F} {F} OR {T}", False),
        (f"({F} AND {F}) OR {T}", True),
        (f"{T} {T} OR {F}", True),
        (f"{T} AND ({F} OR ({T} {T}))", True),
        ("NOT slug:* OR slug:*", True),  # NOT binds tightest
        ("NOT (slug:* OR slug:*)", False),
        ("-slug:* OR slug:*", True),
    ],
)
def test_what_binds_to_what(text: str, expected: bool) -> None:
    assert holds(text) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title", "at character 6: expected one of = != < <= > >= : after the name of a field"),
        ("title =", "at character 8: expected a value; write texts in quotes"),
        ("title = (a)", "at character 9: expected a value; write texts in quotes"),
        ('title = "a', "at character 9: the quote is not closed"),
        ('title = "a\\"', "at character 9: the quote is not closed"),
        ("headline = a", "at character 1: there is no field 'headline'; there are state, busy, mode, model, title"),
        ("slug = a AND", "at character 13: expected the name of a field"),
        ("slug = a OR AND slug = b", "at character 13: expected the name of a field"),
        ("NOT NOT slug = a", "at character 5: expected the name of a field"),
        ("(slug = a", "at character 10: expected a closing parenthesis"),
        ("slug = a)", "at character 9: expected AND, OR or the end of the filter"),
        ("slug = a and slug = b", "at character 14: expected one of ="),
        ("slug < a", "at character 1: slug can be compared with = != :"),
        ("state = sleepy", "at character 9: must be one of idle, awaiting_llm, llm_requesting"),
        ("archived = 1", "at character 12: must be one of true, false"),
        ("mode = wild", "at character 8: must be one of restricted"),
        ("update_time > yesterday", "at character 15: must be a time as in 2026-01-31T12:00:00Z"),
        ("update_time > 2026-02-30T00:00:00Z", "at character 15: must be a time"),
        ("update_time > 2026-01-31T00:00:00", "at character 15: must be a time"),
        ("update_time:2026-01-31T00:00:00Z", "at character 13: after : a time can only be *"),
        ("working_directory = here", "at character 21: must be an absolute path on the server"),
        ("parent = c9", "at character 10: must be conversations/{conversation}"),
        ("labels = a", "at character 1: write labels:key or labels.key"),
        ("labels:*", "at character 1: write labels:key or labels.key"),
        ("labels.a.b = c", "at character 1: write labels:key or labels.key"),
        ("labels.a < b", "at character 1: labels.a can be compared with = != :"),
        ("title.a = b", "at character 1: title has no fields of its own"),
        (". = a", "at character 1: expected the name of a field"),
    ],
)
def test_mistakes_are_named_with_their_place(text: str, message: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text, meaning)
    assert str(caught.value).startswith(message)


def test_filters_are_bounded_in_depth_and_number() -> None:
    assert holds("(" * MAX_DEPTH + T + ")" * MAX_DEPTH)
    with pytest.raises(FilterError, match=f"nested {MAX_DEPTH} deep"):
        parse("(" * (MAX_DEPTH + 1) + T, meaning)
    with pytest.raises(FilterError, match=f"nested {MAX_DEPTH} deep"):
        parse("NOT (" * (8_192 // 5), meaning)
    assert holds(" ".join([T] * MAX_RESTRICTIONS))
    with pytest.raises(FilterError, match=f"{MAX_RESTRICTIONS} restrictions"):
        parse(" OR ".join([T] * (MAX_RESTRICTIONS + 1)), meaning)


@pytest.mark.parametrize("text", ['"' + "\\" * 8_000, "'" * 8_001, "title:" + "x" * 8_000, "a." * 4_000, "- " * 4_000])
def test_long_nonsense_is_read_in_no_time(text: str) -> None:
    with suppress(FilterError):
        assert not holds(text)


def test_orders() -> None:
    assert order_of("") == order_of(" update_time  desc ") == LATEST_FIRST
    assert order_of("create_time") == order_of("create_time asc") == Order(OrderKey.CREATED, descending=False)
    assert order_of("title desc") == Order(OrderKey.TITLE, descending=True)
    assert order_of("create_time  desc") == Order(OrderKey.CREATED, descending=True)
