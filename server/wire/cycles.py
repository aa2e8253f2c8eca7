"""Converts request cycles to API messages. A request cycle is the work from a user's message to the end of the answer.

A client chooses a view: steps (what users see), rounds (requests to the model), both, or events.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from bedrock import v1
from msgspec.structs import replace

from actors.core import request_cycles as cycles
from actors.core.content import Message, SubAgentComplete, ToolCancelled, ToolError, ToolResult, ToolSuccess, ToolUse
from server.contract import resource_names as names
from server.wire.enums import STOP_REASON, TOOL_GROUP
from server.wire.messages import message, tool_call, tool_result
from server.wire.values import ConversionContext, json_value, timestamp, usage

View: TypeAlias = v1.ListRequestCyclesRequest.View.ValueType
"""Which parts of a request cycle a client asks for, such as steps or events."""

_STEPS = (
    v1.ListRequestCyclesRequest.VIEW_UNSPECIFIED,
    v1.ListRequestCyclesRequest.VIEW_STEPS,
    v1.ListRequestCyclesRequest.VIEW_FULL,
)
_ROUNDS = (v1.ListRequestCyclesRequest.VIEW_ROUNDS, v1.ListRequestCyclesRequest.VIEW_FULL)
_EVENTS = (v1.ListRequestCyclesRequest.VIEW_EVENTS,)

SHORTENED = (16_384, 1_024, 64)
"""The lengths in characters to which the texts of a cycle are cut if it is too large for a response.

They are tried one after the other until the cycle fits.
"""


def fit(cycle: v1.RequestCycle, limit_bytes: int) -> v1.RequestCycle:
    """Cut the texts of a request cycle, in place, until it fits into a response, and return it.

    Clients get the full texts by ListMessages.
    """
    for characters in SHORTENED:
        if cycle.ByteSize() <= limit_bytes:
            break
        for step in cycle.steps:
            _shorten(step.ai_block, characters)
        cycle.events[:] = [_shortened(event, characters) for event in cycles.decode_lines(cycle.events)]
    return cycle


def _shorten(block: v1.AiBlock, characters: int) -> None:
    if len(block.assistant) > characters:
        block.assistant = _cut(block.assistant, characters)
    if len(block.reasoning) > characters:
        block.reasoning = _cut(block.reasoning, characters)
    for group in block.tool_call_groups:
        for call in group.calls:
            if call.input.ByteSize() > characters:
                call.ClearField("input")
            call.raw_input = _cut(call.raw_input, characters)
        for result in group.results.values():
            result.output = _cut(result.output, characters)
            if result.display.ByteSize() > characters:
                result.ClearField("display")


def _shortened(event: cycles.CycleEvent, characters: int) -> str:
    match event:
        case cycles.CycleUserMessage():
            event = replace(event, text=_cut(event.text, characters))
        case cycles.AgentOutput():
            event = replace(event, text=_cut(event.text, characters), input=_cut(event.input, characters))
        case _:
            pass
    return cycles.encode_line(event)


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]} … [{len(text) - characters} more characters]"


class CycleView:
    """Builds the API message of a request cycle from the cycle and the stored messages whose ids it contains."""

    def __init__(
        self,
        conversion: ConversionContext,
        conversation_id: str,
        cycle: cycles.RequestCycle,
        messages: Iterable[Message],
    ) -> None:
        self._conversion = conversion
        self._conversation_id = conversation_id
        self._cycle = cycle
        self._messages = {stored.id: stored for stored in messages}
        self._results: dict[str, ToolResult] = {
            block.tool_use_id: block
            for stored in self._messages.values()
            for block in stored.content
            if isinstance(block, ToolSuccess | ToolError | ToolCancelled | SubAgentComplete)
        }

    def show(self, view: View) -> v1.RequestCycle:
        """Return the request cycle as an API message, with the parts that the view includes."""
        cycle, stop = self._cycle, self._cycle.stop
        run = self._messages[cycle.root.id].run
        follow_up = cycle.kind is cycles.CycleDelivery.FOLLOW_UP
        return v1.RequestCycle(
            name=names.cycle(self._conversation_id, run),
            root_delivery=v1.DELIVERY_FOLLOW_UP if follow_up else v1.DELIVERY_DIRECT,
            stop_reason=STOP_REASON[stop.reason] if stop else v1.STOP_REASON_UNSPECIFIED,
            stop_detail=stop.detail if stop else "",
            steps=[self._step(step) for step in cycles.steps(cycle)] if view in _STEPS else (),
            rounds=[self._round(each) for each in cycles.rounds(cycle)] if view in _ROUNDS else (),
            events=map(cycles.encode_line, cycles.events_in(cycle)) if view in _EVENTS else (),
            start_time=timestamp(cycle.root.at),
            end_time=timestamp(stop.at if stop else 0),
            output=json_value(stop.output) if stop and stop.output else None,
        )

    def _message(self, said: cycles.CycleUserMessage) -> v1.Message:
        return message(self._conversion, self._conversation_id, self._messages[said.id])

    def _step(self, step: cycles.Step) -> v1.ResolutionStep:
        match step:
            case cycles.UserStep(kind=cycles.StepKind.STEER, message=said):
                return v1.ResolutionStep(steer=self._message(said))
            case cycles.UserStep(message=said):
                return v1.ResolutionStep(root=self._message(said))
            case cycles.AiBlock():
                return v1.ResolutionStep(ai_block=self._ai_block(step))

    def _ai_block(self, block: cycles.AiBlock) -> v1.AiBlock:
        answer = v1.AiBlock(
            synthetic=block.synthetic,
            tool_call_groups=[self._group(group) for group in block.groups],
            message=names.message(self._conversation_id, block.message_id) if block.message_id else "",
        )
        if block.kind is cycles.OutputKind.REASONING:
            answer.reasoning = block.text
        else:
            answer.assistant = block.text
        return answer

    def _group(self, group: cycles.CallGroup) -> v1.ToolCallGroup:
        answer = v1.ToolCallGroup(group=TOOL_GROUP[group.group])
        for each in group.calls:
            use = ToolUse(each.call.tool_call_id, each.call.tool, each.call.input)
            answer.calls.append(tool_call(self._conversion, use))
            result = self._results.get(use.id)
            if result is not None:
                answer.results[use.id].CopyFrom(tool_result(self._conversation_id, result))
        return answer

    def _round(self, served: cycles.InferenceRound) -> v1.InferenceRound:
        ids = dict.fromkeys(
            each.id if isinstance(each, cycles.CycleUserMessage) else each.message_id for each in served.inputs
        )
        output = self._messages.get(served.outputs[0].message_id)
        return v1.InferenceRound(
            llm_request_id=served.round or "",
            inputs=[names.message(self._conversation_id, each) for each in ids if each],
            output=names.message(self._conversation_id, output.id) if output else "",
            usage=usage(output.usage) if output else None,
            output_time=timestamp(output.created_at) if output else None,
            tool_use_ids=[each.tool_call_id for each in served.outputs if each.kind is cycles.OutputKind.TOOL_CALL],
        )
