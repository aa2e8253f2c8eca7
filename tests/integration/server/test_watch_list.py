"""WatchConversations: the list as it is, and what changes in it."""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from bedrock import v1

from actors.adapters.store.sqlite.engine import FILE, sqlite3
from actors.adapters.store.sqlite.store import open_store
from actors.core.content import Usage
from actors.core.errors import ErrorKind
from actors.core.notifications import ConversationUpdated, UsageChanged
from actors.core.states import Error, Ledger
from actors.ports import ConversationRecord
from server.streams import base
from server.streams import watch_conversations as watch_list
from server.wire import conversation_messages
from server.wire.conversation_messages import conversation
from server.wire.messages import ConversionContext
from tests.integration.server.grpc_harness import AUTHORIZED, SECONDS, GrpcHarness, refused
from tests.integration.server.watch_harness import NAME, Author, changed
from tests.support.patience import eventually


def watch(harness: GrpcHarness, **request: Any) -> Any:
    asked = v1.WatchConversationsRequest(**request)
    return harness.stub.WatchConversations(asked, metadata=AUTHORIZED, timeout=SECONDS)


def write(harness: GrpcHarness, conversation_id: str = "c1", **fields: Any) -> Author:
    return Author(harness.services.store, harness.hub, conversation_id, **fields)


def until_caught_up(stream: Any) -> list[str]:
    """The names of the conversations that are shown first."""
    shown: list[str] = []
    for entry in stream:
        if entry.HasField("caught_up"):
            return shown
        shown.append(entry.conversation_changed.name or entry.conversation_deleted)
    raise AssertionError("the stream ended")


def names_of(*ids: str) -> list[str]:
    return [f"conversations/{each}" for each in ids]


def test_what_exists_comes_first_archived_ones_too(harness: GrpcHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_list, "PAGE", 2)
    for number in range(5):
        write(harness, f"c{number}", updated_at=10 + number)
    write(harness, "old", archived_at=3)
    stream = watch(harness)
    assert sorted(until_caught_up(stream)) == sorted(names_of("c0", "c1", "c2", "c3", "c4", "old"))


def test_what_is_damaged_keeps_nothing_else_from_being_shown(
    open_harness: Callable[..., GrpcHarness], tmp_path: Path
) -> None:
    with closing(open_store(tmp_path / "data")) as store:
        harness = open_harness(store=store)
        for number in range(3):
            write(harness, f"c{number}", updated_at=10 + number)
            write(harness, f"c{number}-a1", parent_conversation_id=f"c{number}", user_initiated=False)
        with closing(sqlite3.connect(tmp_path / "data" / FILE, isolation_level=None)) as connection:
            connection.execute("UPDATE conversations SET mode = 'godlike' WHERE id IN ('c1', 'c2-a1')")
        stream = watch(harness, include_sub_agents=True)
        assert sorted(until_caught_up(stream)) == names_of("c0", "c0-a1", "c2")
        stream.cancel()

        def listed(parent: str = "") -> tuple[list[str], list[str]]:
            request = v1.ListConversationsRequest(parent=parent)
            answer = harness.stub.ListConversations(request, metadata=AUTHORIZED, timeout=SECONDS)
            return [each.name for each in answer.conversations], list(answer.unreadable)

        assert listed() == (names_of("c2", "c0"), names_of("c1"))
        assert listed("conversations/c1") == (names_of("c1-a1"), [])
        assert listed("conversations/c2") == ([], names_of("c2-a1"))
        with closing(sqlite3.connect(tmp_path / "data" / FILE, isolation_level=None)) as connection:
            connection.execute("UPDATE conversations SET state = 'awaiting_tool_approval' WHERE id IN ('c0', 'c1')")
        every = v1.ListApprovalsRequest(parent="conversations/-")
        asked = harness.stub.ListApprovals(every, metadata=AUTHORIZED, timeout=SECONDS)
        assert list(asked.unreadable) == names_of("c1")
        harness.stop()


def test_of_others_and_of_sub_agents_nothing_is_seen(harness: GrpcHarness) -> None:
    write(harness, "c1")
    foreign = write(harness, "theirs", principal="somebody else")
    child = write(harness, "child", parent_conversation_id="c1", user_initiated=False)
    stream = watch(harness)
    assert until_caught_up(stream) == names_of("c1")
    foreign.commit(changed("idle"))
    child.commit(changed("idle"))
    harness.hub.deleted("theirs", foreign.record)
    harness.hub.deleted("child", child.record)
    mine = write(harness, "mine")
    harness.hub.created(mine.record)
    assert next(stream).conversation_changed.name == "conversations/mine"


def test_sub_agents_come_if_they_are_asked_for(harness: GrpcHarness) -> None:
    write(harness, "c1")
    child = write(harness, "child", parent_conversation_id="c1", user_initiated=False)
    stream = watch(harness, include_sub_agents=True)
    assert until_caught_up(stream) == names_of("c1", "child")
    child.commit(changed("idle"))
    assert next(stream).conversation_changed.parent == "conversations/c1"
    harness.hub.deleted("child", child.record)
    assert next(stream).conversation_deleted == "conversations/child"


def test_changes_only_leaves_out_what_exists(harness: GrpcHarness) -> None:
    author = write(harness)
    stream = watch(harness, changes_only=True)
    assert until_caught_up(stream) == []
    author.commit(changed("idle"), title="New")
    entry = next(stream).conversation_changed
    assert (entry.name, entry.title, entry.revision) == ("conversations/c1", "New", 1)


def kinds(stream: Any, count: int) -> list[tuple[str, str]]:
    """The next entries: what happened, and to which conversation."""
    entries = [next(stream) for _ in range(count)]
    return [
        (
            entry.WhichOneof("event").removeprefix("conversation_"),
            (entry.conversation_changed.name or entry.conversation_deleted or entry.conversation_unmatched)[14:],
        )
        for entry in entries
    ]


def test_with_a_filter_what_matches_is_shown_and_what_ceases_to_is_named(harness: GrpcHarness) -> None:
    plans, notes = write(harness, "plans", title="Plan"), write(harness, "notes", title="Notes")
    write(harness, "other")
    stream = watch(harness, filter='title:"plan"')
    assert until_caught_up(stream) == names_of("plans")
    notes.commit(changed("idle"), title="More notes")  # it never matched
    notes.commit(changed("idle"), title="A plan")
    assert kinds(stream, 1) == [("changed", "notes")]
    plans.commit(changed("idle"), title="Done")
    assert kinds(stream, 1) == [("unmatched", "plans")]
    plans.commit(changed("idle"), title="Done indeed")
    harness.hub.deleted("plans", plans.record)
    new = write(harness, "new", title="New plan")
    harness.hub.created(new.record)
    assert kinds(stream, 1) == [("changed", "new")]
    harness.hub.deleted("notes", notes.record)
    assert kinds(stream, 1) == [("deleted", "notes")]


def test_with_changes_only_what_the_client_may_have_is_named_once(harness: GrpcHarness) -> None:
    author, new = write(harness, "c1", title="Plan"), write(harness, "c2")
    stream = watch(harness, filter="title:*", changes_only=True)
    assert until_caught_up(stream) == []
    author.commit(changed("idle"), title="")
    assert kinds(stream, 1) == [("unmatched", "c1")]
    author.commit(changed("idle"))
    new.commit(changed("idle"), title="New")
    assert kinds(stream, 1) == [("changed", "c2")]
    harness.hub.deleted("c1", author.record)
    harness.hub.deleted("c2", new.record)
    assert kinds(stream, 1) == [("deleted", "c2")]


def test_a_filter_that_names_the_parent_shows_sub_agents(harness: GrpcHarness) -> None:
    write(harness, "c1")
    child = write(harness, "c1-a1", parent_conversation_id="c1", user_initiated=False)
    write(harness, "c2")
    write(harness, "c2-a1", parent_conversation_id="c2", user_initiated=False)
    stream = watch(harness, filter="parent = conversations/slug-c1")
    assert until_caught_up(stream) == names_of("c1-a1")
    child.commit(changed("idle"))
    assert kinds(stream, 1) == [("changed", "c1-a1")]


def test_what_exists_comes_in_the_order_that_is_asked_for(harness: GrpcHarness) -> None:
    for number, title in enumerate("bca"):
        write(harness, f"c{number}", title=title, updated_at=10 + number)
    stream = watch(harness, order_by="title")
    assert until_caught_up(stream) == names_of("c2", "c0", "c1")
    stream.cancel()
    stream = watch(harness)
    assert until_caught_up(stream) == names_of("c2", "c1", "c0")


def test_a_conversation_is_shown_with_its_state_and_when_it_is_created_and_deleted(harness: GrpcHarness) -> None:
    stream = watch(harness)
    assert until_caught_up(stream) == []
    author = write(harness)
    harness.hub.created(author.record)
    assert next(stream).conversation_changed.name == "conversations/c1"
    author.commit(changed("error"), state=Error(Ledger(), "it broke", ErrorKind.NETWORK))
    assert next(stream).conversation_changed.state.error.message == "it broke"
    harness.hub.deleted("c1", author.record)
    assert next(stream).conversation_deleted == "conversations/c1"


def test_whatever_changes_while_the_list_is_read_is_right_in_the_end(
    harness: GrpcHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may know more than the feed has told, or less; neither goes back in time nor is anything missed."""
    monkeypatch.setattr(watch_list, "PAGE", 3)
    authors = [write(harness, f"c{number}", updated_at=number + 1) for number in range(12)]
    store, stop = harness.services.store, threading.Event()

    def keep_changing() -> None:
        while not stop.is_set():
            for author in authors:
                author.commit(changed("idle"), at=author.record.updated_at)

    writer = threading.Thread(target=keep_changing)
    writer.start()
    try:
        for _ in range(10):
            stream = watch(harness)
            revisions: dict[str, int] = {}
            caught_up = 0
            for entry in stream:
                caught_up += entry.HasField("caught_up")
                shown = entry.conversation_changed
                if shown.name:
                    assert shown.revision >= revisions.get(shown.name, 0)
                    revisions[shown.name] = shown.revision
                if caught_up and len(revisions) == len(authors):
                    break
            stream.cancel()
    finally:
        stop.set()
        writer.join()
    assert store.load("c0") is not None


def test_what_changes_behind_a_page_is_shown_before_the_stream_has_caught_up(
    harness: GrpcHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, gone = write(harness, "kept"), write(harness, "gone")
    store, bus = harness.services.store, harness.hub
    read = store.list

    def read_and_change(*selection: Any, **query: Any) -> Any:
        monkeypatch.setattr(store, "list", read)
        page = read(*selection, **query)
        kept.commit(changed("idle"), title="Later")
        store.delete("gone")
        bus.deleted("gone", gone.record)
        bus.created(write(harness, "born").record)
        return page

    monkeypatch.setattr(store, "list", read_and_change)
    stream = watch(harness)
    latest: dict[str, str] = {}
    for entry in stream:
        if entry.HasField("caught_up"):
            break
        changed_one = entry.conversation_changed
        latest[changed_one.name or entry.conversation_deleted] = changed_one.title or changed_one.slug or "deleted"
    assert latest == {
        "conversations/kept": "Later", "conversations/gone": "deleted", "conversations/born": "slug-born",
    }  # fmt: skip


def test_a_slow_watcher_gets_the_latest_of_each_once(harness: GrpcHarness) -> None:
    """Nothing is queued for it: what it has not looked at is replaced."""
    author, other = write(harness, "c1"), write(harness, "c2")
    stream = watch(harness)
    until_caught_up(stream)
    for number in range(3_000):
        author.commit(changed("idle"), title=f"{number}")
    other.commit(changed("idle"), title="last")
    seen = []
    for entry in stream:
        seen.append(entry.conversation_changed.title)
        if seen[-1] == "last":
            break
    assert len(seen) < 300
    assert "2999" in seen


def test_silence_is_broken_by_heartbeats(open_harness: Callable[..., GrpcHarness]) -> None:
    harness = open_harness(heartbeat_seconds=0.1)
    stream = watch(harness)
    until_caught_up(stream)
    assert [next(stream).WhichOneof("event") for _ in range(3)] == ["heartbeat"] * 3


def test_the_stream_counts_like_any_other(open_harness: Callable[..., GrpcHarness]) -> None:
    harness = open_harness(max_streams=1)
    stream = watch(harness)
    until_caught_up(stream)
    refusal = refused(lambda: watch(harness))
    assert (refusal.code, refusal.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_STREAMS")


def test_a_server_that_stops_says_so(harness: GrpcHarness) -> None:
    stream = watch(harness)
    until_caught_up(stream)
    harness.stop()
    refusal = refused(lambda: stream)
    assert (refusal.code, refusal.reason) == ("UNAVAILABLE", "SHUTTING_DOWN")


def test_a_watcher_who_reads_nothing_is_ended_and_blocks_nothing(open_harness: Callable[..., GrpcHarness]) -> None:
    harness = open_harness(stall_seconds=0.3)
    authors = [write(harness, f"c{number}", title="x" * 250, labels={"a": "y" * 250_000}) for number in range(40)]
    stuck = watch(harness)
    next(stuck)
    for author in authors:
        author.commit(changed("idle"))
    eventually(lambda: not harness.hub.conversation_list.watched, "the stream has ended")
    refusal = refused(lambda: stuck)
    assert (refusal.code, refusal.reason) == ("ABORTED", "ABORTED")


def test_one_who_leaves_is_forgotten(harness: GrpcHarness) -> None:
    stream = watch(harness)
    until_caught_up(stream)
    assert harness.hub.conversation_list.watched
    stream.cancel()
    with pytest.raises(grpc.RpcError):
        next(stream)
    eventually(lambda: not harness.hub.conversation_list.watched, "the stream has ended")


def test_a_commit_makes_its_conversation_once_for_watchers_lists_and_the_command(
    harness: GrpcHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = write(harness, title="before")
    lists = [watch(harness) for _ in range(3)]
    for stream in lists:
        until_caught_up(stream)
    watchers = [harness.watch() for _ in range(10)]
    for stream in watchers:
        next(stream)
    made: list[str] = []

    def counted(conversion: ConversionContext, record: ConversationRecord, *known: Any) -> v1.Conversation:
        made.append(record.title)
        return conversation(conversion, record, *known)

    for module in (conversation_messages, base, watch_list):
        monkeypatch.setattr(module, "conversation", counted)
    author.commit(UsageChanged(1, 2, Usage(), warning=False), ConversationUpdated(("title",)), title="after")
    harness.conversations.will(author.record)
    archive = v1.ArchiveConversationRequest(name=NAME)
    answer = harness.stub.ArchiveConversation(archive, metadata=AUTHORIZED, timeout=SECONDS)
    shown = [event.conversation_updated for stream in watchers for event in next(stream).events]
    shown += [next(stream).conversation_changed for stream in lists]
    assert [each.title for each in shown] == ["after"] * 23
    assert answer.conversation == shown[0] == shown[-1]
    assert made == ["after"]
    for stream in (*lists, *watchers):
        stream.cancel()
