"""Classes for request cycles.

A request cycle is a message that started a run, all steps of the run, and how it ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from bedrock import v1
from bedrock._shared.values import AiBlock, ToolCallGroup
from bedrock._shared.wrapper import Wrapper
from bedrock.messages import Message, Usage
from bedrock.types import Delivery, StopReason

__all__ = ["AiBlock", "InferenceRound", "RequestCycle", "ResolutionStep", "ToolCallGroup"]


@dataclass(frozen=True, slots=True)
class ResolutionStep(Wrapper[v1.ResolutionStep]):
    """One step of a request cycle, as people see it: a message, or a text of the agent.

    Exactly one attribute is set.
    """

    root: Message | None
    """The message that started the cycle; always the first step."""
    steer: Message | None
    """A message that reached the model during the run."""
    ai_block: AiBlock | None
    """One text of the agent and the tool calls that belong to it."""


@dataclass(frozen=True, slots=True)
class InferenceRound(Wrapper[v1.InferenceRound]):
    """One request to the model and its response."""

    llm_request_id: str
    """Id of the request."""
    inputs: tuple[str, ...]
    """The resource names of the messages that were added to the request since the previous round."""
    output: str
    """The resource name of the response's message; empty while there is no response."""
    usage: Usage | None
    """The usage of the response; None while there is no response."""
    output_time: datetime | None
    """When the response was stored; None while there is no response."""
    tool_use_ids: tuple[str, ...]
    """Ids of the tool calls in the response, in order."""


@dataclass(frozen=True, slots=True)
class RequestCycle(Wrapper[v1.RequestCycle]):
    """The complete processing of one request, up to the end of its run. The run has the same name as the cycle."""

    name: str
    """The resource name."""
    root_delivery: Delivery
    """How the message that started the cycle was delivered: "direct" or "follow_up"."""
    stop_reason: StopReason | Literal[""]
    """How the run ended; empty while it continues."""
    stop_detail: str
    """The cause in more detail, e.g. "restart"; empty if there is none."""
    steps: tuple[ResolutionStep, ...]
    """The steps of the run, as people see them; empty unless the call asked for them."""
    rounds: tuple[InferenceRound, ...]
    """The requests to the model; empty unless the call asked for them."""
    start_time: datetime
    """When the message that started the cycle was stored."""
    end_time: datetime | None
    """When the run ended; None while it continues."""
    events: tuple[str, ...]
    """The events of the log from which `steps` and `rounds` are computed, as JSON objects; empty unless asked for."""
    output: Any = field(hash=False)
    """The JSON value that the run ended with; None if the run had no output schema."""
