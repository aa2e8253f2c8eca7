"""Converts stored events of conversations, and streamed text that is not stored, to events of the gRPC API."""

from __future__ import annotations

from bedrock import v1

from actors.core import notifications
from actors.core.errors import ErrorKind
from actors.core.states import BackgroundJob
from actors.ports import StoredEvent
from server.contract import resource_names as names
from server.wire import messages
from server.wire.conversation_messages import client_tool_call, pending_approval, question, state, sub_agents_changed


def needs_record(notification: notifications.Durable) -> bool:
    """Whether the API event for this notification contains the conversation, which must be read for it."""
    return isinstance(
        notification, notifications.UsageChanged | notifications.ModeChanged | notifications.ConversationUpdated
    )


def event(conversion: messages.ConversionContext, conversation_id: str, stored: StoredEvent) -> v1.Event:
    """A stored event as an API event. If `needs_record`, `server.streams.base` must add the conversation to it."""
    answer = v1.Event(revision=stored.revision, time=messages.timestamp(stored.at))
    _fill(answer, conversion, conversation_id, stored)
    return answer


def event_alone(conversion: messages.ConversionContext, conversation_id: str, stored: StoredEvent) -> v1.Event:
    """A stored event as an API event, without the conversation's record.

    If settings have changed, it contains their values or, if the log lacks these, only their names.
    """
    answer = event(conversion, conversation_id, stored)
    name = names.conversation(conversation_id)
    match stored.notification:
        case notifications.UsageChanged(used_tokens=used, window_tokens=window, total=total, warning=warning):
            fills = v1.ContextUsage(used_tokens=used, usable_window_tokens=window, warning=warning)
            updated = v1.Conversation(name=name, context_usage=fills, total_usage=messages.usage(total))
        case notifications.ModeChanged(mode=mode):
            updated = v1.Conversation(name=name, mode=messages.MODE[mode])
        case notifications.ConversationUpdated():
            updated = v1.Conversation(name=name)
        case _:
            return answer
    answer.conversation_updated.CopyFrom(updated)
    return answer


def _fill(answer: v1.Event, conversion: messages.ConversionContext, conversation_id: str, stored: StoredEvent) -> None:
    match stored.notification:
        case notifications.StateChanged(state=summary, fsm_path=path):
            answer.state_changed.state.CopyFrom(state(conversion, conversation_id, summary, stored.at))
            answer.state_changed.fsm_path.extend(messages.CONTEXT_STATE[step] for step in path)
        case notifications.MessageAdded(message=added):
            answer.message_added.CopyFrom(messages.message(conversion, conversation_id, added))
        case notifications.StreamDiscarded(request_id=request_id, attempt=attempt):
            answer.stream_discarded.CopyFrom(v1.Event.StreamDiscarded(llm_request_id=request_id, attempt=attempt))
        case notifications.Retrying() as retrying:
            answer.retrying.CopyFrom(_retrying(retrying))
        case notifications.QueueChanged() as change:
            answer.queue_changed.CopyFrom(messages.queued(conversation_id, change, at=stored.at))
        case notifications.ApprovalRequested() | notifications.ApprovalResolved() as question:
            answer.approval_changed.CopyFrom(_approval(conversion, conversation_id, question))
        case notifications.ClientToolCall() | notifications.QuestionChanged() as waits:
            _fill_wait(answer, conversion, conversation_id, waits)
        case notifications.UsageChanged() | notifications.ModeChanged() | notifications.ConversationUpdated():
            pass
        case notifications.ContextWarning(used_tokens=used, window_tokens=window):
            warning = v1.ContextUsage(used_tokens=used, usable_window_tokens=window, warning=True)
            answer.context_warning.CopyFrom(warning)
        case notifications.SubAgents(reports=reports, pending=pending):
            answer.sub_agents_changed.CopyFrom(sub_agents_changed(pending, reports))
        case notifications.RunStop() as stop:
            answer.run_stopped.CopyFrom(_run_stopped(conversation_id, stop))
        case notifications.BackgroundJobChanged() | notifications.ToolTreeReaped() as ended:
            _fill_process(answer, ended)


def _fill_wait(
    answer: v1.Event,
    conversion: messages.ConversionContext,
    conversation_id: str,
    waits: notifications.ClientToolCall | notifications.QuestionChanged,
) -> None:
    if isinstance(waits, notifications.ClientToolCall):
        answer.client_tool_call_changed.CopyFrom(client_tool_call(conversion, waits))
    else:
        answer.question_changed.question.CopyFrom(question(conversation_id, waits))


def _fill_process(answer: v1.Event, ended: notifications.BackgroundJobChanged | notifications.ToolTreeReaped) -> None:
    if isinstance(ended, notifications.BackgroundJobChanged):
        answer.background_job_changed.CopyFrom(_job(ended.job))
    else:
        answer.tool_tree_reaped.CopyFrom(_reaped(ended))


def _retrying(retrying: notifications.Retrying) -> v1.Event.Retrying:
    answer = v1.Event.Retrying(
        attempt=retrying.attempt,
        max_attempts=retrying.max_attempts,
        retry_time=messages.timestamp(retrying.retry_at),
        error=messages.failure(retrying.error),
    )
    if retrying.tool_use_id:
        answer.tool_use_id = retrying.tool_use_id
    else:
        answer.llm_request_id = retrying.request_id
    return answer


def _approval(
    conversion: messages.ConversionContext,
    conversation_id: str,
    question: notifications.ApprovalRequested | notifications.ApprovalResolved,
) -> v1.Event.ApprovalChanged:
    if isinstance(question, notifications.ApprovalRequested):
        return v1.Event.ApprovalChanged(approval=pending_approval(conversion, conversation_id, question))
    return v1.Event.ApprovalChanged(
        approval=v1.PendingApproval(name=names.approval(conversation_id, question.tool_use_id)),
        decision=messages.DECISION[question.decision],
        note=question.reason,
    )


def _run_stopped(conversation_id: str, stop: notifications.RunStop) -> v1.Event.RunStopped:
    answer = v1.Event.RunStopped(
        request_cycle=names.cycle(conversation_id, stop.run),
        reason=messages.STOP_REASON[stop.reason],
        detail=stop.detail,
    )
    if stop.reason is notifications.StopReason.ERROR:
        known = stop.detail in ErrorKind.__members__.values()
        answer.error.CopyFrom(messages.run_error(stop.detail if known else ErrorKind.UNKNOWN, stop.message))
    if stop.output:
        answer.output.CopyFrom(messages.json_value(stop.output))
    return answer


def _job(job: BackgroundJob) -> v1.Event.BackgroundJobChanged:
    return v1.Event.BackgroundJobChanged(
        handle=job.handle,
        tool_use_id=job.tool_use_id,
        command=job.command,
        status=messages.JOB_STATUS[job.status],
        exit_code=job.exit_code,
    )


def _reaped(reaped: notifications.ToolTreeReaped) -> v1.Event.ToolTreeReaped:
    return v1.Event.ToolTreeReaped(
        tool_use_id=reaped.tool_use_id,
        pids=reaped.pids,
        duration=messages.duration(reaped.milliseconds),
        leaked=reaped.leaked,
    )


def text_delta(request_id: str, attempt: int, offset: int, text: str, *, reasoning: bool) -> v1.Event.TextDelta:
    return v1.Event.TextDelta(
        llm_request_id=request_id, attempt=attempt, offset=offset, text=_clean(text), reasoning=reasoning
    )


def output_delta(tool_use_id: str, attempt: int, offset: int, text: str) -> v1.Event.ToolOutputDelta:
    return v1.Event.ToolOutputDelta(tool_use_id=tool_use_id, attempt=attempt, offset=offset, text=_clean(text))


def _clean(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode. Streamed text may be split within a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
