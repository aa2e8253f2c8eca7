"""Seed 2's State Transition Matrix, row by row: `seed_matrix.md` holds the seed's own table."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from actors.core.effects import Effect, ExecuteTool
from actors.core.errors import Rejected
from actors.core.states import (
    AwaitingLlm,
    AwaitingSubAgents,
    AwaitingToolApproval,
    Cancelling,
    Error,
    Idle,
    LlmRequesting,
    State,
    ToolExecuting,
)
from actors.core.transition import transition
from tests.machine.columns import column
from tests.machine.rows import ROWS, TASKS, Case

TABLE = (Path(__file__).parent / "seed_matrix.md").read_text(encoding="utf-8").splitlines()[2:]
SEED_ROWS = [tuple(part.strip() for part in line.strip("|").split("|")) for line in TABLE]

CASES = (
    (("Idle", "UserMessage reject"),),
    (("AwaitingLlm", "BeginLlm (settle)"),),
    (("LlmReq/conn", "LlmResponse text end"), ("LlmReq/stream", "LlmResponse text end")),
    (("LlmReq/conn", "LlmResponse tools auto"), ("LlmReq/stream", "LlmResponse tools auto")),
    (("LlmReq/conn", "LlmError retryable"), ("LlmReq/stream", "LlmError retryable")),
    (("LlmReq/backoff", "RetryTimeout match"),),
    (("LlmReq3/stream", "LlmError retryable"),),
    (("LlmReq/conn", "LlmError non-retryable"), ("LlmReq/stream", "LlmError non-retryable")),
    (("LlmReq/conn", "UserCancel"), ("LlmReq/stream", "UserCancel")),
    (("LlmReq/conn", "UserMessage reject"), ("LlmReq/backoff", "UserMessage reject")),
    (("ToolExec(last)", "ToolComplete match"),),
    (("ToolExec", "ToolComplete match"),),
    (("ToolExec", "UserCancel"), ("ToolExec(last)", "UserCancel")),
    (("ToolExec", "UserMessage reject"),),
    (("Cancelling/llm", "LlmResponse text end"),),
    (("Cancelling/llm", "UserMessage reject"), ("Cancelling/sub", "UserMessage reject")),
    (("Error", "UserMessage reject"),),
    (("Idle", "SpawnSubAgents"),),
    (("AwaitSub(last)", "SubAgentResult known"), ("AwaitSub(cmd,last)", "SubAgentResult known")),
    (("AwaitSub", "UserMessage reject"),),
)
"""Where each of the seed's rows is lived through, in the seed's order: (column, event) of the core's matrix."""

STATES: dict[str, type[State]] = {
    "Idle": Idle,
    "AwaitingLlm": AwaitingLlm,
    "LlmRequesting": LlmRequesting,
    "AwaitingToolApproval": AwaitingToolApproval,
    "ToolExecuting": ToolExecuting,
    "Cancelling": Cancelling,
    "Error": Error,
    "AwaitingSubAgents": AwaitingSubAgents,
}


def test_the_table_is_the_seeds_with_all_its_rows() -> None:
    assert len(SEED_ROWS) == len(CASES) == 20


@pytest.mark.parametrize(
    ("seed_row", "name", "event"),
    [
        pytest.param(row, *where, id=f"{number}: {row[0]} + {row[1]} ({where[0]})")
        for number, (row, places) in enumerate(zip(SEED_ROWS, CASES, strict=True), 1)
        for where in places
    ],
)
def test_every_row_of_the_seeds_matrix_holds(seed_row: tuple[str, str, str, str], name: str, event: str) -> None:
    current, _, following, effects = seed_row
    (case,) = ROWS[event](column(name))
    assert isinstance(case.state, STATES[re.split(r"[{(]", current)[0]])

    if following == "**REJECT**":
        with pytest.raises(Rejected, match=re.findall(r'"(.*)"', effects)[0]):
            transition(*case)
        return
    result = transition(*case)

    _check_state(following, case.state, result.new_state)
    for wanted in effects.split(", "):
        _check_effect(wanted, case, result.effects)


def _check_state(wanted: str, before: State, after: State) -> None:
    assert isinstance(after, STATES[re.split(r"[{(]", wanted)[0]])
    if isinstance(after, LlmRequesting):
        earlier = before.attempt if isinstance(before, LlmRequesting) else 0
        attempts = {"{1}": 1, "{n}": earlier, "{n+1}": earlier + 1}
        assert after.attempt == attempts[wanted.removeprefix("LlmRequesting")]


def _check_effect(wanted: str, case: Case, effects: tuple[Effect, ...]) -> None:
    counts = Counter(type(effect).__name__ for effect in effects)
    started = [effect.tool_use_id for effect in effects if isinstance(effect, ExecuteTool)]
    match wanted:
        case "ExecuteTool(first)":
            assert started == ["t1"]
        case "ExecuteTool(next)":
            assert started == ["t2"]
        case "PersistMessage(synthetic)":
            assert isinstance(case.state, ToolExecuting)
            assert counts["PersistMessage"] == 1 + len(case.state.remaining_tool_ids)
        case _ if wanted.startswith("SpawnSubAgent"):
            assert counts["SpawnSubAgent"] == len(TASKS)
        case _:
            assert counts[wanted] >= 1
