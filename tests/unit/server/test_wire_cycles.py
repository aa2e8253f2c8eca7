"""Request cycles in their two views, folded from stored events."""

from __future__ import annotations

import json
from itertools import chain, repeat

from bedrock import v1

from actors.core import request_cycles as cycles
from actors.core.content import Message, MessageType, Reasoning, Text, ToolSuccess, ToolUse, Usage
from actors.core.notifications import Durable, MessageAdded, RunStop, StopReason
from server.wire.cycles import CycleView, fit
from tests.support.samples import FACTS

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


def one(*notifications: Durable, view: v1.ListRequestCyclesRequest.View.ValueType = FULL) -> v1.RequestCycle:
    """The cycle of a run that consists of these messages and, it may be, its end."""
    messages = [each.message for each in notifications if isinstance(each, MessageAdded)]
    times = chain(repeat(0, len(messages)), (600,))
    cycle = cycles.cycle_of(cycles.events_of(notifications, FACTS.groups, times))
    assert cycle is not None
    return CycleView(FACTS, "c", cycle, messages).show(view)


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
    assert [each.ai_block.message[-2:] for each in (plan, looking, done)] == ["a2", "a2", "a5"]


def test_rounds_show_what_went_in_and_what_came_out() -> None:
    first, second = one(*RUN).rounds
    assert (first.llm_request_id, list(first.inputs)) == ("r1", ["conversations/c/messages/u1"])
    assert list(second.inputs) == ["conversations/c/messages/t3", "conversations/c/messages/u4"]
    assert (second.output, second.usage.input_tokens) == ("conversations/c/messages/a5", 5)
    assert second.output_time.ToMilliseconds() == 5_000
    assert [list(each.tool_use_ids) for each in (first, second)] == [["x"], []]


def test_only_the_view_that_is_asked_for_is_filled() -> None:
    steps = one(*RUN, view=v1.ListRequestCyclesRequest.VIEW_UNSPECIFIED)
    rounds = one(*RUN, view=v1.ListRequestCyclesRequest.VIEW_ROUNDS)
    assert (len(steps.steps), len(steps.rounds)) == (5, 0)
    assert (len(rounds.steps), len(rounds.rounds)) == (0, 2)


def test_a_cycle_in_progress_has_no_end() -> None:
    cycle = one(user(1, "look"))
    assert (cycle.stop_reason, cycle.HasField("end_time")) == (v1.STOP_REASON_UNSPECIFIED, False)
    assert cycle.name == "conversations/c/requestCycles/c:1"


def test_a_follow_up_that_was_discarded_is_a_cycle_of_its_own() -> None:
    dropped = one(user(9, "then this", "follow_up", "c:2"), RunStop("c:2", StopReason.INTERRUPTED, "not_run"))
    assert (dropped.root_delivery, dropped.stop_detail) == (v1.DELIVERY_FOLLOW_UP, "not_run")
    assert dropped.steps[0].root.content[0].text == "then this"
    assert not dropped.rounds


def test_the_events_of_a_cycle_make_the_same_cycle_elsewhere() -> None:
    for root in (RUN[0], user(1, "look", "follow_up")):
        shown = one(root, *RUN[1:], view=v1.ListRequestCyclesRequest.VIEW_EVENTS)
        assert (len(shown.steps), len(shown.rounds)) == (0, 0)
        tags = [json.loads(line)["type"] for line in shown.events]
        assert tags == [
            "user-message",
            *["agent-output"] * 3,
            "tool-result",
            "user-message",
            "agent-output",
            "run-stop",
        ]
        again = cycles.cycle_of(cycles.decode_lines(shown.events))
        assert again is not None
        assert again.stop == cycles.CycleRunStop(StopReason.COMPLETED, "", "c:1", 600)
        assert [step.kind for step in cycles.steps(again)] == [
            "non-steer",
            "reasoning",
            "assistant",
            "steer",
            "assistant",
        ]
        assert [len(each.outputs) for each in cycles.rounds(again)] == [3, 1]


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


def test_events_too_long_for_an_answer_lose_text_but_no_event() -> None:
    calls = [ToolUse(f"x{n}", "bash", '{"command": "%s"}' % ("y" * 20_000)) for n in range(50)]
    said = agent(2, "r1", Text("z" * 90_000), *calls)
    shown = one(user(1, "go" * 50_000), said, view=v1.ListRequestCyclesRequest.VIEW_EVENTS)
    whole = list(cycles.decode_lines(shown.events))
    short = fit(shown, 100_000)
    assert short.ByteSize() <= 100_000
    cut = list(cycles.decode_lines(short.events))
    assert [type(each) for each in cut] == [type(each) for each in whole]
    assert isinstance(cut[0], cycles.CycleUserMessage)
    assert cut[0].text.endswith("more characters]")


def test_a_cycle_that_fits_is_left_alone() -> None:
    cycle = one(*RUN)
    before = cycle.SerializeToString(deterministic=True)
    assert fit(cycle, 1_000_000).SerializeToString(deterministic=True) == before
