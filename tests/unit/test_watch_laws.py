"""The checker of streams finds what it is there for: a good stream passes, and every way to spoil it is named."""

from collections.abc import Callable
from copy import deepcopy

import pytest
from bedrock import v1
from hypothesis import given
from hypothesis import strategies as st

from actors.core.content import Message, MessageType, Reasoning, Text
from actors.core.notifications import Durable, MessageAdded, RunStop, StateChanged, StopReason, StreamDiscarded
from actors.core.summary import StateSummary
from actors.ports import StoredEvent
from server.wire.events import event
from tests.integration.server.watch_harness import FACTS, ID
from tests.support.watch_laws import Logged, Recorded, log_of, violations

Spoil = Callable[[Recorded], object]


def said(sequence: int, text: str, reasoning: str = "", request_id: str = "", attempt: int = 0) -> MessageAdded:
    kind = MessageType.AGENT if request_id else MessageType.USER
    content = (*((Reasoning(reasoning),) if reasoning else ()), Text(text))
    return MessageAdded(
        Message(f"m{sequence}", sequence, kind, content, sequence, request_id=request_id, attempt=attempt)
    )


BUSY, IDLE = StateChanged(StateSummary("llm_requesting"), ()), StateChanged(StateSummary("idle"), ())
STOP = RunStop("1", StopReason.COMPLETED)
COMMITS: tuple[tuple[Durable, ...], ...] = (
    (said(1, "go on"), BUSY),
    (StreamDiscarded("r1", 1), BUSY),
    (said(2, "hello world", "hm, well", "r1", 2), STOP, IDLE),
    (said(3, "and then?"), BUSY),
    (said(4, "enough", request_id="r2", attempt=1), STOP, IDLE),
)


def stored() -> list[list[StoredEvent]]:
    revision, commits = 0, []
    for number, notifications in enumerate(COMMITS):
        commits.append([StoredEvent(revision + n, 1_000 + number, each) for n, each in enumerate(notifications, 1)])
        revision += len(notifications)
    return commits


LOG = log_of(stored())
HEAD = LOG[-1].event.revision


def response(*events: v1.Event) -> v1.SubscribeResponse:
    return v1.SubscribeResponse(events=events)


def snapshot(revision: int, *partial: v1.Event.TextDelta) -> v1.Event:
    shown = v1.Event.Snapshot(conversation=v1.Conversation(revision=revision), partial=partial)
    return v1.Event(snapshot=shown)


def caught_up(head: int) -> v1.Event:
    return v1.Event(caught_up=v1.Event.CaughtUp(head_revision=head))


def heartbeat(head: int) -> v1.Event:
    return v1.Event(heartbeat=v1.Event.Heartbeat(head_revision=head))


def text(words: str, offset: int, request_id: str, attempt: int, *, reasoning: bool = False) -> v1.Event:
    delta = v1.Event.TextDelta(
        llm_request_id=request_id, attempt=attempt, offset=offset, text=words, reasoning=reasoning
    )
    return v1.Event(text_delta=delta)


def durable(*commits: int) -> list[v1.Event]:
    return [event(FACTS, ID, logged.event) for logged in LOG if logged.commit in commits]


def good() -> Recorded:
    """From the start: replayed, caught up in the middle of a text, live to the end."""
    partial = text("hello ", 0, "r1", 2).text_delta
    responses = [
        response(snapshot(4, partial), *durable(0, 1), caught_up(4)),
        response(text("hm,", 0, "r1", 2, reasoning=True), text("wor", 6, "r1", 2)),
        response(*durable(2)),
        response(heartbeat(7)),
        response(*durable(3), text("eno", 0, "r2", 1), text("ugh", 3, "r2", 1)),
        response(*durable(4)),
        response(heartbeat(HEAD)),
    ]
    return Recorded("a", after=0, responses=responses)


def test_a_good_stream_breaks_no_law() -> None:
    assert violations(LOG, [good()]) == []


@given(after=st.integers(0, HEAD), sizes=st.lists(st.integers(1, 4), min_size=5, max_size=5))
def test_whatever_is_asked_for_and_however_commits_are_put_together_it_is_good(after: int, sizes: list[int]) -> None:
    events = [event(FACTS, ID, logged.event) for logged in LOG if logged.event.revision > after]
    responses, commit = [response(snapshot(HEAD))], 0
    for size in sizes:
        together = range(commit, commit + size)
        revisions = {logged.event.revision for logged in LOG if logged.commit in together}
        responses.append(response(*(each for each in events if each.revision in revisions)))
        commit += size
    responses.append(response(caught_up(HEAD)))
    assert violations(LOG, [Recorded("a", after=after, responses=responses)]) == []


# --- every way to spoil it --------------------------------------------------------------------------------------------


def place(stream: Recorded, revision: int) -> tuple[int, int]:
    """Response and index of an event."""
    for number, each in enumerate(stream.responses):
        for index, found in enumerate(each.events):
            if found.revision == revision:
                return number, index
    raise AssertionError(revision)


def drop(revision: int) -> Spoil:
    def spoil(stream: Recorded) -> None:
        number, index = place(stream, revision)
        del stream.responses[number].events[index]

    return spoil


def repeat(revision: int) -> Spoil:
    def spoil(stream: Recorded) -> None:
        number, index = place(stream, revision)
        stream.responses.insert(number + 1, response(stream.responses[number].events[index]))

    return spoil


def swap(revision: int) -> Spoil:
    def spoil(stream: Recorded) -> None:
        number, index = place(stream, revision)
        events = list(stream.responses[number].events)
        events[index : index + 2] = events[index + 1], events[index]
        stream.responses[number] = response(*events)

    return spoil


def tear(revision: int) -> Spoil:
    def spoil(stream: Recorded) -> None:
        number, index = place(stream, revision)
        events = list(stream.responses[number].events)
        stream.responses[number : number + 1] = [response(*events[:index]), response(*events[index:])]

    return spoil


def insert(number: int, *events: v1.Event) -> Spoil:
    def spoil(stream: Recorded) -> None:
        stream.responses.insert(number, response(*events))

    return spoil


def change(revision: int, how: Callable[[v1.Event], object]) -> Spoil:
    def spoil(stream: Recorded) -> None:
        number, index = place(stream, revision)
        how(stream.responses[number].events[index])

    return spoil


def start(after: int | None) -> Spoil:
    def spoil(stream: Recorded) -> None:
        stream.after = after

    return spoil


def refused(after: int, oldest: int) -> Spoil:
    def spoil(stream: Recorded) -> None:
        stream.after, stream.oldest, stream.code = after, oldest, "OUT_OF_RANGE"
        stream.responses.clear()

    return spoil


def unheard_of() -> v1.Event:
    return v1.Event(revision=HEAD + 1, state_changed=v1.Event.StateChanged())


def lengthened(found: v1.Event) -> None:
    found.message_added.attempt = 9


SPOILT: list[tuple[str, str, Spoil]] = [
    ("one left out", "reliable", drop(6)),
    ("the first one left out", "resumable", drop(1)),
    ("one twice", "unique", repeat(5)),
    ("two in the wrong order", "ordered", swap(5)),
    ("a commit in two responses", "atomic", tear(6)),
    ("resumed too early", "resumable", start(1)),
    ("a snapshot of what is yet to come", "resumable", start(None)),
    ("a snapshot from before the start", "resumable", start(5)),
    ("a head that was not sent", "bookmarkable", insert(5, heartbeat(HEAD))),
    ("a head that is long past", "bookmarkable", insert(6, heartbeat(7))),
    ("another kind than in the log", "reliable", change(6, lambda found: found.message_added.SetInParent())),
    ("another time than in the log", "reliable", change(6, lambda found: found.time.FromMilliseconds(7))),
    ("another slot than in the log", "reliable", change(5, lengthened)),
    ("more than the log has", "reliable", insert(7, unheard_of())),
    ("no snapshot", "begun", lambda stream: stream.responses[0].events.pop(0)),
    ("another snapshot", "begun", insert(3, snapshot(7))),
    ("caught up twice", "begun", insert(3, caught_up(7))),
    ("text before caught_up", "begun", lambda stream: stream.responses[0].events.pop()),
    ("text left out", "final", lambda stream: stream.responses[4].events.pop(2)),
    ("text twice", "final", insert(2, text("wor", 6, "r1", 2))),
    ("text of nothing in the message", "final", insert(2, text("x", 9, "r1", 2))),
    ("reasoning of nothing in the message", "final", insert(2, text("x", 3, "r1", 2, reasoning=True))),
    ("text after its message", "final", insert(3, text("ld", 9, "r1", 2))),
    ("text after it was discarded", "final", insert(1, text("x", 0, "r1", 1))),
    ("text of a slot that never ends", "final", insert(7, text("x", 0, "r3", 1))),
    ("refused although it is kept", "resumable", refused(5, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("law", "spoil"), [each[1:] for each in SPOILT], ids=[each[0] for each in SPOILT])
def test_a_spoilt_stream_breaks_the_law_that_it_should(law: str, spoil: Spoil) -> None:
    stream = good()
    spoil(stream)
    assert law in {found.law for found in violations(LOG, [stream])}


@given(number=st.integers(1, HEAD), spoil=st.sampled_from([drop, repeat]))
def test_whichever_event_is_left_out_or_repeated_it_is_noticed(number: int, spoil: Callable[[int], Spoil]) -> None:
    stream = good()
    spoil(number)(stream)
    assert violations(LOG, [stream])


def test_a_refusal_of_a_pruned_revision_is_accepted() -> None:
    stream = good()
    refused(3, 4)(stream)
    assert violations(LOG, [stream]) == []


def test_a_slot_that_ends_twice_in_the_log_is_found() -> None:
    again = StoredEvent(HEAD + 1, 2_000, StreamDiscarded("r2", 1))
    found = violations([*LOG, Logged(again, 99)], [good()])
    assert [each.law for each in found] == ["final"]


def test_a_slot_may_be_open_while_the_conversation_is_busy() -> None:
    stream = good()
    insert(7, text("x", 0, "r3", 1))(stream)
    assert violations(LOG, [stream], settled=False) == []


def test_the_beginning_of_the_log_may_be_pruned() -> None:
    assert violations(LOG[4:], [good()]) == []


def test_a_client_may_show_another_snapshot_but_nothing_older() -> None:
    shown = [snapshot(2), caught_up(2), snapshot(7), *durable(3, 4)]
    client = Recorded("client", responses=[response(each) for each in shown], whole=False)
    assert violations(LOG, [client]) == []
    spoilt = deepcopy(client)
    spoilt.responses.insert(4, response(*durable(1)))
    assert {found.law for found in violations(LOG, [spoilt])} == {"ordered", "resumable"}


def test_a_client_tells_as_text_what_another_snapshot_holds_of_it() -> None:
    begun, rest = text("eno", 0, "r2", 1), text("ugh", 3, "r2", 1)
    another = snapshot(durable(3)[-1].revision, begun.text_delta)
    shown = [snapshot(2), caught_up(2), begun, another, begun, rest, *durable(4)]
    client = Recorded("client", responses=[response(each) for each in shown], whole=False)
    assert violations(LOG, [client]) == []
    del client.responses[4]
    assert {found.law for found in violations(LOG, [client])} == {"final"}
