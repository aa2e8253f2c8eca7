"""Calls of tools: those that run here, those of clients (C52 to C54), and background jobs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.core import content, states, tool_run
from actors.core.context import ApprovalPolicy, ConvContext, Mode, ToolGroup, ToolTraits
from actors.core.effects import AbortTool, AwaitToolResult, ExecuteTool, NotifyClient, PersistMessage, RequestLlm
from actors.core.events import (
    ApprovalResponse,
    Event,
    InternalFault,
    JobChanged,
    LlmResponse,
    Restart,
    SetMode,
    SubmitToolResult,
    ToolAborted,
    ToolComplete,
    ToolDeadline,
    UserCancel,
    UserMessage,
)
from actors.core.notifications import ApprovalRequested, BackgroundJobChanged, CallStatus, ClientToolCall, RunStop
from actors.core.transition import Step, run_chain
from tests.machine.columns import SUB_AGENT, TOOLS
from tests.machine.talk import OPEN, Talk, bash, messages

# The tool runner's small machine (C2): one tool at a time, and a barrier behind a killed one.


def call(number: int) -> ExecuteTool:
    return ExecuteTool(f"t{number}", number, "bash", "{}")


def abort(number: int) -> AbortTool:
    return AbortTool(f"t{number}", number)


def receipt(number: int, *, leaked: bool = False) -> tool_run.KillReceipt:
    return tool_run.KillReceipt(f"t{number}", number, (4711,), 3, leaked)


def ended(number: int) -> tool_run.ToolEnded:
    return tool_run.ToolEnded(ToolAborted(0, f"t{number}", number), receipt(number))


def timeout(number: int) -> tool_run.QuiesceTimeout:
    return tool_run.QuiesceTimeout(receipt(number, leaked=True))


CASES: list[tuple[str, tool_run.ToolRun, tool_run.Input, tool_run.ToolRun, tuple[tool_run.Output, ...]]] = [
    ("the first tool starts", tool_run.Ready(), call(1), tool_run.Running(call(1)), (tool_run.StartTool(call(1)),)),
    (
        "the end of one is remembered",
        tool_run.Running(call(1)),
        ended(1),
        tool_run.Ready(receipt(1)),
        (tool_run.ReportOutcome(ended(1).outcome),),
    ),
    ("the next starts", tool_run.Ready(receipt(1)), call(2), tool_run.Running(call(2)), (tool_run.StartTool(call(2)),)),
    ("an abort kills", tool_run.Running(call(1)), abort(1), tool_run.Quiescing(call(1)), (tool_run.KillTool("t1", 1),)),
    (
        "an abort that comes late gets its receipt",
        tool_run.Ready(receipt(1)),
        abort(1),
        tool_run.Ready(),
        (tool_run.ReportReceipt(receipt(1)),),
    ),
    ("the next tool waits", tool_run.Quiescing(call(1)), call(2), tool_run.Quiescing(call(1), call(2)), ()),
    ("what waits can be aborted", tool_run.Quiescing(call(1), call(2)), abort(2), tool_run.Quiescing(call(1)), ()),
    (
        "the last one to ask waits",
        tool_run.Quiescing(call(1), call(2)),
        call(3),
        tool_run.Quiescing(call(1), call(3)),
        (),
    ),
    ("all are dead", tool_run.Quiescing(call(1)), ended(1), tool_run.Ready(), (tool_run.ReportReceipt(receipt(1)),)),
    (
        "all are dead, the next starts",
        tool_run.Quiescing(call(1), call(2)),
        ended(1),
        tool_run.Running(call(2)),
        (tool_run.ReportReceipt(receipt(1)), tool_run.StartTool(call(2))),
    ),
    (
        "some do not die in time",
        tool_run.Quiescing(call(1), call(2)),
        timeout(1),
        tool_run.Running(call(2)),
        (tool_run.ReportReceipt(receipt(1, leaked=True)), tool_run.StartTool(call(2))),
    ),
    (
        "one that was given up without a word is killed",
        tool_run.Running(call(1)),
        call(2),
        tool_run.Quiescing(call(1), call(2)),
        (tool_run.KillTool("t1", 1),),
    ),
]


@pytest.mark.parametrize(("run", "event", "after", "outputs"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_concerns_the_runner(
    run: tool_run.ToolRun, event: tool_run.Input, after: tool_run.ToolRun, outputs: tuple[tool_run.Output, ...]
) -> None:
    step = tool_run.advance(run, event)
    assert (step.run, step.outputs) == (after, outputs)


@pytest.mark.parametrize(
    "run",
    [tool_run.Ready(), tool_run.Ready(receipt(1)), tool_run.Running(call(1)), tool_run.Quiescing(call(1), call(2))],
)
@pytest.mark.parametrize("event", [abort(9), ended(9), timeout(9)])
def test_what_concerns_another_execution_is_ignored(run: tool_run.ToolRun, event: tool_run.Input) -> None:
    step = tool_run.advance(run, event)
    assert step.run is run
    assert step.outputs == ()


@pytest.mark.parametrize("event", [ended(1), timeout(1)])
def test_what_comes_twice_counts_once(event: tool_run.Input) -> None:
    step = tool_run.advance(tool_run.Quiescing(call(1)), event)
    assert tool_run.advance(step.run, event) == type(step)(step.run)


def test_another_attempt_of_the_same_call_is_another_execution() -> None:
    again = ExecuteTool("t1", 2, "bash", "{}", 2)
    step = tool_run.advance(tool_run.Running(again), ended(1))
    assert step.outputs == ()


class World:
    """Workers that live and die, and a conversation that asks; remembers what it was told."""

    def __init__(self) -> None:
        self.run: tool_run.ToolRun = tool_run.Ready()
        self.alive: list[int] = []
        self.leaked: list[int] = []
        self.asked: list[int] = []
        self.started: list[int] = []
        self.aborted: set[int] = set()
        self.killed: list[int] = []
        self.outcomes: list[int] = []
        self.receipts: list[int] = []

    def give(self, event: tool_run.Input) -> None:
        before = self.run
        step = tool_run.advance(before, event)
        if not step.outputs:
            assert step.run is before or isinstance(step.run, tool_run.Quiescing)
        self.run = step.run
        for output in step.outputs:
            self._take(output)

    def _take(self, output: tool_run.Output) -> None:
        match output:
            case tool_run.StartTool(call=started):
                assert self.alive == [], "two tools at once"
                self.alive.append(started.execution_id)
                self.started.append(started.execution_id)
            case tool_run.KillTool(execution_id=number):
                assert number in self.alive
                self.killed.append(number)
            case tool_run.ReportOutcome(outcome=outcome):
                assert outcome.execution_id not in self.killed
                self.outcomes.append(outcome.execution_id)
            case tool_run.ReportReceipt(receipt=reported):
                assert reported.execution_id in self.aborted
                assert reported.execution_id not in self.receipts
                assert reported.leaked == (reported.execution_id in self.leaked)
                self.receipts.append(reported.execution_id)

    def execute(self) -> None:
        """The conversation gives up what it asked for before, if it has not heard of its end."""
        number = len(self.asked) + 1
        self.aborted |= set(self.asked) - set(self.outcomes)
        self.asked.append(number)
        self.give(call(number))

    def abort(self, number: int) -> None:
        if number in self.asked:
            self.aborted.add(number)
        self.give(abort(number))

    def end(self) -> None:
        if self.alive:
            self.give(ended(self.alive.pop()))

    def time_out(self) -> None:
        """Only those that were killed are waited for."""
        if self.alive and self.alive[0] in self.killed:
            self.leaked.append(self.alive.pop())
            self.give(timeout(self.leaked[-1]))

    def late(self) -> None:
        """A leaked worker returns after all."""
        for number in self.leaked:
            self.give(ended(number))


moves = st.lists(
    st.one_of(st.sampled_from(["execute", "end", "time_out", "late", "abort last"]), st.integers(1, 8)), max_size=25
)


@settings(max_examples=200)
@given(moves)
def test_never_two_at_once_every_kill_has_its_receipt_and_no_caller_waits_for_ever(script: list[str | int]) -> None:
    world = World()
    for move in script:
        match move:
            case "execute":
                world.execute()
            case "end":
                world.end()
            case "time_out":
                world.time_out()
            case "late":
                world.late()
            case "abort last":
                world.abort(len(world.asked))
            case int():
                world.abort(move)
            case _:
                raise AssertionError(move)
    while world.alive:
        world.end()
    assert isinstance(world.run, tool_run.Ready)
    assert set(world.receipts) >= set(world.killed)
    assert set(world.outcomes).isdisjoint(world.killed)
    unstarted = set(world.asked) - set(world.started)
    assert unstarted <= world.aborted
    assert set(world.started) == set(world.outcomes) | set(world.killed)
    assert world.started == sorted(world.started)


# Tools that clients run: who is asked, how a wait ends, and what a run offers (C52, C53, C54).


FIND = ToolTraits("find_order", ToolGroup.READ, client=True, timeout_ms=60_000)
SHIP = ToolTraits("ship_order", ToolGroup.WRITE, writes=True, client=True, timeout_ms=5_000)
REFUND = ToolTraits("refund", ToolGroup.OTHER, writes=True, always_asks=True, client=True, timeout_ms=5_000)
CONTEXT = replace(OPEN, tools=(*TOOLS, FIND, SHIP, REFUND))


def find(call_id: str = "t1", bad_input: str = "") -> content.ToolUse:
    return content.ToolUse(call_id, "find_order", '{"id": 7}', bad_input)


def ship(call_id: str = "t1") -> content.ToolUse:
    return content.ToolUse(call_id, "ship_order", '{"id": 7}')


def asked(*calls: content.ToolUse, context: ConvContext = CONTEXT) -> Talk:
    """A conversation whose model has called these tools."""
    talk = Talk(context)
    talk.say("hello")
    talk.call(*calls)
    return talk


def submit(talk: Talk, call_id: str = "t1", result: content.ToolSuccess | content.ToolError | None = None) -> None:
    talk.tell(SubmitToolResult(talk.at(), call_id, result or content.ToolSuccess(call_id, "shipped")))


def results(talk: Talk) -> list[content.ToolResult]:
    """The results that the last event stored."""
    return [block for message in messages(talk.last) for block in message.content if content.is_tool_result(block)]


def statuses(talk: Talk) -> list[tuple[str, CallStatus]]:
    return [(told.call.id, told.status) for told in talk.every(ClientToolCall)]


def test_a_call_waits_for_a_client_and_nothing_of_ours_is_started() -> None:
    talk = asked(find())

    assert isinstance(talk.state, states.ToolExecuting)
    deadline = talk.clock + 60_000
    assert talk.state.deadline == deadline
    assert talk.acts(AwaitToolResult) == [AwaitToolResult("t1", 1, deadline)]
    assert talk.acts(ExecuteTool) == []
    assert talk.notes(ClientToolCall) == [ClientToolCall(find(), CallStatus.PENDING, deadline)]


@pytest.mark.parametrize(
    "answer", [content.ToolSuccess("", "shipped"), content.ToolError("", "out of stock")], ids=["ok", "error"]
)
def test_an_answer_becomes_the_result_and_the_run_goes_on(answer: content.ToolSuccess | content.ToolError) -> None:
    talk = asked(find(), bash("t2"))
    submit(talk, "t1", answer)

    assert results(talk) == [replace(answer, tool_use_id="t1", duration_ms=10)]
    assert statuses(talk)[-1] == ("t1", CallStatus.ANSWERED)
    assert [effect.tool_use_id for effect in talk.acts(ExecuteTool)] == ["t2"]


def test_what_was_corrected_in_a_call_is_said_in_its_result() -> None:
    """Of tools of clients and of ours, whatever the outcome."""
    talk = asked(replace(find(), corrected="Note: a."), replace(bash("t2"), corrected="Note: b."))
    submit(talk)
    assert [result.output for result in results(talk)] == ["shipped\n\nNote: a."]
    talk.tell(ToolComplete(talk.at(), "t2", 2, content.ToolError("t2", "failed")))
    assert [result.output for result in results(talk)] == ["failed\n\nNote: b."]


def test_two_calls_of_clients_are_asked_for_one_after_the_other() -> None:
    talk = asked(find("t1"), ship("t2"))
    submit(talk, "t1")

    assert statuses(talk) == [("t1", CallStatus.PENDING), ("t1", CallStatus.ANSWERED), ("t2", CallStatus.PENDING)]
    assert talk.acts(AwaitToolResult) == [AwaitToolResult("t2", 2, talk.clock + 5_000)]
    submit(talk, "t2")
    assert talk.acts(RequestLlm)


def test_at_the_deadline_the_call_gets_an_error_result_and_the_run_goes_on() -> None:
    talk = asked(ship())
    talk.tell(ToolDeadline(talk.at(), "t1", 1))

    (result,) = results(talk)
    assert isinstance(result, content.ToolError)
    assert (result.outcome, result.duration_ms) == (content.ToolOutcome.TIMED_OUT, 5_000)
    assert "within 5 s" in result.output
    assert statuses(talk)[-1] == ("t1", CallStatus.TIMED_OUT)
    assert isinstance(talk.state, states.LlmRequesting)


@pytest.mark.parametrize(("call_id", "execution"), [("t1", 2), ("t2", 1)])
def test_the_deadline_of_another_execution_is_ignored(call_id: str, execution: int) -> None:
    talk = asked(ship())

    assert talk.tell(ToolDeadline(talk.at(), call_id, execution)) == ()


@pytest.mark.parametrize(
    "event", [ToolComplete(1, "t1", 1, content.ToolSuccess("t1", "ours")), ToolAborted(1, "t1", 1)]
)
def test_an_outcome_of_ours_is_no_answer_of_a_client(event: Event) -> None:
    talk = asked(find())

    assert talk.tell(event) == ()


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (UserCancel(9_000), content.ToolOutcome.CANCELLED),
        (Restart(9_000), content.ToolOutcome.CANCELLED),
        (InternalFault(9_000, "see the log"), content.ToolOutcome.ERROR),
    ],
    ids=["cancel", "restart", "fault"],
)
def test_what_ends_the_run_withdraws_the_call_with_a_synthetic_result(
    event: Event, outcome: content.ToolOutcome
) -> None:
    talk = asked(find(), ship("t2"))
    talk.tell(event)

    assert [result.tool_use_id for result in results(talk)] == ["t1", "t2"]
    assert results(talk)[0].outcome is outcome
    assert statuses(talk) == [("t1", CallStatus.PENDING), ("t1", CallStatus.WITHDRAWN)]
    assert talk.acts(AbortTool) == []
    assert len(talk.notes(RunStop)) == 1
    assert isinstance(talk.state, (states.Idle, states.Error))


def test_in_a_narrower_mode_the_calls_that_have_not_begun_get_an_error_result() -> None:
    talk = asked(ship("t1"), ship("t2"), find("t3"))
    talk.set_mode(Mode.RESTRICTED, "t1")

    assert [result.outcome for result in results(talk)] == [content.ToolOutcome.CANCELLED, content.ToolOutcome.SKIPPED]
    assert "restricted" in results(talk)[1].output
    assert statuses(talk)[-1] == ("t3", CallStatus.PENDING)


def test_restricted_mode_asks_no_client_to_change_anything() -> None:
    talk = asked(ship("t1"), find("t2"), context=replace(CONTEXT, mode=Mode.RESTRICTED))

    assert results(talk) == [content.ToolError("t1", results(talk)[0].output, content.ToolOutcome.SKIPPED)]
    assert statuses(talk) == [("t2", CallStatus.PENDING)]


def test_an_input_that_does_not_fit_gets_an_error_result_before_any_client_is_asked() -> None:
    talk = asked(
        find("t1", "`id` is missing"), find("t2"), context=replace(CONTEXT, approval_policy=ApprovalPolicy.ASK_ALL)
    )

    assert [told.call.id for told in talk.notes(ApprovalRequested)] == ["t2"]
    talk.tell(ApprovalResponse(talk.at(), "t2", approve=True))
    assert results(talk) == [content.ToolError("t1", "`id` is missing")]
    assert statuses(talk) == [("t2", CallStatus.PENDING)]


@pytest.mark.parametrize(
    ("policy", "questions"),
    [
        (ApprovalPolicy.AUTO, ["t3"]),
        (ApprovalPolicy.ASK_WRITES, ["t2", "t3"]),
        (ApprovalPolicy.ASK_ALL, ["t1", "t2", "t3"]),
    ],
)
def test_the_policy_asks_about_tools_of_clients_as_about_ours(policy: ApprovalPolicy, questions: list[str]) -> None:
    calls = find("t1"), ship("t2"), content.ToolUse("t3", "refund", "{}")
    talk = asked(*calls, context=replace(CONTEXT, approval_policy=policy))

    assert [told.call.id for told in talk.notes(ApprovalRequested)] == questions


def test_a_call_that_the_mode_forbids_is_asked_about_since_the_mode_may_change_until_it_runs() -> None:
    context = replace(CONTEXT, mode=Mode.RESTRICTED, approval_policy=ApprovalPolicy.ASK_WRITES)
    talk = asked(ship(), context=context)

    assert isinstance(talk.state, states.AwaitingToolApproval)
    talk.tell(SetMode(talk.at(), Mode.UNRESTRICTED))
    assert talk.acts(AwaitToolResult) == []
    talk.tell(ApprovalResponse(talk.at(), "t1", approve=True))
    assert statuses(talk) == [("t1", CallStatus.PENDING)]


def test_an_approved_upgrade_of_the_mode_holds_for_the_next_call_of_the_round() -> None:
    context = replace(CONTEXT, mode=Mode.RESTRICTED)
    talk = asked(content.ToolUse("t1", "request_mode_upgrade", "{}"), ship("t2"), context=context)
    talk.tell(ApprovalResponse(talk.at(), "t1", approve=True))
    talk.result(content.ToolSuccess("t1", "granted"))

    assert statuses(talk) == [("t2", CallStatus.PENDING)]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_run_keeps_the_mode_in_which_it_began_as_that_of_what_it_offers(mode: Mode) -> None:
    talk = asked(bash("t1"), context=replace(CONTEXT, mode=mode))
    other = Mode.RESTRICTED if mode is Mode.UNRESTRICTED else Mode.UNRESTRICTED
    talk.set_mode(other)
    assert talk.state.ledger.run_mode is mode

    talk.result(content.ToolSuccess("t1", "done"))
    talk.text("that was it")
    talk.say("again")
    assert talk.state.ledger.run_mode is other


def test_without_tools_of_clients_the_ledger_says_nothing_of_modes() -> None:
    assert asked(bash("t1"), context=OPEN).state.ledger.run_mode is None


def test_in_a_sub_agent_there_are_no_tools_of_clients() -> None:
    talk = Talk(SUB_AGENT)
    talk.start()
    talk.call(find())

    assert [effect.tool_use_id for effect in talk.acts(AwaitToolResult)] == []


# Background jobs in the machine: each change is recorded once, and the agent hears of each end once.


PLAIN = ConvContext("c", "/", "m", 1_000)
RUNNING = states.BackgroundJob("b-1", "t1", "serve")
EXITED = replace(RUNNING, status=states.JobStatus.EXITED, exit_code=2)
KILLED = replace(RUNNING, handle="b-2", status=states.JobStatus.KILLED)
LOST = replace(RUNNING, handle="b-3", status=states.JobStatus.LOST)


def after(state: states.State, *events: Event) -> tuple[states.State, list[Step]]:
    steps: list[Step] = []
    for event in events:
        steps += run_chain(state, PLAIN, event)
        state = steps[-1].new_state if steps else state
    return state, steps


def changes(*jobs: states.BackgroundJob) -> list[JobChanged]:
    return [JobChanged(1, job) for job in jobs]


def notices(steps: list[Step]) -> list[content.Message]:
    stored = [one.message for step in steps for one in step.effects if isinstance(one, PersistMessage)]
    return [message for message in stored if message.kind is content.SystemKind.JOBS_ENDED]


def told(steps: list[Step]) -> list[states.BackgroundJob]:
    data = [one.data for step in steps for one in step.effects if isinstance(one, NotifyClient)]
    return [one.job for one in data if isinstance(one, BackgroundJobChanged)]


def test_ends_wait_for_the_next_request_which_has_all_of_them_in_one_message() -> None:
    state, steps = after(states.Idle(), *changes(RUNNING, EXITED, KILLED, LOST))
    assert told(steps) == [RUNNING, EXITED, KILLED, LOST]
    assert notices(steps) == []
    state, steps = after(state, UserMessage(2, "m1", "And now?"))
    (notice,) = notices(steps)
    assert content.text_of(notice.content).splitlines() == [
        "Background jobs have ended:",
        "- b-1: exit code 2: serve",
        "- b-2: killed: serve",
        "- b-3: ended with the server, and its output is lost: serve",
        "Call bash with `peek` and a handle to see the output.",
    ]
    assert (notice.meta, state.ledger.jobs) == (True, ())
    state, steps = after(state, UserCancel(3), UserMessage(4, "m2", "And?"))
    assert notices(steps) == [], "once"


def test_what_is_recorded_already_is_ignored_and_an_end_without_a_beginning_is_not() -> None:
    state, steps = after(
        states.Idle(), *changes(RUNNING, RUNNING, EXITED, EXITED, RUNNING, replace(LOST, handle="b-1"))
    )
    assert told(steps) == [RUNNING, EXITED]
    assert state.ledger.jobs == (EXITED,)
    assert after(states.Idle(), *changes(KILLED))[0].ledger.jobs == (KILLED,)
    again = replace(RUNNING, tool_use_id="t9")
    assert after(state, *changes(again))[0].ledger.jobs == (EXITED, again), "a handle that is used again"


@pytest.mark.parametrize(("shown", "count"), [("b-1", 0), ("b-2", 1), ("", 1)])
def test_an_end_that_a_tool_result_shows_is_not_told_again(shown: str, count: int) -> None:
    asked = UserMessage(2, "m1", "Wait for it.")
    state, _ = after(states.Idle(), *changes(RUNNING), asked)
    assert isinstance(state, states.LlmRequesting)
    calls = LlmResponse(3, state.request_id, 1, (content.ToolUse("t2", "bash", "{}"),), end_turn=False)
    state, _ = after(state, calls, *changes(EXITED))
    xid = state.ledger.xid
    _, steps = after(state, ToolComplete(4, "t2", xid, content.ToolSuccess("t2", "[exit code 2]"), shown))
    assert len(notices(steps)) == count


@pytest.mark.parametrize(
    "state", [states.ContextExhausted(states.Ledger(), "s"), states.Completed(states.Ledger(), "r")]
)
def test_where_no_request_follows_an_end_is_told_to_clients_alone(state: states.State) -> None:
    state, steps = after(state, *changes(RUNNING, EXITED))
    assert (told(steps), state.ledger.jobs) == ([RUNNING, EXITED], ())
