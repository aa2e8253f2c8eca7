"""The laws of one transition, from any state whatever (I1 to I14, I20, I22, I39)."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core import states
from actors.core.content import Delivery, MessageType, ToolUse
from actors.core.context import ConvContext
from actors.core.effects import PersistMessage
from actors.core.errors import Reason, Rejected
from actors.core.events import Event, UserCancel, UserMessage
from actors.core.transition import TransitionResult, run_chain, transition
from tests.property.arbitrary import a_state, an_event, an_outcome
from tests.property.drive import a_context
from tests.property.profiles import WHOLE, profile
from tests.property.step_laws import check_transition
from tests.property.tape import Tape
from tests.property.world import COMMANDS

DECISIONS = 60
"""A tape."""
TOGETHER = 10
"""Tapes in an example: Hypothesis takes several times as long over an example as a law takes over a tape."""


def law(holds: Callable[[Tape], None]) -> Callable[[], None]:
    """Make a test of what must hold for any tape: it gets as many as other laws get examples."""

    def test(decisions: bytes) -> None:
        for begin in range(0, len(decisions), DECISIONS):
            holds(Tape(decisions[begin : begin + DECISIONS]))

    test.__name__, test.__doc__ = holds.__name__, holds.__doc__
    length = DECISIONS * TOGETHER
    return profile(WHOLE // TOGETHER)(given(st.binary(min_size=length, max_size=length))(test))


def verdict(state: states.State, context: ConvContext, event: Event) -> TransitionResult | Reason:
    try:
        return transition(state, context, event)
    except Rejected as refusal:
        return refusal.reason


@law
def test_state_transitions_are_deterministic(tape: Tape) -> None:
    context = a_context(tape, sub_agent=tape.one_in(3))
    state, event = a_state(tape, context), an_event(tape)
    assert verdict(state, context, event) == verdict(state, context, event)


@law
def test_cancellation_produces_synthetic_results_for_all_pending_tools(tape: Tape) -> None:
    context = a_context(tape, sub_agent=tape.one_in(3))
    current, *remaining = (f"t-{number}-{tape.number(255)}" for number in range(1 + tape.number(12)))
    calls = tuple(ToolUse(call_id, "bash", "{}") for call_id in (current, *remaining))
    state = states.ToolExecuting(states.Ledger(run=1, live=True, seq=4), current, tuple(remaining), (), calls, 1)

    result = transition(state, context, UserCancel(5))

    persisted = [effect for effect in result.effects if isinstance(effect, PersistMessage)]
    assert len(persisted) == 1 + len(remaining)
    blocks = [block for effect in persisted for block in effect.content]
    assert [getattr(block, "tool_use_id", None) for block in blocks] == [current, *remaining]
    texts = [getattr(block, "output", None) for block in blocks]
    assert texts == ["Cancelled by user"] + ["Skipped due to cancellation"] * len(remaining)
    assert {effect.msg_type for effect in persisted} == {MessageType.TOOL}
    assert isinstance(result.new_state, states.TERMINAL if context.is_sub_agent else states.Idle)


@law
def test_every_event_in_every_state_gets_a_lawful_verdict(tape: Tape) -> None:
    context = a_context(tape, sub_agent=tape.one_in(3))
    state, event = a_state(tape, context), an_event(tape)
    result = verdict(state, context, event)
    if isinstance(result, Reason):
        assert isinstance(event, COMMANDS), f"C37: {event} was refused: {result}"
        return
    check_transition(state, context, event, result.new_state, result.effects)
    if isinstance(event, UserMessage) and event.delivery is Delivery.REJECT:
        assert isinstance(state, states.Idle | states.Error), f"I14: {event} was taken in {state}"


@law
def test_every_chain_ends_where_the_machine_may_rest(tape: Tape) -> None:
    context = a_context(tape, sub_agent=tape.one_in(3))
    state, event = a_state(tape, context), an_event(tape)
    try:
        steps = run_chain(state, context, event)
    except Rejected:
        return
    assert len(steps) <= 3 + 2 * (len(state.ledger.follows) + 1)
    if steps:
        after = steps[-1].new_state
        assert not isinstance(after, states.AwaitingLlm)
        assert not (isinstance(after, states.Cancelling) and after.kind is states.CancelKind.LLM)
        assert not (isinstance(after, states.Idle | states.Error) and after.ledger.follows)
        assert after.ledger.live <= (not isinstance(after, states.INACTIVE))


@law
def test_an_outcome_with_a_wrong_identity_is_ignored_in_every_state(tape: Tape) -> None:
    context = a_context(tape, sub_agent=tape.one_in(3))
    state, event = a_state(tape, context), an_outcome(tape, mine=False)
    assert transition(state, context, event) == TransitionResult(state, ())


@law
def test_a_message_is_accepted_while_no_run_is_in_progress_and_refused_by_default_otherwise(tape: Tape) -> None:
    context = a_context(tape)
    state = a_state(tape, context)
    for delivery in Delivery:
        message = UserMessage(600, f"m-{delivery}", "hello", (), delivery)
        if isinstance(state, states.Idle | states.Error):
            assert isinstance(transition(state, context, message).new_state, states.AwaitingLlm)
        elif delivery is Delivery.REJECT or isinstance(state, states.TERMINAL):
            with pytest.raises(Rejected):
                transition(state, context, message)
