"""The columns of the matrix in actors/core/README.md: one state each, in an otherwise equal world."""

from dataclasses import dataclass
from functools import cache

from msgspec.structs import replace

from actors.core.content import ToolUse
from actors.core.context import ConvContext, Limits, Mode, ToolGroup, ToolTraits
from actors.core.errors import ErrorKind
from actors.core.events import JobChanged
from actors.core.states import (
    AgentReport,
    AgentSucceeded,
    ApprovalKind,
    AwaitingContinuation,
    AwaitingLlm,
    AwaitingSubAgents,
    AwaitingToolApproval,
    BackgroundJob,
    CancelKind,
    Cancelling,
    Completed,
    ContextExhausted,
    Error,
    Failed,
    Idle,
    JobStatus,
    Ledger,
    LlmPhase,
    LlmReason,
    LlmRequesting,
    PendingAgent,
    Question,
    State,
    ToolExecuting,
    ToolPhase,
)

CONVERSATION = "c"
NOW = 1_700_000_000_000
WINDOW = 1_000
RUN, REQ, XID, SEQ = 3, 7, 5, 20
REQUEST_ID = f"{CONVERSATION}:r{REQ}"
RUN_ID = f"{CONVERSATION}:{RUN}"

TOOLS = (
    ToolTraits("bash", ToolGroup.BASH, writes=True),
    ToolTraits("read_file", ToolGroup.READ, retry_safe=True),
    ToolTraits("patch", ToolGroup.WRITE, writes=True, always_asks=True),
    ToolTraits("request_mode_upgrade", ToolGroup.OTHER, always_asks=True),
    ToolTraits("submit_result", ToolGroup.OTHER),
    ToolTraits("submit_error", ToolGroup.OTHER),
)
"""The grid's approval list is `patch`: here it always asks, and the policy is AUTO."""

PARENT = ConvContext(
    CONVERSATION,
    "/work",
    "model-1",
    WINDOW,
    mode=Mode.RESTRICTED,
    restriction_available=True,
    workspace_available=True,
    tools=TOOLS,
    limits=Limits(),
)
SUB_AGENT = replace(PARENT, is_sub_agent=True)
WITH_CLIENT_TOOLS = replace(
    PARENT, tools=(*TOOLS, ToolTraits("find_order", ToolGroup.READ, client=True, timeout_ms=60_000))
)
"""Of a conversation that has a tool which clients run."""

BASH_1 = ToolUse("t1", "bash", '{"cmd": "one"}')
BASH_2 = ToolUse("t2", "bash", '{"cmd": "two"}')
PATCH_1 = ToolUse("t1", "patch", '{"path": "a"}')
FIND_1 = ToolUse("t1", "find_order", '{"id": 7}')
READ_1 = ToolUse("t1", "read_file", '{"path": "a"}')
UPGRADE_1 = ToolUse("t1", "request_mode_upgrade", '{"reason": "need it"}')


@dataclass(frozen=True)
class Column:
    """A state with its context."""

    name: str
    state: State
    context: ConvContext


def ledger(*, live: bool = True, agents: int = 0, sub_agent: bool = False, **changes: object) -> Ledger:
    """The ledger that all columns share."""
    fields = {"run": RUN, "req": REQ, "xid": XID, "seq": SEQ, "rounds": 4}
    own = {"turns": 4, "last_text": "r6"} if sub_agent else {}
    return replace(Ledger(live=live, agents=agents), **{**fields, **own, **changes})


def requesting(books: Ledger, phase: LlmPhase, attempt: int = 1) -> LlmRequesting:
    """Request 7, somewhere on its way."""
    retry_at = NOW + 1_000 if phase is LlmPhase.BACKOFF else 0
    return LlmRequesting(books, REQUEST_ID, attempt, phase, SEQ, retry_at, model="model-1")


def executing(books: Ledger, *calls: ToolUse, phase: ToolPhase = ToolPhase.RUNNING, attempt: int = 1) -> ToolExecuting:
    """Execution 5, of the first of the calls."""
    rest = tuple(call.id for call in calls[1:])
    return ToolExecuting(books, calls[0].id, rest, (), calls, XID, attempt, phase)


def asking(books: Ledger) -> ToolExecuting:
    """Execution 5, which asks a person question 1."""
    question = Question(1, 1, "files", "Which one?", NOW, NOW + 60_000, "{}")
    return replace(executing(replace(books, questions=1), BASH_1, BASH_2), questions=(question,), asked=1)


def agent(number: int) -> PendingAgent:
    """Sub-agent a1, a2, … at its task."""
    return PendingAgent(f"{CONVERSATION}-a{number}", number - 1, f"task {number}", NOW + 60_000)


def _reported(number: int) -> AgentReport:
    return AgentReport(f"{CONVERSATION}-a{number}", number - 1, f"task {number}", AgentSucceeded(f"result {number}"))


def _summary(books: Ledger, phase: LlmPhase, attempt: int = 1) -> AwaitingContinuation:
    return AwaitingContinuation(books, REQUEST_ID, attempt, phase, ("bash",), SEQ, model="model-1")


@cache
def parent_columns() -> tuple[Column, ...]:
    """Columns of the first table, in its order."""
    books, quiet = ledger(), ledger(live=False, agents=7)
    kind = ApprovalKind.TOOL
    spawned = ledger(agents=2)
    states: dict[str, State] = {
        "Idle": Idle(quiet),
        "AwaitingLlm": AwaitingLlm(books, LlmReason.USER_MESSAGE),
        "LlmReq/conn": requesting(books, LlmPhase.CONNECTING),
        "LlmReq/stream": requesting(books, LlmPhase.STREAMING),
        "LlmReq3/stream": requesting(books, LlmPhase.STREAMING, 3),
        "LlmReq/backoff": requesting(books, LlmPhase.BACKOFF, 2),
        "Approval": AwaitingToolApproval(books, (PATCH_1, BASH_2), ("t1",), kind, REQUEST_ID, NOW),
        "Approval(2)": AwaitingToolApproval(books, (PATCH_1, BASH_2), ("t1", "t2"), kind, REQUEST_ID, NOW),
        "ToolExec": executing(books, BASH_1, BASH_2),
        "ToolExec(last)": executing(books, READ_1),
        "ToolExec(upgrade)": executing(books, UPGRADE_1),
        "ToolExec/backoff": executing(books, READ_1, phase=ToolPhase.BACKOFF, attempt=2),
        "ToolExec(client)": replace(executing(books, FIND_1, BASH_2), deadline=NOW + 60_000),
        "ToolExec(asks)": asking(books),
        "AwaitSub": AwaitingSubAgents(spawned, (agent(1), agent(2)), (), "t1", ("t2",), (BASH_1, BASH_2)),
        "AwaitSub(last)": AwaitingSubAgents(spawned, (agent(1),), (_reported(2),), "t1", (), (BASH_1,)),
        "AwaitSub(cmd,last)": AwaitingSubAgents(spawned, (agent(1),), (_reported(2),)),
        "Cancelling/llm": Cancelling(books, CancelKind.LLM, request_id=REQUEST_ID, attempt=1),
        "Cancelling/sub": Cancelling(spawned, CancelKind.AGENTS, (agent(1),)),
        "Error": Error(quiet, "Failed after 3 attempts: no route", ErrorKind.NETWORK),
        "AwaitCont": _summary(books, LlmPhase.CONNECTING),
        "AwaitCont/backoff": _summary(books, LlmPhase.BACKOFF, 2),
        "AwaitCont(asked)": replace(_summary(quiet, LlmPhase.CONNECTING), rejected=(), before=Idle()),
        "CtxExhausted": ContextExhausted(quiet, "what happened"),
    }
    contexts = {"ToolExec(client)": WITH_CLIENT_TOOLS}
    return tuple(Column(name, state, contexts.get(name, PARENT)) for name, state in states.items())


@cache
def sub_agent_columns() -> tuple[Column, ...]:
    """Columns of the second table, in its order."""
    books, over = ledger(sub_agent=True), ledger(live=False, sub_agent=True)
    limit = ledger(sub_agent=True, turns=SUB_AGENT.limits.max_turns)
    grace = ledger(sub_agent=True, turns=SUB_AGENT.limits.max_turns + 1, grace=True)
    states: dict[str, State] = {
        "Idle": Idle(),
        "AwaitingLlm": AwaitingLlm(books, LlmReason.USER_MESSAGE),
        "AwaitingLlm(limit)": AwaitingLlm(limit, LlmReason.TOOL_RESULTS),
        "LlmReq/conn": requesting(books, LlmPhase.CONNECTING),
        "LlmReq/stream": requesting(books, LlmPhase.STREAMING),
        "LlmReq/nudged": requesting(ledger(sub_agent=True, nudges=1), LlmPhase.CONNECTING),
        "LlmReq/nudged twice": requesting(ledger(sub_agent=True, nudges=2), LlmPhase.CONNECTING),
        "LlmReq/grace": requesting(grace, LlmPhase.STREAMING),
        "LlmReq3/stream": requesting(books, LlmPhase.STREAMING, 3),
        "LlmReq/backoff": requesting(books, LlmPhase.BACKOFF, 2),
        "ToolExec": executing(books, BASH_1, BASH_2),
        "ToolExec(last)": executing(books, READ_1),
        "ToolExec/backoff": executing(books, READ_1, phase=ToolPhase.BACKOFF, attempt=2),
        "Completed": Completed(over, "done"),
        "Failed": Failed(over, ErrorKind.TURN_LIMIT, "turn limit", "r6"),
    }
    return tuple(Column(name, state, SUB_AGENT) for name, state in states.items())


def column(name: str, *, sub_agent: bool = False) -> Column:
    """The column of this name."""
    columns = sub_agent_columns() if sub_agent else parent_columns()
    return next(one for one in columns if one.name == name)


JOBS = tuple(BackgroundJob(f"b-{number}", "t-job", "serve", status) for number in (1, 2) for status in JobStatus)
JOB_CHANGES = tuple(JobChanged(NOW, job) for job in JOBS)
"""What can happen to two background jobs, in any order."""
