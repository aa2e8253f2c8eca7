"""Listings: names, pages, filters, and what they read."""

import base64
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bedrock import v1

from actors.adapters.workspace import local
from actors.adapters.workspace.local import LocalWorkspace
from actors.core import states
from actors.core.context import Mode, Profile
from actors.core.errors import ErrorKind
from actors.core.notifications import Durable, Fate, QueueChanged, StateChanged
from actors.core.summary import StateSummary
from actors.ports import StoredEvent
from actors.ports.store import LATEST_FIRST, Order, OrderKey, matches
from server.contract import resource_names as names
from server.contract.errors import MalformedRequestError
from server.contract.filters import MAX_DEPTH, MAX_RESTRICTIONS, FilterError, meaning, order_of, parse
from server.contract.pagination import Page, position_of, size_of, token_of
from server.queries.listings import NotBrowsableError, browse_directory
from server.streams.subscribe import SettledTracker
from tests.support.commit_builder import record_of
from tests.support.samples import STATES, record

# Resource names go out and come back.


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


# Page tokens are opaque, belong to one listing, and pages are bounded in items and in bytes.


class Place(msgspec.Struct):
    sequence: int


def test_a_token_gives_its_position_back() -> None:
    assert position_of(token_of(Place(7), "list", "a"), Place, "list", "a") == Place(7)


def test_no_token_is_no_position() -> None:
    assert position_of("", Place, "list") is None


@pytest.mark.parametrize(
    "token",
    [
        token_of(Place(7), "list", "other"),
        token_of(Place(7), "list", "a")[:-4],
        "ä",
        "?",
        "AAAA",
        base64.urlsafe_b64encode(b"x" * 40).decode(),
    ],
)
def test_another_token_is_refused_by_its_field(token: str) -> None:
    with pytest.raises(MalformedRequestError) as refusal:
        position_of(token, Place, "list", "a")
    assert refusal.value.violations[0][0] == "page_token"


@pytest.mark.parametrize(("wanted", "size"), [(0, 20), (1, 1), (100, 100), (2_000_000_000, 100)])
def test_sizes_have_a_default_and_a_maximum(wanted: int, size: int) -> None:
    assert size_of(wanted, (20, 100)) == size


def test_a_page_is_full_when_the_next_item_does_not_fit() -> None:
    page = Page(10, 100)
    assert [page.admit(60), page.admit(41), page.admit(40), page.admit(1)] == [True, False, True, False]


def test_a_page_takes_its_first_item_whatever_its_size() -> None:
    page = Page(2, 100)
    assert [page.admit(500), page.admit(1)] == [True, False]


def test_a_page_holds_no_more_items_than_asked_for() -> None:
    page = Page(2, 100)
    assert [page.admit(1), page.admit(1), page.admit(1)] == [True, True, False]


# The language of filters: what each restriction means, what binds to what, and what people are told about mistakes.


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
    "state": states.Error(states.Ledger(), "it failed", ErrorKind.NETWORK),
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
    asking = states.AwaitingToolApproval(states.Ledger(), (), (), states.ApprovalKind.TOOL, "r", 5)
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
        ("title", "at character 6: expected one of = != < <= > >= : after the field name"),
        ("title =", "at character 8: expected a value; put strings in quotes"),
        ("title = (a)", "at character 9: expected a value; put strings in quotes"),
        ('title = "a', "at character 9: the closing quote is missing"),
        ('title = "a\\"', "at character 9: the closing quote is missing"),
        ("headline = a", "at character 1: unknown field 'headline'; known fields: state, busy, mode, model, title"),
        ("slug = a AND", "at character 13: expected a field name"),
        ("slug = a OR AND slug = b", "at character 13: expected a field name"),
        ("NOT NOT slug = a", "at character 5: expected a field name"),
        ("(slug = a", "at character 10: expected a closing parenthesis"),
        ("slug = a)", "at character 9: expected AND, OR or the end of the filter"),
        ("slug = a and slug = b", "at character 14: expected one of ="),
        ("slug < a", "at character 1: slug supports only = != :"),
        ("state = sleepy", "at character 9: must be one of idle, awaiting_llm, llm_requesting"),
        ("archived = 1", "at character 12: must be one of true, false"),
        ("mode = wild", "at character 8: must be one of restricted"),
        ("update_time > yesterday", "at character 15: must be a time such as 2026-01-31T12:00:00Z"),
        ("update_time > 2026-02-30T00:00:00Z", "at character 15: must be a time"),
        ("update_time > 2026-01-31T00:00:00", "at character 15: must be a time"),
        ("update_time:2026-01-31T00:00:00Z", "at character 13: a time field supports only :*"),
        ("working_directory = here", "at character 21: must be an absolute path on the server"),
        ("parent = c9", "at character 10: must be conversations/{conversation}"),
        ("labels = a", "at character 1: write labels:key or labels.key"),
        ("labels:*", "at character 1: write labels:key or labels.key"),
        ("labels.a.b = c", "at character 1: write labels:key or labels.key"),
        ("labels.a < b", "at character 1: labels.a supports only = != :"),
        ("title.a = b", "at character 1: title has no fields"),
        (". = a", "at character 1: expected a field name"),
    ],
)
def test_mistakes_are_named_with_their_place(text: str, message: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text, meaning)
    assert str(caught.value).startswith(message)


def test_filters_are_bounded_in_depth_and_number() -> None:
    assert holds("(" * MAX_DEPTH + T + ")" * MAX_DEPTH)
    with pytest.raises(FilterError, match=f"nested at most {MAX_DEPTH} deep"):
        parse("(" * (MAX_DEPTH + 1) + T, meaning)
    with pytest.raises(FilterError, match=f"nested at most {MAX_DEPTH} deep"):
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


# What people are shown of the server's directories.


def browse(path: str, *protected: Path) -> v1.BrowseDirectoryResponse:
    request = v1.BrowseDirectoryRequest(path=path)
    return browse_directory(LocalWorkspace(lambda: [str(path) for path in protected]), request)


def listed(path: Path, *protected: Path) -> list[tuple[str, bool]]:
    answer = browse(str(path), *protected)
    return [(entry.name, entry.directory) for entry in answer.entries]


def why_not(path: str, *protected: Path) -> str:
    with pytest.raises(NotBrowsableError) as refused:
        browse(path, *protected)
    ((field, text),) = refused.value.violations
    assert (field, refused.value.reason) == ("path", "WORKING_DIRECTORY_INVALID")
    return text


def test_directories_come_first_each_kind_by_name(tmp_path: Path) -> None:
    for name in ("zoo", "art"):
        (tmp_path / name).mkdir()
    for name in ("b.txt", ".hidden", "a.txt"):
        (tmp_path / name).touch()
    assert listed(tmp_path) == [("art", True), ("zoo", True), (".hidden", False), ("a.txt", False), ("b.txt", False)]


def test_the_path_is_the_real_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    answer = browse(f"{tmp_path}/link/../link")
    assert answer.path == str(tmp_path / "real")
    assert not answer.truncated


def test_links_are_what_they_lead_to_and_circles_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "to-folder").symlink_to("folder")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "nowhere").symlink_to("gone")
    assert listed(tmp_path) == [("folder", True), ("to-folder", True), ("nowhere", False), ("round", False)]


def test_what_belongs_to_the_server_is_not_listed_nor_shown(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "token").touch()
    (tmp_path / "way-in").symlink_to(own / "token")
    (tmp_path / "other").mkdir()
    assert listed(tmp_path, own) == [("other", True)]
    assert listed(tmp_path, own / "token") == [("other", True), ("own", True)]
    assert listed(own, own / "token") == []
    for path in (own, tmp_path / "other" / ".." / "own"):
        assert "it contains the server's data" in why_not(str(path), own)


@pytest.mark.parametrize(
    ("path", "text"),
    [("relative", "must be an absolute path"), ("/no/such/place", "directory not found"), ("/etc/passwd", "not a dir")],
)
def test_other_paths_are_refused_in_plain_words(path: str, text: str) -> None:
    assert text in why_not(path)


def test_a_directory_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", forbidden)
    assert why_not(str(tmp_path)) == "the server's user cannot read it"


def test_names_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "fine").touch()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).touch()
    assert listed(tmp_path) == [("fine", False)]


def test_many_entries_come_in_pages(tmp_path: Path) -> None:
    for name in "fabcde":
        (tmp_path / name).touch()
    (tmp_path / "z").mkdir()
    request = v1.BrowseDirectoryRequest(path=str(tmp_path), page_size=3)
    found: list[list[str]] = []
    while not found or request.page_token:
        answer = browse_directory(LocalWorkspace(list), request)
        found.append([entry.name for entry in answer.entries])
        assert not answer.truncated
        request.page_token = answer.next_page_token
    assert found == [["z", "a", "b"], ["c", "d", "e"], ["f"]]


def test_a_huge_directory_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MAX_ENTRIES", 3)
    for number in range(20):
        (tmp_path / str(number)).touch()
    answer = browse(str(tmp_path))
    assert len(answer.entries) == 3
    assert answer.truncated


def test_without_a_path_it_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert browse("").path == str(tmp_path)


# Settled means: nothing happens any more until a person does something.


SETTLED = {"idle", "error", "context_exhausted", "completed", "failed", "awaiting_tool_approval"}
FOLLOW_UP = states.QueuedInput("m-1", "then", (), 1)


def later(*notifications: Durable, first: int = 43) -> list[StoredEvent]:
    return [StoredEvent(first + index, 1, each) for index, each in enumerate(notifications)]


@pytest.mark.parametrize("kind", STATES)
def test_idle_states_are_settled(kind: str) -> None:
    assert bool(SettledTracker(record(STATES[kind]))) is (kind in SETTLED)


@pytest.mark.parametrize("kind", STATES)
def test_a_change_of_state_is_followed(kind: str) -> None:
    before = (
        states.Idle() if kind not in SETTLED else states.AwaitingLlm(states.Ledger(live=True), states.LlmReason.STEER)
    )
    settled = SettledTracker(record(before))
    assert bool(settled) is (kind not in SETTLED)
    for event in later(StateChanged(StateSummary(kind), ())):
        settled.apply(event)
    assert bool(settled) is (kind in SETTLED)


def test_a_follow_up_that_waits_is_not_settled() -> None:
    settled = SettledTracker(record(states.Idle(states.Ledger(follows=(FOLLOW_UP,)))))
    assert not settled
    for event in later(QueueChanged(FOLLOW_UP, "follow_up", Fate.WITHDRAWN)):
        settled.apply(event)
    assert settled


def test_steers_do_not_count() -> None:
    settled = SettledTracker(record(STATES["idle"]))
    for event in later(QueueChanged(FOLLOW_UP, "steer", Fate.QUEUED)):
        settled.apply(event)
    assert settled


def test_events_from_before_the_record_are_old_news() -> None:
    settled = SettledTracker(record(STATES["idle"]))
    for event in later(StateChanged(StateSummary("tool_executing"), ()), first=42):
        settled.apply(event)
    assert settled
