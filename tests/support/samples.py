"""One of everything that a conversation can be or tell: each with what it must look like to a client."""

from msgspec.structs import replace

from actors.core.content import (
    Image,
    Message,
    MessageType,
    Reasoning,
    SubAgentComplete,
    SystemKind,
    Text,
    ToolCancelled,
    ToolError,
    ToolOutcome,
    ToolSuccess,
    ToolUse,
    Usage,
)
from actors.core.context import Action, ApprovalPolicy, ApprovalRule, Budget, FollowUpPolicy, Limits, ToolGroup
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.states import (
    AgentFailed,
    AgentReport,
    AgentSucceeded,
    AgentTimedOut,
    ApprovalKind,
    AwaitingContinuation,
    AwaitingLlm,
    AwaitingSubAgents,
    AwaitingToolApproval,
    CancelKind,
    Cancelling,
    Completed,
    ContextExhausted,
    Error,
    Failed,
    Idle,
    Ledger,
    LlmPhase,
    LlmReason,
    LlmRequesting,
    PendingAgent,
    QueuedInput,
    State,
    ToolExecuting,
    ToolPhase,
)
from actors.ports import ConversationRecord
from server.wire.messages import ConversionContext
from tests.support.commit_builder import record_of

FACTS = ConversionContext({"bash": ToolGroup.BASH, "read_file": ToolGroup.READ}, lambda model: 1_000, Limits())

LEDGER = Ledger(
    run=3, live=True, req=7, xid=4, seq=9, agents=2, used_tokens=800, warned=True,
    total_usage=Usage(1, 2, 3, 4, 5), aside_usage=Usage(9),
    steers=(QueuedInput("m-steer", "left ✓", (Image("hash", "image/png", 2, 3),), 1_700),),
    follows=(QueuedInput("m-follow", "then", (), 1_600),),
)  # fmt: skip
BASH = ToolUse("call-1", "bash", '{"command": "ls"}')
READ = ToolUse("call-2", "read_file", '{"path": "a"}')
UPGRADE = ToolUse("call-3", "request_mode_upgrade", '{"reason": "to write"}')
TIMEOUT = LlmFailure(ErrorKind.NETWORK, "no answer")

STATES: dict[str, State] = {
    "idle": Idle(Ledger(run=3)),
    "awaiting_llm": AwaitingLlm(LEDGER, LlmReason.USER_MESSAGE),
    "llm_requesting": LlmRequesting(LEDGER, "c:r5", 2, LlmPhase.BACKOFF, 4, retry_at=5_500, last_error=TIMEOUT),
    "awaiting_tool_approval": AwaitingToolApproval(
        LEDGER, (BASH, READ, UPGRADE), ("call-1", "call-3"), ApprovalKind.TOOL, "c:r5", since=4_321
    ),
    "tool_executing": ToolExecuting(
        LEDGER, "call-1", ("call-2",), (), (BASH, READ), 7, attempt=2, phase=ToolPhase.BACKOFF, retry_at=6_000
    ),
    "awaiting_sub_agents": AwaitingSubAgents(
        LEDGER,
        (PendingAgent("agent-2", 1, "\n  look\nclosely", 9_000),),
        (AgentReport("agent-1", 0, "first", AgentSucceeded("done")),),
    ),
    "cancelling": Cancelling(LEDGER, CancelKind.AGENTS, (PendingAgent("agent-2", 1, "look", 99),), True),
    "error": Error(Ledger(run=3), "try again", ErrorKind.NETWORK),
    "awaiting_continuation": AwaitingContinuation(LEDGER, "c:r6", 1, LlmPhase.STREAMING, ("bash",), 9),
    "context_exhausted": ContextExhausted(Ledger(run=3), "what happened so far"),
    "completed": Completed(Ledger(run=3), "the result"),
    "failed": Failed(Ledger(run=3), ErrorKind.TURN_LIMIT, "no turns left", "so far"),
}

MESSAGE = Message(
    id="m-7",
    sequence=7,
    type=MessageType.AGENT,
    content=(
        Reasoning("because", protocol="anthropic"),
        Reasoning("", raw="{}"),
        Text("let me look"),
        BASH,
        ToolUse("call-9", "bash", "{broken", own=Reasoning("", "openai-chat", "m", '{"extra_content":{}}', "google")),
    ),
    created_at=1_234,
    run="c:3",
    request_id="c:r5",
    attempt=1,
    usage=Usage(10, 20, 30, 40, 50),
)
RESULTS = Message(
    id="m-8",
    sequence=8,
    type=MessageType.TOOL,
    content=(
        ToolSuccess("call-1", "a\nb", (Image("hash", "image/png", 2, 3),), '{"diff": "+a"}', 1_500),
        ToolError("call-2", "no", ToolOutcome.DENIED, display="[1]"),
        ToolCancelled("call-3", "Skipped", ToolOutcome.SKIPPED),
        SubAgentComplete("call-4", "ok"),
    ),
    created_at=1_235,
)
NOTICE = Message(
    id="m-9",
    sequence=9,
    type=MessageType.SYSTEM,
    content=(Text("mode"),),
    created_at=1,
    kind=SystemKind.MODE_RESTRICTED,
    meta=True,
)
FAILURE = Message(
    id="m-10", sequence=10, type=MessageType.ERROR, content=(Text("oh"),), created_at=1, error_kind="rate_limit"
)
QUEUED = QueuedInput("m-11", "and then", (Image("hash", "image/png", 2, 3),), 777)

REPORTS = (
    AgentReport("agent-1", 0, "first", AgentSucceeded("done")),
    AgentReport("", 1, "second", AgentFailed(ErrorKind.NO_RESULT, "silent", "half")),
    AgentReport("agent-3", 2, "third", AgentTimedOut("most")),
)


def record(state: State | None = None, **fields: object) -> ConversationRecord:
    """A conversation with something in every field."""
    made = record_of(
        "c", slug="calm-cove", state=state or STATES["idle"], state_updated_at=1_500, created_at=1_000,
        updated_at=2_000, title="A title", labels={"team": "a"}, approval_policy=ApprovalPolicy.ASK_WRITES,
        approval_rules=(ApprovalRule("r1", Action.ALLOW, tool="bash"),),
        follow_up_policy=FollowUpPolicy.COMPLETED_ONLY, budget=Budget(run_tokens=5), last_seq=42,
    )  # fmt: skip
    return replace(made, **fields)
