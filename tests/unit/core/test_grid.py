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


def _rows() -> list[tuple[bool, str, dict[str, str]]]:
    """(sub-agent?, event, {column: expected}) of every row."""
    return [
        (sub_agent, event, dict(zip(header[1:], cells, strict=True)))
        for sub_agent, (header, *rows) in zip((False, True), _tables(), strict=True)
        for event, *cells in rows
    ]


@pytest.mark.parametrize(
    ("sub_agent", "event", "expected"),
    [pytest.param(*row, id=f"{'sub-agent: ' if row[0] else ''}{row[1]}") for row in _rows()],
)
def test_every_cell_of_the_grid_holds(sub_agent: bool, event: str, expected: dict[str, str]) -> None:
    happened = {name: set(map(cell, ROWS[event](column(name, sub_agent=sub_agent)))) for name in expected}

    assert happened == {name: {one} for name, one in expected.items()}


def test_the_grid_has_the_size_that_the_specification_states() -> None:
    sizes = {False: 0, True: 0}
    for sub_agent, _, cells in _rows():
        sizes[sub_agent] += len(cells)

    assert sizes == {False: 1_608, True: 1_005}


@pytest.mark.parametrize("columns", [parent_columns(), sub_agent_columns()], ids=["conversation", "sub-agent"])
def test_the_tables_name_every_column(columns: tuple[Column, ...]) -> None:
    headers = [table[0][1:] for table in _tables()]

    assert [one.name for one in columns] in headers
