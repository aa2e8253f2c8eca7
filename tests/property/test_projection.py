"""The request-cycle projection over any event list, sensible or not (I29)."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given

from actors.core import request_cycles
from actors.core.context import ToolGroup
from actors.core.notifications import StopReason
from tests.property.profiles import profile
from tests.property.tape import Tape, tapes

pytestmark = pytest.mark.timeout(3_600)


def some_events(tape: Tape) -> list[request_cycles.CycleEvent]:
    """Any order of events; ids of messages and calls are unlike, as wherever such a list comes from."""
    events: list[request_cycles.CycleEvent] = []
    while not tape.over:
        number = len(events)
        of_request = tape.pick((None, "r1", "r2", "r3"))
        choices: tuple[request_cycles.CycleEvent, ...] = (
            request_cycles.AgentOutput(request_cycles.OutputKind.ASSISTANT, f"text {number}", of_request),
            request_cycles.AgentOutput(request_cycles.OutputKind.REASONING, f"thought {number}", of_request),
            request_cycles.AgentOutput(
                request_cycles.OutputKind.TOOL_CALL,
                round=of_request,
                tool_call_id=f"t{number}",
                tool=tape.pick(("read", "bash", "edit", "think")),
                group=tape.pick((None, *ToolGroup)),
            ),
            request_cycles.CycleUserMessage(f"m{number}", tape.pick((None, *request_cycles.CycleDelivery))),
            request_cycles.ToolResult(f"t{tape.number(40)}", "ok"),
            request_cycles.CycleRunStop(tape.pick(tuple(StopReason))),
            request_cycles.UserMessageWithdrawn(f"m{tape.number(40)}"),
        )
        events.append(tape.pick(choices))
    return events


LISTS = tapes(40, 240).map(some_events)


@profile(2_000)
@given(LISTS)
def test_a_projection_goes_on_from_any_point(events: list[request_cycles.CycleEvent]) -> None:
    projector = request_cycles.Projector()
    whole = projector.project(events)
    assert projector.project(events) == whole
    for cut in {0, len(events) // 3, len(events) // 2, len(events)}:
        assert projector.project(events[cut:], projector.project(events[:cut])) == whole


@profile(2_000)
@given(LISTS)
def test_every_event_has_one_place(events: list[request_cycles.CycleEvent]) -> None:
    found = request_cycles.Projector().project(events)
    withdrawals = [event for event in events if isinstance(event, request_cycles.UserMessageWithdrawn)]
    placed = [one for cycle in found.cycles for one in (cycle.root, *cycle.events, *filter(None, [cycle.stop]))]
    withdrawn = [
        event
        for event in events
        if isinstance(event, request_cycles.CycleUserMessage) and event not in (*placed, *found.queue)
    ]
    assert {message.id for message in withdrawn} <= {event.id for event in withdrawals}
    assert (
        len(placed) + len(found.queue) + len(withdrawn) + len(withdrawals) + found.skipped == found.count == len(events)
    )
    assert all(cycle.stop for cycle in found.closed)
    assert not found.queue or found.open
    roots = [events.index(cycle.root) for cycle in found.cycles if cycle.kind is request_cycles.CycleDelivery.DIRECT]
    assert roots == sorted(roots)


@profile(2_000)
@given(LISTS)
def test_strict_reading_stops_at_the_first_event_that_lenient_reading_skips(
    events: list[request_cycles.CycleEvent],
) -> None:
    lenient = request_cycles.Projector()
    if not lenient.project(events).skipped:
        assert request_cycles.Projector(strict=True).project(events) == lenient.project(events)
        return
    with pytest.raises(request_cycles.ProtocolError) as caught:
        request_cycles.Projector(strict=True).project(events)
    assert lenient.project(events[: caught.value.index]).skipped == 0
    assert lenient.project(events[: caught.value.index + 1]).skipped == 1


@profile(2_000)
@given(LISTS)
def test_both_views_show_every_output_once_and_in_order(events: list[request_cycles.CycleEvent]) -> None:
    for cycle in request_cycles.Projector().project(events).cycles:
        outputs = [event for event in cycle.events if isinstance(event, request_cycles.AgentOutput)]
        served, shown = request_cycles.rounds(cycle), request_cycles.steps(cycle)
        assert [output for each in served for output in each.outputs] == outputs
        assert all(each.outputs for each in served)
        if served:
            assert served[0].inputs[0] == cycle.root
        blocks = [step for step in shown if isinstance(step, request_cycles.AiBlock)]
        calls = [call.call for block in blocks for group in block.groups for call in group.calls]
        assert calls == [output for output in outputs if output.kind is request_cycles.OutputKind.TOOL_CALL]
        texts = [block.text for block in blocks if not block.synthetic]
        assert texts == [output.text for output in outputs if output.kind is not request_cycles.OutputKind.TOOL_CALL]
        for block in blocks:
            groups = [group.group for group in block.groups]
            assert all(one is not other for one, other in pairwise(groups))
            assert block.groups or not block.synthetic
        said = [step.message for step in shown if isinstance(step, request_cycles.UserStep)]
        assert said == [
            cycle.root,
            *(event for event in cycle.events if isinstance(event, request_cycles.CycleUserMessage)),
        ]


@profile(1_000)
@given(LISTS)
def test_an_event_list_survives_its_file(events: list[request_cycles.CycleEvent]) -> None:
    lines = msgspec.json.Encoder().encode_lines(events).splitlines()
    assert list(request_cycles.decode_lines(lines)) == events
