"""The notation of the matrix in actors/core/README.md, written from what the code does."""

from msgspec.structs import replace

from actors.core import content, effects, notifications, states
from actors.core.errors import Rejected
from actors.core.transition import Step, run_chain
from tests.machine.rows import Case

_PHASES = {states.LlmPhase.CONNECTING: "c", states.LlmPhase.STREAMING: "s", states.LlmPhase.BACKOFF: "b"}


def code(state: states.State) -> str:
    """A state's short name in the grid."""
    match state:
        case states.Idle():
            return "Idle"
        case states.AwaitingLlm():
            return "AwLlm"
        case states.LlmRequesting():
            return f"LlmReq{state.attempt}{_PHASES[state.phase]}"
        case states.AwaitingToolApproval():
            return "Appr"
        case states.ToolExecuting():
            return "ToolExb" if state.phase is states.ToolPhase.BACKOFF else "ToolEx"
        case states.AwaitingSubAgents():
            return "AwSub"
        case states.Cancelling():
            return "Cancel"
        case states.Error():
            return "Error"
        case states.AwaitingContinuation():
            return f"AwCont{state.attempt}{_PHASES[state.phase]}"
        case states.ContextExhausted():
            return "CtxEx"
        case states.Completed():
            return "Compl"
        case states.Failed():
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


def unseen(before: states.State, step: Step) -> bool:
    """Whether a step left the state as it was, but for the bookkeeping of what it said."""
    books = replace(step.new_state.ledger, seq=before.ledger.seq, pending_notices=before.ledger.pending_notices)
    announced = any(
        isinstance(one, effects.NotifyClient) and isinstance(one.data, notifications.StateChanged)
        for one in step.effects
    )
    return not announced and replace(step.new_state, ledger=books) == before


def number(identity: str) -> str:
    """The counter in an id: "c:r7" → "7", "c:3" → "3", "c-a1" → "a1"."""
    return identity.rsplit(":", 1)[-1].rsplit("-", 1)[-1].removeprefix("r")


def effect_text(effect: effects.Effect) -> str:
    """Return an effect as the lists of effects write it."""
    match effect:
        case effects.PersistMessage():
            return f"PersistMessage({_message(effect.message)})"
        case effects.PersistState():
            return "PersistState"
        case effects.PersistMode():
            return f"PersistMode({effect.mode.value})"
        case effects.NotifyClient():
            return f"NotifyClient({_notification(effect.data)})"
        case effects.RequestLlm():
            return f"RequestLlm({number(effect.request_id)}, {effect.attempt})"
        case effects.RequestContinuation():
            return (
                f"RequestContinuation({', '.join([number(effect.request_id), str(effect.attempt), *effect.rejected])})"
            )
        case effects.AbortLlm():
            return f"AbortLlm({number(effect.request_id)})"
        case effects.ExecuteTool():
            return f"ExecuteTool({effect.tool_use_id}, {effect.execution_id})"
        case effects.AwaitToolResult():
            return f"AwaitToolResult({effect.tool_use_id}, {effect.execution_id})"
        case effects.AwaitAnswer():
            return f"AwaitAnswer({effect.tool_use_id}, {effect.execution_id}, {effect.place})"
        case effects.AnswerTool():
            return f"AnswerTool({effect.tool_use_id}, {effect.execution_id}, {effect.place}, {effect.status.value})"
        case effects.AbortTool():
            return f"AbortTool({effect.tool_use_id}, {effect.execution_id})"
        case effects.ScheduleRetry():
            what = (
                f"llm, {number(effect.request_id)}"
                if effect.of is effects.RetryOf.LLM
                else f"tool, {effect.tool_use_id}, {effect.execution_id}"
            )
            return f"ScheduleRetry({what}, {effect.attempt}, {effect.delay_ms // 1_000})"
        case effects.SpawnSubAgent():
            return f"SpawnSubAgent({number(effect.task.agent_id)})"
        case effects.CancelSubAgents():
            return f"CancelSubAgents({' '.join(map(number, effect.agent_ids))})"
        case effects.NotifyParent():
            result = effect.result
            if isinstance(result, states.AgentSucceeded):
                return "NotifyParent(result)"
            kind = getattr(result, "kind", "timed_out")
            return f"NotifyParent(failure, {kind}, {result.partial_result})"
        case effects.StartTimer():
            return f"StartTimer(CancelTimeout, {number(effect.run_id)})"


def _message(message: content.Message) -> str:
    match message.type:
        case content.MessageType.USER:
            return f"user {message.id}"
        case content.MessageType.AGENT:
            return f"agent r{number(message.request_id)}"
        case content.MessageType.ERROR:
            return f"error {message.error_kind}"
        case content.MessageType.TOOL:
            (result,) = message.content
            assert isinstance(result, content.ToolResult)
            return f'tool {result.tool_use_id} "{_result(result)}"'
        case content.MessageType.SYSTEM:
            return f"system {'meta ' if message.meta else ''}{_system(message)}"


def _result(result: content.ToolResult) -> str:
    match result:
        case content.ToolSuccess():
            return "result"
        case content.ToolCancelled():
            return result.output
        case content.SubAgentComplete():
            return "aggregate" if result.output.startswith("Task: ") else result.output
        case content.ToolError():
            if result.outcome is not content.ToolOutcome.ERROR:
                return result.output
            failed = result.output.startswith("Failed after ")
            return "error: failed after attempts" if failed else "error: tool aborted unexpectedly"


def _system(message: content.Message) -> str:
    match message.kind:
        case content.SystemKind.INTERRUPTED:
            return "interrupted"
        case content.SystemKind.FORKED:
            return "forked"
        case content.SystemKind.MODE_RESTRICTED:
            return "mode restricted"
        case content.SystemKind.MODE_WORKSPACE:
            return "mode workspace"
        case content.SystemKind.MODE_UNRESTRICTED:
            return "mode unrestricted"
        case content.SystemKind.ROUND_CAP:
            return "round cap"
        case content.SystemKind.BUDGET:
            return "budget reached"
        case content.SystemKind.OUTPUT_NUDGE:
            return "output does not fit"
        case content.SystemKind.NUDGE:
            return "call submit_result"
        case content.SystemKind.GRACE:
            return "turn limit: submit now"
        case content.SystemKind.SUMMARY:
            return "continuation summary"
        case content.SystemKind.SUMMARY_FALLBACK:
            return "continuation fallback"
        case content.SystemKind.SUB_AGENT_RESULTS:
            return f"sub_agent_results {number(message.run)}"
        case content.SystemKind.MCP_RESTARTED:
            return "mcp restarted"
        case content.SystemKind.JOBS_ENDED:
            return "jobs ended"
        case content.SystemKind.NONE | content.SystemKind.CONTINUE:
            return "?"


def _notification(data: notifications.Notification) -> str:
    match data:
        case notifications.StateChanged():
            return " ".join(["StateChanged", *([">".join(data.fsm_path)] if data.fsm_path else [])])
        case notifications.TextDelta():
            return f"TextDelta {number(data.request_id)} {data.attempt}"
        case notifications.StreamDiscarded():
            return f"StreamDiscarded {number(data.request_id)} {data.attempt}"
        case notifications.Retrying():
            return f"Retrying {data.attempt}"
        case notifications.QueueChanged():
            name = {"steer": "steer", "follow_up": "followUp"}[data.delivery]
            return f"QueueChanged {name} {data.input.message_id}"
        case notifications.ApprovalRequested():
            return f"ApprovalRequested {data.call.id}"
        case notifications.ApprovalResolved():
            return f"ApprovalResolved {data.tool_use_id} {data.decision.value}"
        case notifications.BackgroundJobChanged():
            return f"BackgroundJobChanged {data.job.handle} {data.job.status.value}"
        case notifications.QuestionChanged():
            return f"QuestionChanged {data.question.number} {data.status.value}"
        case notifications.ClientToolCall():
            return f"ClientToolCall {data.call.id} {data.status.value}"
        case notifications.SubAgents():
            return f"SubAgents {len(data.reports)} {len(data.pending)}"
        case notifications.ModeChanged():
            return f"ModeChanged {data.mode.value}"
        case notifications.RunStop():
            return f"RunStop {data.reason.value}{f', {data.detail}' if data.detail else ''}"
        case (
            notifications.UsageChanged()
            | notifications.ContextWarning()
            | notifications.MessageAdded()
            | notifications.ToolTreeReaped()
            | notifications.ConversationUpdated()
        ):
            return type(data).__name__
