"""The Request Cycle Model: a conversation as a list of cycles.

A cycle is the work on one user message: it begins with the message and ends with the event run-stop.
"""

from __future__ import annotations

from actors.core.request_cycles.from_events import events_of
from actors.core.request_cycles.model import (
    AgentOutput,
    AiBlock,
    CallGroup,
    CycleCall,
    CycleDelivery,
    CycleEvent,
    CycleRunStop,
    CycleUserMessage,
    InferenceRound,
    Milliseconds,
    OutputKind,
    RequestCycle,
    Step,
    StepKind,
    ToolResult,
    UserMessageWithdrawn,
    UserStep,
    decode_lines,
    encode_line,
)
from actors.core.request_cycles.projector import Projection, Projector, ProtocolError, cycle_of, events_in, project
from actors.core.request_cycles.views import group_of, rounds, steps

__all__ = [
    "AgentOutput",
    "AiBlock",
    "CallGroup",
    "CycleCall",
    "CycleDelivery",
    "CycleEvent",
    "CycleRunStop",
    "CycleUserMessage",
    "InferenceRound",
    "Milliseconds",
    "OutputKind",
    "Projection",
    "Projector",
    "ProtocolError",
    "RequestCycle",
    "Step",
    "StepKind",
    "ToolResult",
    "UserMessageWithdrawn",
    "UserStep",
    "cycle_of",
    "decode_lines",
    "encode_line",
    "events_in",
    "events_of",
    "group_of",
    "project",
    "rounds",
    "steps",
]
