"""What is spent without an answer: small requests beside the conversation, and requests that were abandoned (C44)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from actors.core.content import SystemKind, Text, Usage
from actors.core.context import Budget
from actors.core.effects import NotifyClient, PersistState, RequestLlm
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.events import Event, LlmAborted, LlmError, LlmResponse, TriggerContinuation, UsageReported
from actors.core.notifications import RunStop, UsageChanged
from actors.core.states import TERMINAL, AwaitingContinuation, LlmRequesting
from tests.machine.columns import Column, parent_columns, sub_agent_columns
from tests.machine.talk import OPEN, Talk

COLUMNS = [*parent_columns(), *sub_agent_columns()]


@pytest.mark.parametrize("aside", [True, False])
@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_in_every_state_it_changes_sums_and_nothing_else(column: Column, aside: bool) -> None:
    talk = Talk(column.context, column.state)
    before = column.state.ledger
    talk.tell(UsageReported(500, Usage(100, 10, cost_micros=3), aside=aside))
    first, *settling = talk.steps
    spent = Usage(100, 10, cost_micros=3)
    sums = {"aside_usage": before.aside_usage + spent} if aside else {"total_usage": before.total_usage + spent}
    assert first.new_state == replace(column.state, ledger=replace(before, **sums))
    assert [type(effect) for effect in first.effects] == [PersistState, NotifyClient]
    (told,) = [effect.data for effect in first.effects if isinstance(effect, NotifyClient)]
    assert isinstance(told, UsageChanged)
    assert (told.used_tokens, told.total) == (before.used_tokens, first.new_state.ledger.total_usage)
    assert not (settling and isinstance(column.state, TERMINAL))


@pytest.mark.parametrize("budget", [Budget(conversation_tokens=100), Budget(conversation_cost_micros=50)])
@pytest.mark.parametrize("aside", [True, False])
def test_it_counts_against_the_budget_of_the_conversation(budget: Budget, aside: bool) -> None:
    talk = Talk(replace(OPEN, budget=budget))
    talk.tell(UsageReported(talk.at(), Usage(100, cost_micros=50), aside=aside))
    talk.say("go")
    assert [stop.detail for stop in talk.notes(RunStop)] == ["budget"]


def test_it_does_not_count_against_that_of_a_run() -> None:
    talk = Talk(replace(OPEN, budget=Budget(run_tokens=10)))
    talk.say("go")
    talk.tell(UsageReported(talk.at(), Usage(100), aside=True))
    talk.tell(UsageReported(talk.at(), Usage(100), aside=False))
    assert talk.state.ledger.run_usage == Usage()
    talk.text("done")
    talk.say("more")
    assert talk.acts(RequestLlm)


def test_the_usage_of_an_unrequested_abort_counts_for_its_run() -> None:
    talk = Talk(OPEN)
    talk.say("go")
    talk.tell(LlmAborted(talk.at(), "c:r1", 1, Usage(30)))
    assert isinstance(talk.state, LlmRequesting)
    assert (talk.state.ledger.run_usage, talk.state.ledger.used_tokens) == (Usage(30), 0)


@pytest.mark.parametrize(
    "outcome",
    [
        LlmResponse(2_000, "c:r2", 1, (Text("Summed up."),), True, Usage(30)),
        LlmResponse(2_000, "c:r2", 1, (), True, Usage(30)),
        LlmError(2_000, "c:r2", 1, LlmFailure(ErrorKind.NETWORK, "cut"), usage=Usage(30)),
        LlmError(2_000, "c:r2", 1, LlmFailure(ErrorKind.INVALID_REQUEST, "no"), usage=Usage(30)),
        LlmAborted(2_000, "c:r2", 1, Usage(30)),
    ],
    ids=["summary", "empty", "network", "refused", "aborted"],
)
def test_every_attempt_of_a_summary_costs_and_leaves_the_window_as_it_is(outcome: Event) -> None:
    talk = Talk(OPEN)
    talk.say("go")
    talk.tell(LlmResponse(talk.at(), "c:r1", 1, (Text("done"),), True, Usage(7)))
    talk.tell(TriggerContinuation(talk.at()))
    assert isinstance(talk.state, AwaitingContinuation)
    asked = talk.state.through_sequence
    talk.tell(outcome)
    assert (talk.state.ledger.total_usage, talk.state.ledger.used_tokens) == (Usage(37), 7)
    for summary in talk.messages:
        if summary.kind is SystemKind.SUMMARY:
            assert (summary.through_sequence, summary.usage) == (asked, Usage(30))
