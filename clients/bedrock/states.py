"""The state of a conversation: its activity, its open approvals and its sub-agents."""

# ruff: noqa: I001, PLC0414 -- one statement exports what is generated in another module

from bedrock._shared.values import (
    Approval as Approval, ApprovalRule as ApprovalRule, AwaitingApprovalDetail as AwaitingApprovalDetail,
    AwaitingSubAgentsDetail as AwaitingSubAgentsDetail, CompletedDetail as CompletedDetail,
    ConversationState as ConversationState, FailedDetail as FailedDetail, LlmRequestingDetail as LlmRequestingDetail,
    ModeUpgrade as ModeUpgrade, PendingSubAgent as PendingSubAgent, Question as Question, RunError as RunError,
    SubAgentReport as SubAgentReport, SubAgentStatus as SubAgentStatus, SubAgentsChanged as SubAgentsChanged,
    ToolExecutingDetail as ToolExecutingDetail,
)  # fmt: skip
