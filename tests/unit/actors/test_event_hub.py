"""The hub: no gap, no duplicate, no text after its end, nothing kept that nobody needs."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.core.content import ToolUse
from actors.core.notifications import ConversationUpdated, Durable, StateChanged, TextDelta
from actors.core.summary import StateSummary
from actors.ports import StoredEvent
from actors.publishing import hub as event_hub
from actors.publishing.hub import SPARE, EventBatch, EventHub, LiveText, Watch
from tests.support.patience import PATIENCE


def nothing() -> None:
    """A wake that nobody needs."""


def other(revision: int) -> StoredEvent:
    return StoredEvent(revision, 0, ConversationUpdated(("title",)))


def others(first: int, last: int) -> tuple[StoredEvent, ...]:
    return tuple(other(revision) for revision in range(first, last + 1))


def state(revision: int, summary: StateSummary) -> StoredEvent:
    return StoredEvent(revision, 0, StateChanged(summary, ()))


def streaming(revision: int, request_id: str = "r1", attempt: int = 1) -> StoredEvent:
    return state(revision, StateSummary("llm_requesting", request_id=request_id, attempt=attempt, phase="streaming"))


def executing(revision: int, tool_use_id: str = "t1", phase: str = "running", attempt: int = 1) -> StoredEvent:
    call = ToolUse(tool_use_id, "bash", "{}")
    return state(revision, StateSummary("tool_executing", attempt=attempt, current_call=call, phase=phase))


def idle(revision: int) -> StoredEvent:
    return state(revision, StateSummary("idle"))


def revisions(batch: EventBatch) -> list[int]:
    return [each.event.revision for each in batch.events]


def texts(live: LiveText | None) -> list[tuple[int, bool, str]]:
    return [(chunk.offset, chunk.reasoning, chunk.text) for chunk in live.chunks] if live else []


# --- events -----------------------------------------------------------------------------------------------------


def test_a_watcher_gets_what_was_published_after_its_place() -> None:
    hub = EventHub()
    watch = hub.attach("c", nothing)
    hub.publish("c", others(1, 3))
    hub.publish("c", others(4, 4))
    batch = watch.read(2)
    assert (batch.behind, revisions(batch), batch.head, batch.deleted) == (False, [3, 4], 4, False)
    assert revisions(watch.read(4)) == []


def test_an_old_publication_that_comes_late_hides_nothing() -> None:
    hub = EventHub()
    watch = hub.attach("c", nothing)
    hub.publish("c", others(5, 8))
    hub.publish("c", others(3, 4))
    assert watch.read(6).behind
    assert watch.read(6).head == 8


def test_what_every_watcher_has_read_is_not_kept() -> None:
    hub = EventHub()
    fast, slow = hub.attach("c", nothing), hub.attach("c", nothing)
    for revision in range(1, 3 * SPARE):
        hub.publish("c", others(revision, revision))
        fast.read(revision)
    assert revisions(slow.read(0)) == list(range(1, 3 * SPARE))
    slow.read(3 * SPARE - 1)
    hub.publish("c", others(3 * SPARE, 3 * SPARE))
    assert revisions(fast.read(3 * SPARE - 1)) == [3 * SPARE]
    assert fast.read(0).behind


def test_the_bytes_of_an_event_are_shared_by_its_watchers() -> None:
    hub = EventHub()
    first, second = hub.attach("c", nothing), hub.attach("c", nothing)
    hub.publish("c", others(1, 1))
    first.read(0).events[0].wire = b"made once"
    assert second.read(0).events[0].wire == b"made once"


# --- waking -----------------------------------------------------------------------------------------------------


def test_a_watcher_is_woken_once_until_it_looks() -> None:
    hub = EventHub()
    woken: list[str] = []
    watch = hub.attach("c", lambda: woken.append("c"))
    hub.publish("c", (streaming(1),))
    hub.publish("c", others(2, 2))
    hub.text_delta("c", 2, TextDelta("r1", 1, "a"))
    assert woken == ["c"]
    watch.read(2)
    hub.text_delta("c", 2, TextDelta("r1", 1, "b"))
    assert woken == ["c", "c"]


def test_text_wakes_with_a_delay_and_an_event_wakes_watchers_again_that_were_woken_for_text() -> None:
    hub = EventHub()
    woken: list[str] = []
    watch = hub.attach("c", lambda: woken.append("event"), lambda: woken.append("text"))
    hub.publish("c", (streaming(1),))
    hub.text_delta("c", 1, TextDelta("r1", 1, "a"))
    assert woken == ["event"]
    watch.read(1)
    hub.text_delta("c", 1, TextDelta("r1", 1, "b"))
    hub.text_delta("c", 1, TextDelta("r1", 1, "c"))
    hub.publish("c", others(2, 2))
    hub.publish("c", others(3, 3))
    hub.text_delta("c", 3, TextDelta("r1", 1, "d"))
    assert woken == ["event", "text", "event"]
    watch.read(3)
    hub.publish("c", others(4, 4))
    assert woken == ["event", "text", "event", "event"]


def test_who_leaves_while_woken_for_text_is_woken_no_more() -> None:
    hub = EventHub()
    woken: list[str] = []
    hub.publish("c", (streaming(1),))
    watch = hub.attach("c", lambda: woken.append("event"), lambda: woken.append("text"))
    hub.text_delta("c", 1, TextDelta("r1", 1, "a"))
    watch.close()
    hub.publish("c", others(2, 2))
    assert woken == ["text"]


def test_only_watchers_of_the_conversation_are_woken() -> None:
    hub = EventHub()
    woken: list[str] = []
    hub.attach("a", lambda: woken.append("a"))
    hub.attach("b", lambda: woken.append("b"))
    hub.publish("b", others(1, 1))
    assert woken == ["b"]


def test_a_watcher_that_cannot_be_woken_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    hub = EventHub()
    woken: list[int] = []

    def refuse() -> None:
        raise RuntimeError("the event loop is closed")

    for number in range(3):
        hub.attach("c", refuse)
        hub.attach("c", lambda number=number: woken.append(number))  # type: ignore[misc]
    hub.publish("c", others(1, 1))
    assert sorted(woken) == [0, 1, 2]
    assert "could not be notified" in caplog.text


def test_a_watcher_that_left_is_woken_no_more() -> None:
    hub = EventHub()
    woken: list[str] = []
    watch = hub.attach("c", lambda: woken.append("c"))
    watch.close()
    watch.close()
    hub.publish("c", others(1, 1))
    watch.read(0)
    hub.publish("c", others(2, 2))
    assert woken == []
    assert hub.watchers() == 0


# --- live text --------------------------------------------------------------------------------------------------


def test_the_text_of_one_who_was_away_is_conflated_by_kind() -> None:
    hub = EventHub()
    watch = hub.attach("c", nothing)
    hub.publish("c", (streaming(1),))
    for text, reasoning in (("I ", True), ("think", True), ("so ", False), ("it ", False), ("hm", True), ("is", False)):
        hub.text_delta("c", 1, TextDelta("r1", 1, text, reasoning))
    expected = [(0, True, "I think"), (0, False, "so it "), (7, True, "hm"), (6, False, "is")]
    assert texts(watch.read(0).text) == expected


def test_a_late_watcher_gets_the_text_from_its_beginning_and_can_take_it_at_once() -> None:
    hub = EventHub()
    hub.publish("c", others(1, 9))
    hub.publish("c", (streaming(10),))
    hub.text_delta("c", 10, TextDelta("r1", 1, "Once upon"))
    late, later = hub.attach("c", nothing), hub.attach("c", nothing)
    assert texts(late.read(10).text) == [(0, False, "Once upon")]
    assert [chunk.text for chunk in later.read_text("r1", 1)] == ["Once upon"]
    assert later.read_text("r1", 2) == ()
    hub.text_delta("c", 10, TextDelta("r1", 1, " a time"))
    assert texts(later.read(10).text) == [(9, False, " a time")]


def test_a_watcher_that_wants_no_text_gets_none_and_can_change_its_mind() -> None:
    hub = EventHub()
    watch = hub.attach("c", nothing)
    hub.publish("c", (streaming(1),))
    hub.text_delta("c", 1, TextDelta("r1", 1, "text"))
    assert watch.read(0, live_text=False).text is None
    assert texts(watch.read(1).text) == [(0, False, "text")]


def test_a_steer_that_changes_nothing_else_leaves_the_slot_open() -> None:
    hub = EventHub()
    watch = hub.attach("c", nothing)
    hub.publish("c", (streaming(1),))
    hub.text_delta("c", 1, TextDelta("r1", 1, "a"))
    hub.publish("c", (streaming(2),))
    hub.text_delta("c", 2, TextDelta("r1", 1, "b"))
    assert texts(watch.read(0).text) == [(0, False, "ab")]


def test_output_passes_while_its_tool_executes_and_the_oldest_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_hub, "MAX_OUTPUT_CHARS", 10)
    hub = EventHub()
    watch = hub.attach("c", nothing)
    hub.tool_output("c", "t1", "too early")
    hub.publish("c", (executing(1),))
    for _ in range(4):
        hub.tool_output("c", "t1", "12345")
    hub.tool_output("c", "t2", "of another tool")
    assert texts(watch.read(0).output) == [(5, False, "123451234512345")]
    hub.tool_output("c", "t1", "67890")
    assert texts(watch.read(1).output) == [(20, False, "67890")]
    hub.publish("c", (executing(2, phase="backoff", attempt=2), executing(3, attempt=2)))
    hub.tool_output("c", "t1", "again")
    again = watch.read(3).output
    assert texts(again) == [(0, False, "again")], "the output of another attempt begins anew"
    assert again is not None
    assert again.attempt == 2
    hub.publish("c", (executing(4, "t2"),))
    hub.tool_output("c", "t1", "a cancelled tool's last words")
    assert watch.read(4).output is None


# --- the end ----------------------------------------------------------------------------------------------------


def test_a_deleted_conversation_tells_its_watchers_and_is_forgotten() -> None:
    hub = EventHub()
    woken: list[str] = []
    watch = hub.attach("c", lambda: woken.append("c"))
    hub.publish("c", (streaming(1),))
    watch.read(1)
    hub.deleted("c")
    assert woken == ["c", "c"]
    batch = watch.read(1)
    assert (batch.deleted, batch.text) == (True, None)
    watch.close()
    assert not kept(hub)
    hub.deleted("c")
    assert not kept(hub)


def kept(hub: EventHub) -> list[str]:
    """Conversations that the hub holds anything of."""
    return list(hub._channels)


# --- any order of things ----------------------------------------------------------------------------------------


class Talk:
    """A conversation that commits to a store and publishes to a hub, as its actor does."""

    def __init__(self, hub: EventHub) -> None:
        self.hub = hub
        self.store: list[StoredEvent] = []
        self.unpublished: tuple[StoredEvent, ...] = ()
        self.sent: dict[tuple[str, int], str] = {}
        self.requests = 0
        self.tools = 0
        self.open: tuple[str, int] | None = None
        self.lost_any = False

    def commit(self, kind: str) -> None:
        """Store events; they are published by the next step, whatever that is."""
        self.publish()
        first = len(self.store) + 1
        self.open = None
        match kind:
            case "stream":
                self.requests += 1
                self.open = (f"r{self.requests}", 1)
                events = (other(first), streaming(first + 1, *self.open))
            case "tool":
                self.tools += 1
                self.open = (f"t{self.tools}", 1)
                events = (executing(first, self.open[0]), other(first + 1))
            case _:
                events = (other(first), idle(first + 1))
        self.store += events
        self.unpublished = events

    def publish(self) -> None:
        if self.unpublished:
            self.hub.publish("c", self.unpublished)
            self.unpublished = ()

    def lose(self) -> None:
        """The publication never comes."""
        if self.unpublished:
            self.unpublished, self.lost_any = (), True

    def say(self, text: str) -> None:
        """Live text: of the open slot, and of one that is closed, which nobody may see."""
        self.publish()
        self.hub.tool_output("c", "t0", "void")
        if self.open is None:
            assert not self.hub.text_delta("c", len(self.store), TextDelta("r0", 1, "void"))
            return
        self.sent[self.open] = self.sent.get(self.open, "") + text
        if self.open[0].startswith("r"):
            for revision in (len(self.store) - 1, len(self.store) + 1):
                assert not self.hub.text_delta("c", revision, TextDelta(*self.open, "void"))
            self.hub.text_delta("c", len(self.store), TextDelta(*self.open, text))
        else:
            self.hub.tool_output("c", self.open[0], text)


class Reader:
    """A watcher as the server has it: attach, snapshot, then a cursor. Checks all that it is given."""

    def __init__(self, hub: EventHub, store: Sequence[StoredEvent], resume_at: int | None = None) -> None:
        self.store = store
        self.watch: Watch = hub.attach("c", nothing)
        self.position = len(store) if resume_at is None else min(resume_at, len(store))
        self.open: tuple[str, int] | None = None
        for event in store[: self.position]:
            self._follow(event.notification)
        self.seen: dict[tuple[str, int], str] = {}

    def look(self) -> bool:
        """Read once; returns whether there was anything."""
        batch = self.watch.read(self.position)
        if batch.behind:
            return self.catch_up()
        for each in batch.events:
            self._take(each.event)
        assert not batch.events or self.position == batch.head
        for live in (batch.text, batch.output):
            if live is not None:
                self._hear(live)
        return bool(batch.events or batch.text or batch.output)

    def catch_up(self) -> bool:
        """Read the store, which may be ahead of the hub."""
        began = self.position
        for event in list(self.store[self.position :]):
            self._take(event)
        return self.position > began

    def _take(self, event: StoredEvent) -> None:
        assert event.revision == self.position + 1, "a gap or a duplicate"
        self.position = event.revision
        self._follow(event.notification)

    def _follow(self, notification: Durable) -> None:
        if isinstance(notification, StateChanged):
            shown = notification.state
            self.open = (shown.request_id, shown.attempt) if shown.phase == "streaming" else None
            if shown.current_call:
                self.open = (shown.current_call.id, shown.attempt)

    def _hear(self, live: LiveText) -> None:
        slot = (live.key, live.attempt)
        assert slot == self.open, "text outside of its slot"
        for chunk in live.chunks:
            assert chunk.offset == len(self.seen.get(slot, "")), "text is missing, or comes twice"
            self.seen[slot] = self.seen.get(slot, "") + chunk.text


steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from(["stream", "tool", "rest"])),
        st.tuples(st.just("say"), st.text("ab", min_size=1, max_size=3)),
        st.tuples(st.sampled_from(["look", "store", "detach"]), st.integers(0, 3)),
        st.tuples(st.just("attach"), st.one_of(st.none(), st.integers(0, 12))),
        st.sampled_from([("publish", 0), ("lose", 0)]),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(steps, st.sampled_from([4, 16]))
def test_no_interleaving_gives_a_gap_a_duplicate_or_void_text(script: list[tuple[str, Any]], ring: int) -> None:
    hub = EventHub()
    talk, readers = Talk(hub), list[Reader]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_hub, "RING", ring)
        patch.setattr(event_hub, "SPARE", 2)
        for step, detail in script:
            play(talk, readers, step, detail)
        talk.publish()
        talk.commit("rest")
        talk.publish()
        for reader in readers:
            while reader.look():
                pass
            assert reader.position == len(talk.store)
            assert all(talk.sent[slot].startswith(text) for slot, text in reader.seen.items())
            reader.watch.close()
    assert not kept(hub)


def play(talk: Talk, readers: list[Reader], step: str, detail: Any) -> None:
    match step:
        case "commit":
            talk.commit(detail)
        case "say":
            talk.say(detail)
            if not talk.lost_any and talk.open:
                for reader in readers:
                    while reader.look():
                        pass
                    assert reader.seen[talk.open] == talk.sent[talk.open], "text of the open slot is missing"
        case "publish":
            talk.publish()
        case "lose":
            talk.lose()
        case "attach":
            readers.append(Reader(talk.hub, talk.store, detail))
        case "detach" if detail < len(readers):
            readers.pop(detail).watch.close()
        case "look" if detail < len(readers):
            readers[detail].look()
        case "store" if detail < len(readers):
            readers[detail].catch_up()
        case _:
            pass


def test_watchers_on_their_own_threads_miss_nothing() -> None:
    hub = EventHub()
    talk = Talk(hub)
    last = 600

    def watch_all() -> None:
        woken = threading.Event()
        reader = Reader(hub, talk.store)
        reader.watch.wake = woken.set
        while reader.position < last:
            woken.clear()
            if not reader.look():
                assert woken.wait(PATIENCE), "never woken"
        reader.watch.close()

    with ThreadPoolExecutor(6) as pool:
        watching = [pool.submit(watch_all) for _ in range(6)]
        for number in range(last // 2):
            talk.commit(("stream", "tool", "rest")[number % 3])
            talk.publish()
            talk.say("text")
        for each in watching:
            each.result(PATIENCE)
    talk.commit("rest")
    talk.publish()
    assert not kept(hub)


def test_the_wake_of_a_watcher_may_itself_look_or_leave() -> None:
    hub = EventHub()
    watches: list[Watch] = []
    seen: list[list[int]] = []

    def look() -> None:
        seen.append(revisions(watches[0].read(0)))

    def leave() -> None:
        watches[1].close()

    watches += [hub.attach("c", look), hub.attach("c", leave)]
    hub.publish("c", others(1, 2))
    assert seen == [[1, 2]]
    assert hub.watchers() == 1
