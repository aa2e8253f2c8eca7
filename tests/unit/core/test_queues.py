"""Steers and follow-ups (C17 to C20): nothing that was accepted is lost, and nothing waits unseen."""

import pytest
from msgspec.structs import replace

from actors.core.content import Delivery, Text, ToolSuccess
from actors.core.context import Budget, FollowUpPolicy, Limits
from actors.core.effects import RequestLlm
from actors.core.errors import ErrorKind, LlmFailure, Reason, Rejected
from actors.core.events import LlmError, Restart, RetryTimeout, UserCancel, UserMessage, WithdrawMessage
from actors.core.notifications import Fate, QueueChanged, RunStop, StateChanged, StopReason
from actors.core.states import ContextExhausted, Error, Idle, LlmRequesting
from actors.core.transition import run_chain
from tests.machine.columns import PARENT, column
from tests.machine.notation import effect_text
from tests.machine.talk import OPEN, Talk, bash, messages

STEER, FOLLOW_UP = Delivery.STEER, Delivery.FOLLOW_UP


def busy(*, steers: tuple[str, ...] = (), follows: tuple[str, ...] = (), policy: FollowUpPolicy | None = None) -> Talk:
    talk = Talk(replace(OPEN, follow_up_policy=policy or FollowUpPolicy.ALWAYS))
    talk.say("root")
    for text in steers:
        talk.say(text, STEER)
    for text in follows:
        talk.say(text, FOLLOW_UP)
    return talk


def fates(talk: Talk) -> list[tuple[str, str, Fate]]:
    return [(note.input.message_id, note.delivery, note.fate) for note in talk.notes(QueueChanged)]


def stops(talk: Talk) -> list[tuple[str, StopReason, str]]:
    return [(note.run, note.reason, note.detail) for note in talk.notes(RunStop)]


def test_a_message_that_waits_is_shown_and_is_not_in_the_history() -> None:
    talk = busy()

    talk.say("hurry", STEER)
    assert fates(talk) == [("hurry", "steer", Fate.QUEUED)]
    talk.say("later", FOLLOW_UP)

    assert fates(talk) == [("later", "follow_up", Fate.QUEUED)]
    assert [message.id for message in talk.messages] == ["root"]
    assert [one.message_id for one in talk.state.ledger.steers] == ["hurry"]


def test_the_queue_is_bounded_over_both_kinds_and_a_full_one_refuses() -> None:
    talk = busy(steers=tuple(f"s{n}" for n in range(5)), follows=("f1", "f2", "f3"))

    with pytest.raises(Rejected) as refused:
        talk.say("one more", STEER)

    assert refused.value.reason is Reason.QUEUE_FULL
    assert len(talk.state.ledger.steers) + len(talk.state.ledger.follows) == Limits().max_queue


def test_steers_are_delivered_in_order_at_the_next_inference_boundary_after_the_tool_results() -> None:
    talk = busy()
    talk.call(bash("t1"), bash("t2"))
    talk.say("first", STEER)
    talk.result(ToolSuccess("t1", "one"))
    talk.say("second", STEER)
    assert [kind for kind, _ in talk.said] == []

    talk.result(ToolSuccess("t2", "two"))

    assert talk.said == [("tool", "two"), ("user", "first"), ("user", "second")]
    assert [message.delivery for message in messages(talk.last)] == ["", "steer", "steer"]
    assert fates(talk) == [("first", "steer", Fate.DELIVERED), ("second", "steer", Fate.DELIVERED)]
    (request,) = talk.acts(RequestLlm)
    assert request.through_sequence == talk.messages[-1].sequence
    assert talk.state.ledger.steers == ()


def test_a_text_with_steers_waiting_continues_the_run_instead_of_stopping_it() -> None:
    talk = busy(steers=("and now?",))

    talk.text("done")

    assert talk.said == [("agent", "done"), ("user", "and now?")]
    assert stops(talk) == []
    assert isinstance(talk.state, LlmRequesting)
    assert talk.walk == ["ProcessingLLMResponse", "GeneratingResponse", "AwaitingLLMResponse"]


def test_an_empty_end_with_steers_waiting_continues_too() -> None:
    talk = busy(steers=("and now?",))

    talk.answer()

    assert talk.said == [("user", "and now?")]
    assert isinstance(talk.state, LlmRequesting)


def test_a_continuation_delivers_steers() -> None:
    talk = busy(steers=("shorter",))

    talk.answer(Text("part one"), end_turn=False)

    assert talk.said == [("agent", "part one"), ("user", "shorter")]


def test_a_retry_delivers_steers_and_its_request_contains_them() -> None:
    talk = busy(steers=("never mind",))
    request_id = talk.state.request_id  # type: ignore[union-attr]
    talk.tell(LlmError(talk.at(), request_id, 1, LlmFailure(ErrorKind.NETWORK, "no route")))
    assert fates(talk) == []

    talk.tell(RetryTimeout(talk.at(), request_id, 2))

    assert talk.said == [("user", "never mind")]
    assert talk.acts(RequestLlm) == [RequestLlm(request_id, 2, "model-1", talk.messages[-1].sequence)]


def overflow(talk: Talk) -> None:
    """The provider finds the request too long; the summary uses the conversation up."""
    talk.tell(LlmError(talk.at(), "c:r1", 1, LlmFailure(ErrorKind.CONTEXT_EXHAUSTED, "too long")))
    talk.answer(Text("what happened"))


@pytest.mark.parametrize(
    "ending",
    [
        lambda talk: talk.tell(UserCancel(talk.at())),
        lambda talk: talk.tell(Restart(talk.at())),
        lambda talk: talk.tell(
            LlmError(talk.at(), talk.state.request_id, 1, LlmFailure(ErrorKind.AUTH, "no key"))
        ),
        overflow,
    ],
    ids=["cancel", "restart", "error", "overflow"],
)  # fmt: skip
def test_steers_that_come_too_late_are_returned_and_never_enter_the_history(ending: object) -> None:
    talk = busy(steers=("s1", "s2"))

    ending(talk)  # type: ignore[operator]

    assert [one for one in fates(talk) if one[1] == "steer"] == [
        ("s1", "steer", Fate.RETURNED),
        ("s2", "steer", Fate.RETURNED),
    ]
    assert talk.state.ledger.steers == ()
    assert "s1" not in [message.id for message in talk.messages]
    assert len(stops(talk)) == 1


def test_steers_are_returned_when_the_budget_stops_the_run_at_their_boundary() -> None:
    talk = busy(steers=("more",))
    talk.context = replace(talk.context, budget=Budget(run_tokens=10))

    talk.answer(Text("enough"), used=11)

    assert fates(talk) == [("more", "steer", Fate.RETURNED)]
    assert stops(talk) == [("c:1", StopReason.INTERRUPTED, "budget")]
    assert isinstance(talk.state, Idle)


def test_the_oldest_follow_up_becomes_the_next_run_in_the_commit_that_ends_the_last_one() -> None:
    talk = busy(follows=("next", "after"))

    talk.text("done")

    assert [type(step.event).__name__ for step in talk.steps] == ["LlmResponse", "PromoteFollowUp", "BeginLlm"]
    assert stops(talk) == [("c:1", StopReason.COMPLETED, "")]
    assert fates(talk) == [("next", "follow_up", Fate.DELIVERED)]
    root = messages(talk.last)[-1]
    assert (root.id, root.run, root.delivery) == ("next", "c:2", "follow_up")
    assert [one.message_id for one in talk.state.ledger.follows] == ["after"]
    assert [change.state.kind for change in talk.notes(StateChanged)] == ["idle", "awaiting_llm", "llm_requesting"]
    assert talk.walk == ["ProcessingLLMResponse", "Idle", "ProcessingUserMessage", "AwaitingLLMResponse"]


def test_a_follow_up_starts_after_a_failed_run_too() -> None:
    talk = busy(follows=("next",))

    talk.tell(LlmError(talk.at(), "c:r1", 1, LlmFailure(ErrorKind.AUTH, "no key")))

    assert stops(talk) == [("c:1", StopReason.ERROR, "auth")]
    assert talk.walk == ["Failed", "Idle", "ProcessingUserMessage", "AwaitingLLMResponse"]
    assert talk.state.ledger.run == 2


def test_a_follow_up_starts_after_a_cancel_unless_it_is_to_be_discarded() -> None:
    kept, dropped = busy(follows=("next",)), busy(follows=("next", "after"))

    kept.tell(UserCancel(kept.at()))
    dropped.tell(UserCancel(dropped.at(), discard_queued=True))

    assert isinstance(kept.state, LlmRequesting)
    assert isinstance(dropped.state, Idle)
    assert fates(dropped) == [("next", "follow_up", Fate.DISCARDED), ("after", "follow_up", Fate.DISCARDED)]
    assert stops(dropped) == [
        ("c:1", StopReason.INTERRUPTED, ""),
        ("c:2", StopReason.INTERRUPTED, "not_run"),
        ("c:3", StopReason.INTERRUPTED, "not_run"),
    ]
    assert [(message.id, message.run) for message in messages(dropped.last)] == [("next", "c:2"), ("after", "c:3")]
    assert not dropped.state.ledger.live


def test_the_policy_completed_only_starts_follow_ups_after_a_completed_run_only() -> None:
    completed = busy(follows=("next",), policy=FollowUpPolicy.COMPLETED_ONLY)
    failed = busy(follows=("next",), policy=FollowUpPolicy.COMPLETED_ONLY)

    completed.text("done")
    failed.tell(LlmError(failed.at(), "c:r1", 1, LlmFailure(ErrorKind.AUTH, "no key")))

    assert isinstance(completed.state, LlmRequesting)
    assert isinstance(failed.state, Error)
    assert stops(failed)[-1] == ("c:2", StopReason.INTERRUPTED, "not_run")


def test_restart_and_exhaustion_drop_what_is_queued_visibly() -> None:
    restarted, exhausted = busy(follows=("next",)), busy(follows=("next",))

    restarted.tell(Restart(restarted.at()))
    overflow(exhausted)

    assert isinstance(restarted.state, Idle)
    assert isinstance(exhausted.state, ContextExhausted)
    for talk in (restarted, exhausted):
        assert fates(talk) == [("next", "follow_up", Fate.DISCARDED)]
        assert stops(talk)[-1] == ("c:2", StopReason.INTERRUPTED, "not_run")


def test_a_cancel_with_every_kind_of_queue_settles_in_one_commit() -> None:
    talk = busy(steers=("s",), follows=("f",))

    talk.tell(UserCancel(talk.at()))

    names = [type(step.event).__name__ for step in talk.steps]
    assert names == ["UserCancel", "FinishCancel", "PromoteFollowUp", "BeginLlm"]
    assert [change.state.kind for change in talk.notes(StateChanged)] == [
        "cancelling",
        "idle",
        "awaiting_llm",
        "llm_requesting",
    ]


def test_a_chain_with_a_spent_budget_ends_after_every_follow_up_had_its_run() -> None:
    talk = busy(follows=("f1", "f2"))
    talk.context = replace(talk.context, budget=Budget(conversation_tokens=10))

    talk.answer(Text("done"), used=11)

    assert isinstance(talk.state, Idle)
    assert [stop[2] for stop in stops(talk)] == ["", "budget", "budget"]
    assert len(talk.steps) <= 3 + 2 * 2


@pytest.mark.parametrize("delivery", [STEER, FOLLOW_UP])
def test_a_waiting_message_can_be_withdrawn_once(delivery: Delivery) -> None:
    talk = busy()
    talk.say("oops", delivery)

    talk.tell(WithdrawMessage(talk.at(), "oops"))

    assert fates(talk) == [("oops", delivery.value, Fate.WITHDRAWN)]
    assert [effect_text(effect).split(" ")[0] for effect in talk.last] == [
        "PersistState",
        "NotifyClient(QueueChanged",
        "NotifyClient(StateChanged)",
    ]
    assert talk.state.ledger.steers == talk.state.ledger.follows == ()
    with pytest.raises(Rejected) as refused:
        talk.tell(WithdrawMessage(talk.at(), "oops"))
    assert refused.value.reason is Reason.UNKNOWN_OR_DECIDED
    assert "message" in str(refused.value), "it was no question"


@pytest.mark.parametrize("delivery", list(Delivery))
@pytest.mark.parametrize("name", ["Idle", "LlmReq/conn", "ToolExec", "Cancelling/sub", "CtxExhausted"])
def test_an_expected_run_that_is_not_the_live_one_is_refused_before_anything_else(
    name: str, delivery: Delivery
) -> None:
    one = column(name)

    with pytest.raises(Rejected) as refused:
        run_chain(one.state, PARENT, UserMessage(1, "m9", "hi", delivery=delivery, expected_run="c:99"))

    assert refused.value.reason is Reason.RUN_OVER


def test_an_expected_run_that_is_live_lets_a_steer_in() -> None:
    talk = busy()

    talk.say("quick", STEER, expected_run="c:1")

    assert fates(talk) == [("quick", "steer", Fate.QUEUED)]
