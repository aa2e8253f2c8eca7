"""What becomes of answers (REQ-BED-003, 012, 019 to 024; C24 to C26, C34, C44, C49)."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from actors.core import states
from actors.core.content import (
    Reasoning,
    SystemKind,
    Text,
    ToolError,
    ToolOutcome,
    ToolSuccess,
    ToolUse,
    Usage,
    tool_uses,
)
from actors.core.context import Budget, Limits, Rules
from actors.core.effects import ExecuteTool, RequestContinuation, RequestLlm
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.events import LlmError, LlmResponse, LlmStreamStarted, Restart, TriggerContinuation, UserCancel
from actors.core.history import violations
from actors.core.notifications import ContextWarning, RunStop, StopReason, StreamDiscarded, UsageChanged
from actors.core.steps import texts
from tests.machine.columns import SUB_AGENT, column
from tests.machine.talk import OPEN, Talk, bash, messages


def asked(**limits: int) -> Talk:
    talk = Talk(replace(OPEN, limits=Limits(**limits)))
    talk.say("go")
    return talk


def detail(talk: Talk) -> tuple[StopReason, str]:
    (stop,) = talk.notes(RunStop)
    return stop.reason, stop.detail


def test_the_agents_message_carries_all_that_ties_it_to_its_request() -> None:
    talk = asked()
    usage = Usage(10, 5, 3, 2, 77)

    talk.answer(Reasoning("hm"), Text("done"), usage=usage)

    (message,) = messages(talk.last)
    assert (message.request_id, message.attempt, message.through_sequence) == ("c:r1", 1, 1)
    assert (message.usage, message.run, message.content) == (usage, "c:1", (Reasoning("hm"), Text("done")))


def test_an_unfinished_text_is_continued_with_a_new_request_three_times_and_then_counts_as_the_end() -> None:
    talk = asked()

    for number in (2, 3, 4):
        talk.answer(Text("more"), end_turn=False)
        assert talk.acts(RequestLlm) == [RequestLlm(f"c:r{number}", 1, "model-1", number)]
        assert talk.walk == ["ProcessingLLMResponse", "GeneratingResponse", "AwaitingLLMResponse"]
    talk.answer(Text("more"), end_turn=False)

    assert isinstance(talk.state, states.Idle)
    assert detail(talk) == (StopReason.COMPLETED, "max_tokens")


def test_the_continuations_are_counted_from_zero_in_the_next_round() -> None:
    talk = asked(max_continuations=1)
    talk.answer(Text("more"), end_turn=False)
    talk.call(bash("t1"))
    talk.result(ToolSuccess("t1", "ok"))

    talk.answer(Text("more"), end_turn=False)

    assert isinstance(talk.state, states.LlmRequesting)


@pytest.mark.parametrize("content", [(), (Text(""),), (Text(" \n"),), (Reasoning("hm"),), (Reasoning("hm"), Text(" "))])
def test_an_empty_end_is_no_message_and_a_completed_run_that_says_so(content: tuple[Text | Reasoning, ...]) -> None:
    talk = asked()
    talk.tell(LlmStreamStarted(talk.at(), "c:r1", 1))

    talk.answer(*content)

    assert talk.said == []
    assert talk.notes(StreamDiscarded) == [StreamDiscarded("c:r1", 1)]
    assert detail(talk) == (StopReason.COMPLETED, "empty")


def test_before_the_fourth_edition_an_empty_end_says_nothing_and_cut_reasoning_is_tried_again() -> None:
    talk = Talk(replace(OPEN, rules=Rules.OWN_TOOLS))
    talk.say("go")
    talk.text("")
    assert detail(talk) == (StopReason.COMPLETED, "")
    talk.say("again")
    talk.answer(Reasoning("hm"), end_turn=False, truncated=True)
    assert isinstance(talk.state, states.LlmRequesting)


def test_an_empty_end_of_a_text_that_was_continued_adds_nothing_to_it() -> None:
    talk = asked()
    talk.answer(Text("all of it"), end_turn=False, truncated=True)
    talk.text("")
    assert detail(talk) == (StopReason.COMPLETED, "")


@pytest.mark.parametrize("before", [0, 1])
def test_reasoning_that_uses_up_the_token_limit_is_not_paid_for_again(before: int) -> None:
    talk = asked()
    for _ in range(before):
        talk.answer(Text("more"), end_turn=False, truncated=True)
    talk.answer(Reasoning("hm"), end_turn=False, truncated=True)
    assert detail(talk) == (StopReason.COMPLETED, "max_tokens")
    assert talk.said == []


def test_a_sub_agent_whose_reasoning_uses_up_the_token_limit_tries_again() -> None:
    talk = Talk(SUB_AGENT)
    talk.start()
    talk.answer(Reasoning("hm"), end_turn=False, truncated=True)
    assert isinstance(talk.state, states.LlmRequesting)
    assert talk.state.phase is states.LlmPhase.BACKOFF


def test_a_refusal_is_persisted_and_says_so() -> None:
    talk = asked()

    talk.answer(Text("I'd rather not."), refusal=True)

    assert talk.said == [("agent", "I'd rather not.")]
    assert detail(talk) == (StopReason.COMPLETED, "refusal")


def test_calls_that_were_cut_off_do_not_run_and_the_model_may_try_again() -> None:
    talk = asked()

    talk.answer(bash("t1"), bash("t2"), end_turn=False, truncated=True)

    text = "Not executed: the response was cut off at the output token limit"
    results = [message.content[0] for message in messages(talk.last)[1:]]
    assert results == [ToolError(call, text, ToolOutcome.SKIPPED) for call in ("t1", "t2")]
    assert talk.acts(ExecuteTool) == []
    assert isinstance(talk.state, states.LlmRequesting)


# --- usage and the window ---


def test_every_response_with_usage_is_accounted_for() -> None:
    talk = asked()

    talk.answer(bash("t1"), end_turn=False, usage=Usage(100, 20, 30, 5, 7))
    (first,) = talk.notes(UsageChanged)
    talk.result(ToolSuccess("t1", "ok"))
    talk.answer(Text("done"), usage=Usage(1, 1))

    (second,) = talk.notes(UsageChanged)
    assert (first.used_tokens, first.window_tokens, first.warning) == (155, 1_000, False)
    assert (second.used_tokens, second.total) == (2, Usage(101, 21, 30, 5, 7))
    assert talk.state.ledger.run_usage == second.total


def test_a_failed_attempt_costs_but_does_not_fill_the_window() -> None:
    talk = asked()

    talk.tell(LlmError(talk.at(), "c:r1", 1, LlmFailure(ErrorKind.NETWORK, "cut"), usage=Usage(950, cost_micros=3)))

    (note,) = talk.notes(UsageChanged)
    assert (note.used_tokens, note.total, note.warning) == (0, Usage(950, cost_micros=3), False)


def test_an_empty_unfinished_answer_is_a_failed_attempt_and_does_not_fill_the_window() -> None:
    talk = asked()

    talk.answer(end_turn=False, used=850)

    (note,) = talk.notes(UsageChanged)
    assert (note.used_tokens, note.total, note.warning) == (0, Usage(850), False)
    assert isinstance(talk.state, states.LlmRequesting)
    assert talk.state.phase is states.LlmPhase.BACKOFF


TOO_LONG = LlmFailure(ErrorKind.CONTEXT_EXHAUSTED, "too long")


def test_after_a_request_that_is_too_long_the_model_writes_a_summary() -> None:
    talk = asked()

    talk.tell(LlmError(talk.at(), "c:r1", 1, TOO_LONG))
    assert talk.acts(RequestContinuation) == [RequestContinuation("c:r2", 1, "model-1", 1, ())]
    talk.answer(Text("what happened"))

    assert talk.state == states.ContextExhausted(talk.state.ledger, "what happened")
    assert detail(talk) == (StopReason.INTERRUPTED, "context_exhausted")


def test_earlier_logs_have_no_summary_after_a_request_that_is_too_long() -> None:
    talk = Talk(replace(OPEN, rules=Rules.OWN_TOOLS))
    talk.say("go")

    talk.tell(LlmError(talk.at(), "c:r1", 1, TOO_LONG))

    assert talk.state == states.ContextExhausted(talk.state.ledger, texts.FIRST_FALLBACK_SUMMARY)


def test_what_was_sent_shorter_after_a_refusal_stays_shorter() -> None:
    talk = asked()

    talk.tell(LlmResponse(talk.at(), "c:r1", 1, (Text("ok"),), True, narrowed=True))

    assert talk.state.ledger.narrowed == 1


def test_a_context_of_which_there_is_no_summary_either_ends_the_run_with_words_for_people() -> None:
    talk = asked()

    talk.tell(LlmError(talk.at(), "c:r1", 1, TOO_LONG))
    talk.tell(LlmError(talk.at(), "c:r2", 1, TOO_LONG))

    assert isinstance(talk.state, states.ContextExhausted)
    assert talk.notes(RunStop) == [RunStop("c:1", StopReason.ERROR, "context_exhausted", talk.state.summary)]
    assert talk.said == [("system", talk.state.summary)]


def test_usage_of_a_run_starts_at_zero_in_the_next_and_the_total_goes_on() -> None:
    talk = asked()
    talk.answer(Text("done"), used=100)

    talk.say("again")

    assert talk.state.ledger.run_usage == Usage()
    assert talk.state.ledger.total_usage == Usage(100)


def test_the_warning_comes_once_per_crossing() -> None:
    talk = Talk(OPEN)
    warnings = []

    for used in (799, 800, 899, 700, 850):
        talk.say(f"at {used}")
        talk.answer(Text("ok"), used=used)
        warnings.append(len(talk.notes(ContextWarning)))

    assert warnings == [0, 1, 0, 0, 1]


def test_at_ninety_percent_no_tool_runs_and_the_summary_names_those_kept_from_running() -> None:
    below, talk = asked(), asked()

    below.call(bash("t1"), used=899)
    talk.call(bash("t1"), bash("t2"), used=900)

    assert isinstance(below.state, states.ToolExecuting)

    text = "Not executed: context limit reached"
    assert [message.content[0] for message in messages(talk.last)[1:]] == [
        ToolError(call, text, ToolOutcome.SKIPPED) for call in ("t1", "t2")
    ]
    assert talk.acts(RequestContinuation) == [RequestContinuation("c:r2", 1, "model-1", 4, ("bash", "bash"))]


def test_the_summary_ends_the_conversation_for_good() -> None:
    talk = asked()
    talk.call(bash("t1"), used=900)
    talk.tell(LlmStreamStarted(talk.at(), "c:r2", 1))

    talk.answer(Text("what happened"))

    (message,) = messages(talk.last)
    assert (message.kind, message.request_id, message.attempt) == (SystemKind.SUMMARY, "c:r2", 1)
    assert talk.state == states.ContextExhausted(talk.state.ledger, "what happened")
    assert talk.notes(StreamDiscarded) == []
    assert detail(talk) == (StopReason.INTERRUPTED, "context_exhausted")


def test_a_text_that_fills_the_window_completes_its_run_after_the_summary() -> None:
    talk = asked()
    talk.answer(Text("long"), used=900)

    talk.answer(Text("what happened"))

    assert detail(talk) == (StopReason.COMPLETED, "context_exhausted")


@pytest.mark.parametrize("unfinished", [False, True])
def test_an_empty_answer_in_a_full_window_starts_the_summary_instead_of_a_retry(unfinished: bool) -> None:
    talk = asked()

    talk.answer(end_turn=not unfinished, used=990)

    assert isinstance(talk.state, states.AwaitingContinuation)


@pytest.mark.parametrize("refusal", [False, True])
def test_no_summary_means_the_fallback(refusal: bool) -> None:
    talk = asked()
    talk.answer(Text("long"), used=900)
    talk.tell(LlmStreamStarted(talk.at(), "c:r2", 1))

    talk.answer(*([Text("no")] if refusal else []), refusal=refusal)

    (message,) = messages(talk.last)
    assert message.kind is SystemKind.SUMMARY_FALLBACK
    assert talk.notes(StreamDiscarded) == [StreamDiscarded("c:r2", 1)]
    assert isinstance(talk.state, states.ContextExhausted)


@pytest.mark.parametrize("kind", [ErrorKind.NETWORK, ErrorKind.AUTH])
def test_a_summary_that_fails_while_it_streams_is_discarded(kind: ErrorKind) -> None:
    talk = asked()
    talk.answer(Text("long"), used=900)
    talk.tell(LlmStreamStarted(talk.at(), "c:r2", 1))

    talk.tell(LlmError(talk.at(), "c:r2", 1, LlmFailure(kind, "cut")))

    assert talk.notes(StreamDiscarded) == [StreamDiscarded("c:r2", 1)]
    assert isinstance(talk.state, states.AwaitingContinuation if kind is ErrorKind.NETWORK else states.ContextExhausted)


def test_the_summary_request_has_the_standard_attempts_and_then_the_fallback() -> None:
    talk = asked()
    talk.answer(Text("long"), used=900)

    for attempt in (1, 2, 3):
        assert isinstance(talk.state, states.AwaitingContinuation)
        talk.state = replace(talk.state, phase=states.LlmPhase.CONNECTING)
        talk.tell(LlmError(talk.at(), "c:r2", attempt, LlmFailure(ErrorKind.SERVER_ERROR, "down")))

    assert isinstance(talk.state, states.ContextExhausted)
    assert messages(talk.last)[0].kind is SystemKind.SUMMARY_FALLBACK


def test_a_summary_by_request_opens_no_run_and_stops_none() -> None:
    talk = Talk(OPEN)
    talk.say("go")
    talk.text("done")

    talk.tell(TriggerContinuation(talk.at()))
    assert not talk.state.ledger.live
    talk.answer(Text("what happened"))

    assert talk.notes(RunStop) == []
    assert isinstance(talk.state, states.ContextExhausted)


def test_a_cancelled_summary_by_request_is_idle_without_a_run_stop() -> None:
    talk = Talk(OPEN)
    talk.tell(TriggerContinuation(talk.at()))

    talk.tell(UserCancel(talk.at()))

    assert isinstance(talk.state, states.Idle)
    assert talk.notes(RunStop) == []


# --- a summary by request that fails ---


def no_summary(talk: Talk) -> None:
    talk.answer(Text(" "))


def refused_summary(talk: Talk) -> None:
    talk.answer(Text("no"), refusal=True)


def failing(kind: ErrorKind, times: int = 1, retry_after_ms: int | None = None) -> Callable[[Talk], None]:
    def fail(talk: Talk) -> None:
        for _ in range(times):
            assert isinstance(talk.state, states.AwaitingContinuation)
            request_id, attempt = talk.state.request_id, talk.state.attempt
            talk.tell(LlmError(talk.at(), request_id, attempt, LlmFailure(kind, "no route"), retry_after_ms))
            if isinstance(talk.state, states.AwaitingContinuation):
                talk.state = replace(talk.state, phase=states.LlmPhase.STREAMING)

    return fail


FAILURES = {
    "the model's answer has no text": no_summary,
    "the model refused to write one": refused_summary,
    "Failed after 3 attempts: no route": failing(ErrorKind.NETWORK, 3),
    "Authentication failed: no route": failing(ErrorKind.AUTH),
    "The provider asks to wait 3600 s (Retry-After), more than the 60 s Bedrock waits: no route": failing(
        ErrorKind.RATE_LIMIT, retry_after_ms=3_600_000
    ),
}


@pytest.mark.parametrize("cause", FAILURES)
@pytest.mark.parametrize("before", ["Idle", "Error"])
def test_a_summary_by_request_that_fails_leaves_the_conversation_as_it_was(before: str, cause: str) -> None:
    talk = Talk(OPEN, column(before).state)
    then = talk.state

    talk.tell(TriggerContinuation(talk.at()))
    FAILURES[cause](talk)

    assert talk.said == [("error", f"No summary was written, and the conversation is as it was before: {cause}")]
    assert replace(talk.state, ledger=then.ledger) == then
    assert talk.every(RunStop) == []
    talk.say("go on")
    assert isinstance(talk.state, states.LlmRequesting)


@pytest.mark.parametrize("used", [900, 10])
def test_a_summary_by_request_that_fails_in_a_full_context_ends_the_conversation(used: int) -> None:
    state = column("Idle").state
    talk = Talk(OPEN, replace(state, ledger=replace(state.ledger, used_tokens=used)))

    talk.tell(TriggerContinuation(talk.at()))
    failing(ErrorKind.AUTH if used == 900 else ErrorKind.CONTEXT_EXHAUSTED)(talk)

    assert isinstance(talk.state, states.ContextExhausted)
    assert talk.said[0][1].startswith("The context is used up and no summary could be written.")
    assert "`bedrock continue`" in talk.said[0][1]


def test_a_restart_during_a_summary_by_request_says_that_there_is_none() -> None:
    talk = Talk(OPEN)
    talk.tell(TriggerContinuation(talk.at()))

    talk.tell(Restart(talk.at()))

    assert isinstance(talk.state, states.Idle)
    assert talk.said[0][1].endswith("as it was before: the server was restarted")


# --- a context that the provider says is full ---


@pytest.mark.parametrize("calls", [(), (bash("t1"),)])
def test_an_answer_that_found_no_room_left_starts_the_summary_whatever_its_usage(calls: tuple[ToolUse, ...]) -> None:
    talk = asked()
    answer = LlmResponse(talk.at(), "c:r1", 1, (Text("and then"), *calls), end_turn=False, usage=Usage(10, 5))

    talk.tell(replace(answer, truncated=True, context_full=True))

    assert isinstance(talk.state, states.AwaitingContinuation)
    assert not talk.acts(RequestLlm)
    assert not talk.acts(ExecuteTool)
    talk.text("what happened")
    assert isinstance(talk.state, states.ContextExhausted)


def test_a_sub_agent_whose_answer_found_no_room_left_fails() -> None:
    talk = Talk(SUB_AGENT)
    talk.start()

    answer = LlmResponse(talk.at(), "c:r1", 1, (Text("and then"),), end_turn=False, truncated=True, context_full=True)
    talk.tell(answer)

    assert isinstance(talk.state, states.Failed)
    assert talk.state.kind is ErrorKind.CONTEXT_EXHAUSTED


# --- caps ---


def test_the_round_cap_stops_a_run_that_goes_round_and_round() -> None:
    talk = asked(max_rounds=2)
    for call in ("t1", "t2"):
        talk.call(bash(call))
        talk.result(ToolSuccess(call, "again"))

    assert isinstance(talk.state, states.Idle)
    assert detail(talk) == (StopReason.INTERRUPTED, "round_cap")
    assert messages(talk.last)[-1].kind is SystemKind.ROUND_CAP


def test_most_of_the_requests_and_most_of_the_budget_are_noted_once_in_a_run() -> None:
    talk = asked(max_rounds=5)
    talk.context = replace(talk.context, budget=Budget(run_tokens=100, conversation_tokens=1_000))
    noted = []
    for call in "abcd":
        talk.call(bash(call), used=21)
        talk.result(ToolSuccess(call, "ok"))
        noted.append([text for kind, text in talk.said if kind == "system"])
    rounds, spent = texts.round_cap_nears(4, 5), texts.budget_nears(0.8, "100 tokens per run")
    assert noted == [[], [], [], [spent, rounds]]
    assert spent == "At least 80 % of the budget of 100 tokens per run is spent; the run stops when all of it is."
    assert not list(violations(talk.messages))
    talk.call(bash("e"), used=7)
    talk.result(ToolSuccess("e", "ok"))
    assert detail(talk) == (StopReason.INTERRUPTED, "round_cap")


def test_a_budget_that_nears_is_noted_again_in_the_next_run_and_to_sub_agents() -> None:
    budget, note = Budget(conversation_tokens=100), ("system", texts.budget_nears(0.8, "100 tokens"))
    talk = asked()
    talk.context = replace(talk.context, budget=budget)
    talk.answer(Text("done"), used=80)
    talk.say("more")
    assert note in talk.said
    talk.call(bash("t1"), used=5)
    talk.result(ToolSuccess("t1", "ok"))
    assert note not in talk.said
    agent = Talk(replace(SUB_AGENT, budget=budget))
    agent.start()
    agent.call(bash("t1"), used=80)
    agent.result(ToolSuccess("t1", "ok"))
    assert note in agent.said


def test_before_the_fourth_edition_no_limit_is_noted() -> None:
    talk = Talk(replace(OPEN, limits=Limits(max_rounds=5), budget=Budget(run_tokens=100), rules=Rules.OWN_TOOLS))
    talk.say("go")
    for call in "abcd":
        talk.call(bash(call), used=22)
        talk.result(ToolSuccess(call, "ok"))
    assert "system" not in [kind for kind, _ in talk.said]


def test_the_round_cap_holds_for_continuations_too() -> None:
    talk = asked(max_rounds=1)

    talk.answer(Text("more"), end_turn=False)

    assert detail(talk) == (StopReason.INTERRUPTED, "round_cap")


@pytest.mark.parametrize(
    ("budget", "usage"),
    [
        (Budget(run_tokens=100), Usage(40, 30, 20, 10)),
        (Budget(conversation_tokens=100), Usage(100)),
        (Budget(conversation_cost_micros=5), Usage(1, cost_micros=5)),
    ],
)
def test_a_spent_budget_stops_the_run_at_its_next_request(budget: Budget, usage: Usage) -> None:
    talk = asked()
    talk.context = replace(talk.context, budget=budget)
    talk.answer(bash("t1"), end_turn=False, usage=usage)
    assert talk.acts(ExecuteTool)

    talk.result(ToolSuccess("t1", "ok"))

    assert isinstance(talk.state, states.Idle)
    assert detail(talk) == (StopReason.INTERRUPTED, "budget")
    assert messages(talk.last)[-1].kind is SystemKind.BUDGET
    assert talk.acts(RequestLlm) == []


# --- identity ---


@pytest.mark.parametrize(("request_id", "attempt"), [("c:r2", 1), ("c:r1", 2), ("d:r1", 1)])
def test_an_answer_to_another_request_or_attempt_is_never_taken(request_id: str, attempt: int) -> None:
    talk = asked()
    before = talk.state

    steps = talk.tell(LlmResponse(talk.at(), request_id, attempt, (Text("late"),), True))

    assert steps == ()
    assert talk.state is before


@pytest.mark.parametrize("ids", [("t1", "t1"), ("", ""), ("t1", "t1", "t1"), ("", "c-r1-0"), ("c-r1-1", "c-r1-1")])
def test_calls_with_the_same_id_are_kept_apart_and_each_runs_once(ids: tuple[str, ...]) -> None:
    talk = asked()
    talk.answer(*(replace(bash(identity), input=str(number)) for number, identity in enumerate(ids)), end_turn=False)

    (message,) = messages(talk.last)
    stored = [call.id for call in tool_uses(message.content)]
    assert len(set(stored)) == len(ids)
    assert all(stored)
    ran = []
    for _ in ids:
        ran += [(effect.tool_use_id, effect.input) for effect in talk.acts(ExecuteTool)]
        talk.result(ToolSuccess(ran[-1][0], "ok"))
    assert ran == [(identity, str(number)) for number, identity in enumerate(stored)]
    assert violations(talk.messages) == ()
