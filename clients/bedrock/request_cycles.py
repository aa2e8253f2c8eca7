"""Classes for request cycles.

A request cycle is a message that started a run, all steps of the run, and how it ended.
"""

from __future__ import annotations

from bedrock._shared.values import (
    AiBlock,
    InferenceRound,
    RequestCycle,
    ResolutionStep,
    ToolCallGroup,
)

__all__ = [
    "AiBlock",
    "InferenceRound",
    "RequestCycle",
    "ResolutionStep",
    "ToolCallGroup",
]
