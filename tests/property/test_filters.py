"""Filters: every store selects exactly the conversations that `matches` accepts, in order, page by page."""

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.adapters.store import listing
from actors.adapters.store.postgres.store import open_postgres
from actors.adapters.store.sqlite.store import open_store
from actors.core.context import Mode, Profile
from actors.core.errors import ErrorKind
from actors.core.states import Completed, ContextExhausted, Error, Idle, Ledger, LlmPhase, LlmRequesting
from actors.ports import Commit, Store
from actors.ports.store import Order, OrderKey, Selection, matches
from server.contract.filters import FIELDS, FilterError, meaning, parse
from tests.property.profiles import profile
from tests.support.commit_builder import CommitBuilder
from tests.support.postgres import PostgresServer
from tests.support.stores import ME, with_nodes

STATES = (
    Idle(),
    Error(Ledger(), "it failed", ErrorKind.AUTH),
    ContextExhausted(Ledger(), "all"),
    Completed(Ledger(), "done"),
    LlmRequesting(Ledger(), "r1", 1, LlmPhase.STREAMING, 8),
)
TITLES = (
    "",
    "Draft of a plan",
    "DRAFT",
    "Über Straßen",
    "über strassen",
    'says "hi"',
    "back\\slash",
    "50 % _done_",
    "日本",
)
DIRECTORIES = ("/work", "/work/within", "/worker", "/", "/über")
LABELS: tuple[dict[str, str], ...] = (
    {},
    {"team": "docs"},
    {"team": ""},
    {"team": "Docs", "a.b": "x"},
    {'q"\\': 'v"\\', "ü\U0001f600": "\n\t"},
    {"a.b": "docs"},
)
PROFILES = (Profile(), Profile(forked_from="c00"), Profile(forked_from="c07"), Profile(instructions="x"))
TIMES = (0, 1_000, 1_001, 86_400_000)


def commits() -> Iterator[Commit]:
    """Return conversations of many kinds; every field meets every other one's values in some of them."""
    for number in range(90):
        child = number % 7 == 3
        draft = CommitBuilder(
            f"c{number:02}",
            slug="" if number % 5 == 0 else f"slug-{number}",
            cwd=DIRECTORIES[number % 5],
            title=TITLES[number % 9],
            labels=LABELS[number % 6],
            model=("demo", "models-x", "gpt-4.1")[number % 3],
            mode=tuple(Mode)[number // 2 % 2],
            archived_at=TIMES[1 + number % 3] if number % 4 == 1 else None,
            principal="other" if number % 11 == 5 else "local",
            parent_conversation_id="c00" if child else None,
            user_initiated=not child,
            created_at=TIMES[number % 4],
            profile=PROFILES[number % 4],
        )
        commit = draft.create()
        state = STATES[number // 3 % 5]
        yield replace(
            commit, record=replace(commit.record, state=state, updated_at=TIMES[number // 5 % 4] + number % 2)
        )


RECORDS = tuple(commit.record for commit in commits())


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with closing(open_store(tmp_path_factory.mktemp("filters"))) as store:
        filled(store)
        yield store


@pytest.fixture(scope="module")
def shared(postgres: PostgresServer) -> Iterator[Store]:
    with closing(open_postgres(postgres.url(postgres.create(with_nodes)), ME)) as store:
        filled(store)
        yield store


def filled(store: Store) -> None:
    for commit in commits():
        store.commit(commit)


def in_quotes(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


EQUAL, PART = st.sampled_from(["=", "!="]), st.sampled_from(["=", "!=", ":"])
COMPARED = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
TEXTS = st.sampled_from([*TITLES, *(title.upper() for title in TITLES), "ss", "%", "slug-1", "mo", "gpt-4.1"]).map(
    in_quotes
)
KINDS = ("idle", "STATE_KIND_ERROR", "llm_requesting", "completed", "awaiting_llm")
INSTANTS = st.sampled_from(
    ["1970-01-01T00:00:01Z", "1970-01-01T01:00:01.001+01:00", "1970-01-01T00:00:01.0005Z", "1970-01-02T00:00:00Z"]
)
KEYS = st.sampled_from([in_quotes(key) for labels in LABELS for key in labels] + ["team", "none"])
VALUES = st.sampled_from([in_quotes(value) for labels in LABELS for value in labels.values()] + ["docs"])
FLAG = st.sampled_from(["true", "false"])


def joined(*parts: st.SearchStrategy[str] | str) -> st.SearchStrategy[str]:
    drawn = [st.just(part) if isinstance(part, str) else part for part in parts]
    return st.tuples(*drawn).map("".join)


RESTRICTIONS = st.one_of(
    joined(st.sampled_from(["title", "slug", "model"]), PART, TEXTS),
    joined(
        st.sampled_from(["title", "slug", "parent", "forked_from", "create_time", "update_time", "archive_time"]), ":*"
    ),
    joined("state", EQUAL, st.sampled_from(KINDS)),
    joined(st.sampled_from(["busy", "archived"]), EQUAL, FLAG),
    joined("mode", EQUAL, st.sampled_from(["restricted", "MODE_UNRESTRICTED"])),
    joined("working_directory", PART, st.sampled_from(DIRECTORIES).map(in_quotes)),
    joined(st.sampled_from(["create_time", "update_time", "archive_time"]), COMPARED, INSTANTS),
    joined("labels:", KEYS),
    joined("labels.", KEYS, PART, VALUES),
    joined(
        st.sampled_from(["parent", "forked_from"]), EQUAL, st.sampled_from(["conversations/c00", "conversations/c07"])
    ),
)
FILTERS = st.recursive(
    RESTRICTIONS,
    lambda inner: st.one_of(
        joined("NOT (", inner, ")"),
        joined("-(", inner, ")"),
        joined("(", inner, st.sampled_from([" AND ", " OR ", " "]), inner, ")"),
        joined(inner, st.sampled_from([" AND ", " "]), inner),
    ),
    max_leaves=8,
)


DRAWN = given(
    text=FILTERS,
    order=st.builds(Order, st.sampled_from(OrderKey), st.booleans()),
    scope=st.sampled_from([{}, {"parent": "c00"}, {"sub_agents": True}]),
    limit=st.sampled_from([9, 25, 100]),
    window=st.sampled_from([5, 11, 2_000]),
)


@DRAWN
@profile(200)
def test_sqlite_selects_what_matches(sqlite: Store, **drawn: Any) -> None:
    select_what_matches(sqlite, **drawn)


@DRAWN
@profile(80)
def test_postgresql_selects_what_matches(shared: Store, **drawn: Any) -> None:
    select_what_matches(shared, **drawn)


def select_what_matches(store: Store, **drawn: Any) -> None:
    selection = Selection("local", parse(drawn["text"], meaning), drawn["order"], **drawn["scope"])
    wanted = [
        record
        for record in RECORDS
        if record.principal == selection.principal
        and (selection.sub_agents or record.parent_conversation_id == selection.parent)
        and matches(selection.where, record)
    ]
    wanted.sort(
        key=lambda record: (getattr(record, selection.order.key), record.id), reverse=selection.order.descending
    )
    before, listing.WINDOW = listing.WINDOW, drawn["window"]
    try:
        assert read(store, selection, drawn["limit"]) == [record.id for record in wanted]
    finally:
        listing.WINDOW = before


def read(store: Store, selection: Selection, limit: int) -> list[str]:
    """Read a list to its end, page by page."""
    found: list[str] = []
    page = store.list(selection, limit=limit)
    while True:
        assert len(page.records) <= limit
        found += [record.id for record in page.records]
        if page.more is None:
            return found
        page = store.list(selection, after=page.more, limit=limit)


SYMBOLS = (
    "(",
    ")",
    '"',
    "'",
    "\\",
    "-",
    ".",
    ":",
    "=",
    "!=",
    "<",
    "AND",
    "OR",
    "NOT",
    " ",
    "*",
    "labels",
    "1",
    *FIELDS,
)


@given(
    text=st.text(st.characters(codec="utf-8"), max_size=60)
    | st.lists(st.sampled_from(SYMBOLS)).map("".join)
    | st.lists(st.sampled_from(SYMBOLS)).map(" ".join)
)
@profile(750)
def test_whatever_is_written_is_a_condition_or_an_error(text: str) -> None:
    with suppress(FilterError):
        assert matches(parse(text, meaning), CommitBuilder("c1").record) in (True, False)
