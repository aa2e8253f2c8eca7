"""The state of a conversation: its activity, its open approvals and its sub-agents."""

from __future__ import annotations

from bedrock._shared.values import (
    Approval,
    ApprovalRule,
    AwaitingApprovalDetail,
    AwaitingSubAgentsDetail,
    CompletedDetail,
    ConversationState,
    FailedDetail,
    LlmRequestingDetail,
    ModeUpgrade,
    PendingSubAgent,
    Question,
    RunError,
    SubAgentReport,
    SubAgentsChanged,
    SubAgentStatus,
    ToolExecutingDetail,
)

__all__ = [
    "Approval",
    "ApprovalRule",
    "AwaitingApprovalDetail",
    "AwaitingSubAgentsDetail",
    "CompletedDetail",
    "ConversationState",
    "FailedDetail",
    "LlmRequestingDetail",
    "ModeUpgrade",
    "PendingSubAgent",
    "Question",
    "RunError",
    "SubAgentReport",
    "SubAgentStatus",
    "SubAgentsChanged",
    "ToolExecutingDetail",
]
