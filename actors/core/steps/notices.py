"""How a conversation's model learns of changes outside its run: notices, and mode changes."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from actors.core import states
from actors.core.content import SystemKind
from actors.core.context import ConvContext, Mode, Rules, wider
from actors.core.effects import PersistMode, TransitionResult
from actors.core.errors import Reason, Rejected
from actors.core.events import JobChanged, McpRestarted, SetMode
from actors.core.notifications import BackgroundJobChanged, ModeChanged
from actors.core.steps import texts
from actors.core.steps.approvals import REQUEST_MODE_UPGRADE, traits_of
from actors.core.steps.transition_builder import TransitionBuilder, ignored

# The kinds of notices that clients do not display, because users saw the interruption when it happened.
_MODEL_ONLY = frozenset({SystemKind.INTERRUPTED})


def queue_notice(builder: TransitionBuilder, kind: SystemKind, text: str, replacing: Collection[SystemKind]) -> None:
    """Queue a notice, and drop the queued notices of the kinds in `replacing`, which the new one makes obsolete."""
    drop_notices(builder, replacing)
    notice = states.Notice(kind, text, builder.at)
    builder.ledger = replace(builder.ledger, pending_notices=(*builder.ledger.pending_notices, notice))


def drop_notices(builder: TransitionBuilder, kinds: Collection[SystemKind]) -> None:
    kept = tuple(notice for notice in builder.ledger.pending_notices if notice.kind not in kinds)
    if len(kept) != len(builder.ledger.pending_notices):
        builder.ledger = replace(builder.ledger, pending_notices=kept)


def deliver_notices(builder: TransitionBuilder, kinds: Collection[SystemKind] = frozenset(SystemKind)) -> None:
    """Persist the queued notices of these kinds as system messages, oldest first, then one about jobs that ended."""
    due = [notice for notice in builder.ledger.pending_notices if notice.kind in kinds]
    drop_notices(builder, kinds)
    for notice in due:
        builder.add_system_message(notice.kind, notice.text, meta=notice.kind in _MODEL_ONLY)
    if SystemKind.JOBS_ENDED in kinds:
        _deliver_job_ends(builder)


def notice_hidden_images(builder: TransitionBuilder) -> None:
    """Tell the next request's model once that it does not see the images.

    Every model is assumed to accept images until a provider refuses one.
    """
    hidden_from = "" if builder.context.takes_images else builder.context.model_id
    if builder.ledger.hidden_from in (None, hidden_from):
        return
    builder.ledger = replace(builder.ledger, hidden_from=hidden_from)
    if hidden_from:
        builder.add_system_message(SystemKind.NONE, texts.IMAGES_HIDDEN.format(model=hidden_from))


def queue_cancel_notice(builder: TransitionBuilder) -> None:
    """Queue the notice that the user cancelled the open run; it replaces the notice of an earlier interruption."""
    _queue_interruption(builder, texts.RUN_CANCELLED)


def queue_restart_notice(builder: TransitionBuilder) -> None:
    _queue_interruption(builder, texts.RUN_CUT_OFF)


def deliver_interruption_notice(builder: TransitionBuilder) -> None:
    """Add the queued notice about an interrupted run to the history, if there is one. Call this before a run begins."""
    deliver_notices(builder, _MODEL_ONLY)


def notice_date(builder: TransitionBuilder) -> None:
    """If the date has changed, tell the model in a notice.

    The prompt keeps the old date, because providers can only use a cached request if the beginning is unchanged.
    """
    date = builder.context.date
    if date in ("", builder.ledger.date or builder.context.prompt_date):
        return
    builder.ledger = replace(builder.ledger, date=date)
    builder.add_system_message(SystemKind.NONE, texts.DATE.format(date=date), meta=True)


def notice_mcp_restart(state: states.State, context: ConvContext, event: McpRestarted) -> TransitionResult:
    """Queue a notice that MCP servers were restarted. Ignored in sub-agents, and outside the states Idle and Error."""
    if not isinstance(state, (states.Idle, states.Error)) or context.is_sub_agent:
        return ignored(state)
    builder = TransitionBuilder(state, context, event.at)
    text = texts.MCP_RESTARTED.format(servers=", ".join(event.servers))
    queue_notice(builder, SystemKind.MCP_RESTARTED, text, (SystemKind.MCP_RESTARTED,))
    builder.place_state()
    return builder.stay_silently(replace(state, ledger=builder.ledger))


def change_job(state: states.State, context: ConvContext, event: JobChanged) -> TransitionResult:
    """Record the beginning or end of a background job, in every state.

    An event that is already recorded is ignored; an end is recorded even if the beginning was not.
    """
    job, jobs = event.job, state.ledger.jobs
    known = next((each for each in jobs if (each.handle, each.tool_use_id) == (job.handle, job.tool_use_id)), None)
    if known is not None and (job.status is states.JobStatus.RUNNING or known.status is not states.JobStatus.RUNNING):
        return ignored(state)
    builder = TransitionBuilder(state, context, event.at)
    others = tuple(each for each in jobs if each is not known)
    told = job.status is not states.JobStatus.RUNNING and isinstance(state, states.TERMINAL)  # no request follows
    builder.ledger = replace(state.ledger, jobs=others if told else (*others, job))
    builder.place_state()
    builder.notify(BackgroundJobChanged(job))
    return builder.stay_silently(replace(state, ledger=builder.ledger))


def _deliver_job_ends(builder: TransitionBuilder) -> None:
    ended = tuple(job for job in builder.ledger.jobs if job.status is not states.JobStatus.RUNNING)
    if ended:
        builder.ledger = replace(builder.ledger, jobs=builder.ledger.running_jobs)
        builder.add_system_message(SystemKind.JOBS_ENDED, texts.jobs_ended(ended), meta=True)


def drop_job_end(builder: TransitionBuilder, handle: str) -> None:
    """Drop the pending message about the end of this job, because a tool result has told the agent."""
    kept = tuple(job for job in builder.ledger.jobs if job.handle != handle or job.status is states.JobStatus.RUNNING)
    builder.ledger = replace(builder.ledger, jobs=kept)


def _queue_interruption(builder: TransitionBuilder, text: str) -> None:
    if builder.context.rules < Rules.INTERRUPTIONS or builder.context.is_sub_agent or not builder.ledger.live:
        return
    queue_notice(builder, SystemKind.INTERRUPTED, text.format(step=_step(builder.before)), _MODEL_ONLY)


def _step(state: states.State) -> str:
    match state:
        case states.LlmRequesting(phase=states.LlmPhase.STREAMING):
            return texts.WHILE_ANSWERING
        case states.AwaitingToolApproval():
            return texts.while_asking(call.name for call in state.calls if call.id in state.undecided)
        case states.ToolExecuting():
            return texts.while_running(next(call.name for call in state.calls if call.id == state.current_tool_id))
        case states.AwaitingSubAgents():
            return texts.WHILE_SUB_AGENTS_WORKED
        case states.AwaitingContinuation():
            return texts.WHILE_SUMMING_UP
        case _ if state.ledger.rounds > 1:
            return texts.after_step(state.ledger.rounds - 1)
        case _:
            return texts.BEFORE_ANSWERING


KINDS = {
    Mode.RESTRICTED: SystemKind.MODE_RESTRICTED,
    Mode.WORKSPACE: SystemKind.MODE_WORKSPACE,
    Mode.UNRESTRICTED: SystemKind.MODE_UNRESTRICTED,
}


def set_mode(state: states.State, context: ConvContext, event: SetMode) -> TransitionResult:
    """Change the mode by command.

    The notice is persisted at once, or queued while a call has no result. Ignored if the mode does not change. Raises
    Rejected in a sub-agent, and for a mode that is not available.
    """
    if context.is_sub_agent:
        raise Rejected(Reason.SUB_AGENT)
    if event.mode is context.mode:
        return ignored(state)
    _check_available(context, event.mode)
    builder = TransitionBuilder(state, context, event.at)
    builder.add_effect(PersistMode(event.mode))
    if round_is_open(state):
        _queue(builder, event.mode)
    else:
        drop_notices(builder, KINDS.values())
        builder.add_system_message(KINDS[event.mode], _notice(context, event.mode))
    builder.place_state()
    builder.notify(ModeChanged(event.mode))
    after = replace(state, ledger=builder.ledger)
    return builder.stay(after) if round_is_open(state) else builder.stay_silently(after)


def change_mode(builder: TransitionBuilder, mode: Mode) -> None:
    """Change the mode between calls of a round and queue the notice. Raises Rejected if the mode is not available."""
    if builder.context.mode is mode:
        return
    _check_available(builder.context, mode)
    builder.add_effect(PersistMode(mode))
    builder.notify(ModeChanged(mode))
    builder.context = replace(builder.context, mode=mode)
    _queue(builder, mode)


def grant(builder: TransitionBuilder, mode: Mode) -> None:
    """Change to the mode that a person approved, if it is available and gives more rights than the current one."""
    if wider(mode, builder.context.mode) and available(builder.context, mode):
        change_mode(builder, mode)


def available(context: ConvContext, mode: Mode) -> bool:
    """Whether the conversation may use the mode, and the machine that runs the server can enforce it."""
    match mode:
        case Mode.RESTRICTED:
            return context.restriction_available
        case Mode.WORKSPACE:
            return context.workspace_available
        case Mode.UNRESTRICTED:
            return context.unrestricted_available


def _check_available(context: ConvContext, mode: Mode) -> None:
    if not available(context, mode):
        raise Rejected(Reason.MODE_UNAVAILABLE, f"{mode.value} mode is not available on this server")


def round_is_open(state: states.State) -> bool:
    """Whether a tool call has no result yet; no other message may be persisted before that result."""
    if isinstance(state, states.AwaitingSubAgents):
        return bool(state.tool_use_id)
    return isinstance(state, (states.AwaitingToolApproval, states.ToolExecuting))


def _queue(builder: TransitionBuilder, mode: Mode) -> None:
    queue_notice(builder, KINDS[mode], _notice(builder.context, mode), KINDS.values())


def _notice(context: ConvContext, mode: Mode) -> str:
    asks = context.rules < Rules.OWN_TOOLS or traits_of(context, REQUEST_MODE_UPGRADE) is not None
    return texts.RESTRICTED_FOR_GOOD if mode is Mode.RESTRICTED and not asks else texts.MODES[mode]
