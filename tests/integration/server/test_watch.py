"""Subscribe keeps its promises: complete, ordered, unique, resumable, final, alive (REQ-BED-011, REQ-BED-025)."""

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from bedrock import v1
from msgspec.structs import replace

from actors.core import states
from actors.core.content import MessageType, ToolSuccess, ToolUse, Usage
from actors.core.errors import Reason, Rejected
from actors.core.notifications import ConversationUpdated, Fate, QueueChanged, StreamDiscarded, UsageChanged
from actors.ports import RevisionTooOldError, Snapshot, StoredEvent, StoreUnavailableError
from actors.publishing import hub as event_hub
from server.contract import limits
from server.contract.errors import ConversationNotFoundError, MalformedRequestError, SlowReaderError
from server.streams import base as batches
from server.wire.events import event, text_delta
from server.wire.messages import ConversionContext
from tests.integration.server.watch_harness import ID, Author, WatchHarness, changed, watch_harness
from tests.support.samples import STATES
from tests.support.stores import StoreProxy, new_store

Test = Callable[..., Coroutine[Any, Any, None]]


def on_loop(test: Test) -> Callable[..., None]:
    """Run an async test on a loop of its own."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


def on_harness(**settings: Any) -> Callable[[Test], Callable[..., None]]:
    """Run an async test on a loop of its own; its first argument is a harness with these settings."""

    def decorated(test: Test) -> Callable[..., None]:
        @functools.wraps(test)
        @on_loop
        async def run(**arguments: Any) -> None:
            async with watch_harness(**settings) as s:
                await test(s, **arguments)

        _, *fixtures = inspect.signature(test).parameters.values()
        run.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
        return run

    return decorated


def busy() -> states.LlmRequesting:
    return states.LlmRequesting(states.Ledger(run=1, live=True), "r1", 1, states.LlmPhase.CONNECTING, 1)


# --- how a stream begins ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resumes", [True, False])
@on_harness()
async def test_a_stream_has_the_jobs_recorded_that_ended_with_a_killed_server(s: WatchHarness, resumes: bool) -> None:
    job = states.BackgroundJob("b-1", "t1", "serve")
    s.author.commit(s.author.says("one"), state=states.Idle(states.Ledger(jobs=(job,))))
    await s.caught_up(**({"after_revision": 0} if resumes else {}))
    assert s.woken == [ID]
    s.author.commit(
        s.author.says("two"), state=states.Idle(states.Ledger(jobs=(replace(job, status=states.JobStatus.LOST),)))
    )
    await s.caught_up()
    assert s.woken == [ID]


@on_harness()
async def test_a_stream_begins_with_how_things_stand_and_goes_on_live(s: WatchHarness) -> None:
    s.author.commit(s.author.says("one"))
    s.author.commit(s.author.says("two"))
    stream = await s.caught_up()
    assert stream.kinds == ["snapshot", "caught_up"]
    snapshot = stream.events[0].snapshot
    assert [message.content[0].text for message in snapshot.messages] == ["one", "two"]
    assert snapshot.conversation.revision == stream.events[1].caught_up.head_revision == 2
    s.author.commit(s.author.says("three"))
    await stream.revision(3)
    assert stream.revisions == [3]


@on_harness()
async def test_a_snapshot_holds_as_many_recent_messages_as_asked_for(s: WatchHarness) -> None:
    for _ in range(limits.RECENT_MESSAGES[1] + 5):
        s.author.commit(s.author.says())
    for wanted, held in ((0, 0), (3, 3), (10_000, limits.RECENT_MESSAGES[1])):
        stream = await s.caught_up(recent_messages=wanted)
        assert [message.sequence for message in stream.events[0].snapshot.messages] == list(
            range(s.author.messages - held + 1, s.author.messages + 1)
        )


@on_harness()
async def test_a_snapshot_stays_small_whatever_the_messages(s: WatchHarness) -> None:
    for _ in range(20):
        s.author.commit(s.author.says("x" * limits.MAX_TEXT_BYTES))
    waiting = tuple(states.QueuedInput(f"q{n}", "y" * limits.MAX_TEXT_BYTES, (), n) for n in range(8))
    s.author.commit(changed("llm_requesting"), state=states.Idle(states.Ledger(follows=waiting)))
    stream = await s.caught_up()
    assert stream.responses[0].ByteSize() < limits.MAX_RESPONSE_BYTES
    snapshot = stream.events[0].snapshot
    assert len(snapshot.queue) == 8
    assert snapshot.messages[-1].sequence == 20
    assert 0 < len(snapshot.messages) < 20


@on_harness()
async def test_a_late_watcher_sees_in_the_snapshot_how_sub_agents_stand(s: WatchHarness) -> None:
    s.author.commit(changed("awaiting_sub_agents"), state=STATES["awaiting_sub_agents"])
    stream = await s.caught_up()
    agents = stream.events[0].snapshot.sub_agents
    assert [(agent.conversation, agent.task) for agent in agents.pending] == [("conversations/agent-2", "look")]
    assert [(report.conversation, report.result) for report in agents.reports] == [("conversations/agent-1", "done")]
    s.author.commit(changed("idle"), state=STATES["idle"])
    later = await s.caught_up()
    assert not later.events[0].snapshot.HasField("sub_agents")


@on_harness()
async def test_a_snapshot_shows_what_waits_and_what_is_asked(s: WatchHarness) -> None:
    call = ToolUse("call-1", "bash", "{}")
    steer, follow = states.QueuedInput("q1", "left", (), 2), states.QueuedInput("q2", "then", (), 1)
    ledger = states.Ledger(run=1, live=True, steers=(steer,), follows=(follow,))
    s.author.commit(
        changed("awaiting_tool_approval"),
        state=states.AwaitingToolApproval(ledger, (call,), ("call-1",), states.ApprovalKind.TOOL, "r1", 5),
    )
    stream = await s.caught_up()
    snapshot = stream.events[0].snapshot
    assert [each.message.name.rsplit("/", 1)[1] for each in snapshot.queue] == ["q2", "q1"]
    assert [question.tool_call.tool for question in snapshot.pending_approvals] == ["bash"]


@on_harness()
async def test_a_deleted_conversation_cannot_be_watched(s: WatchHarness) -> None:
    s.store.delete(ID)
    with pytest.raises(ConversationNotFoundError):
        await s.watch().end()


# --- resuming ---------------------------------------------------------------------------------------------------------


@on_harness(store_page=4)
async def test_a_stream_resumes_after_every_revision_without_gap_or_duplicate(s: WatchHarness) -> None:
    for commit in range(12):
        s.author.commit(*(s.author.says() for _ in range(1 + commit % 3)))
    stored = s.author.head
    streams = [s.watch(after_revision=after) for after in range(stored + 1)]
    for after, stream in enumerate(streams):
        await stream.kind("caught_up")
        assert stream.kinds[0] == "snapshot"
        assert not stream.events[0].snapshot.messages
        assert stream.revisions == list(range(after + 1, stored + 1))
        assert stream.events[-1].caught_up.head_revision == stored
    s.author.commit(s.author.says(), s.author.says())
    for after, stream in enumerate(streams):
        await stream.revision(stored + 2)
        assert stream.revisions == list(range(after + 1, stored + 3))


@on_harness()
async def test_a_revision_that_is_yet_to_come_is_refused_by_its_field(s: WatchHarness) -> None:
    s.author.commit(s.author.says())
    stream = s.watch(after_revision=2)
    with pytest.raises(MalformedRequestError) as refusal:
        await stream.end()
    assert [field for field, _ in refusal.value.violations] == ["after_revision"]
    assert stream.responses == []


@on_harness()
async def test_a_revision_whose_events_are_pruned_is_refused_before_anything_is_sent(s: WatchHarness) -> None:
    for _ in range(10):
        s.author.commit(s.author.says())
    s.store.prune_log(ID, 6)
    stream = s.watch(after_revision=2)
    with pytest.raises(RevisionTooOldError) as refusal:
        await stream.end()
    assert stream.responses == []
    again = await s.caught_up(after_revision=refusal.value.oldest)
    assert again.revisions == list(range(refusal.value.oldest + 1, 11))


class Interleaving(StoreProxy):
    """Runs something while a watcher reads its snapshot: before it, or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def snapshot(self, conversation_id: str, recent_messages: int) -> Snapshot | None:
        self.before()
        seen = self.inner.snapshot(conversation_id, recent_messages)
        self.after()
        return seen


@pytest.mark.parametrize("start", [{}, {"after_revision": 1}])
@on_loop
async def test_nothing_falls_between_the_snapshot_and_the_first_event(start: dict[str, int]) -> None:
    store = Interleaving()
    async with watch_harness(store) as s:
        s.author.commit(s.author.says())
        s.author.commit(s.author.says())
        store.before = store.after = lambda: s.author.commit(s.author.says())
        stream = s.watch(**start)
        await stream.revision(4)
        s.author.commit(s.author.says())
        await stream.revision(5)
        seen = stream.events[0].snapshot.conversation.revision
        assert seen == 3
        assert stream.revisions == list(range(start.get("after_revision", seen) + 1, 6))


@on_harness()
async def test_commits_that_are_published_late_are_sent_once(s: WatchHarness) -> None:
    s.author.commit(s.author.says())
    late = s.author.store_only(s.author.says(), s.author.says())
    stream = await s.caught_up(after_revision=0)
    assert stream.revisions == [1, 2, 3]
    s.author.publish(late)
    s.author.commit(s.author.says())
    await stream.revision(4)
    assert stream.revisions == [1, 2, 3, 4]


@on_harness(store_page=16)
async def test_many_threads_publishing_lose_nothing(s: WatchHarness) -> None:
    streams = [s.watch(after_revision=0) for _ in range(10)]

    def write() -> None:
        for _ in range(300):
            s.author.commit(s.author.says())

    writer = threading.Thread(target=write)
    writer.start()
    for stream in streams:
        await stream.revision(300)
        assert stream.revisions == list(range(1, 301))
    writer.join()


# --- batches ----------------------------------------------------------------------------------------------------------


@on_harness(store_page=5)
async def test_the_events_of_a_commit_come_in_one_response(s: WatchHarness) -> None:
    for _ in range(6):
        s.author.commit(*(s.author.says() for _ in range(3)))
    resumed, live = await s.caught_up(after_revision=0), await s.caught_up()
    s.author.commit(*(s.author.says() for _ in range(40)))
    for stream in (resumed, live):
        await stream.revision(58)
        by_commit = [list(range(first, first + 3)) for first in range(1, 19, 3)] + [list(range(19, 59))]
        for commit in by_commit[0 if stream is resumed else 6 :]:
            holders = [r for r in stream.responses if any(e.revision in commit for e in r.events)]
            assert len(holders) == 1


@on_loop
async def test_neither_a_full_page_nor_a_full_response_tears_a_commit_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_EVENTS", 5)
    async with watch_harness(store_page=5) as s:
        for _ in range(6):
            s.author.commit(*(s.author.says() for _ in range(3)))
        stream = await s.caught_up(after_revision=0)
        by_response = [[e.revision for e in r.events if e.revision] for r in stream.responses]
        assert [revisions for revisions in by_response if revisions] == [
            list(range(first, first + 3)) for first in range(1, 19, 3)
        ]


@on_harness()
async def test_what_waits_for_a_slow_reader_comes_together(s: WatchHarness) -> None:
    stream = await s.caught_up()
    stream.gate.clear()
    for _ in range(100):
        s.author.commit(s.author.says())
        await asyncio.sleep(0)
    stream.gate.set()
    await stream.revision(100)
    assert stream.revisions == list(range(1, 101))
    assert len(stream.responses) <= 4


@on_loop
async def test_a_reader_who_falls_behind_the_hub_reads_on_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_hub, "RING", 8)
    async with watch_harness(store_page=16) as s:
        stream, other = await s.caught_up(), await s.caught_up()
        stream.gate.clear()
        for number in range(1, 201):
            s.author.commit(s.author.says())
            await other.revision(number)
        stream.gate.set()
        await stream.revision(200)
        assert stream.revisions == other.revisions == list(range(1, 201))


@on_harness()
async def test_an_event_is_encoded_once_for_all_watchers(s: WatchHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [s.watch() for _ in range(50)]
    for stream in streams:
        await stream.kind("caught_up")
    encoded: list[int] = []

    def counted(conversion: ConversionContext, conversation_id: str, stored: StoredEvent) -> v1.Event:
        encoded.append(stored.revision)
        return event(conversion, conversation_id, stored)

    monkeypatch.setattr("server.streams.base.event", counted)
    s.author.commit(s.author.says())
    s.author.streams()
    s.author.token("x")
    for stream in streams:
        await stream.until(lambda stream=stream: stream.text == "x")  # type: ignore[misc]
    assert sorted(encoded) == [1, 2]


@on_harness()
async def test_what_is_published_in_a_turn_of_the_loop_is_one_write_of_the_same_bytes_for_each_watcher(
    s: WatchHarness,
) -> None:
    streams = [s.watch() for _ in range(100)]
    for stream in streams:
        await stream.kind("caught_up")
    begun = [len(stream.raw) for stream in streams]
    for _ in range(3):
        s.author.commit(s.author.says())
    s.author.streams()
    s.author.token("a")
    s.author.token("b")
    for stream in streams:
        await stream.until(lambda stream=stream: stream.text == "ab")  # type: ignore[misc]
    written = [stream.raw[begin:] for stream, begin in zip(streams, begun, strict=True)]
    assert [len(responses) for responses in written] == [1] * 100
    assert len({id(responses[0]) for responses in written}) == 1
    assert streams[0].revisions == [1, 2, 3, 4]


@on_harness()
async def test_text_that_waits_is_joined_and_encoded_once_for_all_watchers(
    s: WatchHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    s.author.streams()
    streams = [s.watch() for _ in range(100)]
    for stream in streams:
        await stream.kind("caught_up")
    encoded: list[str] = []

    def counted(request_id: str, attempt: int, offset: int, text: str, *, reasoning: bool) -> v1.Event.TextDelta:
        encoded.append(text)
        return text_delta(request_id, attempt, offset, text, reasoning=reasoning)

    monkeypatch.setattr("server.streams.base.text_delta", counted)
    for piece in "abc":
        s.author.token(piece)
    for stream in streams:
        await stream.until(lambda stream=stream: stream.text == "abc")  # type: ignore[misc]
    assert encoded == ["abc"]


class Counting(StoreProxy):
    loads = 0

    def load(self, conversation_id: str) -> Any:
        self.loads += 1
        return self.inner.load(conversation_id)


@on_loop
async def test_an_update_shows_the_conversation_without_a_look_into_the_store() -> None:
    store = Counting()
    async with watch_harness(store) as s:
        streams = [s.watch() for _ in range(30)]
        for stream in streams:
            await stream.kind("caught_up")
        store.loads = 0
        s.author.commit(ConversationUpdated(("title",)), UsageChanged(1, 2, Usage(), warning=False), title="New")
        for stream in streams:
            await stream.revision(2)
            shown = [e.conversation_updated for e in stream.events if e.HasField("conversation_updated")]
            assert [conversation.title for conversation in shown] == ["New", "New"]
            assert shown[0].revision == 2
        assert store.loads == 0


@on_harness()
async def test_an_old_update_shows_the_conversation_as_it_is_now(s: WatchHarness) -> None:
    s.author.commit(ConversationUpdated(("title",)), title="Old")
    s.author.commit(ConversationUpdated(("title",)), title="New")
    stream = await s.caught_up(after_revision=0)
    assert [e.conversation_updated.title for e in stream.events if e.revision] == ["New", "New"]


# --- passing text -----------------------------------------------------------------------------------------------------


@on_harness()
async def test_text_comes_as_it_is_written_with_its_place(s: WatchHarness) -> None:
    stream = await s.caught_up()
    s.author.streams()
    s.author.token("Hä")
    await stream.until(lambda: stream.text == "Hä")
    s.author.token("llo")
    s.author.token("hm", reasoning=True)
    await stream.until(lambda: stream.text.endswith("hm"))
    deltas = [event.text_delta for event in stream.events if event.HasField("text_delta")]
    assert [(d.text, d.offset, d.reasoning) for d in deltas] == [
        ("Hä", 0, False), ("llo", 2, False), ("hm", 0, True),
    ]  # fmt: skip
    assert {(d.llm_request_id, d.attempt) for d in deltas} == {("r1", 1)}
    assert all(event.revision == 0 for event in stream.events if event.HasField("text_delta"))


@pytest.mark.parametrize("start", [{}, {"after_revision": 0}])
@on_harness()
async def test_a_late_watcher_gets_what_was_streamed_so_far_and_goes_on_after_it(
    s: WatchHarness, start: dict[str, int]
) -> None:
    first = await s.caught_up()
    s.author.streams()
    s.author.token("because", reasoning=True)
    s.author.token("Hel")
    s.author.token("lo")
    await first.until(lambda: first.text.endswith("lo"))
    late = await s.caught_up(**start)
    partial = late.events[0].snapshot.partial
    assert [(p.text, p.offset, p.reasoning) for p in partial] == [("because", 0, True), ("Hello", 0, False)]
    s.author.token(" you")
    await late.until(lambda: late.text == " you")
    assert [e.text_delta.offset for e in late.events if e.HasField("text_delta")] == [5]


@on_loop
async def test_text_of_a_slot_that_the_snapshot_does_not_know_comes_as_deltas() -> None:
    store = Interleaving()
    async with watch_harness(store) as s:

        def begin() -> None:
            s.author.streams()
            s.author.token("Hello")

        store.after = begin
        stream = s.watch()
        await stream.until(lambda: stream.text == "Hello")
        assert not stream.events[0].snapshot.partial
        assert stream.kinds == ["snapshot", "caught_up", "state_changed", "text_delta"]


@on_harness()
async def test_no_text_of_a_slot_follows_its_end_even_if_the_store_is_ahead_of_the_hub(s: WatchHarness) -> None:
    keeper = await s.caught_up()
    s.author.streams()
    s.author.token("Hello")
    await keeper.until(lambda: keeper.text == "Hello")
    answer = s.author.says("Hello", type=MessageType.AGENT, request_id="r1", attempt=1)
    late = s.author.store_only(answer, changed("idle"), state=states.Idle())
    stream = await s.caught_up(after_revision=0)
    s.author.publish(late)
    s.author.commit(s.author.says())
    await stream.revision(4)
    assert stream.text == ""
    assert stream.revisions == [1, 2, 3, 4]


@on_harness()
async def test_a_discarded_slot_ends_and_the_next_attempt_begins_a_new_slot(s: WatchHarness) -> None:
    stream = await s.caught_up()
    s.author.streams()
    s.author.token("Hel")
    await stream.until(lambda: stream.text == "Hel")
    s.author.commit(StreamDiscarded("r1", 1), changed("llm_requesting"))
    s.author.streams(attempt=2)
    s.author.token("Hello", attempt=2)
    await stream.until(lambda: stream.text == "HelHello")
    slots = [
        (e.text_delta.attempt, e.text_delta.offset) if e.HasField("text_delta") else e.WhichOneof("event")
        for e in stream.events[2:]
    ]
    assert slots == ["state_changed", (1, 0), "stream_discarded", "state_changed", "state_changed", (2, 0)]


@on_harness()
async def test_deltas_can_be_left_out(s: WatchHarness) -> None:
    s.author.streams()
    s.author.token("Hello")
    stream = await s.caught_up(omit_deltas=True)
    s.author.token("more")
    s.author.runs_tool("call-1")
    s.hub.tool_output(ID, "call-1", "output")
    s.author.commit(s.author.says())
    await stream.revision(3)
    assert not stream.events[0].snapshot.partial
    assert set(stream.kinds) == {"snapshot", "caught_up", "state_changed", "message_added"}


@on_harness()
async def test_output_of_a_tool_is_passed_on_until_its_result(s: WatchHarness) -> None:
    stream = await s.caught_up()
    s.author.runs_tool("call-1")
    s.hub.tool_output(ID, "call-1", "abc")
    await stream.kind("tool_output_delta")
    s.hub.tool_output(ID, "call-1", "def")
    await stream.until(lambda: stream.kinds.count("tool_output_delta") == 2)
    deltas = [e.tool_output_delta for e in stream.events if e.HasField("tool_output_delta")]
    assert [(d.tool_use_id, d.attempt, d.offset, d.text) for d in deltas] == [
        ("call-1", 1, 0, "abc"), ("call-1", 1, 3, "def"),
    ]  # fmt: skip
    result = s.author.says(type=MessageType.TOOL, content=(ToolSuccess("call-1", "abcdef"),))
    late = s.author.store_only(result, changed("awaiting_llm"))
    after = await s.caught_up(after_revision=0)
    s.author.publish(late)
    s.author.commit(s.author.says())
    await after.revision(4)
    assert "tool_output_delta" not in after.kinds


@on_harness()
async def test_a_slow_reader_gets_text_in_larger_pieces(s: WatchHarness) -> None:
    stream = await s.caught_up()
    s.author.streams()
    await stream.revision(1)
    stream.gate.clear()
    words = [f"{n} " for n in range(200)]
    for word in words:
        s.author.token(word)
        await asyncio.sleep(0)
    stream.gate.set()
    await stream.until(lambda: stream.text == "".join(words))
    assert stream.kinds.count("text_delta") <= 5


# --- silence, ends, limits --------------------------------------------------------------------------------------------


@on_harness(heartbeat_seconds=0.05)
async def test_silence_is_broken_by_a_heartbeat_with_the_newest_revision(s: WatchHarness) -> None:
    s.author.commit(s.author.says())
    stream = s.watch()
    await stream.until(lambda: stream.kinds.count("heartbeat") == 2)
    assert {e.heartbeat.head_revision for e in stream.events if e.HasField("heartbeat")} == {1}


@on_harness(heartbeat_seconds=0.05)
async def test_text_that_a_watcher_leaves_out_does_not_count_as_a_sign_of_life(s: WatchHarness) -> None:
    s.author.streams()
    stream = await s.caught_up(omit_deltas=True)
    while "heartbeat" not in stream.kinds:
        s.author.token("x")
        await asyncio.sleep(0)


@on_harness()
async def test_a_settled_conversation_ends_the_stream_right_after_catching_up(s: WatchHarness) -> None:
    s.author.commit(s.author.says())
    stream = s.watch(until_settled=True, after_revision=0)
    await stream.end()
    assert stream.kinds == ["snapshot", "message_added", "caught_up"]


@on_harness()
async def test_a_stream_until_settled_ends_with_the_run_and_not_before(s: WatchHarness) -> None:
    s.author.commit(changed("llm_requesting"), state=busy())
    stream = await s.caught_up(until_settled=True)
    # A follow-up starts in the same commit: idle for a moment is not settled.
    s.author.commit(changed("idle"), changed("awaiting_llm"), changed("llm_requesting"), state=busy())
    await stream.revision(4)
    s.author.commit(changed("idle"), state=states.Idle())
    await stream.end()
    assert stream.revisions == [2, 3, 4, 5]


@on_harness(store_page=2)
async def test_a_page_that_ends_within_a_commit_does_not_settle_anything(s: WatchHarness) -> None:
    s.author.commit(changed("llm_requesting"), state=busy())
    hidden = s.author.store_only(
        changed("idle"), changed("awaiting_llm"), changed("llm_requesting"), changed("llm_requesting"), state=busy()
    )
    stream = await s.caught_up(until_settled=True, after_revision=0)
    s.author.publish(hidden)
    s.author.commit(changed("idle"), state=states.Idle())
    await stream.end()
    assert stream.revisions == [1, 2, 3, 4, 5, 6]


@on_harness()
async def test_a_stream_until_settled_ends_at_a_question(s: WatchHarness) -> None:
    s.author.commit(changed("llm_requesting"), state=busy())
    stream = await s.caught_up(until_settled=True)
    s.author.commit(changed("awaiting_tool_approval"))
    await stream.end()


@on_harness()
async def test_a_stream_until_settled_waits_for_follow_ups(s: WatchHarness) -> None:
    s.author.commit(changed("llm_requesting"), state=busy())
    stream = await s.caught_up(until_settled=True)
    follow = states.QueuedInput("q1", "then", (), 1)
    s.author.commit(QueueChanged(follow, "follow_up", Fate.QUEUED))
    s.author.commit(changed("error"))
    await stream.revision(3)
    s.author.commit(QueueChanged(follow, "follow_up", Fate.DISCARDED))
    await stream.end()


@on_harness()
async def test_a_deleted_conversation_ends_its_streams_well(s: WatchHarness) -> None:
    stream = await s.caught_up()
    s.author.commit(s.author.says())
    s.store.delete(ID)
    s.hub.deleted(ID)
    await stream.end()
    assert stream.kinds == ["snapshot", "caught_up", "message_added", "deleted"]


@on_loop
async def test_a_deletion_ends_a_stream_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_hub, "RING", 2)
    async with watch_harness() as s:
        stream = await s.caught_up()
        stream.gate.clear()
        for _ in range(10):
            s.author.commit(s.author.says())
            await asyncio.sleep(0)
        s.store.delete(ID)
        s.hub.deleted(ID)
        stream.gate.set()
        await stream.end()
        assert stream.kinds[-1] == "deleted"


@on_harness(max_streams=2)
async def test_one_stream_too_many_is_refused_and_a_closed_one_makes_room(s: WatchHarness) -> None:
    first = await s.caught_up()
    await s.caught_up()
    with pytest.raises(Rejected) as refusal:
        await s.watch().end()
    assert refusal.value.reason is Reason.TOO_MANY_STREAMS
    first.task.cancel()
    await asyncio.wait((first.task,))
    await s.caught_up()


@on_harness(stall_seconds=0.1)
async def test_a_reader_who_takes_nothing_is_ended_and_blocks_nothing(s: WatchHarness) -> None:
    stuck, other = await s.caught_up(), await s.caught_up()
    stuck.gate.clear()
    s.author.commit(s.author.says())
    await other.revision(1)
    with pytest.raises(SlowReaderError):
        await stuck.end()
    assert s.hub.watchers() == 1
    resumed = s.watch(after_revision=0)
    await resumed.revision(1)


@on_harness()
async def test_a_stall_that_is_found_twice_cancels_the_stream_once(s: WatchHarness) -> None:
    """A second cancellation would arrive while the status of the call is sent."""
    stream = await s.caught_up()
    stream.gate.clear()
    s.author.commit(s.author.says())
    while not stream.writing:
        await asyncio.sleep(0)
    later = asyncio.get_running_loop().time() + 1_000
    (served,) = s.watchers._streams
    served.look_after(later, later)
    served.look_after(later, later)
    with pytest.raises(SlowReaderError):
        await stream.end()
    assert stream.task.cancelling() == 0


@on_harness()
async def test_a_shutdown_sends_what_is_there_and_then_ends_the_streams(s: WatchHarness) -> None:
    stream = await s.caught_up()
    s.author.commit(s.author.says())
    s.watchers.shut_down()
    with pytest.raises(Rejected) as refusal:
        await stream.end()
    assert refusal.value.reason is Reason.SHUTTING_DOWN
    assert stream.revisions == [1]
    await s.watchers.ended(5)
    with pytest.raises(Rejected):
        await s.watch().end()


@on_harness()
async def test_a_shutdown_while_something_is_being_sent_forgets_nothing(s: WatchHarness) -> None:
    stream = s.watch()
    stream.gate.clear()
    while not s.hub.watchers() or not stream.writing:
        await asyncio.sleep(0)
    s.author.commit(s.author.says())
    s.watchers.shut_down()
    stream.gate.set()
    with pytest.raises(Rejected):
        await stream.end()
    assert stream.revisions == [1]


class Failing(StoreProxy):
    broken = False

    def load(self, conversation_id: str) -> Any:
        if self.broken:
            raise StoreUnavailableError("disk")
        return self.inner.load(conversation_id)


@on_loop
async def test_a_store_that_fails_ends_the_stream_with_its_error() -> None:
    store = Failing()
    async with watch_harness(store) as s:
        s.author.commit(ConversationUpdated(("title",)))
        store.broken = True
        stream = s.watch(after_revision=0)
        with pytest.raises(StoreUnavailableError):
            await stream.end()


def test_the_author_writes_what_the_store_accepts() -> None:
    hub = event_hub.EventHub()
    author = Author(new_store(), hub)
    author.commit(author.says())
    assert author.store.events(ID, after=0, limit=10)[0].revision == author.head == 1
