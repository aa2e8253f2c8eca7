"""Builds request cycles from a file of events, without a server or a store.

A request cycle is the work from a user's message to the end of the answer. The command line program finds the function
`fold` as a package entry point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import msgspec
from bedrock import v1

from actors.core import request_cycles as cycles
from actors.core.content import (
    Content,
    Delivery,
    Message,
    MessageType,
    Reasoning,
    Text,
    ToolCancelled,
    ToolError,
    ToolOutcome,
    ToolSuccess,
    ToolUse,
)
from actors.core.context import Limits, ToolGroup
from server.wire.context import ConversionContext
from server.wire.cycles import CycleView

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_DELIVERIES: dict[cycles.CycleDelivery | None, str] = {
    cycles.CycleDelivery.DIRECT: "direct",
    cycles.CycleDelivery.STEER: Delivery.STEER.value,
    cycles.CycleDelivery.FOLLOW_UP: Delivery.FOLLOW_UP.value,
}
_TYPES = tuple(str(each.__struct_config__.tag) for each in get_args(cycles.CycleEvent))
NOWHERE = "-"
"""Stands for the conversation's id in resource names, because a file of events does not contain the id."""


def fold(lines: Iterable[bytes], *, strict: bool = False) -> tuple[list[v1.RequestCycle], int]:
    """Return the request cycles in a file of events, and how many events were skipped.

    Raises ValueError, whose text names the line, for a line that is not an event and, if `strict`, for an event that
    cannot occur at its position.
    """
    places: list[int] = []
    try:
        projection = cycles.Projector(strict=strict).project(_events(lines, places))
    except cycles.ProtocolError as error:
        raise ValueError(f"line {places[error.index]}: {error.text}") from None
    return [_shown(number, cycle) for number, cycle in enumerate(projection.cycles, 1)], projection.skipped


def _events(lines: Iterable[bytes], places: list[int]) -> Iterator[cycles.CycleEvent]:
    """Yield the events in these lines, and add the line number of each event to `places`.

    Raises ValueError for a line that is not an event.
    """
    for number, line in enumerate(lines, 1):
        try:
            for event in cycles.decode_lines([line]):
                places.append(number)
                yield event
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(_why_not(number, line, error)) from None
        except RecursionError:
            raise ValueError(f"line {number} is no event: it is nested too deeply") from None


def _why_not(number: int, line: bytes, error: Exception) -> str:
    """Return what is wrong with a line that is not an event, with advice if the line is from an exported file."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return f"line {number} is no event: it is not JSON"
    match found:
        case {"type": str(kind)} if kind in _TYPES:
            text, _, place = str(error).partition(" - at ")
            where = f"{place.strip('`').removeprefix('$.')}: " if place else ""
            return f"line {number} is no event of type {kind}: {where}{text[0].lower()}{text[1:]}"
        case {"kind": "conversation" | "message" | "event"}:
            return (
                f"line {number} is of an export: that holds messages and events of the contract. The list that cycles "
                "are made of is printed by `bedrock cycles NAME --events`"
            )
        case _:
            return f"line {number} is no event: it needs a type, which is one of {', '.join(_TYPES)}"


def _shown(number: int, cycle: cycles.RequestCycle) -> v1.RequestCycle:
    """Return a request cycle as an API message. Messages and runs without an id get numbers as ids."""
    named = _with_message_ids(cycle)
    run = named.stop.run if named.stop and named.stop.run else f"{number}"
    messages = list(_messages(named, run))
    conversion = ConversionContext(_groups(cycle), lambda _model: 0, Limits())
    answer = CycleView(conversion, NOWHERE, named, messages).show(v1.ListRequestCyclesRequest.VIEW_FULL)
    answer.events.extend(map(cycles.encode_line, cycles.events_in(cycle)))
    return answer


def _groups(cycle: cycles.RequestCycle) -> Mapping[str, ToolGroup]:
    calls = (each for each in cycle.events if isinstance(each, cycles.AgentOutput) and each.tool)
    return {each.tool: each.group or cycles.group_of(each.tool) for each in calls}


def _with_message_ids(cycle: cycles.RequestCycle) -> cycles.RequestCycle:
    """Return the request cycle with an id for each message that had none.

    The whole output of one model request is one message, and so is each tool result.
    """
    outputs = {
        id(each): each.message_id or f"{cycle.root.id}.{number}"
        for number, served in enumerate(cycles.rounds(cycle), 1)
        for each in served.outputs
    }
    events = tuple(
        each
        if isinstance(each, cycles.CycleUserMessage)
        else msgspec.structs.replace(
            each, message_id=each.message_id or outputs.get(id(each), f"{cycle.root.id}.{number}.result")
        )
        for number, each in enumerate(cycle.events, 1)
    )
    return msgspec.structs.replace(cycle, events=events)


def _messages(cycle: cycles.RequestCycle, run: str) -> Iterator[Message]:
    """Yield the messages of a request cycle, as far as the events contain their content."""
    made: dict[str, Message] = {}
    for event in (cycle.root, *cycle.events):
        kind, name, blocks = _part(event)
        delivery = _DELIVERIES.get(event.delivery, "") if isinstance(event, cycles.CycleUserMessage) else ""
        before = made.get(name)
        made[name] = Message(
            id=name,
            sequence=before.sequence if before else len(made) + 1,
            type=kind,
            content=(*(before.content if before else ()), *blocks),
            created_at=event.at,
            run=run,
            delivery=delivery,
        )
    yield from made.values()


def _part(
    event: cycles.CycleUserMessage | cycles.AgentOutput | cycles.ToolResult,
) -> tuple[MessageType, str, tuple[Content, ...]]:
    match event:
        case cycles.CycleUserMessage():
            return MessageType.USER, event.id, (Text(event.text),)
        case cycles.ToolResult():
            return MessageType.TOOL, event.message_id, _result(event)
        case cycles.AgentOutput(kind=cycles.OutputKind.TOOL_CALL):
            return MessageType.AGENT, event.message_id, (ToolUse(event.tool_call_id, event.tool, event.input),)
        case cycles.AgentOutput(kind=cycles.OutputKind.REASONING):
            return MessageType.AGENT, event.message_id, (Reasoning(event.text),)
        case cycles.AgentOutput():
            return MessageType.AGENT, event.message_id, (Text(event.text),)


def _result(result: cycles.ToolResult) -> tuple[Content, ...]:
    """Return the result of a tool call without its output, which the events lack; () for an unknown status."""
    match result.status:
        case "" | ToolOutcome.OK.value:
            return (ToolSuccess(result.tool_call_id, "", duration_ms=result.duration_ms),)
        case ToolOutcome.CANCELLED.value | ToolOutcome.SKIPPED.value:
            return (ToolCancelled(result.tool_call_id, "", ToolOutcome(result.status)),)
        case ToolOutcome.ERROR.value | ToolOutcome.DENIED.value | ToolOutcome.TIMED_OUT.value:
            return (ToolError(result.tool_call_id, "", ToolOutcome(result.status), duration_ms=result.duration_ms),)
        case _:
            return ()
