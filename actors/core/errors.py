"""Error kinds and refusal reasons: why a run failed, and why a command was refused."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class ErrorKind(StrEnum):
    NETWORK = "network"
    TIMED_OUT = "timed_out"
    RATE_LIMIT = "rate_limit"
    SERVER_ERROR = "server_error"
    AUTH = "auth"
    INVALID_REQUEST = "invalid_request"
    CONTENT_FILTER = "content_filter"
    CONTEXT_EXHAUSTED = "context_exhausted"
    CANCELLED = "cancelled"
    SUB_AGENT_ERROR = "sub_agent_error"
    TURN_LIMIT = "turn_limit"
    NO_RESULT = "no_result"
    BUDGET = "budget"
    INTERRUPTED = "interrupted"
    RESPONSE_TOO_LARGE = "response_too_large"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    OUTPUT_INVALID = "output_invalid"
    REPEATED_FAILURE = "repeated_failure"
    UNKNOWN = "unknown"


# The failures after which a model request is retried. New events use `TIMED_OUT` for sub-agents only; it is listed here
# because logs from earlier versions, which must be replayed, also use it for timeouts of providers.
RETRYABLE = frozenset({
    ErrorKind.NETWORK, ErrorKind.TIMED_OUT, ErrorKind.RATE_LIMIT, ErrorKind.SERVER_ERROR, ErrorKind.RESOURCE_EXHAUSTED,
})  # fmt: skip


class LlmFailure(Struct, frozen=True):
    """Why a model-request attempt failed. The message also says what to do, and contains no secret."""

    kind: ErrorKind
    message: str

    @property
    def retryable(self) -> bool:
        return self.kind in RETRYABLE


class Reason(StrEnum):
    """Why a command is refused. The state machine uses only some of these reasons; the server uses the others."""

    AGENT_BUSY = "AGENT_BUSY"
    CANCELLING = "CANCELLING"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"
    NOT_AWAITING_APPROVAL = "NOT_AWAITING_APPROVAL"
    UNKNOWN_OR_DECIDED = "UNKNOWN_OR_DECIDED"
    CONTINUATION_IN_PROGRESS = "CONTINUATION_IN_PROGRESS"
    CONTEXT_EXHAUSTED = "CONTEXT_EXHAUSTED"
    TERMINAL = "TERMINAL"
    SUB_AGENT = "SUB_AGENT"
    NOT_SUB_AGENT = "NOT_SUB_AGENT"
    ALREADY_STARTED = "ALREADY_STARTED"
    ARCHIVED = "ARCHIVED"
    RUN_OVER = "RUN_OVER"
    QUEUE_FULL = "QUEUE_FULL"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    SLUG_TAKEN = "SLUG_TAKEN"
    MODEL_UNAVAILABLE = "MODEL_UNAVAILABLE"
    MODE_UNAVAILABLE = "MODE_UNAVAILABLE"
    WORKING_DIRECTORY_INVALID = "WORKING_DIRECTORY_INVALID"
    IMAGE_INVALID = "IMAGE_INVALID"
    REVISION_TOO_OLD = "REVISION_TOO_OLD"
    TOO_MANY_STREAMS = "TOO_MANY_STREAMS"
    BUDGET_REACHED = "BUDGET_REACHED"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    NOT_EXHAUSTED = "NOT_EXHAUSTED"
    SERVER_EXHAUSTED = "SERVER_EXHAUSTED"
    GENERATION_UNSUPPORTED = "GENERATION_UNSUPPORTED"
    CYCLE_RUNNING = "CYCLE_RUNNING"
    NOT_FORKABLE = "NOT_FORKABLE"
    MCP_NOT_ALLOWED = "MCP_NOT_ALLOWED"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    WORKSPACE_OFFLINE = "WORKSPACE_OFFLINE"
    TOOL_NOT_OFFERED = "TOOL_NOT_OFFERED"


REFUSAL_TEXTS: dict[Reason, str] = {
    Reason.AGENT_BUSY: "agent is busy: cancel it, or send the message as a steer or a follow-up",
    Reason.CANCELLING: "cancellation in progress: try again when the conversation is idle",
    Reason.AWAITING_APPROVAL: "agent is waiting for approval: approve or deny the call, or cancel",
    Reason.NOT_AWAITING_APPROVAL: "nothing is waiting for an approval",
    Reason.UNKNOWN_OR_DECIDED: "this question is unknown or already answered",
    Reason.CONTINUATION_IN_PROGRESS: "the context is full and its summary is being written",
    Reason.CONTEXT_EXHAUSTED: "the context is full: continue in a new conversation",
    Reason.TERMINAL: "the conversation has ended",
    Reason.SUB_AGENT: "this is a sub-agent: only its parent can send it messages",
    Reason.NOT_SUB_AGENT: "this is not a sub-agent",
    Reason.ALREADY_STARTED: "this sub-agent has already been started",
    Reason.ARCHIVED: "the conversation is archived: unarchive it first",
    Reason.RUN_OVER: "that run is over",
    Reason.QUEUE_FULL: "too many messages are waiting: withdraw one or wait",
    Reason.REQUEST_ID_REUSED: "this request_id was used before with different content",
    Reason.SLUG_TAKEN: "this slug is already taken",
    Reason.MODEL_UNAVAILABLE: "this model is not available",
    Reason.MODE_UNAVAILABLE: "this mode is not available on this server",
    Reason.WORKING_DIRECTORY_INVALID: "the working directory must be the absolute path of an existing directory",
    Reason.IMAGE_INVALID: "the image cannot be used",
    Reason.REVISION_TOO_OLD: "events after this revision have been pruned: take a new snapshot",
    Reason.TOO_MANY_STREAMS: "too many streams are open",
    Reason.BUDGET_REACHED: "the budget is spent",
    Reason.STORE_UNAVAILABLE: "the store cannot confirm the change now: retry with the same request_id",
    Reason.SHUTTING_DOWN: "the server is shutting down",
    Reason.PERMISSION_DENIED: "this token is not allowed to do that",
    Reason.SERVER_EXHAUSTED: "this server has no capacity for this request now: nothing was changed; try again",
    Reason.NOT_FORKABLE: "nothing to fork: no request cycle has ended",
    Reason.CYCLE_RUNNING: "this request cycle has not ended: wait, or fork at an earlier one",
    Reason.GENERATION_UNSUPPORTED: "the model does not support that",
    Reason.MCP_NOT_ALLOWED: "the server's operator does not allow clients to add MCP servers",
    Reason.QUOTA_EXCEEDED: "a quota is exhausted",
    Reason.WORKSPACE_OFFLINE: "no running node has the working directory",
    Reason.TOOL_NOT_OFFERED: "the mode does not offer this tool to the agent",
    Reason.NOT_EXHAUSTED: "the context is not full: send a message instead",
}


class InvalidTransition(Exception):  # noqa: N818 -- the specification uses this name
    """An event is not allowed in the current state; the state is unchanged."""


class Rejected(InvalidTransition):
    """A command was refused, with a machine-readable reason and a human-readable message. The state is unchanged."""

    def __init__(self, reason: Reason, text: str = "", cause: str = "") -> None:
        super().__init__(text or REFUSAL_TEXTS[reason])
        self.reason = reason
        self.run: tuple[str, str] | None = None
        """Set by the actor: the ids of the conversation and of its open run; None if no run is open."""
        self.cause = cause
        """A more specific reason that a program can read; "" if there is none."""


class QuotaExceededError(Rejected):
    """A quota of the caller's principal, or of all principals together, is used up."""

    def __init__(
        self,
        quota: str,
        principal: str,
        *,
        limit: int,
        used: int,
        retry_ms: int,
        needed: int = 0,
        dollars: bool = False,
    ) -> None:
        """`principal` is "" for a quota of the whole server; `dollars`: amounts are in millionths of a dollar.

        `needed` is the size of a request that does not fit into what is left; 0 if nothing is left.
        """
        allowed, taken = ((f"${each / 1e6:,.2f}" if dollars else f"{each:,}") for each in (limit, used))
        self.described = f"the quota {quota} of {principal or 'this server'}, {allowed}"
        state = (
            f"needs {needed:,} more: {taken} of {allowed} are used" if needed else f"is used up: {taken} of {allowed}"
        )
        super().__init__(Reason.QUOTA_EXCEEDED, f"the quota {quota} of {principal or 'this server'} {state}")
        self.quota, self.principal = quota, principal
        self.limit, self.used = limit, used
        self.retry_ms = retry_ms
