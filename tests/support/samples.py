"""One of everything that a conversation can be or tell: each with what it must look like to a client."""

from msgspec.structs import replace

from actors.core import content, states
from actors.core.context import Action, ApprovalPolicy, ApprovalRule, Budget, FollowUpPolicy, Limits, ToolGroup
from actors.core.errors import ErrorKind, LlmFailure
from actors.ports import ConversationRecord
from server.wire.messages import ConversionContext
from tests.support.commit_builder import record_of

FACTS = ConversionContext({"bash": ToolGroup.BASH, "read_file": ToolGroup.READ}, lambda model: 1_000, Limits())

LEDGER = states.Ledger(
    run=3, live=True, req=7, xid=4, seq=9, agents=2, used_tokens=800, warned=True,
    total_usage=content.Usage(1, 2, 3, 4, 5), aside_usage=content.Usage(9),
    steers=(states.QueuedInput("m-steer", "left ✓", (content.Image("hash", "image/png", 2, 3),), 1_700),),
    follows=(states.QueuedInput("m-follow", "then", (), 1_600),),
)  # fmt: skip
BASH = content.ToolUse("call-1", "bash", '{"command": "ls"}')
READ = content.ToolUse("call-2", "read_file", '{"path": "a"}')
UPGRADE = content.ToolUse("call-3", "request_mode_upgrade", '{"reason": "to write"}')
TIMEOUT = LlmFailure(ErrorKind.NETWORK, "no answer")

STATES: dict[str, states.State] = {
    "idle": states.Idle(states.Ledger(run=3)),
    "awaiting_llm": states.AwaitingLlm(LEDGER, states.LlmReason.USER_MESSAGE),
    "llm_requesting": states.LlmRequesting(
        LEDGER, "c:r5", 2, states.LlmPhase.BACKOFF, 4, retry_at=5_500, last_error=TIMEOUT
    ),
    "awaiting_tool_approval": states.AwaitingToolApproval(
        LEDGER, (BASH, READ, UPGRADE), ("call-1", "call-3"), states.ApprovalKind.TOOL, "c:r5", since=4_321
    ),
    "tool_executing": states.ToolExecuting(
        LEDGER, "call-1", ("call-2",), (), (BASH, READ), 7, attempt=2, phase=states.ToolPhase.BACKOFF, retry_at=6_000
    ),
    "awaiting_sub_agents": states.AwaitingSubAgents(
        LEDGER,
        (states.PendingAgent("agent-2", 1, "\n  look\nclosely", 9_000),),
        (states.AgentReport("agent-1", 0, "first", states.AgentSucceeded("done")),),
    ),
    "cancelling": states.Cancelling(
        LEDGER, states.CancelKind.AGENTS, (states.PendingAgent("agent-2", 1, "look", 99),), True
    ),
    "error": states.Error(states.Ledger(run=3), "try again", ErrorKind.NETWORK),
    "awaiting_continuation": states.AwaitingContinuation(LEDGER, "c:r6", 1, states.LlmPhase.STREAMING, ("bash",), 9),
    "context_exhausted": states.ContextExhausted(states.Ledger(run=3), "what happened so far"),
    "completed": states.Completed(states.Ledger(run=3), "the result"),
    "failed": states.Failed(states.Ledger(run=3), ErrorKind.TURN_LIMIT, "no turns left", "so far"),
}

MESSAGE = content.Message(
    id="m-7",
    sequence=7,
    type=content.MessageType.AGENT,
    content=(
        content.Reasoning("because", protocol="anthropic"),
        content.Reasoning("", raw="{}"),
        content.Text("let me look"),
        BASH,
        content.ToolUse(
            "call-9", "bash", "{broken", own=content.Reasoning("", "openai-chat", "m", '{"extra_content":{}}', "google")
        ),
    ),
    created_at=1_234,
    run="c:3",
    request_id="c:r5",
    attempt=1,
    usage=content.Usage(10, 20, 30, 40, 50),
)
RESULTS = content.Message(
    id="m-8",
    sequence=8,
    type=content.MessageType.TOOL,
    content=(
        content.ToolSuccess("call-1", "a\nb", (content.Image("hash", "image/png", 2, 3),), '{"diff": "+a"}', 1_500),
        content.ToolError("call-2", "no", content.ToolOutcome.DENIED, display="[1]"),
        content.ToolCancelled("call-3", "Skipped", content.ToolOutcome.SKIPPED),
        content.SubAgentComplete("call-4", "ok"),
    ),
    created_at=1_235,
)
NOTICE = content.Message(
    id="m-9",
    sequence=9,
    type=content.MessageType.SYSTEM,
    content=(content.Text("mode"),),
    created_at=1,
    kind=content.SystemKind.MODE_RESTRICTED,
    meta=True,
)
FAILURE = content.Message(
    id="m-10",
    sequence=10,
    type=content.MessageType.ERROR,
    content=(content.Text("oh"),),
    created_at=1,
    error_kind="rate_limit",
)
QUEUED = states.QueuedInput("m-11", "and then", (content.Image("hash", "image/png", 2, 3),), 777)

REPORTS = (
    states.AgentReport("agent-1", 0, "first", states.AgentSucceeded("done")),
    states.AgentReport("", 1, "second", states.AgentFailed(ErrorKind.NO_RESULT, "silent", "half")),
    states.AgentReport("agent-3", 2, "third", states.AgentTimedOut("most")),
)


def record(state: states.State | None = None, **fields: object) -> ConversationRecord:
    """A conversation with something in every field."""
    made = record_of(
        "c", slug="calm-cove", state=state or STATES["idle"], state_updated_at=1_500, created_at=1_000,
        updated_at=2_000, title="A title", labels={"team": "a"}, approval_policy=ApprovalPolicy.ASK_WRITES,
        approval_rules=(ApprovalRule("r1", Action.ALLOW, tool="bash"),),
        follow_up_policy=FollowUpPolicy.COMPLETED_ONLY, budget=Budget(run_tokens=5), revision=42,
    )  # fmt: skip
    return replace(made, **fields)
