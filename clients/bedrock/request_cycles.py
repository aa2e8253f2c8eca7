"""Classes for request cycles.

A request cycle is a message that started a run, all steps of the run, and how it ended.
"""

# ruff: noqa: I001, PLC0414 -- one statement exports what is generated in another module

from bedrock._shared.values import (
    AiBlock as AiBlock, InferenceRound as InferenceRound, RequestCycle as RequestCycle,
    ResolutionStep as ResolutionStep, ToolCallGroup as ToolCallGroup,
)  # fmt: skip
