"""Seed 3's Context Manager FSM: `seed_diagram.mmd` holds the seed's own diagram."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from actors.core.errors import Rejected
from actors.core.notifications import StateChanged
from actors.core.summary import DIAGRAM_EDGES, EDGES, EXTENSION_EDGES, ChatContext, ContextState, project, stray_edge
from actors.core.transition import run_chain
from tests.machine.columns import Column, parent_columns, sub_agent_columns
from tests.machine.rows import ROWS
from tests.machine.talk import notes

DIAGRAM = (Path(__file__).parent / "seed_diagram.mmd").read_text(encoding="utf-8")
SEED_EDGES = re.findall(r"^ *(\w+) --> (\w+)(?::|$)", DIAGRAM, re.MULTILINE)
SEED_STATES = (
    "Idle",
    "ProcessingUserMessage",
    "AwaitingLLMResponse",
    "StreamingLLMResponse",
    "ProcessingLLMResponse",
    "AwaitingToolApproval",
    "ExecutingTools",
    "ProcessingToolResults",
    "GeneratingResponse",
    "TransientFailure",
    "Failed",
)
S = ContextState


def test_the_seeds_eleven_states_have_their_names() -> None:
    assert tuple(ContextState)[:11] == SEED_STATES
    assert set(ContextState) - set(SEED_STATES) == {"Cancelling", "ContextExhausted"}


@pytest.mark.parametrize(("here", "there"), SEED_EDGES)
def test_every_arrow_of_the_seeds_diagram_is_an_edge(here: str, there: str) -> None:
    assert (S(here), S(there)) in DIAGRAM_EDGES
    assert ChatContext(S(here)).handle_event((S(there),)) == ChatContext(S(there))


def test_the_diagram_has_no_other_arrow() -> None:
    assert len(SEED_EDGES) == len(DIAGRAM_EDGES) == 21
    assert re.search(r"\[\*\] --> Idle", DIAGRAM)
    assert ChatContext().state is S.IDLE


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (S.EXECUTING_TOOLS, S.EXECUTING_TOOLS),
        (S.PROCESSING_LLM_RESPONSE, S.GENERATING_RESPONSE),
        (S.PROCESSING_LLM_RESPONSE, S.AWAITING_LLM_RESPONSE),
        (S.PROCESSING_LLM_RESPONSE, S.FAILED),
        (S.AWAITING_LLM_RESPONSE, S.FAILED),
        (S.STREAMING_LLM_RESPONSE, S.FAILED),
        (S.FAILED, S.IDLE),
        (S.PROCESSING_USER_MESSAGE, S.EXECUTING_TOOLS),
        (S.IDLE, S.FAILED),
        (S.STREAMING_LLM_RESPONSE, S.CANCELLING),
        (S.CANCELLING, S.IDLE),
        (S.AWAITING_TOOL_APPROVAL, S.IDLE),
        (S.TRANSIENT_FAILURE, S.IDLE),
        (S.STREAMING_LLM_RESPONSE, S.CONTEXT_EXHAUSTED),
    ],
)
def test_every_documented_extension_is_an_edge(here: ContextState, there: ContextState) -> None:
    assert (here, there) in EXTENSION_EDGES


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (S.IDLE, S.AWAITING_LLM_RESPONSE),
        (S.IDLE, S.EXECUTING_TOOLS),
        (S.AWAITING_LLM_RESPONSE, S.EXECUTING_TOOLS),
        (S.EXECUTING_TOOLS, S.AWAITING_LLM_RESPONSE),
        (S.AWAITING_TOOL_APPROVAL, S.AWAITING_LLM_RESPONSE),
        (S.FAILED, S.PROCESSING_USER_MESSAGE),
        (S.CONTEXT_EXHAUSTED, S.IDLE),
        (S.CANCELLING, S.CANCELLING),
        (S.TRANSIENT_FAILURE, S.STREAMING_LLM_RESPONSE),
    ],
)
def test_a_step_that_no_diagram_has_is_refused(here: ContextState, there: ContextState) -> None:
    assert stray_edge([there], here) == (here, there)
    with pytest.raises(ValueError, match=f"{here} --> {there}"):
        ChatContext(here).handle_event((there,))


def test_the_extensions_add_to_the_diagram_and_repeat_nothing() -> None:
    assert not DIAGRAM_EDGES & EXTENSION_EDGES
    assert DIAGRAM_EDGES | EXTENSION_EDGES == EDGES


def test_an_empty_walk_stays_where_it_is() -> None:
    here = ChatContext(S.EXECUTING_TOOLS)

    assert here.handle_event(()) is here


def test_a_walk_is_folded_step_by_step() -> None:
    walk = (S.PROCESSING_LLM_RESPONSE, S.EXECUTING_TOOLS, S.PROCESSING_TOOL_RESULTS, S.GENERATING_RESPONSE)

    assert ChatContext(S.STREAMING_LLM_RESPONSE).handle_event(walk) == ChatContext(S.GENERATING_RESPONSE)
    assert stray_edge((*walk, S.IDLE, S.EXECUTING_TOOLS), S.STREAMING_LLM_RESPONSE) == (S.IDLE, S.EXECUTING_TOOLS)


@pytest.mark.parametrize(
    "one",
    [*parent_columns(), *sub_agent_columns()],
    ids=lambda one: f"{'sub-agent ' if one.context.is_sub_agent else ''}{one.name}",
)
def test_every_transition_of_the_grid_walks_the_diagram_to_where_its_state_is(one: Column) -> None:
    for row, make in ROWS.items():
        for case in make(one):
            try:
                steps = run_chain(*case)
            except Rejected:
                continue
            here = ChatContext(project(case.state))
            for step in steps:
                for change in notes(list(step.effects), StateChanged):
                    here = here.handle_event(change.fsm_path)
                assert here.state is project(step.new_state), row
