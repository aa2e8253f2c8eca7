"""What may happen next in a fake world, decided by a Tape: mostly what is due, often something else."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from actors.core import events, states
from actors.core.content import (
    Content,
    Delivery,
    Image,
    Message,
    Reasoning,
    Text,
    ToolError,
    ToolSuccess,
    ToolUse,
    Usage,
    tool_uses,
)
from actors.core.context import (
    Action,
    ApprovalPolicy,
    ApprovalRule,
    Budget,
    CallSubject,
    ConvContext,
    FollowUpPolicy,
    Limits,
    Mode,
    Origin,
    ShellCommand,
    ToolGroup,
    ToolTraits,
)
from actors.core.effects import ExecuteTool, RequestContinuation, RequestLlm, SpawnSubAgent
from actors.core.errors import ErrorKind, LlmFailure, Reason
from actors.core.summary import run_id
from tests.machine.columns import JOB_CHANGES
from tests.property.laws import UNSAID
from tests.property.step_laws import check
from tests.property.tape import Tape
from tests.property.world import Request, World

WINDOW = 1_000

TOOLS = (
    ToolTraits("read_file", ToolGroup.READ, retry_safe=True),
    ToolTraits("bash", ToolGroup.BASH, writes=True),
    ToolTraits("patch", ToolGroup.WRITE, writes=True),
    ToolTraits("think", ToolGroup.OTHER, retry_safe=True),
)
PARENT_TOOLS = (
    *TOOLS,
    ToolTraits("request_mode_upgrade", ToolGroup.OTHER, always_asks=True),
    ToolTraits("spawn_sub_agent", ToolGroup.OTHER),
    ToolTraits("find_order", ToolGroup.READ, client=True, timeout_ms=5_000),
    ToolTraits("ship_order", ToolGroup.WRITE, writes=True, client=True, timeout_ms=300_000),
    ToolTraits("refund", ToolGroup.OTHER, writes=True, always_asks=True, client=True, timeout_ms=1_000),
)
"""Those of a conversation: the last three are run by clients."""
CLIENT_TOOLS = {traits.name for traits in PARENT_TOOLS if traits.client}
BAD_INPUT = "The input does not fit its schema."
SUB_AGENT_TOOLS = (*TOOLS, ToolTraits("submit_result", ToolGroup.OTHER), ToolTraits("submit_error", ToolGroup.OTHER))

PROVIDER_ERRORS = (
    *(ErrorKind.NETWORK, ErrorKind.RATE_LIMIT, ErrorKind.TIMED_OUT, ErrorKind.SERVER_ERROR) * 3,
    ErrorKind.AUTH,
    ErrorKind.INVALID_REQUEST,
    ErrorKind.CONTENT_FILTER,
    ErrorKind.CONTEXT_EXHAUSTED,
    ErrorKind.UNKNOWN,
)

PICTURE = Image("hash", "image/png", 1, 1)


def a_context(tape: Tape, conversation_id: str = "c", *, sub_agent: bool = False) -> ConvContext:
    """A conversation with limits that are small enough to be reached."""
    limits = Limits(
        max_attempts=tape.pick((3, 3, 2)),
        retry_base_ms=tape.pick((1_000, 1_000, 1, 20_000)),
        max_continuations=tape.pick((3, 1)),
        max_rounds=tape.pick((200, 3)),
        max_queue=tape.pick((8, 2)),
        max_nudges=tape.pick((2, 1)),
        max_turns=tape.pick((3, 20, 2, 1)),
    )
    return ConvContext(
        conversation_id,
        "/work",
        "demo",
        tape.pick((WINDOW, WINDOW, WINDOW, 0)),
        is_sub_agent=sub_agent,
        mode=tape.pick((Mode.UNRESTRICTED, Mode.RESTRICTED, Mode.WORKSPACE)),
        restriction_available=True,
        workspace_available=True,
        approval_policy=tape.pick((ApprovalPolicy.AUTO, *ApprovalPolicy)),
        approval_rules=tape.pick(((), (), (tape.pick(RULES), tape.pick(RULES)))),
        follow_up_policy=tape.pick((FollowUpPolicy.ALWAYS, FollowUpPolicy.COMPLETED_ONLY)),
        budget=a_budget(tape),
        limits=limits,
        tools=SUB_AGENT_TOOLS if sub_agent else PARENT_TOOLS,
    )


def a_budget(tape: Tape) -> Budget:
    return tape.pick(
        (
            *(Budget(), Budget(), Budget(run_tokens=2_500), Budget(conversation_tokens=4_000)),
            *(Budget(conversation_cost_micros=900), Budget(2_500, 4_000, 2_000)),
        )
    )


# --- outcomes -------------------------------------------------------------------------------------------------------


def an_answer(world: World, request: Request, tape: Tape) -> events.LlmResponse:
    """A whole response of some kind; every text and every call of it is unlike all others."""
    tag = f"{request.request_id}.{request.attempt}"
    kind = tape.pick(_SUB_AGENT_ANSWERS if world.context.is_sub_agent else _ANSWERS)
    usage = tape.pick(_USAGES)
    content: tuple[Content, ...] = (Text(f"said {tag}"),)
    if kind in ("empty", "blank"):
        content = tape.pick(((), (Text(" "),), (Reasoning("hm"),)))
    elif kind in ("tools", "cut"):
        content = (*content[: tape.pick((1, 0))], *some_calls_of(world.context, tag, tape))
    elif kind == "submit":
        content = submissions(tag, tape)
    if tape.one_in(4):
        content = (Reasoning("hm", "demo", "demo", "{}"), *content)
    ends = kind in ("text", "empty", "refusal")
    cut = kind == "cut" or tape.one_in(16)
    output, problem = "", ""
    if world.state.ledger.output_schema and not isinstance(world.state, states.AwaitingContinuation):
        if kind == "tools" and tape.one_in(2):
            content = (ToolUse(f"o-{tag}", "submit_output", "{}"),)
        judged = (not cut and not tool_uses(content)) or [call.name for call in tool_uses(content)] == ["submit_output"]
        output, problem = tape.pick((("1", ""), ("", "it does not fit"))) if judged else ("", "")
    return events.LlmResponse(
        *(world.now, request.request_id, request.attempt, content, ends, usage),
        truncated=cut,
        refusal=kind == "refusal",
        subjects=some_subjects(content, tape),
        output="" if cut else output,
        output_problem=problem,
        context_full=cut and usage is None,
    )


def some_subjects(content: tuple[Content, ...], tape: Tape) -> tuple[CallSubject, ...]:
    """What the calls are about; nothing, if it was not read."""
    return () if tape.one_in(4) else tuple(tape.pick(SUBJECTS) for _ in tool_uses(content))


RULES = (
    ApprovalRule("r1", Action.ALLOW, tool="bash"),
    ApprovalRule("r2", Action.ALLOW, command_prefix="make", words=("make",)),
    ApprovalRule("r3", Action.ALLOW, path="/work"),
    ApprovalRule("r4", Action.ASK, tool="think"),
    ApprovalRule("r5", Action.DENY, command_prefix="git push", words=("git", "push")),
    ApprovalRule("r6", Action.DENY, path="/work/keys", origin=Origin.OPERATOR),
    ApprovalRule("r7", Action.DENY, tool="patch", origin=Origin.OPERATOR),
)
SUBJECTS = (
    CallSubject(),
    CallSubject("make", (ShellCommand(("make",)),)),
    CallSubject("git push", (ShellCommand(("git", "push")),)),
    CallSubject("git $x", (ShellCommand(("git",), open=True),)),
    CallSubject("$x", opaque=True),
    CallSubject(paths=("/work/src",)),
    CallSubject(trees=("/work",)),
    CallSubject(paths=("/work/keys/id",)),
)


_SMALL = (Usage(100, 20), None, Usage(300, 50, cost_micros=300), Usage(10, 1), Usage(200, 0, 300, 5), Usage(90, 9))
_USAGES = (*_SMALL, *_SMALL, Usage(700, 120), Usage(700, 120), Usage(850, 70))
_ANSWERS = ("text", "tools", "tools", "tools", "tools", "unfinished", "empty", "blank", "cut", "refusal")
_SUB_AGENT_ANSWERS = ("tools", "tools", "tools", "submit", "text", "submit", "unfinished", "empty", "blank", "cut")


def some_calls_of(context: ConvContext, tag: str, tape: Tape) -> tuple[ToolUse, ...]:
    """Calls of offered tools, and of one that is not."""
    names = (*(traits.name for traits in context.tools), "unheard_of", "spawn_sub_agent")
    count = tape.pick((1, 2, 3, 2))
    one_id = tape.one_in(8)  # a model that repeats itself, past an adapter that does not see it
    chosen = tuple(tape.pick(names) for _ in range(count))
    bad = BAD_INPUT if tape.one_in(8) else ""
    given = tape.pick(('{"x":1}', '{"mode":"workspace"}', '{"mode":"unrestricted"}', '{"mode":"wide'))
    return tuple(
        ToolUse(f"t-{tag}-{0 if one_id else index}", name, given, bad if name in CLIENT_TOOLS else "")
        for index, name in enumerate(chosen)
    )


def submissions(tag: str, tape: Tape) -> tuple[Content, ...]:
    """What may pass for a submission, and what may not."""
    name, raw = tape.pick(
        (
            ("submit_result", '{"result":"done"}'),
            ("submit_result", '{"result":"no use","success":false}'),
            ("submit_error", '{"error":"cannot"}'),
            ("submit_result", '{"result":'),
            ("submit_error", "{}"),
        )
    )
    more = (ToolUse(f"t-{tag}-1", tape.pick(("bash", "submit_result")), "{}"),) if tape.one_in(4) else ()
    return (ToolUse(f"t-{tag}-0", name, raw), *more)


def an_error(world: World, request: Request, tape: Tape) -> events.LlmError:
    kind = tape.pick(PROVIDER_ERRORS)
    wait = tape.pick((None, None, None, 5_000, 60_000, 60_001))
    usage = tape.pick((None, Usage(200, 0)))
    return events.LlmError(world.now, request.request_id, request.attempt, LlmFailure(kind, "it failed"), wait, usage)


def of_request(world: World, request: Request, tape: Tape) -> events.Event:
    """The next thing that a request brings; begins the stream at most once."""
    at, identity = world.now, (request.request_id, request.attempt)
    kinds = ("answer", "answer", "answer", "chunk", "started", "error", "aborted")
    match tape.pick(kinds):
        case "chunk":
            return events.LlmStreamChunk(at, *identity, Text(f"{UNSAID}{at}"), reasoning=tape.one_in(3))
        case "started" if not _streaming(world):
            return events.LlmStreamStarted(at, *identity)
        case "error":
            return an_error(world, request, tape)
        case "aborted":
            return events.LlmAborted(at, *identity)
        case _:
            return an_answer(world, request, tape)


def _streaming(world: World) -> bool:
    return (
        isinstance(world.state, (states.LlmRequesting, states.AwaitingContinuation))
        and world.state.phase is states.LlmPhase.STREAMING
    )


def of_tool(world: World, tool: ExecuteTool, tape: Tape) -> events.Event:
    """How a tool ends."""
    at, identity = world.now, (tool.tool_use_id, tool.execution_id)
    if tool.name == "spawn_sub_agent" and not world.context.is_sub_agent and tape.pick((True, True, True, False)):
        return events.AgentsSpawned(at, *identity, some_tasks(tape))
    match tape.pick(("ok", "ok", "ok", "error", "transient", "unbegun", "aborted")):
        case "error":
            return events.ToolComplete(at, *identity, ToolError(tool.tool_use_id, "it failed"))
        case "transient":
            return events.ToolTransient(at, *identity, "no process")
        case "unbegun":
            return events.ToolTransient(at, *identity, "no process", begun=False)
        case "aborted":
            return events.ToolAborted(at, *identity)
        case _:
            result = ToolSuccess(tool.tool_use_id, f"out {at}")
            return events.ToolComplete(at, *identity, result)


def of_client(world: World, call_id: str, tape: Tape) -> events.SubmitToolResult:
    """A client's answer."""
    results: tuple[ToolSuccess | ToolError, ...] = (
        ToolSuccess(call_id, "sent", (PICTURE,)),
        ToolSuccess("", "sent"),
        ToolError(call_id, "out of stock"),
    )
    return events.SubmitToolResult(world.now, call_id, tape.pick(results))


def client_answers(world: World, tape: Tape) -> None:
    """The client that is asked answers, twice, or its time is over; then its answer is too late."""
    assert world.wait
    call_id, execution_id = world.wait.tool_use_id, world.wait.execution_id
    answer = of_client(world, call_id, tape)
    if tape.one_in(4):
        world.deliver(events.ToolDeadline(world.now, call_id, execution_id))
    else:
        check("an answer that is waited for counts", world.apply(answer) is True, answer)
    late = world.apply(replace(answer, at=world.now))
    check("I44 a late or second answer is refused", late is Reason.UNKNOWN_OR_DECIDED, answer, late)


def a_question(world: World, tool: ExecuteTool, tape: Tape) -> events.AskQuestion:
    """The next question of the tool that runs."""
    place = world.state.asked + 1 if isinstance(world.state, states.ToolExecuting) else 1
    form = tape.pick(("{}", ""))
    address = "" if form else "https://example.com/"
    return events.AskQuestion(
        world.now, tool.tool_use_id, tool.execution_id, place, "files", "which?", 60_000, form, address
    )


def tool_goes_on(world: World, tool: ExecuteTool, tape: Tape) -> None:
    """The tool that runs ends, or asks a person, who answers, or does not."""
    if world.context.is_sub_agent:
        world.deliver(of_tool(world, tool, tape))
        return
    match tape.pick(("ends", "ends", "ends", "asks", "goes on")):
        case "asks" if len(world.asking) < 3:
            world.deliver(a_question(world, tool, tape))
        case "goes on" if world.asking:
            person_answers(world, tool, tape)
        case _:
            world.deliver(of_tool(world, tool, tape))


def person_answers(world: World, tool: ExecuteTool, tape: Tape) -> None:
    """A question is answered or declined, its time is over, or its tool drops it; then an answer is too late."""
    assert isinstance(world.state, states.ToolExecuting)
    question = tape.pick(world.state.questions)
    answer = events.AnswerQuestion(world.now, question.number, tape.pick((True, False)), "{}")
    if tape.one_in(3):
        identity = tool.tool_use_id, tool.execution_id, question.place
        world.deliver(events.QuestionOver(world.now, *identity, timed_out=tape.pick((True, False))))
    else:
        check("an answer that is waited for counts", world.apply(answer) is True, answer)
    late = world.apply(replace(answer, at=world.now))
    check("I45 a late or second answer is refused", late is Reason.UNKNOWN_OR_DECIDED, answer, late)


def some_tasks(tape: Tape) -> tuple[states.AgentTask, ...]:
    count = tape.pick((2, 1, 3, 0))
    turns = tape.pick((2, 1, 20))
    return tuple(
        states.AgentTask("", f"task {index}", "/work", "demo", turns, 60_000 + index) for index in range(count)
    )


def of_agent(world: World, agent_id: str, tape: Tape) -> events.Event:
    """How a sub-agent ends, as its parent sees it."""
    outcomes: tuple[states.AgentOutcome, ...] = (
        states.AgentSucceeded(f"found {agent_id}"),
        states.AgentFailed(ErrorKind.NO_RESULT, "gave up", "half of it"),
        states.AgentFailed(ErrorKind.CANCELLED, "cancelled"),
    )
    if tape.one_in(4):
        return events.SubAgentTimeout(world.now, agent_id)
    return events.SubAgentResult(world.now, agent_id, tape.pick(outcomes))


# --- what happens next ----------------------------------------------------------------------------------------------


def happen(world: World, tape: Tape) -> None:
    """Let one thing happen, now and then in the same millisecond as the last one, or before it: clocks are set back."""
    if tape.one_in(12):
        world.at -= tape.pick((7, 7, 500))
    if world.context.is_sub_agent:
        tape.pick(_IN_SUB_AGENTS)(world, tape)
    elif isinstance(world.state, (states.AwaitingSubAgents, states.Cancelling)):
        tape.pick(_WITH_SUB_AGENTS)(world, tape)
    else:
        tape.pick(_THINGS)(world, tape)


def progress(world: World, tape: Tape) -> None:
    """What the state waits for."""
    state = world.state
    if world.request:
        world.deliver(of_request(world, world.request, tape))
    elif world.tool:
        tool_goes_on(world, world.tool, tape)
    elif world.wait:
        client_answers(world, tape)
    elif world.agents:
        world.deliver(of_agent(world, tape.pick(sorted(world.agents)), tape))
    elif isinstance(state, states.AwaitingToolApproval):
        answer = events.ApprovalResponse(world.now, tape.pick(state.undecided), tape.pick((True, True, True, False)))
        check("an answer to an open question counts", world.apply(answer) is True, answer)
    elif _backs_off(world) or (world.timers and not world.quiet):
        world.deliver(replace(_due(world), at=world.now))
    elif world.context.is_sub_agent:
        world.apply(events.StartSubAgent(world.now, world.new_id("task"), "do it", tape.pick((0, 0, 2, 1, 30))))
    else:
        schema = tape.pick(("", "", "{}"))
        images = (PICTURE,) * tape.pick((0, 1))
        world.apply(events.UserMessage(world.now, world.new_id("m"), "hello", images, output_schema=schema))


def _backs_off(world: World) -> bool:
    match world.state:
        case states.LlmRequesting() | states.AwaitingContinuation():
            return world.state.phase is states.LlmPhase.BACKOFF
        case states.ToolExecuting():
            return world.state.phase is states.ToolPhase.BACKOFF
        case _:
            return False


def _due(world: World) -> events.Event:
    """The timer that was set last among those that can matter now."""
    kinds = ("RetryTimeout", "ToolRetryTimeout") if _backs_off(world) else ("CancelTimeout",)
    return next(timer for timer in reversed(world.timers) if type(timer).__name__ in kinds)


def message(world: World, tape: Tape) -> None:
    """A person says something at any moment, in any way."""
    delivery = tape.pick((Delivery.STEER, Delivery.FOLLOW_UP, Delivery.REJECT))
    ledger = world.state.ledger
    expected = tape.pick(("", "", "", f"{world.context.conversation_id}:{ledger.run}"))
    schema = "{}" if delivery is Delivery.FOLLOW_UP and tape.one_in(4) else ""
    world.apply(events.UserMessage(world.now, world.new_id("m"), "also", (), delivery, expected, output_schema=schema))


def cancel(world: World, tape: Tape) -> None:
    ledger, conversation = world.state.ledger, world.context.conversation_id
    run = tape.pick(("", run_id(conversation, ledger.run), run_id(conversation, max(ledger.run - 1, 0))))
    world.apply(events.UserCancel(world.now, run, discard_queued=tape.pick((False, True))))


def stale(world: World, tape: Tape) -> None:
    """An outcome again, or one of something that was aborted."""
    if world.past and (not world.dead or tape.pick((True, False))):
        event = tape.pick(world.past)
        applied = world.apply(replace(event, at=world.now))
        check("I10 twice is once", applied is False or _more_text(world, event), event, world.state)
    elif world.dead:
        event = _late(world, tape)
        # Sub-agents that were asked to stop are waited for while Cancelling.
        waited_for = isinstance(event, (events.SubAgentResult, events.SubAgentTimeout))
        check("I9 an aborted operation is over", world.apply(event) is False or waited_for, event)


def _more_text(world: World, event: events.Event) -> bool:
    """A chunk of the answer that streams is text, however often it comes."""
    slot = (world.request.request_id, world.request.attempt) if world.request else None
    return isinstance(event, events.LlmStreamChunk) and (event.request_id, event.attempt) == slot


def _late(world: World, tape: Tape) -> events.Event:
    flight = tape.pick(world.dead)
    match flight:
        case RequestLlm() | RequestContinuation():
            return of_request(world, flight, tape)
        case ExecuteTool():
            return of_tool(world, flight, tape)
        case SpawnSubAgent():
            return of_agent(world, flight.task.agent_id, tape)


def stray(world: World, tape: Tape) -> None:
    """The outcome of what is in flight, but with one part of its identity wrong (I9)."""
    event: events.Event | None = None
    if world.request:
        event = of_request(world, world.request, tape)
        event = _wrong(event, tape, request_id=(f"{world.context.conversation_id}:r99", ""), attempt=(9, 0))
    elif world.tool:
        event = of_tool(world, world.tool, tape) if tape.one_in(2) else a_question(world, world.tool, tape)
        later = world.tool.execution_id + 1
        event = _wrong(event, tape, tool_use_id=("t-none", ""), execution_id=(later - 2, later))
    elif world.wait:
        # Nothing of ours runs, so that no outcome of it can come; and the deadline is that of one execution.
        identity = world.wait.tool_use_id, world.wait.execution_id
        event = of_tool(world, ExecuteTool(*identity, "bash", "{}"), tape)
        if tape.pick((True, False)):
            event = _wrong(
                events.ToolDeadline(world.now, *identity), tape, tool_use_id=("t-none",), execution_id=(0, 99)
            )
    elif world.agents:
        event = replace(of_agent(world, tape.pick(sorted(world.agents)), tape), agent_id="nobody")
    elif isinstance(world.state, (states.LlmRequesting, states.AwaitingContinuation)) and tape.pick((True, False)):
        # In backoff: nothing can come of an attempt that has not begun.
        event = of_request(world, RequestLlm(world.state.request_id, world.state.attempt, "demo", 0), tape)
    elif world.timers:
        event = tape.pick(world.timers)
        fields = {"request_id": ("c:r99",), "attempt": (9,), "run_id": ("c:99",), "execution_id": (99,)}
        event = _wrong(event, tape, **{name: wrong for name, wrong in fields.items() if hasattr(event, name)})
    if event and not isinstance(event, events.SubAgentTimeout):
        world.expect_ignored("I9 an outcome of something else is ignored", event)


def _wrong(event: events.Event, tape: Tape, **fields: tuple[object, ...]) -> events.Event:
    if not fields:
        return event
    name = tape.pick(tuple(fields))
    return replace(event, **{name: tape.pick(fields[name])})


def early_timer(world: World, tape: Tape) -> None:
    """A timer of something that is over, or not: they fire when they like."""
    if world.timers:
        world.apply(replace(tape.pick(world.timers), at=world.now))


def setting(world: World, tape: Tape) -> None:
    """The mode is changed by the machine; policies, budgets and the model beside it."""
    match tape.pick(("mode", "mode", "budget", "policy", "model", "rules", "quota")):
        case "mode":
            running = world.state.current_tool_id if isinstance(world.state, states.ToolExecuting) else "t-none"
            stop = tape.pick(((), (running,)))
            world.apply(
                events.SetMode(world.now, tape.pick((Mode.RESTRICTED, Mode.UNRESTRICTED, Mode.WORKSPACE)), stop)
            )
        case "budget":
            world.context = replace(world.context, budget=a_budget(tape))
        case "quota":
            world.context = replace(world.context, quota_spent=tape.pick(("", "", "the quota q of p, 5")))
        case "model":
            model, images = tape.pick((("demo", True), ("other", True), ("other", False)))
            world.context = replace(world.context, model_id=model, takes_images=images)
        case "policy":
            world.context = replace(world.context, approval_policy=tape.pick(tuple(ApprovalPolicy)))
        case _:
            rules = tuple(tape.pick(RULES) for _ in range(tape.number(4)))
            world.context = replace(world.context, approval_rules=rules)


def command(world: World, tape: Tape) -> None:
    """Everything else that may be asked for, at any moment."""
    at = world.now
    queue = (*world.state.ledger.steers, *world.state.ledger.follows)
    waiting = queue[0].message_id if queue else "nobody"
    commands: tuple[events.Event, ...] = (
        events.TriggerContinuation(at),
        events.SpawnSubAgents(at, world.new_id("m"), some_tasks(tape)),
        events.WithdrawMessage(at, tape.pick((waiting, waiting, "nobody"))),
        events.ApprovalResponse(at, tape.pick(("t-none", "")), approve=True),
        events.StartSubAgent(at, world.new_id("m"), "again"),
        of_client(world, tape.pick(("t-none", "")), tape),
        events.AnswerQuestion(at, tape.pick((0, 99)), accept=True),
    )
    world.apply(tape.pick(commands))


def disaster(world: World, tape: Tape) -> None:
    if tape.pick((False, False, True)):
        fault = events.InternalFault(world.now, "see the log")
        spent = events.UsageReported(world.now, Usage(tape.pick((10, 500))), tape.pick((True, False)))
        started_again = events.McpRestarted(world.now, ("files",))
        job = replace(tape.pick(JOB_CHANGES), at=world.now)
        disasters: tuple[events.Event, ...] = (
            events.Restart(world.now),
            events.Restart(world.now),
            fault,
            spent,
            started_again,
            job,
            job,
        )
        world.apply(tape.pick(disasters))
    else:
        progress(world, tape)


def rare_end(world: World, tape: Tape) -> None:
    """A sub-agent's life is short enough."""
    tape.pick((progress, cancel, disaster))(world, tape)


Thing = Callable[[World, Tape], None]

_THINGS: tuple[Thing, ...] = (
    *(progress,) * 8,
    message,
    message,
    cancel,
    stale,
    stray,
    early_timer,
    setting,
    command,
    disaster,
)
_WITH_SUB_AGENTS: tuple[Thing, ...] = (*_THINGS, cancel, cancel, message)
_IN_SUB_AGENTS: tuple[Thing, ...] = (*(progress,) * 14, stale, stale, stray, early_timer, setting, command, rare_end)


def walk(world: World, tape: Tape, follow: Callable[[Sequence[Message]], object] | None = None) -> None:
    """Live until the tape or the conversation is over; `follow` gets the history after each thing that happens."""
    over = False
    while not over:
        over = tape.over or world.terminal
        happen(world, tape)
        if follow:
            follow(world.laws.history)
    world.laws.end(world.context.tools)
