"""The changes of the list of conversations: the latest of each, in order, for as long as somebody has not seen it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from actors.events import conversation_list as list_feed
from actors.events.conversation_list import ListFeed, ListWatch
from actors.events.hub import EventHub
from tests.support.commit_builder import record_of

if TYPE_CHECKING:
    from actors.ports import ConversationRecord


class Reader:
    """A watcher that counts how often it is woken."""

    def __init__(self, feed: ListFeed) -> None:
        self.woken = 0
        self.watch: ListWatch = feed.attach(self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def ids(self) -> list[str]:
        return [listed.id for listed in self.watch.read()]


def at(step: int, conversation_id: str = "c1", **fields: Any) -> ConversationRecord:
    return record_of(conversation_id, step=step, **fields)


def test_nothing_is_kept_without_watchers() -> None:
    feed = ListFeed()
    assert not feed.watched
    feed.changed(at(1))
    reader = Reader(feed)
    assert feed.watched
    assert reader.ids() == []
    feed.changed(at(2))
    reader.watch.close()
    reader.watch.close()
    assert not feed.watched
    assert feed._latest == {}


def test_of_each_conversation_the_latest_in_the_order_of_the_changes() -> None:
    feed = ListFeed()
    reader = Reader(feed)
    for step, name in enumerate("abacb"):
        feed.changed(at(step, name))
    assert [(each.id, each.record.step) for each in reader.watch.read()] == [("a", 2), ("c", 3), ("b", 4)]
    assert reader.ids() == []


def test_a_watcher_is_woken_once_until_it_looks() -> None:
    feed = ListFeed()
    reader = Reader(feed)
    for step in range(5):
        feed.changed(at(step))
    assert reader.woken == 1
    reader.watch.read()
    feed.changed(at(9))
    assert reader.woken == 2


def test_one_that_cannot_be_woken_does_not_disturb_the_others(caplog: Any) -> None:
    feed = ListFeed()

    def broken() -> None:
        raise ZeroDivisionError

    feed.attach(broken)
    reader = Reader(feed)
    feed.changed(at(1))
    assert reader.woken == 1
    assert "could not be woken" in caplog.text


def test_what_was_taken_and_has_changed_since_says_so() -> None:
    feed = ListFeed()
    reader = Reader(feed)
    feed.changed(at(1))
    (taken,) = reader.watch.read()
    assert not taken.outdated
    feed.changed(at(2))
    assert taken.outdated


def test_a_deletion_tells_whose_it_was_and_whether_it_was_a_sub_agent() -> None:
    feed = ListFeed()
    reader = Reader(feed)
    feed.deleted("child", at(3, "parent"))
    feed.deleted("parent", at(3, "parent"))
    feed.changed(at(1, "other", user_initiated=False))
    seen = reader.watch.read()
    assert [(each.id, each.deleted, each.sub_agent) for each in seen] == [
        ("child", True, True), ("parent", True, False), ("other", False, True),
    ]  # fmt: skip
    assert {each.record.principal for each in seen} == {"local"}


def test_what_all_watchers_have_read_is_dropped() -> None:
    feed = ListFeed()
    quick, slow = Reader(feed), Reader(feed)
    for number in range(10 * list_feed.SPARE):
        feed.changed(at(1, f"c{number}"))
        quick.watch.read()
    assert len(slow.ids()) == 10 * list_feed.SPARE, "a slow one misses nothing"
    for number in range(10 * list_feed.SPARE):
        feed.changed(at(2, f"d{number}"))
        quick.watch.read()
        slow.watch.read()
    assert len(feed._latest) <= 11 * list_feed.SPARE
    for _ in range(10 * list_feed.SPARE):
        feed.changed(at(2, "d1"))
        quick.watch.read()
        slow.watch.read()
    feed.changed(at(3, "new"))
    assert quick.ids() == slow.ids() == ["new"]


def test_every_watcher_ends_with_the_truth_whenever_it_looks() -> None:
    chance = random.Random(7)
    feed = ListFeed()
    readers = [Reader(feed) for _ in range(3)]
    views: list[dict[str, int]] = [{} for _ in readers]
    truth: dict[str, int] = {}
    for step in range(5_000):
        name = f"c{chance.randrange(40)}"
        if chance.random() < 0.1:
            truth.pop(name, None)
            feed.deleted(name, at(step, name))
        else:
            truth[name] = step
            feed.changed(at(step, name))
        for reader, view in zip(readers, views, strict=True):
            if chance.random() < 0.01:
                look(reader, view)
    for reader, view in zip(readers, views, strict=True):
        look(reader, view)
        assert view == truth


def look(reader: Reader, view: dict[str, int]) -> None:
    for listed in reader.watch.read():
        if listed.deleted:
            view.pop(listed.id, None)
        else:
            assert listed.record.step >= view.get(listed.id, 0)
            view[listed.id] = listed.record.step


def test_the_hub_tells_the_list_only_while_it_is_watched(monkeypatch: Any) -> None:
    hub = EventHub()
    monkeypatch.setattr(hub.conversation_list, "_put", lambda *_, **__: 1 / 0)
    hub.created(at(1))
    hub.deleted("c1", at(1))
    hub.deleted("c1")
    monkeypatch.undo()
    reader = Reader(hub.conversation_list)
    hub.created(at(1))
    hub.deleted("c1")
    hub.deleted("c2", replace(at(1), id="c2"))
    assert reader.ids() == ["c1", "c2"]
