"""The laws that one transition shows by itself, whatever came before it."""

import msgspec
from msgspec.structs import replace

from actors.core import events
from actors.core.content import MessageType, ToolSuccess, ToolUse, distinct_calls, tool_uses
from actors.core.context import Action, ApprovalRule, CallSubject, ConvContext, Mode, wider
from actors.core.effects import (
    AwaitToolResult,
    Effect,
    ExecuteTool,
    NotifyClient,
    NotifyParent,
    PersistMessage,
    PersistMode,
    PersistState,
    RequestContinuation,
    RequestLlm,
    ScheduleRetry,
    SpawnSubAgent,
)
from actors.core.notifications import ContextWarning, MessageAdded, Notification, Retrying, RunStop
from actors.core.states import (
    TERMINAL,
    AgentFailed,
    AgentSucceeded,
    AwaitingContinuation,
    AwaitingSubAgents,
    AwaitingToolApproval,
    Cancelling,
    Completed,
    Error,
    Failed,
    Idle,
    Ledger,
    LlmPhase,
    LlmRequesting,
    State,
    ToolExecuting,
    ToolPhase,
)
from actors.core.transition import context_after, transition

_STATES: msgspec.json.Decoder[State] = msgspec.json.Decoder(State)
_EVENTS: msgspec.json.Decoder[events.Event] = msgspec.json.Decoder(events.Event)

IN_FLIGHT = (RequestLlm, RequestContinuation, ExecuteTool, AwaitToolResult)


def check(law: str, holds: object, *about: object) -> None:
    """Fail with the law's name and what it was about."""
    assert holds, f"{law}: " + "; ".join(map(str, about))


def check_transition(
    before: State, context: ConvContext, event: events.Event, after: State, effects: tuple[Effect, ...]
) -> None:
    """The laws that one transition shows by itself."""
    _same_again(before, context, event, after, effects)
    _persisted(before, after, effects)
    _one_operation(after, effects)
    absorbs = isinstance(before, TERMINAL) and not isinstance(event, events.UsageReported | events.JobChanged)
    check("I5 terminal states absorb", not absorbs or not effects, before, event)
    if isinstance(event, events.UsageReported):
        check("C44 what was spent changes sums only", after == _poorer(before, event), before, after, event)
    if isinstance(event, events.JobChanged):
        known = replace(before, ledger=replace(before.ledger, jobs=after.ledger.jobs))
        check("C46 a job that begins or ends changes what is known of jobs only", after == known, before, after)
    if any(isinstance(one, (RequestLlm, RequestContinuation)) and one.attempt == 1 for one in effects):
        check("C46 no end waits as a request begins", after.ledger.jobs == after.ledger.running_jobs, after)
    _delays(context, event, after, effects)
    _waits_are_told(context, event, after, effects)
    _parent_is_told(before, context, after, effects)
    _counters_grow(before, after)
    _may_run(before, context, event, effects)
    _may_be_asked(context, event, after, effects)
    _bounded(context, before, after, effects)
    told = notifications(effects)
    _stops(before, event, after, effects, [one for one in told if isinstance(one, RunStop)])
    if isinstance(event, events.UserCancel):
        _cancelled_calls(before, event, effects)
    grown = before.ledger.warned < after.ledger.warned
    warnings = [one for one in told if isinstance(one, ContextWarning)]
    check("C49 one warning per crossing", len(warnings) == grown, before.ledger.warned, after.ledger.warned)


def _poorer(state: State, event: events.UsageReported) -> State:
    total = "aside_usage" if event.aside else "total_usage"
    return replace(state, ledger=replace(state.ledger, **{total: getattr(state.ledger, total) + event.usage}))


def notifications(effects: tuple[Effect, ...]) -> list[Notification]:
    """What is published, in order; every stored message is."""
    told: list[Notification] = []
    for effect in effects:
        if isinstance(effect, NotifyClient):
            told.append(effect.data)
        elif isinstance(effect, PersistMessage):
            told.append(MessageAdded(effect.message))
    return told


def _same_again(
    before: State, context: ConvContext, event: events.Event, after: State, effects: tuple[Effect, ...]
) -> None:
    stored = msgspec.json.encode(before)
    restored = _STATES.decode(stored)
    check("I22 a state survives JSON", restored == before, before, restored)
    twin = _EVENTS.decode(msgspec.json.encode(event))
    again = transition(restored, context, twin)
    check("I1 equal input, equal output", (again.new_state, again.effects) == (after, effects), event)


def _persisted(before: State, after: State, effects: tuple[Effect, ...]) -> None:
    states = [effect.new_state for effect in effects if isinstance(effect, PersistState)]
    if after != before:
        check("I2 a changed state is persisted once", states == [after], before, after)
    else:
        check("I2 an unchanged state is persisted at most once", states in ([], [after]), after)
    if not effects:
        check("I2 no effects, no change", after == before, before, after)
    if any(isinstance(effect, PersistMessage) for effect in effects):
        check("C4 a message and the state are stored together", states, after)


def _one_operation(after: State, effects: tuple[Effect, ...]) -> None:
    started = [effect for effect in effects if isinstance(effect, IN_FLIGHT)]
    check("I3 at most one operation is started", len(started) <= 1, effects)
    for effect in started:
        check("I3, I4 the state names what was started", names(after, effect), effect, after)
    if any(isinstance(effect, SpawnSubAgent) for effect in effects):
        spawned = tuple(effect.task.agent_id for effect in effects if isinstance(effect, SpawnSubAgent))
        check(
            "I4 sub-agents are waited for", isinstance(after, AwaitingSubAgents) and after.pending_ids == spawned, after
        )


def names(state: State, effect: RequestLlm | RequestContinuation | ExecuteTool | AwaitToolResult) -> bool:
    """Whether the state says that exactly this is in flight."""
    match state, effect:
        case LlmRequesting(), RequestLlm():
            flight = state.request_id, state.attempt, state.phase, state.through_sequence
            return flight == (effect.request_id, effect.attempt, LlmPhase.CONNECTING, effect.through_sequence)
        case AwaitingContinuation(), RequestContinuation():
            flight = state.request_id, state.attempt, state.phase, state.through_sequence
            return flight == (effect.request_id, effect.attempt, LlmPhase.CONNECTING, effect.through_sequence)
        case ToolExecuting(), ExecuteTool():
            running = state.current_tool_id, state.execution_id, state.attempt, state.phase, state.deadline
            return running == (effect.tool_use_id, effect.execution_id, effect.attempt, ToolPhase.RUNNING, 0)
        case ToolExecuting(), AwaitToolResult():
            waiting = state.current_tool_id, state.execution_id, state.phase, state.deadline
            return waiting == (effect.tool_use_id, effect.execution_id, ToolPhase.RUNNING, effect.deadline)
        case _:
            return False


def _delays(context: ConvContext, event: events.Event, after: State, effects: tuple[Effect, ...]) -> None:
    limits = context.limits
    for effect in effects:
        if not isinstance(effect, ScheduleRetry):
            continue
        asked = (event.retry_after_ms or 0) if isinstance(event, events.LlmError) else 0
        expected = max(limits.retry_base_ms * 2 ** (effect.attempt - 2), asked)
        check("I12 the delay", effect.delay_ms == expected <= limits.max_retry_after_ms, effect, asked)
        check("I11 attempts", 2 <= effect.attempt <= limits.max_attempts, effect)
        waits = isinstance(after, (LlmRequesting, AwaitingContinuation, ToolExecuting)) and (
            after.attempt == effect.attempt and after.retry_at == event.at + effect.delay_ms
        )
        check("I12 the state shows the wait", waits, effect, after)


def _waits_are_told(context: ConvContext, event: events.Event, after: State, effects: tuple[Effect, ...]) -> None:
    """Who watches hears of each wait for another attempt: of what, which one, why, and until when."""
    waits = [effect for effect in effects if isinstance(effect, ScheduleRetry)]
    told = [one for one in notifications(effects) if isinstance(one, Retrying)]
    check("C9 every wait is told", len(waits) == len(told), waits, told)
    for wait, one in zip(waits, told, strict=True):
        expected = (wait.attempt, context.limits.max_attempts, event.at + wait.delay_ms)
        check("C9 which attempt, and when", (one.attempt, one.max_attempts, one.retry_at) == expected, one, wait)
        tool = isinstance(after, ToolExecuting)
        named = ("", getattr(after, "current_tool_id", "")) if tool else (getattr(after, "request_id", ""), "")
        check("C9 of what", (one.request_id, one.tool_use_id) == named != ("", ""), one, after)
        check("C9 the timer is of the same", (wait.request_id, wait.tool_use_id) == named, wait, after)
        cause = event.error if isinstance(event, events.LlmError) else None
        check("C9 why", cause in (None, one.error), one, event)


def _parent_is_told(before: State, context: ConvContext, after: State, effects: tuple[Effect, ...]) -> None:
    told = [effect.result for effect in effects if isinstance(effect, NotifyParent)]
    ends = context.is_sub_agent and isinstance(after, TERMINAL) and not isinstance(before, TERMINAL)
    check("I20 the parent hears of the end, once", len(told) == ends, told, after)
    for outcome in told:
        match after:
            case Completed():
                check("I20 the result", outcome == AgentSucceeded(after.result), outcome)
            case Failed():
                check("I20 the failure", outcome == AgentFailed(after.kind, after.error, after.partial_result), outcome)
            case _:
                check("I19 how a sub-agent ends", False, after)


def _counters_grow(before: State, after: State) -> None:
    for counter in ("run", "req", "xid", "seq", "agents", "turns", "questions"):
        check("I18 counters only grow", getattr(before.ledger, counter) <= getattr(after.ledger, counter), counter)


def _may_run(before: State, context: ConvContext, event: events.Event, effects: tuple[Effect, ...]) -> None:
    """What starts, starts again, or gets more rights, may do so."""
    call: ToolUse | None = None
    if isinstance(before, ToolExecuting):
        call = next(call for call in before.calls if call.id == before.current_tool_id)
    safe = {traits.name for traits in context.tools if traits.retry_safe}
    for effect in effects:
        match effect:
            case ExecuteTool() if isinstance(event, events.LlmResponse):
                check("REQ-BED-019 nothing runs in a full context", not _full(context, event), event)
                check("C25 nothing runs that was cut off", not event.truncated, event)
                check("C15 an upgrade asks first", effect.name != "request_mode_upgrade", effect)
                _fits_the_rules(context, event, effect)
            case ExecuteTool() if isinstance(before, ToolExecuting):
                check("A5 what needs approval never runs in a sub-agent", effect.tool_use_id not in before.refused_ids)
            case ScheduleRetry() if isinstance(event, events.ToolTransient):
                again = not event.begun or (call and call.name in safe)
                check("C14 what can change something never starts twice", again, call, event)
            case PersistMode() if not isinstance(event, events.SetMode):
                upgrade = isinstance(event, events.ToolComplete) and isinstance(event.result, ToolSuccess)
                named = call and call.name == "request_mode_upgrade"
                check("C15 only an approved upgrade gives rights", upgrade and named, event)
                check("C32 sub-agents get no rights", not context.is_sub_agent, event)
                asked = Mode.WORKSPACE if call and call.input == '{"mode":"workspace"}' else Mode.UNRESTRICTED
                check("C15 it gives the rights that were asked for", effect.mode is asked, effect, call)
                check("C15 it takes no rights away", wider(effect.mode, context.mode), effect, context.mode)
            case _:
                pass


def _fits_the_rules(context: ConvContext, event: events.LlmResponse, effect: ExecuteTool | AwaitToolResult) -> None:
    """What runs at once is not named by a rule that denies or asks, nor might it be."""
    calls = tool_uses(distinct_calls(event.content, event.request_id))
    subjects = event.subjects if len(event.subjects) == len(calls) else [None] * len(calls)
    for call, subject in zip(calls, subjects, strict=True):
        for rule in context.approval_rules:
            named = _named(rule, call, subject)
            if call.bad_input or rule.action is Action.ALLOW:
                continue
            if rule.action is Action.DENY:
                check("A2 nothing runs beside a call that is denied", named is not True, call, rule)
            asked = not context.is_sub_agent or call.id == effect.tool_use_id
            check("A2 what is asked for, or cannot be seen, does not run at once", named is False or not asked, call)


def _named(rule: ApprovalRule, call: ToolUse, subject: CallSubject | None) -> bool | None:
    """Whether a rule of the drivers names this call; None: it might."""
    if rule.tool:
        return rule.tool == call.name
    if subject is None:
        return None
    push, keys = ("git push", {"git $x", "$x"}), ("/work/keys/id", {"/work"})
    surely, maybe = push if rule.command_prefix else keys
    about = subject.text if rule.command_prefix else "".join((*subject.paths, *subject.trees))
    return True if about == surely else None if about in maybe else False


def _may_be_asked(context: ConvContext, event: events.Event, after: State, effects: tuple[Effect, ...]) -> None:
    """A client is asked only for what it offers, in this mode, with an input that fits; ours is not left to clients."""
    traits = {one.name: one for one in context.tools}
    mode = context_after(context, effects).mode
    for effect in effects:
        if isinstance(effect, ExecuteTool):
            ours = effect.name not in traits or not traits[effect.name].client
            check("C52 we do not run a client's tool", ours, effect)
        if not isinstance(effect, AwaitToolResult):
            continue
        check("C54 sub-agents ask no client", not context.is_sub_agent, effect)
        assert isinstance(after, ToolExecuting), after
        call = next(call for call in after.calls if call.id == effect.tool_use_id)
        tool = traits[call.name]
        check("C52 only clients' tools are waited for", tool.client, call)
        if isinstance(event, events.LlmResponse):
            _fits_the_rules(context, event, effect)
        check("C52 the deadline", effect.deadline == event.at + tool.timeout_ms, effect, event)
        check("C54 nothing that changes anything in Restricted", mode is not Mode.RESTRICTED or not tool.writes, call)
        check("C54 the input fits", not call.bad_input, call)
        asked = not tool.always_asks or not isinstance(event, events.LlmResponse)
        check("C15 what always asks does so", asked, call, event)
        full = isinstance(event, events.LlmResponse) and _full(context, event)
        check("REQ-BED-019 nothing runs in a full context", not full, event)


def _full(context: ConvContext, event: events.LlmResponse) -> bool:
    used = event.usage.context_tokens if event.usage else 0
    return event.context_full or 0 < 0.9 * context.usable_window <= used


def _bounded(context: ConvContext, before: State, after: State, effects: tuple[Effect, ...]) -> None:
    """Rounds, continuations, queues and budgets have their limits."""
    limits, budget, ledger = context.limits, context.budget, after.ledger
    if isinstance(after, LlmRequesting):
        check("C24 continuations", after.continuations <= limits.max_continuations, after)
    queued = len(ledger.steers) + len(ledger.follows)
    grown = queued > len(before.ledger.steers) + len(before.ledger.follows)
    check("C17 the queue is bounded", queued <= limits.max_queue or not grown, after)
    if any(isinstance(effect, RequestLlm) for effect in effects):
        check("C44 the round cap", context.is_sub_agent or ledger.rounds <= limits.max_rounds, after)
        check("C58 nothing left to spend", not context.quota_spent, after)
        run, whole = ledger.run_usage.context_tokens, (ledger.total_usage + ledger.aside_usage).context_tokens
        check("C44 the run's budget", not 0 < budget.run_tokens <= run, after)
        check("C44 the conversation's budget", not 0 < budget.conversation_tokens <= whole, after)
        cost = ledger.total_usage.cost_micros + ledger.aside_usage.cost_micros
        check("C44 the conversation's budget in money", not 0 < budget.conversation_cost_micros <= cost, after)


def _stops(before: State, event: events.Event, after: State, effects: tuple[Effect, ...], stops: list[RunStop]) -> None:
    """A run says how it ended; the first run-stop is that of the run that was open."""
    for stop in stops[1:]:
        check("C18 a follow-up that did not run", (stop.reason, stop.detail) == ("interrupted", "not_run"), stop)
    if isinstance(before, AwaitingContinuation) and isinstance(
        event, (events.LlmResponse, events.LlmError, events.LlmAborted)
    ):
        _summary_failed(before, after, effects)
    elif isinstance(after, Error) and not isinstance(before, Error):
        errors = [effect.message for effect in effects if isinstance(effect, PersistMessage)]
        said = [message.error_kind for message in errors if message.type is MessageType.ERROR]
        check("C13 an error is a message too", said == [after.error_kind], after, said)
    if isinstance(after, Error) and not isinstance(before, Error) and before.ledger.live:
        check("C33 a failed run", stops and (stops[0].reason, stops[0].detail) == ("error", after.error_kind), stops)
    interrupts = isinstance(event, (events.UserCancel, events.Restart)) or (
        isinstance(before, Cancelling) and isinstance(after, Idle)
    )
    if interrupts and before.ledger.live and stops:
        check("C33 an interrupted run", stops[0].reason == "interrupted", stops, event)
    for stop in stops[:1]:
        _output(before, event, stop)
    if isinstance(after, Completed) and stops:
        check("C33 a submitted result", stops[0].reason == "completed", stops)


def _summary_failed(before: AwaitingContinuation, after: State, effects: tuple[Effect, ...]) -> None:
    """A summary that a command asked for and that is not written changes nothing, and people are informed why."""
    check("C34 a full context is summarised for good", before.before or not isinstance(after, (Idle, Error)), after)
    if isinstance(after, (Idle, Error)):
        kinds = [effect.message.type for effect in effects if isinstance(effect, PersistMessage)]
        check("C34 the state is that of before", replace(after, ledger=Ledger()) == before.before, before, after)
        check("C34 the reason is a message", kinds == [MessageType.ERROR], kinds)


def _output(before: State, event: events.Event, stop: RunStop) -> None:
    """A run that completes has the value of its last answer if it has a schema; no other run has one."""
    told = event.output if isinstance(event, events.LlmResponse) else ""
    expected = before.ledger.output if isinstance(before, AwaitingContinuation) else told
    wanted = bool(before.ledger.output_schema) and stop.reason == "completed"
    check("C57 the output is the last answer's", stop.output == (expected if wanted else ""), stop, event)
    check("C57 a completed run has its output", stop.output or not wanted or stop.detail == "context_exhausted", stop)


def _cancelled_calls(before: State, event: events.UserCancel, effects: tuple[Effect, ...]) -> None:
    """I6, for every state with open calls, whatever ran."""
    match before:
        case ToolExecuting():
            ids = (before.current_tool_id, *before.remaining_tool_ids)
        case AwaitingSubAgents() if before.tool_use_id:
            ids = (before.tool_use_id, *before.remaining_tool_ids)
        case AwaitingToolApproval():
            ids = tuple(call.id for call in before.calls)
        case _:
            return
    if not effects:
        return
    stored = [effect.message for effect in effects if isinstance(effect, PersistMessage)]
    results = [block for message in stored if message.type is MessageType.TOOL for block in message.content]
    others = [message for message in stored if message.type is not MessageType.TOOL]
    check(
        "I6 one result per unfinished call", [getattr(block, "tool_use_id", "") for block in results] == list(ids), ids
    )
    skipped = "Cancelled by user" if isinstance(before, AwaitingToolApproval) else "Skipped due to cancellation"
    texts = [getattr(block, "output", "") for block in results]
    check("I6 their texts", texts == ["Cancelled by user"] + [skipped] * (len(ids) - 1), texts)
    dropped = [message for message in others if message.type is MessageType.USER and message.delivery == "follow_up"]
    check("I6 nothing else but dropped follow-ups", others == dropped, others)
    check("I6 dropped only if asked, or by policy", not dropped or len(dropped) == len(before.ledger.follows), event)
