"""The Context Manager FSM (seed 3) as a projection of the machine."""

from __future__ import annotations

from enum import StrEnum


class ContextState(StrEnum):
    """The seed's eleven states, and the two that Bedrock adds under their own names."""

    IDLE = "Idle"
    PROCESSING_USER_MESSAGE = "ProcessingUserMessage"
    AWAITING_LLM_RESPONSE = "AwaitingLLMResponse"
    STREAMING_LLM_RESPONSE = "StreamingLLMResponse"
    PROCESSING_LLM_RESPONSE = "ProcessingLLMResponse"
    AWAITING_TOOL_APPROVAL = "AwaitingToolApproval"
    EXECUTING_TOOLS = "ExecutingTools"
    PROCESSING_TOOL_RESULTS = "ProcessingToolResults"
    GENERATING_RESPONSE = "GeneratingResponse"
    TRANSIENT_FAILURE = "TransientFailure"
    FAILED = "Failed"
    CANCELLING = "Cancelling"
    CONTEXT_EXHAUSTED = "ContextExhausted"
