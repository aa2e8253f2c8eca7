"""How the tool host looks at a tree that it is going to kill: completely if it is small, hardly if it is a storm."""

import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.adapters.sandbox import toolhost
from actors.adapters.sandbox.host import call_limits, kernel, process_walk
from actors.adapters.sandbox.host.process_walk import SNAPSHOT, descendants, snapshot, walk

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
    monkeypatch.setattr(process_walk, "children", made.children)
    monkeypatch.setattr(process_walk, "alive", made.alive)
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
        patched.setattr(process_walk, "children", lambda pid: list(tree.get(pid, [])))
        patched.setattr(process_walk, "alive", lambda pid: True)
        everything, taken = descendants(0), snapshot(0)
    assert sorted(everything) == sorted(parent_of)
    assert taken == everything[:SNAPSHOT]
    seen = {0}
    for pid in everything:
        assert parent_of[pid] in seen
        seen.add(pid)


@given(parents)
def test_what_no_receipt_names_is_killed_parents_first_at_one_read_each(drawn: list[int]) -> None:
    tree: dict[int, list[int]] = {}
    for number, parent in enumerate(drawn, 1):
        tree.setdefault(min(parent, number - 1), []).append(number)
    reads: list[int] = []

    def contents(path: str) -> bytes:
        pid = int(path.split("/")[2])
        assert path == f"/proc/{pid}/task/{pid}/children"
        reads.append(pid)
        if pid % 7 == 6:
            raise FileNotFoundError(path)
        return " ".join(map(str, tree.get(pid, []))).encode()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kernel, "contents", contents)
        found = list(process_walk.descendants_unseen(0))
    assert reads == [0, *found]
    assert set(found) == {child for pid in reads if pid % 7 != 6 for child in tree.get(pid, [])}


def test_the_groups_of_a_call_let_it_fork_no_more_and_are_killed_at_once(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    for name, content in (("pids.max", "9"), ("cgroup.kill", ""), ("cgroup.procs", f"{child.pid}\n999999999\n")):
        (tmp_path / name).write_text(content)
    groups = call_limits.Groups([])
    groups.folders = [bytes(tmp_path), b"/nowhere"]
    groups.kill()
    assert child.wait() == -signal.SIGKILL
    assert ((tmp_path / "pids.max").read_text(), (tmp_path / "cgroup.kill").read_text()) == ("0", "1")


def test_nothing_is_looked_for_where_all_children_have_ended(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_walk, "reap", lambda: iter([(51, 0)]))
    monkeypatch.setattr(process_walk, "childless", lambda: True)
    assert process_walk.clear(set(), 1.0)
    assert machine.looks == []


@pytest.mark.parametrize("server", ["lives", "has ended"])
def test_nothing_is_looked_at_for_a_server_that_has_ended(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def cleared(killed: set[int] | None, seconds: float) -> bool:
        done.append("no receipt" if killed is None else f"receipt of {sorted(killed)}")
        return True

    def looked(root: int) -> list[int]:
        done.append("looked")
        return [root + 1]

    monkeypatch.setattr(process_walk, "snapshot", looked)
    monkeypatch.setattr(process_walk, "send_signal", lambda pid, number: None)
    monkeypatch.setattr(process_walk, "clear", cleared)
    host = object.__new__(toolhost.Host)
    host.init, host.namespace, host.groups = 50, False, call_limits.Groups([])
    host.limit, host.kill_requested = 0, False
    host.killed = set() if server == "lives" else None
    assert host.clear()
    assert done == (["looked", "receipt of [51]"] if server == "lives" else ["no receipt"])
