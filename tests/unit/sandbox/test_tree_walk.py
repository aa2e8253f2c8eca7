"""How the tool host looks at a tree that it is going to kill: completely if it is small, hardly if it is a storm."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.adapters.sandbox import toolhost
from actors.adapters.sandbox.toolhost import SNAPSHOT, descendants, snapshot, walk

Tree = Mapping[int, list[int]]


class Machine:
    """Processes that a test makes up, in place of the kernel's."""

    def __init__(self, tree: Tree, dead: set[int] | None = None) -> None:
        self.tree, self.dead = tree, dead or set()
        self.looks: list[str] = []

    def children(self, pid: int) -> list[int]:
        self.looks.append(f"children {pid}")
        return list(self.tree.get(pid, []))

    def alive(self, pid: int) -> bool:
        self.looks.append(f"alive {pid}")
        return pid not in self.dead


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine({})
    monkeypatch.setattr(toolhost, "children", made.children)
    monkeypatch.setattr(toolhost, "alive", made.alive)
    return made


def test_a_small_tree_is_taken_down_whole_without_its_dead(machine: Machine) -> None:
    machine.tree, machine.dead = {1: [2, 3], 2: [4], 3: [5, 6], 6: [7]}, {3, 5}
    assert snapshot(1) == descendants(1) == [2, 4, 6, 7]


def test_a_storm_is_not_looked_at_one_by_one(machine: Machine) -> None:
    machine.tree = {1: [2], 2: list(range(3, 3_000))}
    assert snapshot(1) == [2, *range(3, SNAPSHOT + 2)]
    assert machine.looks == ["children 1", "children 2"]


def test_the_source_of_a_storm_comes_before_what_it_brought_forth(machine: Machine) -> None:
    machine.tree = {1: [2], 2: list(range(3, 3_000))}
    assert next(walk(1)) == 2
    assert machine.looks == ["children 1", "children 2", "alive 2"]


parents = st.lists(st.integers(0, 400), max_size=400)


@given(parents)
def test_whatever_its_form_a_tree_is_taken_down_parents_first_once_each(drawn: list[int]) -> None:
    tree: dict[int, list[int]] = {}
    parent_of: dict[int, int] = {}
    for number, parent in enumerate(drawn, 1):
        parent_of[number] = min(parent, number - 1)
        tree.setdefault(parent_of[number], []).append(number)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(toolhost, "children", lambda pid: list(tree.get(pid, [])))
        patched.setattr(toolhost, "alive", lambda pid: True)
        everything, taken = descendants(0), snapshot(0)
    assert sorted(everything) == sorted(parent_of)
    assert taken == everything[:SNAPSHOT]
    seen = {0}
    for pid in everything:
        assert parent_of[pid] in seen
        seen.add(pid)
