"""Tables at a terminal: what gives way when it is narrow."""

import pytest
from bedrock.cli.text.drawing import LEAST, table
from bedrock.cli.text.output import with_tilde
from bedrock.cli.text.style import cells
from hypothesis import given
from hypothesis import strategies as some

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
        (20, ["run  asked    ended", "c:1  Look a…  completed", "c:2  漢字漢…"]),
    ],
)
def test_the_widest_column_but_the_first_gives_way(room: int, lines: list[str]) -> None:
    assert table(ROWS, room) == lines


@given(some.lists(some.tuples(*[some.text("ab 漢\n\x1b", max_size=40)] * 3), min_size=1), some.integers(1, 120))
def test_no_line_is_wider_than_there_is_room_and_nothing_is_cut_without_need(
    rows: list[tuple[str, str, str]], room: int
) -> None:
    lines = table(rows, room)
    widths = [max(map(cells, table([(row[at],) for row in rows], 1000))) for at in range(3)]
    assert all(cells(line) <= max(room, max(1, widths[0]) + 2 * LEAST + 6) for line in lines)
    names = table([row[:1] for row in rows], room)
    assert all(line.startswith(name) for line, name in zip(lines, names, strict=True))
    assert sum(widths) + 4 > room or not any("…" in line for line in lines)
    assert not any(character in line for line in lines for character in "\n\x1b")


def test_a_directory_keeps_its_end_and_home_is_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    paths = ("/home/ann/work/bedrock", "/home/anna", "/home/ann")
    assert [*map(with_tilde, paths)] == ["~/work/bedrock", "/home/anna", "~"]
    rows = [("a", "/home/ann/work/bedrock", "x")]
    assert table(rows, 22, 1)[0] == "a  …nn/work/bedrock  x"
