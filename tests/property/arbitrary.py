"""Any well-formed state, and any event, whether a life leads there or not: also states that never rest."""

from collections.abc import Callable

from msgspec.structs import replace

from actors.core import events, states
from actors.core.content import Delivery, SystemKind, Text, ToolError, ToolResult, ToolSuccess, ToolUse, Usage
from actors.core.context import ConvContext, Generation, Mode
from actors.core.errors import ErrorKind, LlmFailure
from tests.machine.columns import JOB_CHANGES, JOBS
from tests.property.drive import CLIENT_TOOLS, SUB_AGENT_TOOLS, some_calls_of, some_subjects, some_tasks, submissions
from tests.property.tape import Tape

REQUEST, RUN, SEQUENCE, EXECUTION = 7, 3, 20, 5
HOW = Generation(temperature=0.5)
NOTICE = states.Notice(SystemKind.MODE_RESTRICTED, "mode", 1)


# --- states ---------------------------------------------------------------------------------------------------------


def a_state(tape: Tape, context: ConvContext) -> states.State:
    """Any state that this kind of conversation can be in."""
    kinds = _SUB_AGENT_STATES if context.is_sub_agent else _STATES
    return tape.pick(kinds)(tape, context)


def a_ledger(tape: Tape, context: ConvContext, *, live: bool = True) -> states.Ledger:
    """Counters, queues, notices; in sub-agents turns, nudges and perhaps the grace turn."""
    steers, follows = tape.pick((0, 1, 2)), tape.pick((0, 1, 2))
    sub_agent = context.is_sub_agent
    return states.Ledger(
        run=RUN,
        live=live,
        req=REQUEST,
        xid=EXECUTION,
        seq=SEQUENCE,
        agents=4,
        rounds=tape.pick((1, 2, 3, 200)),
        steers=() if sub_agent else tuple(states.QueuedInput(f"s{number}", "left", (), 1) for number in range(steers)),
        follows=()
        if sub_agent
        else tuple(states.QueuedInput(f"f{number}", "then", (), 1) for number in range(follows)),
        pending_notices=() if sub_agent or tape.pick((True, False)) else (NOTICE,),
        warned=tape.pick((False, True)),
        turns=tape.number(4) if sub_agent else 0,
        nudges=tape.number(context.limits.max_nudges) if sub_agent else 0,
        grace=sub_agent and tape.pick((False, True)),
        last_text="so far" if sub_agent else "",
        used_tokens=tape.pick((0, 500, 850)),
        total_usage=Usage(tape.pick((100, 5_000))),
        aside_usage=Usage(tape.pick((0, 5_000))),
        run_usage=Usage(tape.pick((100, 3_000))),
        output_schema="" if sub_agent else tape.pick(("", "", "{}")),
        questions=0 if sub_agent else 2,
        jobs=tape.pick(((), (JOBS[0], JOBS[5]))),
    )


def _idle(tape: Tape, context: ConvContext) -> states.State:
    return states.Idle(a_ledger(tape, context, live=False))


def _awaiting_llm(tape: Tape, context: ConvContext) -> states.State:
    return states.AwaitingLlm(
        a_ledger(tape, context), tape.pick(tuple(states.LlmReason)), tape.pick(("", "", "over and over"))
    )


def _llm_requesting(tape: Tape, context: ConvContext) -> states.State:
    attempt = 1 + tape.number(context.limits.max_attempts - 1)
    phases = tuple(states.LlmPhase) if attempt > 1 else (states.LlmPhase.CONNECTING, states.LlmPhase.STREAMING)
    phase = tape.pick(phases)
    retry_at = 500 if phase is states.LlmPhase.BACKOFF else 0
    through = SEQUENCE - tape.number(1)
    ledger = a_ledger(tape, context)
    continuations = tape.number(context.limits.max_continuations)
    return states.LlmRequesting(ledger, f"c:r{REQUEST}", attempt, phase, through, retry_at, continuations, model="demo")


def _awaiting_tool_approval(tape: Tape, context: ConvContext) -> states.State:
    calls = some_calls(tape, context)
    undecided = tuple(call.id for call in calls)[tape.number(len(calls) - 1) :]
    kind = tape.pick(tuple(states.ApprovalKind))
    return states.AwaitingToolApproval(a_ledger(tape, context), calls, undecided, kind, f"c:r{REQUEST}", 400)


def _tool_executing(tape: Tape, context: ConvContext) -> states.State:
    calls = some_calls(tape, context)
    done, current, remaining = _cut(tape, calls)
    if next(call for call in calls if call.id == current).name in CLIENT_TOOLS:
        return states.ToolExecuting(a_ledger(tape, context), current, remaining, done, calls, EXECUTION, deadline=9_000)
    attempt = 1 + tape.number(context.limits.max_attempts - 1)
    phase = tape.pick((states.ToolPhase.RUNNING, states.ToolPhase.BACKOFF)) if attempt > 1 else states.ToolPhase.RUNNING
    ledger = a_ledger(tape, context)
    asks = tape.pick((0, 0, 1, 2)) if phase is states.ToolPhase.RUNNING and not context.is_sub_agent else 0
    questions = tuple(states.Question(number, number, "files", "which?", 300, 9_000) for number in range(1, asks + 1))
    return states.ToolExecuting(
        ledger, current, remaining, done, calls, EXECUTION, attempt, phase, questions=questions, asked=asks
    )


def _awaiting_sub_agents(tape: Tape, context: ConvContext) -> states.State:
    ended = tuple(states.AgentReport("c-a4", 0, "task", states.AgentTimedOut("some")) for _ in range(tape.number(1)))
    pending = some_agents(tape)
    if tape.pick((True, False)):
        calls = some_calls(tape, context)
        done, current, remaining = _cut(tape, calls)
        return states.AwaitingSubAgents(a_ledger(tape, context), pending, ended, current, remaining, calls, done)
    return states.AwaitingSubAgents(a_ledger(tape, context), pending, ended)


def _cancelling(tape: Tape, context: ConvContext) -> states.State:
    discard = tape.pick((False, True))
    if tape.pick((True, False)):
        return states.Cancelling(a_ledger(tape, context), states.CancelKind.AGENTS, some_agents(tape), discard)
    ledger = a_ledger(tape, context, live=tape.pick((True, False)))
    return states.Cancelling(ledger, states.CancelKind.LLM, (), discard, request_id=f"c:r{REQUEST}", attempt=1)


def _error(tape: Tape, context: ConvContext) -> states.State:
    return states.Error(a_ledger(tape, context, live=False), "it failed", ErrorKind.NETWORK)


def _awaiting_continuation(tape: Tape, context: ConvContext) -> states.State:
    attempt = 1 + tape.number(context.limits.max_attempts - 1)
    phase = (
        tape.pick(tuple(states.LlmPhase))
        if attempt > 1
        else tape.pick((states.LlmPhase.CONNECTING, states.LlmPhase.STREAMING))
    )
    rejected = tape.pick(((), ("bash", "patch")))
    ledger = a_ledger(tape, context, live=tape.pick((True, False)))
    before = (
        None
        if ledger.live
        else tape.pick((None, states.Idle(), states.Error(states.Ledger(), "it failed", ErrorKind.NETWORK)))
    )
    return states.AwaitingContinuation(
        ledger, f"c:r{REQUEST}", attempt, phase, rejected, SEQUENCE, model="demo", before=before
    )


def _context_exhausted(tape: Tape, context: ConvContext) -> states.State:
    return states.ContextExhausted(_closed(tape, context), "what was done")


def _closed(tape: Tape, context: ConvContext) -> states.Ledger:
    """Of a state that ends everything: nothing waits any more."""
    return replace(a_ledger(tape, context, live=False), steers=(), follows=())


def _completed(tape: Tape, context: ConvContext) -> states.State:
    return states.Completed(_closed(tape, context), "done")


def _failed(tape: Tape, context: ConvContext) -> states.State:
    return states.Failed(_closed(tape, context), ErrorKind.NO_RESULT, "gave up", "half of it")


Builder = Callable[[Tape, ConvContext], states.State]
_STATES: tuple[Builder, ...] = (
    _idle,
    _llm_requesting,
    _tool_executing,
    _awaiting_llm,
    _llm_requesting,
    _tool_executing,
    _awaiting_tool_approval,
    _awaiting_sub_agents,
    _cancelling,
    _error,
    _awaiting_continuation,
    _context_exhausted,
)
_SUB_AGENT_STATES: tuple[Builder, ...] = (_idle, _awaiting_llm, _llm_requesting, _tool_executing, _completed, _failed)


def some_calls(tape: Tape, context: ConvContext) -> tuple[ToolUse, ...]:
    """The calls of a response."""
    return some_calls_of(context, "x", tape)


def _cut(tape: Tape, calls: tuple[ToolUse, ...]) -> tuple[tuple[ToolResult, ...], str, tuple[str, ...]]:
    """Results of the calls that are done, the call under way, and those that wait."""
    ids = tuple(call.id for call in calls)
    at = tape.number(len(ids) - 1)
    return tuple(ToolSuccess(done, "out") for done in ids[:at]), ids[at], ids[at + 1 :]


def some_agents(tape: Tape) -> tuple[states.PendingAgent, ...]:
    return tuple(states.PendingAgent(f"c-a{number}", number, "task", 9_000) for number in range(1, 2 + tape.number(2)))


# --- events ---------------------------------------------------------------------------------------------------------


def a_command(tape: Tape) -> events.Event:
    """Anything that may be asked for."""
    run = tape.pick(("", f"c:{RUN}", f"c:{RUN - 1}"))
    delivery, how, schema = tape.pick(tuple(Delivery)), tape.pick((None, HOW)), tape.pick(("", "{}"))
    commands: tuple[events.Event, ...] = (
        events.UserMessage(600, "new", "hello", (), delivery, run, generation=how, output_schema=schema),
        events.UserCancel(600, run, discard_queued=tape.pick((False, True))),
        events.ApprovalResponse(600, tape.pick(("t-x-0", "t-x-1", "t-none")), tape.pick((True, False)), "because"),
        events.TriggerContinuation(600),
        events.SpawnSubAgents(600, "new", (*some_tasks(tape), *some_tasks(Tape(b"\1")))),
        events.StartSubAgent(600, "new", "do it"),
        events.SetMode(600, tape.pick(tuple(Mode)), tape.pick(((), ("t-x-0",), ("t-x-1", "t-none")))),
        events.SubmitToolResult(600, tape.pick(("t-x-0", "t-x-1", "t-none")), ToolSuccess("t", "sent")),
        events.AnswerQuestion(600, tape.pick((0, 1, 2)), tape.pick((True, False)), "{}"),
        events.WithdrawMessage(600, tape.pick(("s0", "f0", "f1", "nobody"))),
    )
    return tape.pick(commands)


def an_outcome(tape: Tape, *, mine: bool) -> events.Event:
    """Any outcome; with the identity that `a_state` waits for if `mine`, else with a part of it wrong."""
    request, execution, agent = _identities(tape, mine)
    wait, usage = tape.pick((None, 2_000, 60_001)), tape.pick((None, Usage(100), Usage(920)))
    text, ends, cut = tape.pick(("said", "")), tape.pick((True, False)), tape.pick((False, False, True))
    calls = some_calls_of_any(tape)
    content = (*((Text(text),) if text else ()), *calls)
    result: ToolResult = ToolSuccess("t", "out") if ends else ToolError("t", "it failed")
    ended: states.AgentOutcome = (
        states.AgentSucceeded("found") if ends else states.AgentFailed(ErrorKind.UNKNOWN, "no", "half")
    )
    outcomes: tuple[events.Event, ...] = (
        events.LlmResponse(
            *(600, *request, content, ends, usage, cut, tape.pick((False, False, True)), some_subjects(content, tape)),
            output=tape.pick(("", "1")),
            output_problem=tape.pick(("", "it does not fit")),
        ),
        events.LlmError(600, *request, LlmFailure(tape.pick(tuple(ErrorKind)), "it failed"), wait, usage),
        events.LlmStreamStarted(600, *request),
        events.LlmStreamChunk(600, *request, Text("some")),
        events.LlmAborted(600, *request, usage),
        events.RetryTimeout(600, *request),
        events.ToolComplete(600, *execution, result),
        events.ToolTransient(600, *execution, "no process", tape.pick((True, False))),
        events.ToolAborted(600, *execution),
        events.AgentsSpawned(600, *execution, some_tasks(tape)),
        events.ToolRetryTimeout(600, *execution, tape.pick((2, 3))),
        events.ToolDeadline(600, *execution),
        events.AskQuestion(600, *execution, tape.pick((1, 3)), "files", "which?", 60_000),
        events.QuestionOver(600, *execution, tape.pick((1, 2)), tape.pick((True, False))),
        events.SubAgentResult(600, agent, ended),
        events.SubAgentTimeout(600, agent),
        events.CancelTimeout(600, f"c:{RUN}" if mine else tape.pick((f"c:{RUN - 1}", f"d:{RUN}"))),
    )
    return tape.pick(outcomes)


def _identities(tape: Tape, mine: bool) -> tuple[tuple[str, int], tuple[str, int], str]:
    attempt = tape.pick((1, 2, 3))
    if mine:
        return (f"c:r{REQUEST}", attempt), (tape.pick(("t-x-0", "t-x-1")), EXECUTION), tape.pick(("c-a1", "c-a2"))
    request = tape.pick(((f"c:r{REQUEST - 1}", attempt), (f"d:r{REQUEST}", attempt), (f"c:r{REQUEST}", 0)))
    execution = tape.pick((("t-x-0", EXECUTION - 1), ("t-x-1", EXECUTION + 1), ("t-none", EXECUTION)))
    return request, execution, tape.pick(("c-a4", "d-a1", ""))


def some_calls_of_any(tape: Tape) -> tuple[ToolUse, ...]:
    """Calls of a new response, submissions among them, or none."""
    match tape.pick(("calls", "none", "submission")):
        case "calls":
            names = tuple(traits.name for traits in SUB_AGENT_TOOLS)
            return tuple(ToolUse(f"t-y-{index}", tape.pick(names), "{}") for index in range(1 + tape.number(2)))
        case "submission":
            return tuple(block for block in submissions("y", tape) if isinstance(block, ToolUse))
        case _:
            return ()


def an_event(tape: Tape) -> events.Event:
    """Anything that can happen."""
    settle: tuple[events.Event, ...] = (events.BeginLlm(600), events.FinishCancel(600), events.PromoteFollowUp(600))
    match tape.pick(("outcome", "command", "outcome", "stray", "settle", "restart", "usage", "fault", "mcp")):
        case "outcome":
            return an_outcome(tape, mine=True)
        case "stray":
            return an_outcome(tape, mine=False)
        case "command":
            return a_command(tape)
        case "settle":
            return tape.pick(settle)
        case "restart":
            return events.Restart(600)
        case "mcp":
            return tape.pick(JOB_CHANGES) if tape.pick((True, False)) else events.McpRestarted(600, ("files",))
        case "usage":
            return events.UsageReported(600, Usage(tape.pick((50, 5_000))), tape.pick((True, False)))
        case _:
            return events.InternalFault(600, "see the log")
