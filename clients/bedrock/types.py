# Generated from protos/ by `make protos`; edit the contract.
"""Literal types for the names of modes, policies, states and so on, so that type checkers report misspelt names.

A name is that of an enum value of the gRPC API in lower case and without its prefix: ``"ask_writes"`` is
``APPROVAL_POLICY_ASK_WRITES``. The files in ``protos/bedrock/v1`` describe the values. The empty string means that a
value is not set. A value that only newer versions of the API have is given as its number in digits.
"""

from __future__ import annotations

from typing import Literal

Mode = Literal["restricted", "unrestricted", "workspace"]
ApprovalPolicy = Literal["auto", "ask_writes", "ask_all"]
FollowUpPolicy = Literal["always", "completed_only"]
Delivery = Literal["direct", "steer", "follow_up"]
Disposition = Literal["direct", "steer_queued", "follow_up_queued", "duplicate"]
ApprovalDecision = Literal["approve", "deny", "withdrawn"]
RuleAction = Literal["allow", "ask", "deny"]
AuditOutcome = Literal["accepted", "refused"]
AuditVerdict = Literal["run", "ask", "deny", "approved", "denied"]
AuditDecider = Literal["rules", "policy", "person"]
RuleOrigin = Literal["conversation", "operator"]
Fate = Literal["queued", "delivered", "returned", "discarded", "withdrawn"]
CycleView = Literal["steps", "rounds", "full", "events"]
McpServerState = Literal["connecting", "ready", "failed", "stopped", "needs_login"]
ReasoningEffort = Literal["none", "low", "medium", "high", "max"]
UnofferedReason = Literal["mode"]
JobStatus = Literal["running", "exited", "killed", "lost"]
RequestPhase = Literal["connecting", "streaming", "backoff"]
Role = Literal["user", "agent", "tool", "system", "error"]
StopReason = Literal["completed", "interrupted", "error"]
ToolOutcome = Literal["ok", "error", "cancelled", "skipped", "denied", "timed_out"]
CallStatus = Literal["pending", "answered", "timed_out", "withdrawn"]
QuestionStatus = Literal["pending", "answered", "declined", "timed_out", "withdrawn"]
ToolAudience = Literal["all", "top_level", "sub_agent"]
ToolGroup = Literal["read", "write", "bash", "other"]
ModelProtocol = Literal["anthropic", "openai_chat", "openai_responses", "demo"]
SandboxTier = Literal["a", "b", "none"]
StateKind = Literal[
    "idle",
    "awaiting_llm",
    "llm_requesting",
    "awaiting_tool_approval",
    "tool_executing",
    "cancelling",
    "awaiting_sub_agents",
    "awaiting_continuation",
    "context_exhausted",
    "error",
    "completed",
    "failed",
]
ErrorKind = Literal[
    "auth",
    "rate_limit",
    "network",
    "invalid_request",
    "server_error",
    "content_filter",
    "unknown",
    "context_exhausted",
    "sub_agent_error",
    "turn_limit",
    "timed_out",
    "no_result",
    "budget",
    "cancelled",
    "interrupted",
    "response_too_large",
    "resource_exhausted",
    "output_invalid",
    "repeated_failure",
]
SystemMessageKind = Literal[
    "mode_restricted",
    "round_cap",
    "budget",
    "nudge",
    "grace",
    "continue",
    "summary",
    "summary_fallback",
    "sub_agent_results",
    "mode_unrestricted",
    "interrupted",
    "mode_workspace",
    "output_nudge",
    "mcp_restarted",
    "forked",
    "jobs_ended",
]
ContextState = Literal[
    "idle",
    "processing_user_message",
    "awaiting_llm_response",
    "streaming_llm_response",
    "processing_llm_response",
    "awaiting_tool_approval",
    "executing_tools",
    "processing_tool_results",
    "generating_response",
    "transient_failure",
    "failed",
    "cancelling",
    "context_exhausted",
]
EventKind = Literal[
    "snapshot",
    "caught_up",
    "deleted",
    "state_changed",
    "message_added",
    "run_stopped",
    "conversation_updated",
    "context_warning",
    "queue_changed",
    "approval_changed",
    "retrying",
    "stream_discarded",
    "sub_agents_changed",
    "tool_tree_reaped",
    "text_delta",
    "tool_output_delta",
    "client_tool_call_changed",
    "question_changed",
    "background_job_changed",
    "reasoning_delta",
]
ListEventKind = Literal[
    "conversation_changed", "conversation_deleted", "caught_up", "heartbeat", "conversation_unmatched"
]
