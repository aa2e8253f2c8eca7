"""The request-cycle projection over any event list, sensible or not (I29)."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given

from actors.core.context import ToolGroup
from actors.core.notifications import StopReason
from actors.core.request_cycles import (
    AgentOutput,
    AiBlock,
    CycleDelivery,
    CycleEvent,
    CycleRunStop,
    CycleUserMessage,
    OutputKind,
    Projector,
    ProtocolError,
    ToolResult,
    UserMessageWithdrawn,
    UserStep,
    decode_lines,
    rounds,
    steps,
)
from tests.property.profiles import profile
from tests.property.tape import Tape, tapes

pytestmark = pytest.mark.timeout(3_600)


def some_events(tape: Tape) -> list[CycleEvent]:
    """Any order of events; ids of messages and calls are unlike, as wherever such a list comes from."""
    events: list[CycleEvent] = []
    while not tape.over:
        number = len(events)
        of_request = tape.pick((None, "r1", "r2", "r3"))
        choices: tuple[CycleEvent, ...] = (
            AgentOutput(OutputKind.ASSISTANT, f"text {number}", of_request),
            AgentOutput(OutputKind.REASONING, f"thought {number}", of_request),
            AgentOutput(
                OutputKind.TOOL_CALL,
                round=of_request,
                tool_call_id=f"t{number}",
                tool=tape.pick(("read", "bash", "edit", "think")),
                group=tape.pick((None, *ToolGroup)),
            ),
            CycleUserMessage(f"m{number}", tape.pick((None, *CycleDelivery))),
            ToolResult(f"t{tape.number(40)}", "ok"),
            CycleRunStop(tape.pick(tuple(StopReason))),
            UserMessageWithdrawn(f"m{tape.number(40)}"),
        )
        events.append(tape.pick(choices))
    return events


LISTS = tapes(40, 240).map(some_events)


@profile(2_000)
@given(LISTS)
def test_a_projection_goes_on_from_any_point(events: list[CycleEvent]) -> None:
    projector = Projector()
    whole = projector.project(events)
    assert projector.project(events) == whole
    for cut in {0, len(events) // 3, len(events) // 2, len(events)}:
        assert projector.project(events[cut:], projector.project(events[:cut])) == whole


@profile(2_000)
@given(LISTS)
def test_every_event_has_one_place(events: list[CycleEvent]) -> None:
    found = Projector().project(events)
    withdrawals = [event for event in events if isinstance(event, UserMessageWithdrawn)]
    placed = [one for cycle in found.cycles for one in (cycle.root, *cycle.events, *filter(None, [cycle.stop]))]
    withdrawn = [
        event for event in events if isinstance(event, CycleUserMessage) and event not in (*placed, *found.queue)
    ]
    assert {message.id for message in withdrawn} <= {event.id for event in withdrawals}
    assert (
        len(placed) + len(found.queue) + len(withdrawn) + len(withdrawals) + found.skipped == found.count == len(events)
    )
    assert all(cycle.stop for cycle in found.closed)
    assert not found.queue or found.open
    roots = [events.index(cycle.root) for cycle in found.cycles if cycle.kind is CycleDelivery.DIRECT]
    assert roots == sorted(roots)


@profile(2_000)
@given(LISTS)
def test_strict_reading_stops_at_the_first_event_that_lenient_reading_skips(events: list[CycleEvent]) -> None:
    lenient = Projector()
    if not lenient.project(events).skipped:
        assert Projector(strict=True).project(events) == lenient.project(events)
        return
    with pytest.raises(ProtocolError) as caught:
        Projector(strict=True).project(events)
    assert lenient.project(events[: caught.value.index]).skipped == 0
    assert lenient.project(events[: caught.value.index + 1]).skipped == 1


@profile(2_000)
@given(LISTS)
def test_both_views_show_every_output_once_and_in_order(events: list[CycleEvent]) -> None:
    for cycle in Projector().project(events).cycles:
        outputs = [event for event in cycle.events if isinstance(event, AgentOutput)]
        served, shown = rounds(cycle), steps(cycle)
        assert [output for each in served for output in each.outputs] == outputs
        assert all(each.outputs for each in served)
        if served:
            assert served[0].inputs[0] == cycle.root
        blocks = [step for step in shown if isinstance(step, AiBlock)]
        calls = [call.call for block in blocks for group in block.groups for call in group.calls]
        assert calls == [output for output in outputs if output.kind is OutputKind.TOOL_CALL]
        texts = [block.text for block in blocks if not block.synthetic]
        assert texts == [output.text for output in outputs if output.kind is not OutputKind.TOOL_CALL]
        for block in blocks:
            groups = [group.group for group in block.groups]
            assert all(one is not other for one, other in pairwise(groups))
            assert block.groups or not block.synthetic
        said = [step.message for step in shown if isinstance(step, UserStep)]
        assert said == [cycle.root, *(event for event in cycle.events if isinstance(event, CycleUserMessage))]


@profile(1_000)
@given(LISTS)
def test_an_event_list_survives_its_file(events: list[CycleEvent]) -> None:
    lines = msgspec.json.Encoder().encode_lines(events).splitlines()
    assert list(decode_lines(lines)) == events
