"""The effects of the machine, cell by cell: `effects.txt` holds the specification's own list.

Effects are compared in the listed order, which the specification states for commit, publish and act together. The
places where the list is narrower than the specification's prose are in DEVIATIONS, with the reason; everything else
is compared as it stands.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from actors.core.errors import Rejected
from actors.core.transition import settle_event, transition
from tests.machine.columns import column, parent_columns, sub_agent_columns
from tests.machine.notation import code, effect_text
from tests.machine.rows import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

LINES = (Path(__file__).parent / "effects.txt").read_text(encoding="utf-8").splitlines()


class Cell(NamedTuple):
    """What the list says of one cell."""

    next_code: str
    effects: tuple[str, ...]
    settle: str


class Deviation(NamedTuple):
    """Effects that the prose demands and the generated list leaves out."""

    reason: str
    concerns: Callable[[str, str], bool]
    """(column, event) → whether the deviation holds there."""
    pattern: str
    """What the effect looks like."""


DEVIATIONS = (
    Deviation(
        "every response with usage emits UsageChanged; the list shows only its ContextWarning",
        lambda name, event: "≥" in event and not name.startswith("Cancelling"),
        r"NotifyClient\(UsageChanged\)",
    ),
    Deviation(
        "every question that was asked ends in one ApprovalResolved; the list shows only the questions",
        lambda name, event: (
            name.startswith("Approval")
            and event
            in {"Approval approve t1", "Approval deny t1", "Restart", "UserCancel", "UserCancel discard_queued"}
        ),
        r"NotifyClient\(ApprovalResolved .*\)",
    ),
    Deviation(
        "I2: a mode message takes a sequence from the ledger, so the state is persisted with it; "
        "nothing that clients see of the state changes, so there is no StateChanged",
        lambda name, event: event == "SetMode other mode",
        r"PersistState",
    ),
    Deviation(
        "C28: the end of every sub-agent is told, that of the last one too, before the results of all",
        lambda name, event: (
            name.endswith("last)")
            and name.startswith("AwaitSub")
            and event in {"SubAgentResult known", "SubAgentTimeout known"}
        ),
        r"NotifyClient\(SubAgents \d+ 0\)",
    ),
)


def _split(text: str, separator: str) -> list[str]:
    """Split at the top level: neither in parentheses nor in quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for i, char in enumerate(text):
        quoted ^= char == '"'
        depth += 0 if quoted else (char == "(") - (char == ")")
        if not depth and not quoted and text.startswith(separator, i):
            parts.append(text[start:i])
            start = i + len(separator)
    return [*parts, text[start:]]


def _listed() -> dict[tuple[bool, str, str], Cell]:
    """(sub-agent?, column, event) → what the list says; a sub-agent's cell falls back to the parent's line."""
    cells: dict[tuple[bool, str, str], Cell] = {}
    for line in LINES:
        sub_agent = line.startswith("[sub] ")
        where, what = line.removeprefix("[sub] ").split(" → ", 1)
        names, events = where.split(" + ", 1)
        next_code, rest = what.split(": ", 1)
        effects, _, settle = rest.partition(" » ")
        for name in names.split(", "):
            for event in events.split(" / "):
                key = (sub_agent, name, event)
                assert key not in cells, key
                cells[key] = Cell(next_code, tuple(_split(effects, ", ")), settle)
    return cells


LISTED = _listed()


def _expected(sub_agent: bool, name: str, event: str) -> Cell | None:
    listed = LISTED.get((sub_agent, name, event))
    return LISTED.get((False, name, event)) if listed is None and sub_agent else listed


def _happened(sub_agent: bool, name: str, event: str) -> Cell | None:
    """What the code does; None if it refuses or ignores the event."""
    cells = set()
    for state, context, told in ROWS[event](column(name, sub_agent=sub_agent)):
        try:
            result = transition(state, context, told)
        except Rejected:
            return None
        if result.new_state is state and not result.effects:
            return None
        settle = settle_event(result.new_state, told.at)
        cells.add(
            Cell(
                code(result.new_state),
                tuple(map(effect_text, result.effects)),
                type(settle).__name__ if settle else "",
            )
        )
    (only,) = cells
    return only


def _without_deviations(name: str, event: str, effects: tuple[str, ...], listed: tuple[str, ...]) -> tuple[str, ...]:
    """The effects as the list has them: what a deviation adds is taken out, and must be there."""
    for deviation in DEVIATIONS:
        if deviation.concerns(name, event) and not any(re.fullmatch(deviation.pattern, one) for one in listed):
            kept = tuple(one for one in effects if not re.fullmatch(deviation.pattern, one))
            assert len(kept) < len(effects), f"{event}: {deviation.reason}"
            effects = kept
    return effects


COLUMNS = [
    (sub_agent, one.name)
    for sub_agent, columns in ((False, parent_columns()), (True, sub_agent_columns()))
    for one in columns
]


@pytest.mark.parametrize(
    ("sub_agent", "name"),
    [pytest.param(*one, id=f"{'sub-agent: ' if one[0] else ''}{one[1]}") for one in COLUMNS],
)
def test_every_cell_has_the_effects_of_the_list(sub_agent: bool, name: str) -> None:
    for event in ROWS:
        expected, happened = _expected(sub_agent, name, event), _happened(sub_agent, name, event)
        if happened is None:
            assert (sub_agent, name, event) not in LISTED
            continue
        assert expected is not None, (event, happened)
        effects = _without_deviations(name, event, happened.effects, expected.effects)
        assert (event, happened._replace(effects=effects)) == (event, expected)


def test_the_list_has_no_line_that_no_cell_used() -> None:
    assert set(LISTED) <= {(*column, event) for column in COLUMNS for event in ROWS}
