"""The request-cycle projection: the worked examples, and each rule at its edge (seed 4)."""

import re
from pathlib import Path

import msgspec
import pytest

from actors.core import request_cycles
from actors.core.content import (
    Content,
    Delivery,
    Message,
    MessageType,
    Reasoning,
    SystemKind,
    Text,
    ToolCancelled,
    ToolOutcome,
    ToolSuccess,
    ToolUse,
)
from actors.core.context import ToolGroup
from actors.core.notifications import Fate, MessageAdded, Notification, QueueChanged, RunStop, StopReason
from actors.core.states import QueuedInput

GROUPS = {
    "read_file": ToolGroup.READ,
    "search": ToolGroup.READ,
    "patch": ToolGroup.WRITE,
    "bash": ToolGroup.BASH,
    "spawn_sub_agent": ToolGroup.OTHER,
}


# --- the worked examples: their notation, read and written ------------------------------------------------------------


def read_event(word: str) -> request_cycles.CycleEvent | None:
    word = re.sub(r" \((cancelled|skipped|while idle|cancel while streaming|discard_queued)\)$", "", word)
    if word == "end of input":
        return None
    if text := re.fullmatch(r'"(.*)"(?:\((r\d)\))?', word):
        return request_cycles.AgentOutput(request_cycles.OutputKind.ASSISTANT, text[1], round=text[2])
    if reasoning := re.fullmatch(r"reasoning(?: (\w+))?", word):
        return request_cycles.AgentOutput(request_cycles.OutputKind.REASONING, reasoning[1] or "reasoning")
    if stop := re.fullmatch(r"S (\w+)", word):
        return request_cycles.CycleRunStop(StopReason(stop[1]))
    if message := re.fullmatch(r"(m\d)(?: (\w+))?", word):
        return request_cycles.CycleUserMessage(
            message[1], request_cycles.CycleDelivery(message[2]) if message[2] else None
        )
    if call := re.fullmatch(r"(t\d) (\w+)", word):
        return request_cycles.AgentOutput(
            request_cycles.OutputKind.TOOL_CALL, tool_call_id=call[1], tool=call[2], group=GROUPS.get(call[2])
        )
    result = re.fullmatch(r"r(\d)", word)
    assert result, f"unreadable: {word}"
    return request_cycles.ToolResult(f"t{result[1]}")


def write_cycle(cycle: request_cycles.RequestCycle) -> str:
    return f"{cycle.root.id} {cycle.kind.value} " + (cycle.stop.reason.value if cycle.stop else "open")


def expected_cycle(words: str) -> str:
    match words.replace(",", "").split():
        case [root, stop]:
            return f"{root} direct {stop}"
        case _:
            return words.replace(",", "")


def write_round(served: request_cycles.InferenceRound) -> str:
    names = [
        event.id if isinstance(event, request_cycles.CycleUserMessage) else "r" + event.tool_call_id[1:]
        for event in served.inputs
    ]
    kinds = {request_cycles.OutputKind.ASSISTANT: "text", request_cycles.OutputKind.REASONING: "reasoning"}
    outputs = [kinds.get(output.kind, output.tool_call_id) for output in served.outputs]
    return f"{{{','.join(names) or 'continuation'}}}→[{','.join(outputs)}]"


def write_step(step: request_cycles.UserStep | request_cycles.AiBlock) -> str:
    if isinstance(step, request_cycles.UserStep):
        return ("steer " if step.kind is request_cycles.StepKind.STEER else "") + step.message.id
    groups = [
        f"{group.group.value.removesuffix('-group')}[{','.join(call.call.tool_call_id for call in group.calls)}]"
        for group in step.groups
    ]
    text = "synthetic" if step.synthetic else step.text
    return f"ai({text}{'; ' + ', '.join(groups) if groups else ''})"


def table() -> list[tuple[str, str, str, str]]:
    lines = (Path(__file__).parent / "worked_examples.md").read_text("utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    return [(row[0], row[1], row[2], row[3]) for row in rows]


def read_events(notation: str) -> list[request_cycles.CycleEvent]:
    return [event for word in notation.split(", ") if (event := read_event(word))]


def test_there_are_eleven_worked_examples() -> None:
    assert len(table()) == 11


@pytest.mark.parametrize(("notation", "cycles", "served", "shown"), table())
def test_worked_example(notation: str, cycles: str, served: str, shown: str) -> None:
    found = request_cycles.project(read_events(notation), strict=True)
    assert [write_cycle(cycle) for cycle in found] == [expected_cycle(words) for words in cycles.split("; ")]
    if served == "one each":
        served = " ".join(f"{{{cycle.root.id}}}→[text]" for cycle in found)
    assert [write_round(each) for cycle in found for each in request_cycles.rounds(cycle)] == re.findall(
        r"\{.*?\}→\[.*?\]", served
    )
    assert " · ".join("; ".join(write_step(step) for step in request_cycles.steps(cycle)) for cycle in found) == shown


# --- the rules --------------------------------------------------------------------------------------------------------

ROOT = request_cycles.CycleUserMessage("m1")
SAID = request_cycles.AgentOutput(request_cycles.OutputKind.ASSISTANT, "a")
DONE = request_cycles.CycleRunStop(StopReason.COMPLETED)


def call(number: int, tool: str, group: ToolGroup | None = None) -> request_cycles.AgentOutput:
    return request_cycles.AgentOutput(
        request_cycles.OutputKind.TOOL_CALL, tool_call_id=f"t{number}", tool=tool, group=group
    )


@pytest.mark.parametrize("delivery", [None, *request_cycles.CycleDelivery])
def test_a_message_while_idle_is_direct_whatever_it_says(delivery: request_cycles.CycleDelivery | None) -> None:
    (cycle,) = request_cycles.project([request_cycles.CycleUserMessage("m1", delivery)])
    assert cycle.kind is request_cycles.CycleDelivery.DIRECT
    assert cycle.stop is None


@pytest.mark.parametrize("delivery", [None, request_cycles.CycleDelivery.DIRECT])
def test_an_undeclared_message_during_a_run_follows_the_policy(delivery: request_cycles.CycleDelivery | None) -> None:
    events: list[request_cycles.CycleEvent] = [ROOT, request_cycles.CycleUserMessage("m2", delivery), SAID, DONE]
    assert [cycle.root.id for cycle in request_cycles.Projector().project(events).cycles] == ["m1", "m2"]
    (only,) = request_cycles.Projector(undeclared=request_cycles.CycleDelivery.STEER).project(events).cycles
    assert only.events == (events[1], SAID)


@pytest.mark.parametrize("reason", list(StopReason))
def test_every_kind_of_run_stop_closes_the_cycle_and_starts_the_oldest_follow_up(reason: StopReason) -> None:
    queued = [
        request_cycles.CycleUserMessage("m2", request_cycles.CycleDelivery.FOLLOW_UP),
        request_cycles.CycleUserMessage("m3", request_cycles.CycleDelivery.FOLLOW_UP),
    ]
    projection = request_cycles.Projector(strict=True).project([ROOT, *queued, request_cycles.CycleRunStop(reason)])
    assert projection.closed == (
        request_cycles.RequestCycle(ROOT, request_cycles.CycleDelivery.DIRECT, (), request_cycles.CycleRunStop(reason)),
    )
    assert projection.open == request_cycles.RequestCycle(queued[0], request_cycles.CycleDelivery.FOLLOW_UP)
    assert projection.queue == (queued[1],)


@pytest.mark.parametrize("event", [SAID, request_cycles.ToolResult("t1"), DONE])
def test_agent_events_and_run_stops_while_idle_are_protocol_errors(event: request_cycles.CycleEvent) -> None:
    events: list[request_cycles.CycleEvent] = [ROOT, DONE, event, request_cycles.CycleUserMessage("m2"), DONE]
    with pytest.raises(request_cycles.ProtocolError, match=r"event 2: .* while no cycle is open") as caught:
        request_cycles.project(events, strict=True)
    assert caught.value.index == 2
    lenient = request_cycles.Projector().project(events)
    assert (lenient.skipped, lenient.count) == (1, 5)
    assert [cycle.root.id for cycle in lenient.cycles] == ["m1", "m2"]


def test_folding_an_empty_list_gives_nothing() -> None:
    assert request_cycles.Projector().project([]) == request_cycles.Projection()
    assert request_cycles.project([]) == ()


def test_a_round_ends_where_the_request_id_changes() -> None:
    parts = [
        request_cycles.AgentOutput(request_cycles.OutputKind.ASSISTANT, text, round=request)
        for text, request in (("a", "r1"), ("b", "r2"))
    ]
    (cycle,) = request_cycles.project([ROOT, *parts, DONE])
    assert [(served.round, served.inputs) for served in request_cycles.rounds(cycle)] == [("r1", (ROOT,)), ("r2", ())]


def test_without_request_ids_a_continuation_is_the_same_round() -> None:
    (cycle,) = request_cycles.project([ROOT, SAID, SAID, DONE])
    assert request_cycles.rounds(cycle) == (request_cycles.InferenceRound(None, (ROOT,), (SAID, SAID)),)


def test_a_result_inside_one_response_does_not_split_its_round() -> None:
    outputs = [request_cycles.AgentOutput(request_cycles.OutputKind.ASSISTANT, text, round="r1") for text in "ab"]
    (cycle,) = request_cycles.project([ROOT, outputs[0], request_cycles.ToolResult("t9"), outputs[1], DONE])
    assert [served.outputs for served in request_cycles.rounds(cycle)] == [tuple(outputs)]


def test_calls_are_grouped_by_adjacency() -> None:
    reads = [call(1, "ls"), call(2, "find"), call(3, "bash"), call(4, "grep")]
    (cycle,) = request_cycles.project([ROOT, SAID, *reads, DONE])
    block = request_cycles.steps(cycle)[1]
    assert write_step(block) == "ai(a; read[t1,t2], bash[t3], read[t4])"


def test_a_steer_ends_the_block_so_that_the_next_call_gets_one_of_its_own() -> None:
    steer = request_cycles.CycleUserMessage("m2", request_cycles.CycleDelivery.STEER)
    (cycle,) = request_cycles.project(
        [ROOT, SAID, call(1, "read"), request_cycles.ToolResult("t1"), steer, call(2, "read"), DONE]
    )
    shown = [write_step(step) for step in request_cycles.steps(cycle)]
    assert shown == ["m1", "ai(a; read[t1])", "steer m2", "ai(synthetic; read[t2])"]


def test_the_result_is_beside_its_call() -> None:
    result = request_cycles.ToolResult("t1", "cancelled")
    (cycle,) = request_cycles.project([ROOT, call(1, "bash"), call(2, "bash"), result, DONE])
    block = request_cycles.steps(cycle)[1]
    assert isinstance(block, request_cycles.AiBlock)
    assert block.groups[0].calls == (
        request_cycles.CycleCall(call(1, "bash"), result),
        request_cycles.CycleCall(call(2, "bash")),
    )


@pytest.mark.parametrize(
    ("tools", "group"),
    [
        ("ls read grep find", ToolGroup.READ),
        ("write edit", ToolGroup.WRITE),
        ("bash", ToolGroup.BASH),
        ("anything Read bash2", ToolGroup.OTHER),
    ],
)
def test_lists_without_groups_are_grouped_by_the_seeds_table(tools: str, group: ToolGroup) -> None:
    assert {request_cycles.group_of(tool) for tool in tools.split()} == {group}


def test_a_declared_group_beats_the_table() -> None:
    (cycle,) = request_cycles.project([ROOT, call(1, "bash", ToolGroup.READ)])
    assert write_step(request_cycles.steps(cycle)[1]) == "ai(synthetic; read[t1])"


# --- the wire format --------------------------------------------------------------------------------------------------


def test_event_lists_have_the_seeds_names() -> None:
    lines = """
        {"type":"user-message","id":"m1"}
        {"type":"agent-output","kind":"assistant","text":"look","round":"r1"}
        {"type":"agent-output","kind":"tool_call","round":"r1","tool_call_id":"t1","tool":"read","group":"read-group"}

        {"type":"tool-result","tool_call_id":"t1"}
        {"type":"user-message","id":"m2","delivery":"followUp"}
        {"type":"user-message","id":"m3","delivery":"steer"}
        {"type":"user-message-withdrawn","id":"m2"}
        {"type":"run-stop","reason":"interrupted"}
    """.splitlines()
    events = list(request_cycles.decode_lines(lines))
    assert [msgspec.json.encode(event).decode() for event in events] == [line.strip() for line in lines if line.strip()]
    (cycle,) = request_cycles.project(events, strict=True)
    assert write_cycle(cycle) == "m1 direct interrupted"


@pytest.mark.parametrize("line", ['{"type":"run-stop","reason":"tired"}', '{"type":"tool-call"}', "[]", "{"])
def test_an_unreadable_line_is_an_error(line: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        list(request_cycles.decode_lines([line]))


# --- emission by the runtime ------------------------------------------------------------------------------------------


def added(sequence: int, speaker: MessageType, *content: Content, **fields: object) -> MessageAdded:
    message = Message(f"c:1:{sequence}", sequence, speaker, content, 1000 + sequence, run="c:1")
    return MessageAdded(msgspec.structs.replace(message, **fields))


def queue(message_id: str, delivery: Delivery, fate: Fate) -> QueueChanged:
    return QueueChanged(QueuedInput(message_id, "later", (), 5), delivery.value, fate)


def test_reasoning_that_the_provider_hides_is_no_event() -> None:
    told = [added(1, MessageType.AGENT, Reasoning("", raw="{}"), Text("look"), request_id="c:r1")]
    assert [
        event.text
        for event in request_cycles.events_of(told, GROUPS, [100])
        if isinstance(event, request_cycles.AgentOutput)
    ] == ["look"]


def test_a_conversation_becomes_an_event_list() -> None:
    told: list[Notification] = [
        added(1, MessageType.USER, Text("hi"), delivery="direct", id="m1"),
        queue("m2", Delivery.FOLLOW_UP, Fate.QUEUED),
        queue("m3", Delivery.STEER, Fate.QUEUED),
        added(2, MessageType.AGENT, Reasoning("hm"), Text("look"), ToolUse("t1", "bash", "{}"), request_id="c:r1"),
        added(3, MessageType.TOOL, ToolSuccess("t1", "out", duration_ms=250)),
        queue("m3", Delivery.STEER, Fate.DELIVERED),
        added(4, MessageType.USER, Text("go left"), delivery="steer", id="m3"),
        added(5, MessageType.SYSTEM, Text("mode"), kind=SystemKind.MODE_RESTRICTED),
        added(6, MessageType.AGENT, Text("done"), request_id="c:r2"),
        RunStop("c:1", StopReason.COMPLETED, "max_tokens"),
        queue("m2", Delivery.FOLLOW_UP, Fate.DELIVERED),
        added(7, MessageType.USER, Text("later"), delivery="follow_up", id="m2"),
        added(8, MessageType.ERROR, Text("no network")),
        RunStop("c:2", StopReason.ERROR, "network"),
    ]
    events = list(request_cycles.events_of(told, GROUPS, range(100, 200)))
    assert events == [
        request_cycles.CycleUserMessage("m1", request_cycles.CycleDelivery.DIRECT, "hi", 1001),
        request_cycles.CycleUserMessage("m2", request_cycles.CycleDelivery.FOLLOW_UP, "later", 5),
        request_cycles.AgentOutput(request_cycles.OutputKind.REASONING, "hm", "c:r1", message_id="c:1:2", at=1002),
        request_cycles.AgentOutput(request_cycles.OutputKind.ASSISTANT, "look", "c:r1", message_id="c:1:2", at=1002),
        request_cycles.AgentOutput(
            request_cycles.OutputKind.TOOL_CALL,
            round="c:r1",
            tool_call_id="t1",
            tool="bash",
            input="{}",
            group=ToolGroup.BASH,
            message_id="c:1:2",
            at=1002,
        ),
        request_cycles.ToolResult("t1", "ok", "c:1:3", 1003, 250),
        request_cycles.CycleUserMessage("m3", request_cycles.CycleDelivery.STEER, "go left", 1004),
        request_cycles.AgentOutput(request_cycles.OutputKind.ASSISTANT, "done", "c:r2", message_id="c:1:6", at=1006),
        request_cycles.CycleRunStop(StopReason.COMPLETED, "max_tokens", "c:1", 109),
        request_cycles.CycleRunStop(StopReason.ERROR, "network", "c:2", 113),
    ]
    assert [write_cycle(cycle) for cycle in request_cycles.project(events, strict=True)] == [
        "m1 direct completed",
        "m2 followUp error",
    ]


def test_synthetic_results_are_results() -> None:
    told = [added(1, MessageType.TOOL, ToolCancelled("t1", "Skipped due to cancellation", ToolOutcome.SKIPPED))]
    assert list(request_cycles.events_of(told, {})) == [request_cycles.ToolResult("t1", "skipped", "c:1:1", 1001)]


def test_a_tool_without_a_declared_group_is_of_the_other_group() -> None:
    (event,) = request_cycles.events_of([added(1, MessageType.AGENT, ToolUse("t1", "read", "{}"))], {})
    assert isinstance(event, request_cycles.AgentOutput)
    assert (event.tool, event.group) == ("read", ToolGroup.OTHER)


def test_a_withdrawn_follow_up_is_taken_back_and_a_returned_steer_was_never_there() -> None:
    told = [
        queue("m2", Delivery.FOLLOW_UP, Fate.QUEUED),
        queue("m2", Delivery.FOLLOW_UP, Fate.WITHDRAWN),
        queue("m3", Delivery.STEER, Fate.QUEUED),
        queue("m3", Delivery.STEER, Fate.RETURNED),
    ]
    assert list(request_cycles.events_of(told, {})) == [
        request_cycles.CycleUserMessage("m2", request_cycles.CycleDelivery.FOLLOW_UP, "later", 5),
        request_cycles.UserMessageWithdrawn("m2"),
    ]


def test_a_follow_up_whose_acceptance_is_no_longer_in_the_log_still_opens_its_cycle() -> None:
    told = [added(7, MessageType.USER, Text("later"), delivery="follow_up", id="m2")]
    (cycle,) = request_cycles.project(request_cycles.events_of(told, {}), strict=True)
    assert cycle.root.id == "m2"


def test_a_runs_own_events_make_its_cycle() -> None:
    told: list[Notification] = [
        added(7, MessageType.USER, Text("later"), delivery="follow_up", id="m2"),
        added(8, MessageType.AGENT, Text("done"), request_id="c:r2"),
        RunStop("c:1", StopReason.COMPLETED),
    ]
    events = list(request_cycles.events_of(told, {}))
    cycle = request_cycles.cycle_of(events)
    assert cycle is not None
    assert write_cycle(cycle) == "m2 followUp completed"
    assert list(request_cycles.events_in(cycle)) == events
    running = request_cycles.cycle_of(events[:2])
    assert running is not None
    assert (running.stop, list(request_cycles.events_in(running))) == (None, events[:2])


@pytest.mark.parametrize(
    "first", [[], [request_cycles.ToolResult("t1")], [request_cycles.CycleRunStop(StopReason.COMPLETED)]], ids=len
)
def test_events_without_a_root_are_no_cycle(first: list[request_cycles.CycleEvent]) -> None:
    assert request_cycles.cycle_of([*first, request_cycles.CycleUserMessage("m1")] if first else []) is None


def test_words_to_the_model_alone_are_no_user_messages() -> None:
    told = [
        added(1, MessageType.SYSTEM, Text("call submit_result"), kind=SystemKind.NUDGE, meta=True),
        added(2, MessageType.USER, Text("Continue."), meta=True),
        added(3, MessageType.SYSTEM, Text("what was done"), kind=SystemKind.SUMMARY),
    ]
    assert list(request_cycles.events_of(told, {})) == []
