"""The states of tool calls, AwaitingToolApproval and ToolExecuting, and the questions that a running tool asks."""

from __future__ import annotations

from msgspec.structs import replace

from actors.core import events
from actors.core.content import ToolCancelled, ToolError, ToolResult, ToolSuccess
from actors.core.context import ConvContext
from actors.core.effects import AnswerTool, AwaitAnswer, TransitionResult
from actors.core.errors import ErrorKind, LlmFailure, Reason, Rejected
from actors.core.notifications import ApprovalDecision, CallStatus, QuestionChanged
from actors.core.states import AwaitingToolApproval, Question, QuestionStatus, State, ToolExecuting, ToolPhase
from actors.core.steps import texts, tool_rounds
from actors.core.steps.approvals import (
    REQUEST_MODE_UPGRADE,
    requested_mode,
    resolve_question,
    traits_of,
    withdraw_questions,
)
from actors.core.steps.command_steps import queue_input, refusal, spawn_agents
from actors.core.steps.notices import change_mode, drop_job_end, grant, set_mode
from actors.core.steps.retries import attempts_left, back_off_call
from actors.core.steps.runs import cancel_run, interrupt_run
from actors.core.steps.transition_builder import TransitionBuilder, ignored


def when_awaiting_tool_approval(
    state: AwaitingToolApproval, context: ConvContext, event: events.GridEvent
) -> TransitionResult:
    match event:
        case events.ApprovalResponse():
            return _answer(state, context, event)
        case events.UserMessage():
            return queue_input(state, context, event, Reason.AWAITING_APPROVAL)
        case events.TriggerContinuation():
            raise refusal(context, event, Reason.AWAITING_APPROVAL)
        case events.SpawnSubAgents() | events.StartSubAgent():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case events.SetMode():
            return set_mode(state, context, event)
        case events.UserCancel():
            builder = TransitionBuilder(state, context, event.at)
            withdraw_questions(builder, state.undecided)
            tool_rounds.cancel_undecided(builder, _ids(state))
            return cancel_run(builder, event)
        case events.Restart():
            builder = TransitionBuilder(state, context, event.at)
            withdraw_questions(builder, state.undecided)
            tool_rounds.interrupt_calls(builder, _ids(state))
            return interrupt_run(builder)
        case events.SettleEvent() | events.LlmOutcome() | events.ToolEvent() | events.Timer() | events.SubAgentResult():
            return ignored(state)


def _answer(state: AwaitingToolApproval, context: ConvContext, event: events.ApprovalResponse) -> TransitionResult:
    """Apply a person's decision about one call: the last approval starts all calls, the first denial skips them all."""
    if event.tool_use_id not in state.undecided:
        raise Rejected(Reason.UNKNOWN_OR_DECIDED)
    builder = TransitionBuilder(state, context, event.at)
    others = tuple(call_id for call_id in state.undecided if call_id != event.tool_use_id)
    if not event.approve:
        resolve_question(builder, event.tool_use_id, ApprovalDecision.DENY, event.reason)
        withdraw_questions(builder, others)
        return tool_rounds.deny_calls(builder, state.calls, event.tool_use_id, texts.denied(event.reason))
    resolve_question(builder, event.tool_use_id, ApprovalDecision.APPROVE, event.reason)
    if others:
        return builder.stay(replace(state, undecided=others))
    return tool_rounds.run_next_call(builder, state.calls, _ids(state), ())


def _ids(state: AwaitingToolApproval) -> tuple[str, ...]:
    return tuple(call.id for call in state.calls)


def when_tool_executing(state: ToolExecuting, context: ConvContext, event: events.GridEvent) -> TransitionResult:
    match event:
        case events.ToolComplete() | events.ToolTransient() | events.ToolAborted() | events.AgentsSpawned():
            return _outcome(state, context, event) if _concerns(state, event) else ignored(state)
        case events.ToolRetryTimeout():
            return (
                _retry(TransitionBuilder(state, context, event.at), state) if _is_due(state, event) else ignored(state)
            )
        case events.UserMessage():
            return queue_input(state, context, event, Reason.AGENT_BUSY)
        case events.UserCancel():
            return _cancel(state, context, event)
        case events.SetMode():
            return _stop_for_mode(state, context, event) if _stops(state, event) else set_mode(state, context, event)
        case events.Command():
            raise refusal(context, event, Reason.AGENT_BUSY)
        case events.Restart():
            builder = TransitionBuilder(state, context, event.at)
            tool_rounds.interrupt_calls(builder, (state.current_tool_id, *state.remaining_tool_ids))
            tool_rounds.withdraw_asked(builder, state)
            if state.deadline:
                tool_rounds.end_waiting(builder, state, CallStatus.WITHDRAWN)
            return interrupt_run(builder)
        case events.SettleEvent() | events.LlmOutcome() | events.Timer() | events.SubAgentResult():
            return ignored(state)


Outcome = events.ToolComplete | events.ToolTransient | events.ToolAborted | events.AgentsSpawned


def _outcome(state: ToolExecuting, context: ConvContext, event: Outcome) -> TransitionResult:
    if isinstance(event, events.AgentsSpawned) and context.is_sub_agent:
        return ignored(state)
    builder = TransitionBuilder(state, context, event.at)
    tool_rounds.withdraw_asked(builder, state)
    match event:
        case events.ToolComplete():
            drop_job_end(builder, event.ended_job)
            return _completed(builder, state, event.result)
        case events.ToolTransient():
            return _transient(builder, state, event)
        case events.ToolAborted():
            return _completed(builder, state, ToolError(state.current_tool_id, texts.TOOL_ABORTED))
        case events.AgentsSpawned():
            if not event.agents:
                return _completed(builder, state, ToolError(state.current_tool_id, texts.NO_TASKS))
            return spawn_agents(builder, event.agents, call=state)


def _concerns(state: ToolExecuting, event: Outcome) -> bool:
    identity = (event.tool_use_id, event.execution_id)
    runs = state.phase is ToolPhase.RUNNING and not state.deadline
    return runs and identity == (state.current_tool_id, state.execution_id)


def _is_due(state: ToolExecuting, event: events.ToolRetryTimeout) -> bool:
    identity = (event.tool_use_id, event.execution_id, event.attempt)
    return state.phase is ToolPhase.BACKOFF and identity == (state.current_tool_id, state.execution_id, state.attempt)


def _completed(builder: TransitionBuilder, state: ToolExecuting, result: ToolResult) -> TransitionResult:
    call = tool_rounds.current_call(state)
    answer = tool_rounds.add_call_result(builder, call, result)
    if call.name == REQUEST_MODE_UPGRADE and isinstance(result, ToolSuccess) and not builder.context.is_sub_agent:
        grant(builder, requested_mode(call))
    done = (*state.completed_results, answer)
    return tool_rounds.run_next_call(builder, state.calls, state.remaining_tool_ids, done, refused=state.refused_ids)


def _transient(builder: TransitionBuilder, state: ToolExecuting, event: events.ToolTransient) -> TransitionResult:
    """Retry a call that cannot have changed anything, while attempts are left; otherwise the failure is its result."""
    traits = traits_of(builder.context, tool_rounds.current_call(state).name)
    repeatable = not event.begun or (traits is not None and traits.retry_safe)
    if not repeatable or not attempts_left(state.attempt, builder.context.limits):
        text = texts.failed_after(state.attempt, event.message)
        return _completed(builder, state, ToolError(state.current_tool_id, text))
    return back_off_call(builder, state, LlmFailure(ErrorKind.UNKNOWN, event.message))


def _retry(builder: TransitionBuilder, state: ToolExecuting) -> TransitionResult:
    xid = tool_rounds.start_execution(builder, tool_rounds.current_call(state), state.attempt)
    return builder.finish(replace(state, ledger=builder.ledger, execution_id=xid, phase=ToolPhase.RUNNING, retry_at=0))


def _cancel(state: ToolExecuting, context: ConvContext, event: events.UserCancel) -> TransitionResult:
    """Become idle at once. The tool runner delays the next execution until the killed process tree has exited."""
    builder = TransitionBuilder(state, context, event.at)
    tool_rounds.cancel_calls(builder, state.current_tool_id, state.remaining_tool_ids)
    tool_rounds.stop_call(builder, state)
    return cancel_run(builder, event)


def _stops(state: ToolExecuting, event: events.SetMode) -> bool:
    return state.phase is ToolPhase.RUNNING and state.current_tool_id in event.stop


def _stop_for_mode(state: ToolExecuting, context: ConvContext, event: events.SetMode) -> TransitionResult:
    """Stop the running call, which has more rights than the new mode gives; the run continues (REQ-BED-016)."""
    if context.is_sub_agent:
        raise Rejected(Reason.SUB_AGENT)
    builder = TransitionBuilder(state, context, event.at)
    change_mode(builder, event.mode)
    tool_rounds.stop_call(builder, state)
    return tool_rounds.complete_call(
        builder, state, ToolCancelled(state.current_tool_id, texts.STOPPED_FOR_MODE[event.mode])
    )


def ask_question(state: State, context: ConvContext, event: events.AskQuestion) -> TransitionResult:
    """Ask clients a question of the running call. Ignored in sub-agents, for other calls, and if asked before."""
    running = _asking(state, event)
    if running is None or event.place <= running.asked or context.is_sub_agent:
        return ignored(state)
    builder = TransitionBuilder(running, context, event.at)
    ledger = builder.ledger = replace(builder.ledger, questions=builder.ledger.questions + 1)
    deadline = event.at + event.timeout_ms
    question = Question(
        ledger.questions, event.place, event.asker, event.message, event.at, deadline, event.schema, event.url
    )
    builder.notify(QuestionChanged(tool_rounds.current_call(running), question, QuestionStatus.PENDING))
    builder.add_effect(AwaitAnswer(running.current_tool_id, running.execution_id, event.place, deadline))
    return builder.stay(replace(running, ledger=ledger, questions=(*running.questions, question), asked=event.place))


def drop_question(state: State, context: ConvContext, event: events.QuestionOver) -> TransitionResult:
    """End a question that has timed out or that the tool withdrew. Ignored if the question has ended already."""
    running = _asking(state, event)
    question = next((each for each in running.questions if each.place == event.place), None) if running else None
    if running is None or question is None:
        return ignored(state)
    status = QuestionStatus.TIMED_OUT if event.timed_out else QuestionStatus.WITHDRAWN
    return _end(TransitionBuilder(running, context, event.at), running, question, status)


def apply_decision(state: State, context: ConvContext, event: events.AnswerQuestion) -> TransitionResult:
    """Give a person's answer to the tool. Raises Rejected, with the reason, if the question awaits no answer."""
    question = open_question(state, event.number)
    if question is None or not isinstance(state, ToolExecuting):
        cause = _cause(state, event.number)
        raise Rejected(Reason.UNKNOWN_OR_DECIDED, texts.NO_SUCH_QUESTION[cause], cause)
    status = QuestionStatus.ANSWERED if event.accept else QuestionStatus.DECLINED
    return _end(TransitionBuilder(state, context, event.at), state, question, status, event.content)


def open_question(state: State, number: int) -> Question | None:
    asked = state.questions if isinstance(state, ToolExecuting) else ()
    return next((question for question in asked if question.number == number), None)


def _asking(state: State, event: events.AskQuestion | events.QuestionOver) -> ToolExecuting | None:
    """`state` if the call that the event names is running on the server (not in a client), else None."""
    if not isinstance(state, ToolExecuting) or state.phase is not ToolPhase.RUNNING or state.deadline:
        return None
    mine = (state.current_tool_id, state.execution_id) == (event.tool_use_id, event.execution_id)
    return state if mine else None


def _end(
    builder: TransitionBuilder, state: ToolExecuting, question: Question, status: QuestionStatus, content: str = ""
) -> TransitionResult:
    if status is not QuestionStatus.WITHDRAWN:
        identity = state.current_tool_id, state.execution_id, question.place
        builder.add_effect(AnswerTool(*identity, status, content if status is QuestionStatus.ANSWERED else ""))
    tool_rounds.end_question(builder, state, question, status)
    left = tuple(each for each in state.questions if each is not question)
    return builder.stay(replace(state, ledger=builder.ledger, questions=left))


def _cause(state: State, number: int) -> str:
    past = state.ledger.past_questions
    return next((each.status.value for each in past if each.number == number), "unknown")
