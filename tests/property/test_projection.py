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

Events = list[request_cycles.CycleEvent]


def some_events(tape: Tape) -> Events:
    """Any order of events; ids of messages and calls are unlike, as wherever such a list comes from."""
    events: Events = []
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


@profile(2_000)
@given(tapes(40, 240))
def test_any_list_of_events_keeps_every_law_of_a_projection(tape: Tape) -> None:
    """One set of lists is the examples of all: to draw a list takes ten times as long as a law takes over it."""
    events = some_events(tape)
    whole = request_cycles.Projector().project(events)
    assert_it_goes_on_from_any_point(events, whole)
    assert_every_event_has_one_place(events, whole)
    assert_strict_reading_stops_at_the_first_event_that_lenient_reading_skips(events, whole)
    assert_both_views_show_every_output_once_and_in_order(whole)
    lines = msgspec.json.Encoder().encode_lines(events).splitlines()
    assert list(request_cycles.decode_lines(lines)) == events


def assert_it_goes_on_from_any_point(events: Events, whole: request_cycles.Projection) -> None:
    projector = request_cycles.Projector()
    assert projector.project(events) == whole
    for cut in {0, len(events) // 3, len(events) // 2, len(events)}:
        assert projector.project(events[cut:], projector.project(events[:cut])) == whole


def assert_every_event_has_one_place(events: Events, found: request_cycles.Projection) -> None:
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


def assert_strict_reading_stops_at_the_first_event_that_lenient_reading_skips(
    events: Events, whole: request_cycles.Projection
) -> None:
    if not whole.skipped:
        assert request_cycles.Projector(strict=True).project(events) == whole
        return
    lenient = request_cycles.Projector()
    with pytest.raises(request_cycles.ProtocolError) as caught:
        request_cycles.Projector(strict=True).project(events)
    assert lenient.project(events[: caught.value.index]).skipped == 0
    assert lenient.project(events[: caught.value.index + 1]).skipped == 1


def assert_both_views_show_every_output_once_and_in_order(whole: request_cycles.Projection) -> None:
    for cycle in whole.cycles:
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
