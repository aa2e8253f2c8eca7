"""The notation of the matrix in actors/core/README.md, written from what the code does."""

from msgspec.structs import replace

from actors.core.content import (
    Message,
    MessageType,
    SubAgentComplete,
    SystemKind,
    ToolCancelled,
    ToolError,
    ToolOutcome,
    ToolResult,
    ToolSuccess,
)
from actors.core.effects import (
    AbortLlm,
    AbortTool,
    AnswerTool,
    AwaitAnswer,
    AwaitToolResult,
    CancelSubAgents,
    Effect,
    ExecuteTool,
    NotifyClient,
    NotifyParent,
    PersistMessage,
    PersistMode,
    PersistState,
    RequestContinuation,
    RequestLlm,
    RetryOf,
    ScheduleRetry,
    SpawnSubAgent,
    StartTimer,
)
from actors.core.errors import Rejected
from actors.core.notifications import (
    ApprovalRequested,
    ApprovalResolved,
    BackgroundJobChanged,
    ClientToolCall,
    ContextWarning,
    ConversationUpdated,
    MessageAdded,
    ModeChanged,
    Notification,
    QuestionChanged,
    QueueChanged,
    Retrying,
    RunStop,
    StateChanged,
    StreamDiscarded,
    SubAgents,
    TextDelta,
    ToolTreeReaped,
    UsageChanged,
)
from actors.core.states import (
    AgentSucceeded,
    AwaitingContinuation,
    AwaitingLlm,
    AwaitingSubAgents,
    AwaitingToolApproval,
    Cancelling,
    Completed,
    ContextExhausted,
    Error,
    Failed,
    Idle,
    LlmPhase,
    LlmRequesting,
    State,
    ToolExecuting,
    ToolPhase,
)
from actors.core.transition import Step, run_chain
from tests.machine.rows import Case

_PHASES = {LlmPhase.CONNECTING: "c", LlmPhase.STREAMING: "s", LlmPhase.BACKOFF: "b"}


def code(state: State) -> str:
    """A state's short name in the grid."""
    match state:
        case Idle():
            return "Idle"
        case AwaitingLlm():
            return "AwLlm"
        case LlmRequesting():
            return f"LlmReq{state.attempt}{_PHASES[state.phase]}"
        case AwaitingToolApproval():
            return "Appr"
        case ToolExecuting():
            return "ToolExb" if state.phase is ToolPhase.BACKOFF else "ToolEx"
        case AwaitingSubAgents():
            return "AwSub"
        case Cancelling():
            return "Cancel"
        case Error():
            return "Error"
        case AwaitingContinuation():
            return f"AwCont{state.attempt}{_PHASES[state.phase]}"
        case ContextExhausted():
            return "CtxEx"
        case Completed():
            return "Compl"
        case Failed():
            return "Failed"


def cell(case: Case) -> str:
    """The grid's verdict on a case: "→X»Y", "→same", "R:REASON" or "ign"."""
    try:
        steps = run_chain(*case)
    except Rejected as rejected:
        return f"R:{rejected.reason.value}"
    if not steps:
        return "ign"
    if unseen(case.state, steps[0]):
        return "→same"
    return "→" + "»".join(code(step.new_state) for step in steps)


def unseen(before: State, step: Step) -> bool:
    """Whether a step left the state as it was, but for the bookkeeping of what it said."""
    books = replace(step.new_state.ledger, seq=before.ledger.seq, pending_notices=before.ledger.pending_notices)
    announced = any(isinstance(one, NotifyClient) and isinstance(one.data, StateChanged) for one in step.effects)
    return not announced and replace(step.new_state, ledger=books) == before


def number(identity: str) -> str:
    """The counter in an id: "c:r7" → "7", "c:3" → "3", "c-a1" → "a1"."""
    return identity.rsplit(":", 1)[-1].rsplit("-", 1)[-1].removeprefix("r")


def effect_text(effect: Effect) -> str:
    """Return an effect as the lists of effects write it."""
    match effect:
        case PersistMessage():
            return f"PersistMessage({_message(effect.message)})"
        case PersistState():
            return "PersistState"
        case PersistMode():
            return f"PersistMode({effect.mode.value})"
        case NotifyClient():
            return f"NotifyClient({_notification(effect.data)})"
        case RequestLlm():
            return f"RequestLlm({number(effect.request_id)}, {effect.attempt})"
        case RequestContinuation():
            return (
                f"RequestContinuation({', '.join([number(effect.request_id), str(effect.attempt), *effect.rejected])})"
            )
        case AbortLlm():
            return f"AbortLlm({number(effect.request_id)})"
        case ExecuteTool():
            return f"ExecuteTool({effect.tool_use_id}, {effect.execution_id})"
        case AwaitToolResult():
            return f"AwaitToolResult({effect.tool_use_id}, {effect.execution_id})"
        case AwaitAnswer():
            return f"AwaitAnswer({effect.tool_use_id}, {effect.execution_id}, {effect.place})"
        case AnswerTool():
            return f"AnswerTool({effect.tool_use_id}, {effect.execution_id}, {effect.place}, {effect.status.value})"
        case AbortTool():
            return f"AbortTool({effect.tool_use_id}, {effect.execution_id})"
        case ScheduleRetry():
            what = (
                f"llm, {number(effect.request_id)}"
                if effect.of is RetryOf.LLM
                else f"tool, {effect.tool_use_id}, {effect.execution_id}"
            )
            return f"ScheduleRetry({what}, {effect.attempt}, {effect.delay_ms // 1_000})"
        case SpawnSubAgent():
            return f"SpawnSubAgent({number(effect.task.agent_id)})"
        case CancelSubAgents():
            return f"CancelSubAgents({' '.join(map(number, effect.agent_ids))})"
        case NotifyParent():
            result = effect.result
            if isinstance(result, AgentSucceeded):
                return "NotifyParent(result)"
            kind = getattr(result, "kind", "timed_out")
            return f"NotifyParent(failure, {kind}, {result.partial_result})"
        case StartTimer():
            return f"StartTimer(CancelTimeout, {number(effect.run_id)})"


def _message(message: Message) -> str:
    match message.type:
        case MessageType.USER:
            return f"user {message.id}"
        case MessageType.AGENT:
            return f"agent r{number(message.request_id)}"
        case MessageType.ERROR:
            return f"error {message.error_kind}"
        case MessageType.TOOL:
            (result,) = message.content
            assert isinstance(result, ToolResult)
            return f'tool {result.tool_use_id} "{_result(result)}"'
        case MessageType.SYSTEM:
            return f"system {'meta ' if message.meta else ''}{_system(message)}"


def _result(result: ToolResult) -> str:
    match result:
        case ToolSuccess():
            return "result"
        case ToolCancelled():
            return result.output
        case SubAgentComplete():
            return "aggregate" if result.output.startswith("Task: ") else result.output
        case ToolError():
            if result.outcome is not ToolOutcome.ERROR:
                return result.output
            failed = result.output.startswith("Failed after ")
            return "error: failed after attempts" if failed else "error: tool aborted unexpectedly"


def _system(message: Message) -> str:
    match message.kind:
        case SystemKind.INTERRUPTED:
            return "interrupted"
        case SystemKind.FORKED:
            return "forked"
        case SystemKind.MODE_RESTRICTED:
            return "mode restricted"
        case SystemKind.MODE_WORKSPACE:
            return "mode workspace"
        case SystemKind.MODE_UNRESTRICTED:
            return "mode unrestricted"
        case SystemKind.ROUND_CAP:
            return "round cap"
        case SystemKind.BUDGET:
            return "budget reached"
        case SystemKind.OUTPUT_NUDGE:
            return "output does not fit"
        case SystemKind.NUDGE:
            return "call submit_result"
        case SystemKind.GRACE:
            return "turn limit: submit now"
        case SystemKind.SUMMARY:
            return "continuation summary"
        case SystemKind.SUMMARY_FALLBACK:
            return "continuation fallback"
        case SystemKind.SUB_AGENT_RESULTS:
            return f"sub_agent_results {number(message.run)}"
        case SystemKind.MCP_RESTARTED:
            return "mcp restarted"
        case SystemKind.JOBS_ENDED:
            return "jobs ended"
        case SystemKind.NONE | SystemKind.CONTINUE:
            return "?"


def _notification(data: Notification) -> str:
    match data:
        case StateChanged():
            return " ".join(["StateChanged", *([">".join(data.fsm_path)] if data.fsm_path else [])])
        case TextDelta():
            return f"TextDelta {number(data.request_id)} {data.attempt}"
        case StreamDiscarded():
            return f"StreamDiscarded {number(data.request_id)} {data.attempt}"
        case Retrying():
            return f"Retrying {data.attempt}"
        case QueueChanged():
            name = {"steer": "steer", "follow_up": "followUp"}[data.delivery]
            return f"QueueChanged {name} {data.input.message_id}"
        case ApprovalRequested():
            return f"ApprovalRequested {data.call.id}"
        case ApprovalResolved():
            return f"ApprovalResolved {data.tool_use_id} {data.decision.value}"
        case BackgroundJobChanged():
            return f"BackgroundJobChanged {data.job.handle} {data.job.status.value}"
        case QuestionChanged():
            return f"QuestionChanged {data.question.number} {data.status.value}"
        case ClientToolCall():
            return f"ClientToolCall {data.call.id} {data.status.value}"
        case SubAgents():
            return f"SubAgents {len(data.reports)} {len(data.pending)}"
        case ModeChanged():
            return f"ModeChanged {data.mode.value}"
        case RunStop():
            return f"RunStop {data.reason.value}{f', {data.detail}' if data.detail else ''}"
        case UsageChanged() | ContextWarning() | MessageAdded() | ToolTreeReaped() | ConversationUpdated():
            return type(data).__name__
