"""What a watcher has seen: the pure part, response by response."""

from typing import Any

import pytest
from bedrock import Event, RequestCycle, v1
from bedrock._shared.cursor import EventCursor
from bedrock._shared.reconnection import LONGEST_SECONDS, Backoff
from bedrock._shared.run_progress import RunProgress
from bedrock.cli.text.style import LineFlow, cells
from bedrock.events import Snapshot
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_server import NAME, delta, discarded, output, result, stopped, stored, text

RUN = f"{NAME}/requestCycles/1"


def numbered(revision: int, event: v1.Event) -> v1.Event:
    event.revision = revision
    return event


def receive(cursor: EventCursor, *events: v1.Event) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in cursor.receive(v1.SubscribeResponse(events=events))]


def snapshot(*partial: v1.Event, revision: int = 0) -> v1.Event:
    return v1.Event(
        snapshot=v1.Event.Snapshot(
            conversation=v1.Conversation(name=NAME, revision=revision), partial=[event.text_delta for event in partial]
        )
    )


CAUGHT_UP = v1.Event(caught_up=v1.Event.CaughtUp())


def test_a_fresh_cursor_asks_for_a_snapshot_and_a_later_one_for_what_follows() -> None:
    cursor = EventCursor(NAME, recent_messages=7, omit_deltas=True)
    assert cursor.request() == v1.SubscribeRequest(name=NAME, recent_messages=7, omit_deltas=True)
    assert receive(cursor, snapshot(revision=12)) == [("snapshot", "")]
    assert cursor.request() == v1.SubscribeRequest(name=NAME, after_revision=12, omit_deltas=True)


def test_catching_up_is_shown_once() -> None:
    cursor = EventCursor(NAME)
    assert receive(cursor, snapshot(), CAUGHT_UP) == [("snapshot", ""), ("caught_up", "")]
    cursor.request()
    assert receive(cursor, snapshot(), CAUGHT_UP) == []
    assert cursor.caught_up


def test_zero_recent_messages_are_asked_for() -> None:
    assert EventCursor(NAME, recent_messages=0).request().WhichOneof("start") == "recent_messages"
    assert EventCursor(NAME, 0).request().WhichOneof("start") == "after_revision"


def test_old_revisions_are_dropped() -> None:
    cursor = EventCursor(NAME, 4)
    seen = receive(cursor, *(numbered(n, stopped(RUN)) for n in (3, 4, 5, 5, 6)))
    assert len(seen) == 2
    assert cursor.revision == 6


def test_a_delta_is_shown_only_as_far_as_it_is_new() -> None:
    cursor = EventCursor(NAME, 0)
    assert receive(cursor, delta("abc", 0), delta("bcd", 1), delta("cd", 2), delta("e", 4)) == [
        ("text_delta", "abc"),
        ("text_delta", "d"),
        ("text_delta", "e"),
    ]


def test_text_and_reasoning_have_offsets_of_their_own() -> None:
    cursor = EventCursor(NAME, 0)
    assert receive(cursor, delta("ab", 0), delta("xy", 0, reasoning=True)) == [
        ("text_delta", "ab"),
        ("reasoning_delta", "xy"),
    ]


def test_each_attempt_is_a_slot_of_its_own() -> None:
    cursor = EventCursor(NAME, 0)
    assert receive(cursor, delta("ab", 0), numbered(1, discarded()), delta("ab", 0, attempt=2)) == [
        ("text_delta", "ab"),
        ("stream_discarded", ""),
        ("text_delta", "ab"),
    ]


def test_a_slot_that_was_closed_meanwhile_is_not_shown_after_its_end() -> None:
    cursor = EventCursor(NAME, 0)
    receive(cursor, snapshot(), CAUGHT_UP)
    cursor.request()
    message = text("Hello", request="r1")[-1]
    assert isinstance(message, v1.Event)
    assert receive(cursor, snapshot(delta("Hel", 0)), numbered(1, message), CAUGHT_UP) == [("message_added", "Hello")]


def test_what_an_aborted_stream_held_back_is_forgotten() -> None:
    cursor = EventCursor(NAME, 0)
    receive(cursor, snapshot(delta("old", 0)))
    cursor.request()
    assert receive(cursor, snapshot(), CAUGHT_UP) == [("caught_up", "")]


def test_output_of_a_tool_is_shown_once() -> None:
    cursor = EventCursor(NAME, 0)
    seen = receive(cursor, output("ab", 0), output("bc", 1), numbered(1, stored("tool", result("abc"))))
    assert [piece for kind, piece in seen if kind == "tool_output_delta"] == ["ab", "c"]


def test_heartbeats_are_signs_of_life_and_nothing_else() -> None:
    cursor = EventCursor(NAME, 0)
    assert receive(cursor, v1.Event(heartbeat=v1.Event.Heartbeat())) == []
    assert cursor.progressed
    assert receive(cursor, snapshot()) == []
    assert not cursor.progressed


def test_events_of_an_unknown_kind_are_counted_and_skipped() -> None:
    cursor = EventCursor(NAME, 0)
    assert receive(cursor, v1.Event(revision=1)) == []
    assert cursor.revision == 1


def test_after_a_gap_everything_is_new() -> None:
    cursor = EventCursor(NAME, 0)
    receive(cursor, snapshot(), CAUGHT_UP, delta("Hello", 0))
    cursor.restart_with_snapshot()
    assert cursor.request() == v1.SubscribeRequest(name=NAME)
    assert receive(cursor, snapshot(delta("Hello", 0), revision=50), CAUGHT_UP) == [
        ("snapshot", ""),
        ("text_delta", "Hello"),
    ]
    assert cursor.revision == 50


def test_a_stream_that_ends_in_order_is_the_last_only_when_it_should_be() -> None:
    cursor = EventCursor(NAME, until_settled=True)
    assert not cursor.finished
    receive(cursor, snapshot(), CAUGHT_UP)
    assert cursor.finished
    cursor.request()
    assert not cursor.finished
    endless = EventCursor(NAME)
    receive(endless, snapshot(), CAUGHT_UP)
    assert not endless.finished
    receive(endless, v1.Event(deleted=v1.Event.Deleted()))
    assert endless.finished


def queued(fate: v1.QueuedMessage.Fate.ValueType) -> Event:
    return Event.from_proto(v1.Event(queue_changed=v1.QueuedMessage(message=v1.Message(name="m"), fate=fate)))


def test_a_withdrawn_message_ends_at_once() -> None:
    progress = RunProgress("m", "")
    progress.observe(queued(v1.QueuedMessage.FATE_QUEUED))
    assert progress.stop is None
    progress.observe(queued(v1.QueuedMessage.FATE_WITHDRAWN))
    assert progress.stop is not None
    assert progress.stop.reason == "withdrawn"


def test_a_discarded_follow_up_ends_as_a_run_that_did_not_begin() -> None:
    progress = RunProgress("m", "")
    progress.observe(queued(v1.QueuedMessage.FATE_DISCARDED))
    progress.observe(Event.from_proto(v1.Event(message_added=v1.Message(name="m", request_cycle=RUN))))
    progress.observe(Event.from_proto(stopped(RUN, "interrupted", "not_run")))
    assert progress.stop is not None
    assert progress.stop.detail == "not_run"


def asks(name: str, decision: v1.ApprovalDecision.ValueType = v1.APPROVAL_DECISION_UNSPECIFIED) -> Event:
    approval = v1.PendingApproval(name=name)
    return Event.from_proto(v1.Event(approval_changed=v1.Event.ApprovalChanged(approval=approval, decision=decision)))


def snapshot_of(**fields: Any) -> Snapshot:
    return Snapshot.from_proto(v1.Event.Snapshot(**fields))


def test_questions_are_open_until_they_are_decided_or_the_run_is_over() -> None:
    progress = RunProgress("m", RUN)
    for event in (asks("a"), asks("b"), asks("c"), asks("b", v1.APPROVAL_DECISION_WITHDRAWN)):
        progress.observe(event)
    assert [question.name for question in progress.questions()] == ["a", "c"]
    progress.observe_gap(snapshot_of(pending_approvals=[v1.PendingApproval(name="d")]))
    assert [question.name for question in progress.questions()] == ["d"]
    progress.observe(Event.from_proto(v1.Event(deleted=v1.Event.Deleted())))
    assert progress.questions() == []


def test_the_end_of_another_run_is_not_the_end() -> None:
    progress = RunProgress("m", RUN)
    progress.observe(Event.from_proto(stopped(RUN + "0")))
    assert progress.stop is None


def test_after_a_gap_the_run_is_looked_up() -> None:
    busy = snapshot_of(conversation=v1.Conversation(state=v1.ConversationState(run=RUN)))
    idle = snapshot_of()
    other, over = v1.RequestCycle(name=RUN + "0"), v1.RequestCycle(name=RUN)
    over.stop_reason, over.stop_detail = v1.STOP_REASON_INTERRUPTED, "restart"

    going = RunProgress("m", RUN)
    assert not going.find([])
    going.lost(busy)
    assert going.stop is None

    ended = RunProgress("m", RUN)
    assert ended.find([RequestCycle.from_proto(other), RequestCycle.from_proto(over)])
    assert ended.stop is not None
    assert ended.stop.detail == "restart"

    lost = RunProgress("m", RUN)
    lost.lost(idle)
    assert lost.stop is not None
    assert lost.stop.detail == "unknown"

    waiting = RunProgress("m", "")
    waiting.lost(snapshot_of(queue=[v1.QueuedMessage(message=v1.Message(name="m"))]))
    assert waiting.stop is None


def test_delays_grow_up_to_a_limit_and_end_when_the_time_is_up() -> None:
    now = [0.0]
    backoff = Backoff(60, clock=lambda: now[0])
    delays = []
    while (delay := backoff.next()) is not None:
        delays.append(delay)
        now[0] += delay
    assert delays[0] < delays[2] < delays[4]
    assert max(delays) <= LONGEST_SECONDS * 1.2
    assert 60 <= now[0] <= 60 + LONGEST_SECONDS * 1.2
    backoff.progress()
    assert backoff.next() is not None
    assert backoff.next(at_least=30) == 30


# --- Text that arrives in pieces becomes lines, none lost and none twice ---


def test_a_line_is_complete_with_its_end() -> None:
    flow = LineFlow()
    assert flow.feed("Hello ") == []
    assert flow.tail == ["Hello "]
    assert flow.feed("world\nand") == ["Hello world"]
    assert flow.finish() == ["and"]
    assert flow.tail == []


def test_long_lines_break_at_blanks() -> None:
    flow = LineFlow(lambda: 10)
    assert flow.feed("one two three four") == ["one two"]
    assert flow.tail == ["three four"]


def test_words_that_are_too_long_are_cut() -> None:
    flow = LineFlow(lambda: 4)
    assert flow.feed("abcdefghij") == ["abcd", "efgh"]
    assert flow.finish() == ["ij"]


@pytest.mark.parametrize(("pieces", "whole", "rest"), [("Hel", "Hello", ["Hello"]), ("", "Hello", ["Hello"])])
def test_what_was_missed_is_added_at_the_end(pieces: str, whole: str, rest: list[str]) -> None:
    flow = LineFlow()
    flow.feed(pieces)
    assert flow.finish(whole) == rest


def test_a_text_that_turned_out_otherwise_is_shown_whole() -> None:
    flow = LineFlow()
    flow.feed("Hullo\n")
    assert flow.finish("Hello\nworld") == ["Hello", "world"]


@given(st.lists(st.text(alphabet="ab漢 \n", max_size=9)), st.integers(min_value=1, max_value=12))
def test_no_character_is_lost(pieces: list[str], width: int) -> None:
    flow = LineFlow(lambda: width)
    lines = [line for piece in pieces for line in flow.feed(piece)]
    lines += flow.finish()
    assert all(cells(line) <= max(width, 2) for line in lines)
    assert "".join(lines).replace(" ", "") == "".join(pieces).replace(" ", "").replace("\n", "")
