"""Tables that map the actors' enum values to those of the gRPC API.

Tests in `tests/unit/server` check that no value is missing.
"""

from __future__ import annotations

from bedrock import v1

from actors.core.content import MessageType, SystemKind, ToolOutcome
from actors.core.context import ApprovalPolicy, FollowUpPolicy, Mode, ReasoningEffort, ToolGroup
from actors.core.errors import ErrorKind
from actors.core.notifications import ApprovalDecision, CallStatus, Fate, StopReason
from actors.core.states import JobStatus, LlmPhase, QuestionStatus
from actors.core.summary import ContextState

STATE_KIND = {
    "idle": v1.STATE_KIND_IDLE,
    "awaiting_llm": v1.STATE_KIND_AWAITING_LLM,
    "llm_requesting": v1.STATE_KIND_LLM_REQUESTING,
    "awaiting_tool_approval": v1.STATE_KIND_AWAITING_TOOL_APPROVAL,
    "tool_executing": v1.STATE_KIND_TOOL_EXECUTING,
    "cancelling": v1.STATE_KIND_CANCELLING,
    "awaiting_sub_agents": v1.STATE_KIND_AWAITING_SUB_AGENTS,
    "awaiting_continuation": v1.STATE_KIND_AWAITING_CONTINUATION,
    "context_exhausted": v1.STATE_KIND_CONTEXT_EXHAUSTED,
    "error": v1.STATE_KIND_ERROR,
    "completed": v1.STATE_KIND_COMPLETED,
    "failed": v1.STATE_KIND_FAILED,
}

CONTEXT_STATE = {
    ContextState.IDLE: v1.CONTEXT_STATE_IDLE,
    ContextState.PROCESSING_USER_MESSAGE: v1.CONTEXT_STATE_PROCESSING_USER_MESSAGE,
    ContextState.AWAITING_LLM_RESPONSE: v1.CONTEXT_STATE_AWAITING_LLM_RESPONSE,
    ContextState.STREAMING_LLM_RESPONSE: v1.CONTEXT_STATE_STREAMING_LLM_RESPONSE,
    ContextState.PROCESSING_LLM_RESPONSE: v1.CONTEXT_STATE_PROCESSING_LLM_RESPONSE,
    ContextState.AWAITING_TOOL_APPROVAL: v1.CONTEXT_STATE_AWAITING_TOOL_APPROVAL,
    ContextState.EXECUTING_TOOLS: v1.CONTEXT_STATE_EXECUTING_TOOLS,
    ContextState.PROCESSING_TOOL_RESULTS: v1.CONTEXT_STATE_PROCESSING_TOOL_RESULTS,
    ContextState.GENERATING_RESPONSE: v1.CONTEXT_STATE_GENERATING_RESPONSE,
    ContextState.TRANSIENT_FAILURE: v1.CONTEXT_STATE_TRANSIENT_FAILURE,
    ContextState.FAILED: v1.CONTEXT_STATE_FAILED,
    ContextState.CANCELLING: v1.CONTEXT_STATE_CANCELLING,
    ContextState.CONTEXT_EXHAUSTED: v1.CONTEXT_STATE_CONTEXT_EXHAUSTED,
}

REASONING_EFFORT = {
    ReasoningEffort.NONE: v1.REASONING_EFFORT_NONE,
    ReasoningEffort.LOW: v1.REASONING_EFFORT_LOW,
    ReasoningEffort.MEDIUM: v1.REASONING_EFFORT_MEDIUM,
    ReasoningEffort.HIGH: v1.REASONING_EFFORT_HIGH,
    ReasoningEffort.MAX: v1.REASONING_EFFORT_MAX,
}

PHASE = {
    LlmPhase.CONNECTING: v1.ConversationState.LlmRequesting.PHASE_CONNECTING,
    LlmPhase.STREAMING: v1.ConversationState.LlmRequesting.PHASE_STREAMING,
    LlmPhase.BACKOFF: v1.ConversationState.LlmRequesting.PHASE_BACKOFF,
}

ERROR_KIND = {
    ErrorKind.AUTH: v1.ERROR_KIND_AUTH,
    ErrorKind.RATE_LIMIT: v1.ERROR_KIND_RATE_LIMIT,
    ErrorKind.NETWORK: v1.ERROR_KIND_NETWORK,
    ErrorKind.INVALID_REQUEST: v1.ERROR_KIND_INVALID_REQUEST,
    ErrorKind.SERVER_ERROR: v1.ERROR_KIND_SERVER_ERROR,
    ErrorKind.CONTENT_FILTER: v1.ERROR_KIND_CONTENT_FILTER,
    ErrorKind.OUTPUT_INVALID: v1.ERROR_KIND_OUTPUT_INVALID,
    ErrorKind.REPEATED_FAILURE: v1.ERROR_KIND_REPEATED_FAILURE,
    ErrorKind.UNKNOWN: v1.ERROR_KIND_UNKNOWN,
    ErrorKind.CONTEXT_EXHAUSTED: v1.ERROR_KIND_CONTEXT_EXHAUSTED,
    ErrorKind.SUB_AGENT_ERROR: v1.ERROR_KIND_SUB_AGENT_ERROR,
    ErrorKind.TURN_LIMIT: v1.ERROR_KIND_TURN_LIMIT,
    ErrorKind.TIMED_OUT: v1.ERROR_KIND_TIMED_OUT,
    ErrorKind.NO_RESULT: v1.ERROR_KIND_NO_RESULT,
    ErrorKind.BUDGET: v1.ERROR_KIND_BUDGET,
    ErrorKind.CANCELLED: v1.ERROR_KIND_CANCELLED,
    ErrorKind.INTERRUPTED: v1.ERROR_KIND_INTERRUPTED,
    ErrorKind.RESPONSE_TOO_LARGE: v1.ERROR_KIND_RESPONSE_TOO_LARGE,
    ErrorKind.RESOURCE_EXHAUSTED: v1.ERROR_KIND_RESOURCE_EXHAUSTED,
}

STOP_REASON = {
    StopReason.COMPLETED: v1.STOP_REASON_COMPLETED,
    StopReason.INTERRUPTED: v1.STOP_REASON_INTERRUPTED,
    StopReason.ERROR: v1.STOP_REASON_ERROR,
}

MODE = {
    Mode.RESTRICTED: v1.MODE_RESTRICTED,
    Mode.WORKSPACE: v1.MODE_WORKSPACE,
    Mode.UNRESTRICTED: v1.MODE_UNRESTRICTED,
}

APPROVAL_POLICY = {
    ApprovalPolicy.AUTO: v1.APPROVAL_POLICY_AUTO,
    ApprovalPolicy.ASK_WRITES: v1.APPROVAL_POLICY_ASK_WRITES,
    ApprovalPolicy.ASK_ALL: v1.APPROVAL_POLICY_ASK_ALL,
}

JOB_STATUS = {
    JobStatus.RUNNING: v1.Event.BackgroundJobChanged.STATUS_RUNNING,
    JobStatus.EXITED: v1.Event.BackgroundJobChanged.STATUS_EXITED,
    JobStatus.KILLED: v1.Event.BackgroundJobChanged.STATUS_KILLED,
    JobStatus.LOST: v1.Event.BackgroundJobChanged.STATUS_LOST,
}

FOLLOW_UP_POLICY = {
    FollowUpPolicy.ALWAYS: v1.FOLLOW_UP_POLICY_ALWAYS,
    FollowUpPolicy.COMPLETED_ONLY: v1.FOLLOW_UP_POLICY_COMPLETED_ONLY,
}

ROLE = {
    MessageType.USER: v1.ROLE_USER,
    MessageType.AGENT: v1.ROLE_AGENT,
    MessageType.TOOL: v1.ROLE_TOOL,
    MessageType.SYSTEM: v1.ROLE_SYSTEM,
    MessageType.ERROR: v1.ROLE_ERROR,
}

SYSTEM_KIND = {
    SystemKind.NONE: v1.SYSTEM_MESSAGE_KIND_UNSPECIFIED,
    SystemKind.MODE_RESTRICTED: v1.SYSTEM_MESSAGE_KIND_MODE_RESTRICTED,
    SystemKind.MODE_WORKSPACE: v1.SYSTEM_MESSAGE_KIND_MODE_WORKSPACE,
    SystemKind.MODE_UNRESTRICTED: v1.SYSTEM_MESSAGE_KIND_MODE_UNRESTRICTED,
    SystemKind.ROUND_CAP: v1.SYSTEM_MESSAGE_KIND_ROUND_CAP,
    SystemKind.BUDGET: v1.SYSTEM_MESSAGE_KIND_BUDGET,
    SystemKind.OUTPUT_NUDGE: v1.SYSTEM_MESSAGE_KIND_OUTPUT_NUDGE,
    SystemKind.NUDGE: v1.SYSTEM_MESSAGE_KIND_NUDGE,
    SystemKind.GRACE: v1.SYSTEM_MESSAGE_KIND_GRACE,
    SystemKind.CONTINUE: v1.SYSTEM_MESSAGE_KIND_CONTINUE,
    SystemKind.SUMMARY: v1.SYSTEM_MESSAGE_KIND_SUMMARY,
    SystemKind.SUMMARY_FALLBACK: v1.SYSTEM_MESSAGE_KIND_SUMMARY_FALLBACK,
    SystemKind.INTERRUPTED: v1.SYSTEM_MESSAGE_KIND_INTERRUPTED,
    SystemKind.MCP_RESTARTED: v1.SYSTEM_MESSAGE_KIND_MCP_RESTARTED,
    SystemKind.FORKED: v1.SYSTEM_MESSAGE_KIND_FORKED,
    SystemKind.SUB_AGENT_RESULTS: v1.SYSTEM_MESSAGE_KIND_SUB_AGENT_RESULTS,
    SystemKind.JOBS_ENDED: v1.SYSTEM_MESSAGE_KIND_JOBS_ENDED,
}

DELIVERY = {
    "": v1.DELIVERY_UNSPECIFIED,
    "direct": v1.DELIVERY_DIRECT,
    "steer": v1.DELIVERY_STEER,
    "follow_up": v1.DELIVERY_FOLLOW_UP,
}
"""How a stored message entered the conversation. For deliveries in requests, see `server.wire.commands`."""

DISPOSITION = {
    "direct": v1.DISPOSITION_DIRECT,
    "steer_queued": v1.DISPOSITION_STEER_QUEUED,
    "follow_up_queued": v1.DISPOSITION_FOLLOW_UP_QUEUED,
}

TOOL_OUTCOME = {
    ToolOutcome.OK: v1.TOOL_OUTCOME_OK,
    ToolOutcome.ERROR: v1.TOOL_OUTCOME_ERROR,
    ToolOutcome.CANCELLED: v1.TOOL_OUTCOME_CANCELLED,
    ToolOutcome.SKIPPED: v1.TOOL_OUTCOME_SKIPPED,
    ToolOutcome.DENIED: v1.TOOL_OUTCOME_DENIED,
    ToolOutcome.TIMED_OUT: v1.TOOL_OUTCOME_TIMED_OUT,
}

CALL_STATUS = {
    CallStatus.PENDING: v1.Event.ClientToolCallChanged.STATUS_PENDING,
    CallStatus.ANSWERED: v1.Event.ClientToolCallChanged.STATUS_ANSWERED,
    CallStatus.TIMED_OUT: v1.Event.ClientToolCallChanged.STATUS_TIMED_OUT,
    CallStatus.WITHDRAWN: v1.Event.ClientToolCallChanged.STATUS_WITHDRAWN,
}

QUESTION_STATUS: dict[QuestionStatus, v1.Question.Status.ValueType] = {
    QuestionStatus.PENDING: v1.Question.STATUS_PENDING,
    QuestionStatus.ANSWERED: v1.Question.STATUS_ANSWERED,
    QuestionStatus.DECLINED: v1.Question.STATUS_DECLINED,
    QuestionStatus.TIMED_OUT: v1.Question.STATUS_TIMED_OUT,
    QuestionStatus.WITHDRAWN: v1.Question.STATUS_WITHDRAWN,
}

TOOL_GROUP = {
    ToolGroup.READ: v1.TOOL_GROUP_READ,
    ToolGroup.WRITE: v1.TOOL_GROUP_WRITE,
    ToolGroup.BASH: v1.TOOL_GROUP_BASH,
    ToolGroup.OTHER: v1.TOOL_GROUP_OTHER,
}

FATE = {
    Fate.QUEUED: v1.QueuedMessage.FATE_QUEUED,
    Fate.DELIVERED: v1.QueuedMessage.FATE_DELIVERED,
    Fate.RETURNED: v1.QueuedMessage.FATE_RETURNED,
    Fate.DISCARDED: v1.QueuedMessage.FATE_DISCARDED,
    Fate.WITHDRAWN: v1.QueuedMessage.FATE_WITHDRAWN,
}

DECISION = {
    ApprovalDecision.APPROVE: v1.APPROVAL_DECISION_APPROVE,
    ApprovalDecision.DENY: v1.APPROVAL_DECISION_DENY,
    ApprovalDecision.WITHDRAWN: v1.APPROVAL_DECISION_WITHDRAWN,
}
