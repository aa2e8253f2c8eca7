"""Tables at a terminal: what gives way when it is narrow."""

from __future__ import annotations

import pytest
from bedrock.cli.tables import LEAST, fitted
from hypothesis import given
from hypothesis import strategies as some
from rich.cells import cell_len

ROWS = [
    ("run", "asked", "ended"),
    ("c:1", "Look around, and tell me what you find.", "completed"),
    ("c:2", "漢字" * 9, ""),
]


@pytest.mark.parametrize(
    ("room", "lines"),
    [
        (80, [f"run  asked{' ' * 36}ended", f"c:1  {ROWS[1][1]}  completed", f"c:2  {'漢字' * 9}"]),
        (40, [f"run  asked{' ' * 21}ended", "c:1  Look around, and tell m…  completed", f"c:2  {'漢字' * 5}漢 …"]),
        (20, ["run  asked     ended", "c:1  Look ar…  complet…", "c:2  漢字漢 …"]),
    ],
)
def test_the_widest_column_gives_way(room: int, lines: list[str]) -> None:
    assert fitted(ROWS, room) == lines


@given(some.lists(some.tuples(*[some.text("ab 漢\n\x1b", max_size=40)] * 3), min_size=1), some.integers(1, 120))
def test_no_line_is_wider_than_there_is_room_and_nothing_is_cut_without_need(
    rows: list[tuple[str, str, str]], room: int
) -> None:
    lines = fitted(rows, room)
    assert all(cell_len(line) <= max(room, 3 * LEAST + 4) for line in lines)
    needed = sum(max(cell_len(line) for line in fitted([(row[at],) for row in rows], 1000)) for at in range(3)) + 4
    assert needed > room or not any("…" in line for line in lines)
    assert not any(character in line for line in lines for character in "\n\x1b")
