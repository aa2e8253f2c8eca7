"""Request cycles in their two views, folded from stored events."""

from __future__ import annotations

from bedrock import v1

from actors.core.content import Delivery, Message, MessageType, Reasoning, Text, ToolSuccess, ToolUse, Usage
from actors.core.notifications import Durable, Fate, MessageAdded, QueueChanged, RunStop, StopReason
from actors.core.states import QueuedInput
from actors.ports import StoredEvent
from server.wire.cycles import Ledger, fit
from tests.unit.server.samples import FACTS

FULL = v1.ListRequestCyclesRequest.VIEW_FULL


def user(number: int, text: str, delivery: str = "direct", run: str = "c:1") -> MessageAdded:
    return MessageAdded(Message(f"u{number}", number, MessageType.USER, (Text(text),), number * 1_000, run, delivery))


def agent(number: int, request: str, *content: Text | Reasoning | ToolUse) -> MessageAdded:
    said = Message(
        f"a{number}", number, MessageType.AGENT, content, number * 1_000, "c:1", request_id=request, usage=Usage(number)
    )
    return MessageAdded(said)


def result(number: int, call: str, output: str = "ok") -> MessageAdded:
    return MessageAdded(Message(f"t{number}", number, MessageType.TOOL, (ToolSuccess(call, output),), number * 1_000))


def ledger(*notifications: Durable) -> Ledger:
    events = [StoredEvent(index + 1, (index + 1) * 100, each) for index, each in enumerate(notifications)]
    return Ledger(FACTS, "c", events)


def one(*notifications: Durable, view: v1.ListRequestCyclesRequest.View.ValueType = FULL) -> v1.RequestCycle:
    folded = ledger(*notifications)
    (cycle,) = folded.cycles
    return folded.cycle(cycle, view)


RUN = (
    user(1, "look"),
    agent(2, "r1", Reasoning("plan"), Text("looking"), ToolUse("x", "bash", '{"command": "ls"}')),
    result(3, "x"),
    user(4, "also there", "steer"),
    agent(5, "r2", Text("done")),
    RunStop("c:1", StopReason.COMPLETED),
)


def test_a_cycle_has_its_name_its_times_and_its_end() -> None:
    cycle = one(*RUN)
    assert cycle.name == "conversations/c/requestCycles/c:1"
    assert (cycle.root_delivery, cycle.stop_reason) == (v1.DELIVERY_DIRECT, v1.STOP_REASON_COMPLETED)
    assert (cycle.start_time.ToMilliseconds(), cycle.end_time.ToMilliseconds()) == (1_000, 600)


def test_steps_show_texts_calls_results_and_steers() -> None:
    root, plan, looking, steer, done = one(*RUN).steps
    assert root.root.content[0].text == "look"
    assert plan.ai_block.reasoning == "plan"
    (group,) = looking.ai_block.tool_call_groups
    assert (looking.ai_block.assistant, group.group, group.calls[0].tool_use_id) == ("looking", v1.TOOL_GROUP_BASH, "x")
    assert group.results["x"].output == "ok"
    assert steer.steer.name == "conversations/c/messages/u4"
    assert done.ai_block.assistant == "done"


def test_rounds_show_what_went_in_and_what_came_out() -> None:
    first, second = one(*RUN).rounds
    assert (first.llm_request_id, list(first.inputs)) == ("r1", ["conversations/c/messages/u1"])
    assert list(second.inputs) == ["conversations/c/messages/t3", "conversations/c/messages/u4"]
    assert (second.output, second.usage.input_tokens) == ("conversations/c/messages/a5", 5)


def test_only_the_view_that_is_asked_for_is_filled() -> None:
    steps = one(*RUN, view=v1.ListRequestCyclesRequest.VIEW_UNSPECIFIED)
    rounds = one(*RUN, view=v1.ListRequestCyclesRequest.VIEW_ROUNDS)
    assert (len(steps.steps), len(steps.rounds)) == (5, 0)
    assert (len(rounds.steps), len(rounds.rounds)) == (0, 2)


def test_a_cycle_under_way_has_no_end() -> None:
    cycle = one(user(1, "look"))
    assert (cycle.stop_reason, cycle.HasField("end_time")) == (v1.STOP_REASON_UNSPECIFIED, False)
    assert cycle.name == "conversations/c/requestCycles/c:1"


def test_a_follow_up_that_was_discarded_is_a_cycle_of_its_own() -> None:
    queued = QueuedInput("u9", "then this", (), 50)
    folded = ledger(
        user(1, "look"),
        QueueChanged(queued, Delivery.FOLLOW_UP.value, Fate.QUEUED),
        RunStop("c:1", StopReason.INTERRUPTED),
        RunStop("c:2", StopReason.INTERRUPTED, "not_run"),
    )
    second = folded.cycle(folded.cycles[1], FULL)
    assert (second.root_delivery, second.stop_detail) == (v1.DELIVERY_FOLLOW_UP, "not_run")
    assert second.steps[0].root.content[0].text == "then this"


def test_a_cycle_too_long_for_an_answer_loses_text_but_no_step() -> None:
    calls = [ToolUse(f"x{n}", "bash", '{"command": "%s"}' % ("y" * 2_000)) for n in range(50)]
    cycle = one(
        user(1, "go"),
        agent(2, "r1", Text("z" * 90_000), *calls),
        *(result(n + 3, f"x{n}", "o" * 50_000) for n in range(50)),
    )
    whole = cycle.ByteSize()
    short = fit(cycle, 100_000)
    assert whole > 2_000_000
    assert short.ByteSize() <= 100_000
    group = short.steps[1].ai_block.tool_call_groups[0]
    assert (len(group.calls), len(group.results)) == (50, 50)
    assert "more characters" in group.results["x0"].output


def test_a_cycle_that_fits_is_left_alone() -> None:
    cycle = one(*RUN)
    before = cycle.SerializeToString(deterministic=True)
    assert fit(cycle, 1_000_000).SerializeToString(deterministic=True) == before
