"""Tables that map the actors' enum values to those of the gRPC API, which have the same names.

A value that the API lacks ends the start; tests in `tests/unit/server` check that each value of the API is reached.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, TypeVar, get_args

from bedrock import v1

from actors.core.content import MessageType, SystemKind, ToolOutcome
from actors.core.context import Action, ApprovalPolicy, FollowUpPolicy, Mode, Origin, ReasoningEffort, ToolGroup
from actors.core.errors import ErrorKind
from actors.core.notifications import ApprovalDecision, CallStatus, Fate, StopReason
from actors.core.states import JobStatus, LlmPhase, QuestionStatus, State
from actors.core.summary import ContextState
from actors.ports.tools import McpState

E = TypeVar("E", bound=Enum)


def named_alike(kind: Iterable[E], api: Any) -> dict[E, Any]:
    """The values of an API enum by those of ours. The API's names begin with the name of the enum."""
    prefix = api.Name(0).removesuffix("UNSPECIFIED")
    return {each: api.Value(prefix + (each.name if each.value else "UNSPECIFIED")) for each in kind}


STATE_KIND: dict[str, Any] = {
    tag: v1.StateKind.Value(f"STATE_KIND_{tag.upper()}")
    for tag in (str(state.__struct_config__.tag) for state in get_args(State))
}
CONTEXT_STATE = named_alike(ContextState, v1.ContextState)
REASONING_EFFORT = named_alike(ReasoningEffort, v1.ReasoningEffort)
PHASE = named_alike(LlmPhase, v1.ConversationState.LlmRequesting.Phase)
ERROR_KIND = named_alike(ErrorKind, v1.ErrorKind)
STOP_REASON = named_alike(StopReason, v1.StopReason)
MODE = named_alike(Mode, v1.Mode)
APPROVAL_POLICY = named_alike(ApprovalPolicy, v1.ApprovalPolicy)
JOB_STATUS = named_alike(JobStatus, v1.Event.BackgroundJobChanged.Status)
FOLLOW_UP_POLICY = named_alike(FollowUpPolicy, v1.FollowUpPolicy)
ROLE = named_alike(MessageType, v1.Role)
SYSTEM_KIND = named_alike(SystemKind, v1.SystemMessageKind)
TOOL_OUTCOME = named_alike(ToolOutcome, v1.ToolOutcome)
CALL_STATUS = named_alike(CallStatus, v1.Event.ClientToolCallChanged.Status)
QUESTION_STATUS = named_alike(QuestionStatus, v1.Question.Status)
TOOL_GROUP = named_alike(ToolGroup, v1.ToolGroup)
FATE = named_alike(Fate, v1.QueuedMessage.Fate)
DECISION = named_alike(ApprovalDecision, v1.ApprovalDecision)
ACTION = named_alike(Action, v1.ApprovalRule.Action)
ORIGIN = named_alike(Origin, v1.ApprovalRule.Origin)
MCP_STATE = named_alike(McpState, v1.McpServer.State)

DELIVERY = {
    "": v1.DELIVERY_UNSPECIFIED,
    "direct": v1.DELIVERY_DIRECT,
    "steer": v1.DELIVERY_STEER,
    "follow_up": v1.DELIVERY_FOLLOW_UP,
}

DISPOSITION = {
    "direct": v1.DISPOSITION_DIRECT,
    "steer_queued": v1.DISPOSITION_STEER_QUEUED,
    "follow_up_queued": v1.DISPOSITION_FOLLOW_UP_QUEUED,
}
