"""The two views of a request cycle: inference rounds (the requests to the model), and steps for display to people."""

from __future__ import annotations

import msgspec

from actors.core.context import ToolGroup
from actors.core.request_cycles.model import (
    AgentOutput,
    AiBlock,
    CallGroup,
    CycleCall,
    CycleUserMessage,
    InferenceRound,
    OutputKind,
    RequestCycle,
    Step,
    StepKind,
    ToolResult,
    UserStep,
)


def rounds(cycle: RequestCycle) -> tuple[InferenceRound, ...]:
    """Return the model requests of a cycle with their inputs and outputs.

    Tool results after the last model request are left out.
    """
    done: list[InferenceRound] = []
    inputs: list[CycleUserMessage | ToolResult] = [cycle.root]
    for event in cycle.events:
        if not isinstance(event, AgentOutput):
            inputs.append(event)
        elif not done or (inputs if event.round is None else event.round != done[-1].round):
            done.append(InferenceRound(event.round, tuple(inputs), (event,)))
            inputs = []
        else:
            done[-1] = msgspec.structs.replace(done[-1], outputs=(*done[-1].outputs, event))
    return tuple(done)


def steps(cycle: RequestCycle) -> tuple[Step, ...]:
    """Return the steps of a cycle for display: user messages, and the agent's texts with their grouped tool calls."""
    results = {event.tool_call_id: event for event in cycle.events if isinstance(event, ToolResult)}
    done: list[Step] = [UserStep(StepKind.NON_STEER, cycle.root)]
    for event in cycle.events:
        match event:
            case CycleUserMessage():
                done.append(UserStep(StepKind.STEER, event))
            case AgentOutput(kind=OutputKind.TOOL_CALL):
                if not isinstance(done[-1], AiBlock):
                    done.append(AiBlock(OutputKind.ASSISTANT, "", synthetic=True))
                done[-1] = _with_call(done[-1], CycleCall(event, results.get(event.tool_call_id)))
            case AgentOutput():
                done.append(AiBlock(event.kind, event.text, event.message_id))
            case ToolResult():
                pass
    return tuple(done)


def _with_call(block: Step, call: CycleCall) -> Step:
    if not isinstance(block, AiBlock):
        return block
    group = call.call.group or group_of(call.call.tool)
    groups = block.groups
    if groups and groups[-1].group is group:
        groups = (*groups[:-1], CallGroup(group, (*groups[-1].calls, call)))
    else:
        groups = (*groups, CallGroup(group, (call,)))
    return msgspec.structs.replace(block, groups=groups)


_SEED_GROUPS = {
    "ls": ToolGroup.READ,
    "read": ToolGroup.READ,
    "grep": ToolGroup.READ,
    "find": ToolGroup.READ,
    "write": ToolGroup.WRITE,
    "edit": ToolGroup.WRITE,
    "bash": ToolGroup.BASH,
}


def group_of(tool: str) -> ToolGroup:
    """Return the group that the specification gives a tool, for event lists that name no groups; OTHER if unknown."""
    return _SEED_GROUPS.get(tool, ToolGroup.OTHER)
