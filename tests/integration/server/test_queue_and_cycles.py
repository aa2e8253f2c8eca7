"""The queue and the request cycles over a real channel: pages, what is under way, and what is left of a pruned log."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from bedrock import v1
from google.protobuf.duration_pb2 import Duration

from actors import messages as requests
from actors.core.content import MessageType, Text, ToolUse
from actors.core.errors import Reason, Rejected
from actors.core.notifications import Fate, QueueChanged, RunStop, StopReason
from actors.core.states import (
    ApprovalKind,
    AwaitingToolApproval,
    Idle,
    Ledger,
    LlmPhase,
    LlmRequesting,
    Question,
    QueuedInput,
    ToolExecuting,
)
from actors.ports import Attachment
from server.contract import limits
from tests.integration.server.grpc_harness import AUTHORIZED, GrpcHarness, refused
from tests.integration.server.test_calls import ask, pages
from tests.integration.server.watch_harness import NAME, Author, changed

FATES = v1.QueuedMessage


def waits(number: int, text: str = "later") -> QueuedInput:
    return QueuedInput(f"q{number}", text, (), number)


def end(number: int, fate: Fate, delivery: str = "follow_up") -> QueueChanged:
    return QueueChanged(waits(number), delivery, fate)


def ids(messages: Any) -> list[str]:
    return [each.message.name.rpartition("/")[2] for each in messages]


@pytest.fixture
def author(harness: GrpcHarness) -> Author:
    return Author(harness.services.store, harness.hub)


@pytest.fixture
def queued(author: Author) -> Author:
    """Three whose wait has ended, in another order than they came, and three that wait."""
    for number in range(1, 7):
        author.commit(end(number, Fate.QUEUED, "steer" if number in (1, 5) else "follow_up"))
    author.commit(end(2, Fate.WITHDRAWN))
    author.commit(end(1, Fate.RETURNED, "steer"), RunStop("c1:1", StopReason.ERROR, "auth"))
    ledger = Ledger(run=2, live=True, steers=(waits(5),), follows=(waits(4), waits(6)))
    author.commit(end(3, Fate.DELIVERED), state=LlmRequesting(ledger, "r1", 1, LlmPhase.CONNECTING, 1))
    return author


def test_the_queue_lists_what_waits_and_on_request_what_became_of_the_others(
    harness: GrpcHarness, queued: Author
) -> None:
    plain = ask(harness, "ListQueue", v1.ListQueueRequest(parent=NAME)).messages
    assert ids(plain) == ["q4", "q5", "q6"]
    assert {each.fate for each in plain} == {FATES.FATE_QUEUED}
    assert not any(each.HasField("settle_time") for each in plain)
    assert [each.message.request_cycle for each in plain] == ["", f"{NAME}/requestCycles/c1:2", ""]
    whole = ask(harness, "ListQueue", v1.ListQueueRequest(parent=NAME, include_settled=True)).messages
    assert ids(whole) == ["q2", "q1", "q3", "q4", "q5", "q6"]
    settled = [(each.fate, each.message.delivery, each.settle_time.ToMilliseconds()) for each in whole[:3]]
    assert settled == [
        (FATES.FATE_WITHDRAWN, v1.DELIVERY_FOLLOW_UP, 8),
        (FATES.FATE_RETURNED, v1.DELIVERY_STEER, 9),
        (FATES.FATE_DELIVERED, v1.DELIVERY_FOLLOW_UP, 10),
    ]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("descending", [False, True])
def test_the_queue_is_listed_in_pages_both_ways(
    harness: GrpcHarness, queued: Author, size: int, descending: bool
) -> None:
    request = v1.ListQueueRequest(parent=NAME, include_settled=True, page_size=size, descending=descending)
    got = pages(harness, "ListQueue", request, "messages")
    assert {len(page) for page in got[:-1]} == {size}
    expected = ["q2", "q1", "q3", "q4", "q5", "q6"]
    assert [each for page in got for each in ids(page)] == (expected[::-1] if descending else expected)
    waiting = v1.ListQueueRequest(parent=NAME, page_size=size, descending=descending)
    got = pages(harness, "ListQueue", waiting, "messages")
    assert [each for page in got for each in ids(page)] == (expected[:2:-1] if descending else expected[3:])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", [1, 2, 10])
def test_the_queue_has_the_order_of_acceptance_whatever_the_clock_did(
    harness: GrpcHarness, author: Author, size: int, descending: bool
) -> None:
    back = (QueuedInput("late", "first", (), 50), QueuedInput("b", "then", (), 7), QueuedInput("a", "then", (), 7))
    state = LlmRequesting(Ledger(run=1, live=True, follows=back), "r1", 1, LlmPhase.CONNECTING, 1)
    author.commit(end(7, Fate.QUEUED), state=state)
    request = v1.ListQueueRequest(parent=NAME, page_size=size, descending=descending)
    listed = [each for page in pages(harness, "ListQueue", request, "messages") for each in ids(page)]
    assert listed == (["a", "b", "late"] if descending else ["late", "b", "a"])


@pytest.mark.parametrize("descending", [False, True])
def test_an_input_that_settles_between_two_pages_is_not_missed(
    harness: GrpcHarness, queued: Author, descending: bool
) -> None:
    """Nor is any other, whichever settles while whichever page is the last one read."""
    request = v1.ListQueueRequest(parent=NAME, include_settled=True, page_size=1, descending=descending)
    found: list[str] = []
    left = [4, 5, 6]
    for _ in range(20):
        answer = ask(harness, "ListQueue", request)
        found += ids(answer.messages)
        if not answer.next_page_token:
            break
        request.page_token = answer.next_page_token
        if left and len(found) >= 2:
            gone = left.pop(0)
            ledger = Ledger(follows=tuple(waits(number) for number in left))
            queued.commit(end(gone, Fate.DISCARDED), state=Idle(ledger))
    assert set(found) == {"q1", "q2", "q3", "q4", "q5", "q6"}


@pytest.mark.parametrize("descending", [False, True])
def test_an_input_that_settles_while_the_page_is_read_is_there_once(
    harness: GrpcHarness, queued: Author, monkeypatch: pytest.MonkeyPatch, descending: bool
) -> None:
    load: Any = queued.store.load
    stale = load("c1")
    queued.commit(end(4, Fate.DELIVERED), state=Idle(Ledger(follows=(waits(6),), steers=(waits(5),))))
    monkeypatch.setattr(queued.store, "load", lambda _: stale)
    request = v1.ListQueueRequest(parent=NAME, include_settled=True, descending=descending)
    expected = ["q2", "q1", "q3", "q4", "q5", "q6"]
    assert ids(ask(harness, "ListQueue", request).messages) == (expected[::-1] if descending else expected)


def test_fates_outlive_the_log(harness: GrpcHarness, queued: Author) -> None:
    request = v1.ListQueueRequest(parent=NAME, include_settled=True)
    before = ask(harness, "ListQueue", request)
    queued.store.prune_log("c1", queued.head)
    assert ask(harness, "ListQueue", request) == before


def test_a_queue_of_long_messages_is_listed_in_pages_bounded_in_bytes(harness: GrpcHarness, author: Author) -> None:
    text = "x" * limits.MAX_TEXT_BYTES
    for number in range(1, 21):
        author.commit(QueueChanged(waits(number, text), "steer", Fate.RETURNED))
    got = pages(harness, "ListQueue", v1.ListQueueRequest(parent=NAME, include_settled=True), "messages")
    assert [each for page in got for each in ids(page)] == [f"q{number}" for number in range(1, 21)]
    assert len(got) == 2


def test_a_message_is_withdrawn_by_its_name(harness: GrpcHarness, author: Author) -> None:
    harness.conversations.will(requests.WithdrawMessageResult(end(7, Fate.WITHDRAWN), 9_000))
    answer = ask(harness, "WithdrawMessage", v1.WithdrawMessageRequest(name=f"{NAME}/messages/q7"))
    taken = answer.message.message
    assert (taken.name, taken.content[0].text) == (f"{NAME}/messages/q7", "later")
    assert taken.delivery == v1.DELIVERY_FOLLOW_UP
    assert (answer.message.fate, answer.message.settle_time.seconds) == (v1.QueuedMessage.FATE_WITHDRAWN, 9)
    ((_, asked, _),) = harness.conversations.asked
    assert asked == requests.WithdrawMessageCommand("q7")
    harness.conversations.will(Rejected(Reason.UNKNOWN_OR_DECIDED))
    refusal = refused(lambda: ask(harness, "WithdrawMessage", v1.WithdrawMessageRequest(name=f"{NAME}/messages/q7")))
    assert (refusal.code, refusal.reason) == ("ABORTED", "UNKNOWN_OR_DECIDED")


# --- request cycles ---------------------------------------------------------------------------------------------------


def live_through(author: Author, runs: int) -> None:
    """So many runs, between any two something that belongs to none, and one that is under way."""
    for number in range(1, runs + 2):
        run = f"c1:{number}"
        author.commit(author.says("aside", type=MessageType.AGENT))
        author.commit(author.says(f"ask {number}", run=run, delivery="direct"))
        content = (Text(f"answer {number}"),)
        author.commit(author.says(type=MessageType.AGENT, content=content, run=run, request_id=f"r{number}"))
        if number <= runs:
            ledger = Ledger(run=number, seq=author.messages)
            author.commit(RunStop(run, StopReason.COMPLETED), state=Idle(ledger))
    ledger = Ledger(run=runs + 1, live=True, seq=author.messages)
    author.commit(changed("llm_requesting"), state=LlmRequesting(ledger, "r", 1, LlmPhase.CONNECTING, 1))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_cycles_are_listed_with_the_one_in_progress(
    harness: GrpcHarness, author: Author, size: int, descending: bool
) -> None:
    live_through(author, 6)
    author.store.prune_log("c1", author.head)
    request = v1.ListRequestCyclesRequest(
        parent=NAME, page_size=size, descending=descending, view=v1.ListRequestCyclesRequest.VIEW_FULL
    )
    found = [each for page in pages(harness, "ListRequestCycles", request, "request_cycles") for each in page]
    told = [(each.name[-4:], each.steps[0].root.content[0].text, each.steps[1].ai_block.assistant) for each in found]
    expected = [(f"c1:{number}", f"ask {number}", f"answer {number}") for number in range(1, 8)]
    assert told == (expected[::-1] if descending else expected)
    assert all(len(each.steps) == 2 and len(each.rounds) == 1 for each in found)
    running = [each.name for each in found if each.stop_reason == v1.STOP_REASON_UNSPECIFIED]
    assert running == [f"{NAME}/requestCycles/c1:7"]


def test_a_page_of_cycles_reads_the_messages_of_its_runs_only(
    harness: GrpcHarness, author: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_through(author, 40)
    read: list[int] = []

    def counting(conversation_id: str, **bounds: Any) -> Any:
        found = messages(conversation_id, **bounds)
        read.extend(message.sequence for message in found)
        return found

    messages: Any = author.store.messages
    monkeypatch.setattr(author.store, "messages", counting)
    for descending in (False, True):
        read.clear()
        answer = ask(
            harness, "ListRequestCycles", v1.ListRequestCyclesRequest(parent=NAME, page_size=2, descending=descending)
        )
        assert len(answer.request_cycles) == 2
        assert len(read) <= 3 * 3, "the runs of the page and the one that did not fit, three messages each"


@pytest.mark.parametrize("descending", [False, True])
def test_a_run_that_stops_while_the_page_is_read_is_there_once(
    harness: GrpcHarness, author: Author, monkeypatch: pytest.MonkeyPatch, descending: bool
) -> None:
    live_through(author, 2)
    load: Any = author.store.load
    stale = load("c1")
    author.commit(RunStop("c1:3", StopReason.INTERRUPTED), state=Idle(Ledger(run=3, seq=author.messages)))
    monkeypatch.setattr(author.store, "load", lambda _: stale)
    answer = ask(harness, "ListRequestCycles", v1.ListRequestCyclesRequest(parent=NAME, descending=descending))
    found = [(each.name[-1], each.stop_reason) for each in answer.request_cycles]
    expected = [("1", v1.STOP_REASON_COMPLETED), ("2", v1.STOP_REASON_COMPLETED), ("3", v1.STOP_REASON_INTERRUPTED)]
    assert found == (expected[::-1] if descending else expected)


def test_one_cycle_is_read_as_it_is_listed(harness: GrpcHarness, author: Author) -> None:
    live_through(author, 3)
    author.store.prune_log("c1", author.head)
    view = v1.ListRequestCyclesRequest.VIEW_FULL
    listed = ask(harness, "ListRequestCycles", v1.ListRequestCyclesRequest(parent=NAME, view=view)).request_cycles
    assert len(listed) == 4
    for cycle in listed:
        name = cycle.name.replace(NAME, "conversations/slug-c1")
        answer = ask(harness, "GetRequestCycle", v1.GetRequestCycleRequest(name=name, view=view))
        assert answer.request_cycle == cycle
    plain = ask(harness, "GetRequestCycle", v1.GetRequestCycleRequest(name=listed[0].name)).request_cycle
    assert (len(plain.steps), len(plain.rounds)) == (2, 0)


@pytest.mark.parametrize("call", ["GetRequestCycle", "WaitRequestCycle"])
@pytest.mark.parametrize("run", ["c1:0", "c1:5", "c2:1", "m1"])
def test_a_cycle_that_does_not_exist_is_not_found(harness: GrpcHarness, author: Author, call: str, run: str) -> None:
    live_through(author, 3)
    Author(author.store, harness.hub, "c2").commit(RunStop("c2:1", StopReason.COMPLETED))
    name = f"{NAME}/requestCycles/{run}"
    refusal = refused(lambda: ask(harness, call, getattr(v1, f"{call}Request")(name=name)))
    assert (refusal.code, refusal.text) == ("NOT_FOUND", f"{name} does not exist")


def test_a_run_that_stops_while_its_cycle_is_read_has_ended(
    harness: GrpcHarness, author: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_through(author, 2)
    load: Any = author.store.load
    stale = load("c1")
    author.commit(RunStop("c1:3", StopReason.INTERRUPTED), state=Idle(Ledger(run=3, seq=author.messages)))
    monkeypatch.setattr(author.store, "load", lambda _: stale)
    name = f"{NAME}/requestCycles/c1:3"
    found = ask(harness, "GetRequestCycle", v1.GetRequestCycleRequest(name=name)).request_cycle
    assert (found.stop_reason, len(found.steps)) == (v1.STOP_REASON_INTERRUPTED, 2)


# --- waiting for the end of a run -------------------------------------------------------------------------------------


def wait(harness: GrpcHarness, run: int, **fields: Any) -> Any:
    """Begin to wait, and return the call once the server waits."""
    before = harness.hub.watchers()
    request = v1.WaitRequestCycleRequest(name=f"{NAME}/requestCycles/c1:{run}", **fields)
    call = harness.stub.WaitRequestCycle.future(request, metadata=AUTHORIZED, timeout=30)
    for _ in range(10_000):
        if harness.hub.watchers() > before or call.done():
            return call
        ask(harness, "GetConversation", v1.GetConversationRequest(name=NAME))
    raise AssertionError("nobody waits")


def test_who_waits_is_told_of_the_end_of_the_run(harness: GrpcHarness, author: Author) -> None:
    live_through(author, 2)
    waiting = [wait(harness, 3) for _ in range(3)]
    author.commit(author.says("a", run="c1:3", type=MessageType.AGENT, request_id="r4"))
    author.token("not woken for this")
    author.commit(changed("llm_requesting"))
    assert not any(call.done() for call in waiting)
    author.commit(RunStop("c1:3", StopReason.COMPLETED, "x"), state=Idle(Ledger(run=3, seq=author.messages)))
    for call in waiting:
        cycle = call.result().request_cycle
        assert (cycle.stop_reason, cycle.stop_detail, len(cycle.steps)) == (v1.STOP_REASON_COMPLETED, "x", 3)
        assert cycle.HasField("end_time")
    assert (harness.hub.watchers(), len(harness.endpoint.watchers)) == (0, 0)


def test_a_run_that_has_ended_is_not_waited_for(harness: GrpcHarness, author: Author) -> None:
    live_through(author, 2)
    cycle = wait(harness, 2).result().request_cycle
    assert cycle.stop_reason == v1.STOP_REASON_COMPLETED


def test_an_end_that_is_published_late_or_not_at_all_is_not_missed(
    harness: GrpcHarness, author: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_through(author, 2)
    early = author.store_only(RunStop("c1:3", StopReason.COMPLETED), state=Idle(Ledger(run=3, seq=author.messages)))
    assert wait(harness, 3).result().request_cycle.HasField("end_time"), "stored, not yet published"
    author.publish(early)
    ledger = Ledger(run=4, live=True, seq=author.messages)
    author.commit(
        author.says("ask 4", run="c1:4", delivery="direct"), state=LlmRequesting(ledger, "r", 1, LlmPhase.CONNECTING, 1)
    )
    looked, look = threading.Event(), author.store.stopped_run

    def looking(conversation_id: str, run: str) -> Any:
        found = look(conversation_id, run)
        looked.set()
        return found

    monkeypatch.setattr(author.store, "stopped_run", looking)
    call = wait(harness, 4)
    assert looked.wait(30)
    author.store_only(RunStop("c1:4", StopReason.COMPLETED), state=Idle(Ledger(run=4, seq=author.messages)))
    author.commit(author.says("the only event that the hub has"))
    assert call.result().request_cycle.HasField("end_time")


def test_after_the_timeout_the_cycle_is_shown_as_it_stands(harness: GrpcHarness, author: Author) -> None:
    live_through(author, 2)
    for timeout in (Duration(), Duration(nanos=20_000_000)):
        cycle = wait(harness, 3, timeout=timeout, view=v1.ListRequestCyclesRequest.VIEW_ROUNDS).result().request_cycle
        assert (cycle.stop_reason, cycle.HasField("end_time")) == (v1.STOP_REASON_UNSPECIFIED, False)
        assert (len(cycle.steps), len(cycle.rounds)) == (0, 1)
    assert (harness.hub.watchers(), len(harness.endpoint.watchers)) == (0, 0)


def test_waiting_ends_with_the_conversation_and_with_the_server(harness: GrpcHarness, author: Author) -> None:
    live_through(author, 0)
    call = wait(harness, 1)
    harness.hub.deleted("c1")
    assert refused(call.result).code == "NOT_FOUND"
    call = wait(harness, 1)
    harness.stop()
    refusal = refused(call.result)
    assert (refusal.code, refusal.reason) == ("UNAVAILABLE", "SHUTTING_DOWN")


def test_who_waits_counts_as_a_stream(open_harness: Callable[..., GrpcHarness]) -> None:
    harness = open_harness(max_streams=1)
    author = Author(harness.services.store, harness.hub)
    live_through(author, 0)
    call = wait(harness, 1)
    refusal = refused(harness.watch)
    assert (refusal.code, refusal.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_STREAMS")
    assert refused(wait(harness, 1).result).reason == "TOO_MANY_STREAMS"
    call.cancel()


# --- messages, by their names -----------------------------------------------------------------------------------------


def test_a_message_is_read_by_its_name_also_while_it_waits(harness: GrpcHarness, queued: Author) -> None:
    queued.commit(queued.says("stored"))

    def read(message: str) -> v1.Message:
        request = v1.GetMessageRequest(name=f"conversations/slug-c1/messages/{message}")
        found: v1.Message = ask(harness, "GetMessage", request).message
        return found

    listed = ask(harness, "ListMessages", v1.ListMessagesRequest(parent=NAME)).messages
    assert [read("m1")] == list(listed)
    waiting = ask(harness, "ListQueue", v1.ListQueueRequest(parent=NAME)).messages
    assert [read(each.message.name[-2:]) for each in waiting] == [each.message for each in waiting]
    assert {each.message.sequence for each in waiting} == {0}
    Author(queued.store, harness.hub, "c2")
    for name in (f"{NAME}/messages/q2", f"{NAME}/messages/m9", "conversations/c2/messages/m1"):
        refusal = refused(lambda name=name: ask(harness, "GetMessage", v1.GetMessageRequest(name=name)))  # type: ignore[misc]
        assert (refusal.code, refusal.text) == ("NOT_FOUND", f"{name} does not exist")


# --- the questions that wait for a person -----------------------------------------------------------------------------


def asks(author: Author, at: int, *open_: int) -> None:
    """A response with three calls that begins to wait at a time; only these still need an answer."""
    calls = tuple(ToolUse(f"{author.record.id}-t{number}", "bash", '{"command": "ls"}') for number in range(3))
    undecided = tuple(calls[number].id for number in open_)
    state = AwaitingToolApproval(Ledger(run=1, live=True), calls, undecided, ApprovalKind.TOOL, "r1", at)
    author.commit(changed("awaiting_tool_approval"), state=state, state_updated_at=at)


@pytest.fixture
def asking(harness: GrpcHarness, author: Author) -> dict[str, Author]:
    """Three that ask, c3 first and then c1 and c2 at once; another that does not, and one of somebody else."""
    found = {"c1": author} | {id_: Author(author.store, harness.hub, id_) for id_ in ("c2", "c3", "c4")}
    other = Author(author.store, harness.hub, "c5", principal="somebody")
    for each, at, open_ in ((found["c1"], 20, (0, 1, 2)), (found["c2"], 20, (2,)), (found["c3"], 10, (0, 2))):
        asks(each, at, *open_)
    asks(other, 5, 0)
    return found


def questions(harness: GrpcHarness, parent: str, size: int) -> list[str]:
    request = v1.ListApprovalsRequest(parent=parent, page_size=size)
    got = pages(harness, "ListApprovals", request, "approvals")
    assert all(len(page) == size for page in got[:-1])
    return [each.name.rpartition("/")[2] for page in got for each in page]


@pytest.mark.parametrize("size", [1, 2, 4, 100])
def test_questions_are_listed_in_pages_those_that_wait_longest_first(
    harness: GrpcHarness, asking: dict[str, Author], size: int
) -> None:
    assert questions(harness, "conversations/-", size) == ["c3-t0", "c3-t2", "c1-t0", "c1-t1", "c1-t2", "c2-t2"]
    assert questions(harness, "conversations/slug-c1", size) == ["c1-t0", "c1-t1", "c1-t2"]
    assert questions(harness, "conversations/c4", size) == []


def test_a_question_is_shown_as_the_conversation_shows_it_and_only_while_it_is_open(
    harness: GrpcHarness, asking: dict[str, Author]
) -> None:
    state = ask(harness, "GetConversation", v1.GetConversationRequest(name=NAME)).conversation.state
    listed = ask(harness, "ListApprovals", v1.ListApprovalsRequest(parent=NAME)).approvals
    assert list(state.awaiting_approval.pending) == list(listed)
    one = v1.GetApprovalRequest(name=f"{NAME}/approvals/c1-t1")
    assert ask(harness, "GetApproval", one).approval == listed[1]
    asks(asking["c1"], 20, 0, 2)
    refusal = refused(lambda: ask(harness, "GetApproval", one))
    assert (refusal.code, refusal.text) == ("NOT_FOUND", f"{one.name} does not exist")


def test_answers_between_two_pages_leave_no_question_out(harness: GrpcHarness, asking: dict[str, Author]) -> None:
    request = v1.ListApprovalsRequest(parent="conversations/-", page_size=3)
    first = ask(harness, "ListApprovals", request)
    request.page_token = first.next_page_token
    asks(asking["c3"], 10, 2)  # before the place where the list goes on
    asks(asking["c1"], 20, 2)  # c1-t0, the last one shown, is among the answered ones
    rest = ask(harness, "ListApprovals", request).approvals
    assert [each.name.rpartition("/")[2] for each in rest] == ["c1-t2", "c2-t2"]
    asking["c1"].commit(changed("idle"), state=Idle(Ledger(run=1)), state_updated_at=30)
    asks(asking["c1"], 40, 0)
    rest = ask(harness, "ListApprovals", request).approvals
    assert [each.name.rpartition("/")[2] for each in rest] == ["c2-t2", "c1-t0"]


def runs(author: Author, at: int, *numbers: int) -> None:
    """A call that has run since a time, and asks a person what has these numbers."""
    call = ToolUse(f"{author.record.id}-t", "mcp__files__move", "{}")
    questions = tuple(Question(number, 1, "files", f"Sure {number}?", at, at + 9) for number in numbers)
    state = ToolExecuting(Ledger(run=1, live=True), call.id, (), (), (call,), 4, questions=questions)
    author.commit(changed("tool_executing"), state=state, state_updated_at=at)


@pytest.mark.parametrize("size", [1, 2, 100])
def test_what_tools_ask_is_listed_in_pages_over_all_conversations_or_of_one(
    harness: GrpcHarness, asking: dict[str, Author], size: int
) -> None:
    for each, at, numbers in (("c1", 20, (7, 9)), ("c2", 20, ()), ("c3", 10, (1, 2)), ("c4", 20, (3,))):
        runs(asking[each], at, *numbers)
    runs(Author(asking["c1"].store, harness.hub, "c6", principal="somebody"), 5, 1)

    def listed(parent: str) -> list[str]:
        request = v1.ListQuestionsRequest(parent=parent, page_size=size)
        got = pages(harness, "ListQuestions", request, "questions")
        assert all(len(page) == size for page in got[:-1])
        return [each.name.removeprefix("conversations/") for page in got for each in page]

    of_c1 = ["c1/questions/7", "c1/questions/9"]
    assert listed("conversations/-") == ["c3/questions/1", "c3/questions/2", *of_c1, "c4/questions/3"]
    assert listed("conversations/slug-c1") == of_c1
    assert listed("conversations/c2") == []
    first = ask(harness, "ListQuestions", v1.ListQuestionsRequest(parent=NAME)).questions[0]
    assert first == ask(harness, "GetQuestion", v1.GetQuestionRequest(name=first.name)).question


def test_an_attachment_is_described_without_its_bytes(harness: GrpcHarness, author: Author) -> None:
    author.store.put_attachment("c1", Attachment("a1", "image/png", b"1234", 30, 20))
    author.store.put_attachment("c1", Attachment("a1.small", "image/png", b"1", 3, 2))
    found = ask(harness, "GetAttachment", v1.GetAttachmentRequest(name="conversations/slug-c1/attachments/a1"))
    assert found.attachment == v1.Attachment(
        name=f"{NAME}/attachments/a1", media_type="image/png", size_bytes=4, width=30, height=20
    )
    for hidden in ("a2", "a1.small"):
        request = v1.GetAttachmentRequest(name=f"{NAME}/attachments/{hidden}")
        assert refused(lambda request=request: ask(harness, "GetAttachment", request)).code == "NOT_FOUND"  # type: ignore[misc]
