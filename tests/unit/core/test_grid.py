"""The matrix of states and events, cell by cell: `grid.md` holds the specification's own tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machine.columns import Column, column, parent_columns, sub_agent_columns
from tests.machine.notation import cell
from tests.machine.rows import ROWS

GRID = (Path(__file__).parent / "grid.md").read_text(encoding="utf-8")


def _tables() -> list[list[list[str]]]:
    """The tables of grid.md as rows of cells, header first."""
    tables: list[list[list[str]]] = []
    previous = ""
    for line in GRID.splitlines():
        if line.startswith("|"):
            if not previous.startswith("|"):
                tables.append([])
            if not line.startswith("|---"):
                tables[-1].append([part.strip() for part in line.strip("|").split("|")])
        previous = line
    return tables


def _cells() -> list[tuple[bool, str, str, str]]:
    """(sub-agent?, column, event, expected) of every cell."""
    return [
        (sub_agent, name, event, expected)
        for sub_agent, (header, *rows) in zip((False, True), _tables(), strict=True)
        for event, *cells in rows
        for name, expected in zip(header[1:], cells, strict=True)
    ]


@pytest.mark.parametrize(
    ("sub_agent", "name", "event", "expected"),
    [pytest.param(*one, id=f"{'sub-agent: ' if one[0] else ''}{one[1]} + {one[2]}") for one in _cells()],
)
def test_every_cell_of_the_grid_holds(sub_agent: bool, name: str, event: str, expected: str) -> None:
    cases = ROWS[event](column(name, sub_agent=sub_agent))

    assert [cell(case) for case in cases] == [expected] * len(cases)


def test_the_grid_has_the_size_that_the_specification_states() -> None:
    cells = _cells()

    assert sum(not sub_agent for sub_agent, *_ in cells) == 1_298
    assert sum(sub_agent for sub_agent, *_ in cells) == 885


@pytest.mark.parametrize("columns", [parent_columns(), sub_agent_columns()], ids=["conversation", "sub-agent"])
def test_the_tables_name_every_column(columns: tuple[Column, ...]) -> None:
    headers = [table[0][1:] for table in _tables()]

    assert [one.name for one in columns] in headers
