"""The tool host: its processes, its control groups, and how a tree is taken down."""

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.adapters.sandbox import fork_server, toolhost
from actors.adapters.sandbox.control_groups import ControlGroups, Hierarchy, own_hierarchies
from actors.adapters.sandbox.host import call_limits, confinement, kernel, process_walk, writable_trees
from actors.adapters.sandbox.host.process_walk import SNAPSHOT, descendants, snapshot, walk
from actors.adapters.sandbox.process_tree import Capture
from actors.ports import ProcessLimits
from tests.support.toolhost_source import toolhost_source


@pytest.mark.parametrize("place", range(len(fork_server.MODULES) + 1))
def test_it_imports_itself_in_order_and_of_the_standard_library_nothing_that_starts_slowly(place: int) -> None:
    sources = toolhost_source()
    outer = [node for node in ast.parse(sources[place][1]).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in outer if isinstance(node, ast.Import) for alias in node.names}
    assert names <= set(sys.stdlib_module_names)
    assert not names & {"json", "signal", "socket", "subprocess", "threading", "typing", "logging", "re", "enum"}
    earlier = {f"actors.adapters.sandbox.{name}" for name, _ in sources[:place]}
    ours = (node for node in outer if isinstance(node, ast.ImportFrom) and str(node.module).startswith("actors"))
    folder = "actors.adapters.sandbox.host"
    own = {f"{folder}.{each.name}" if node.module == folder else node.module for node in ours for each in node.names}
    assert own <= earlier, "each module after those that it imports"


def test_all_modules_of_its_folder_are_in_it() -> None:
    folder = Path(str(toolhost.__file__)).parent / "host"
    assert {file.stem for file in folder.glob("[!_]*.py")} == {
        name.removeprefix("host.") for name in fork_server.MODULES if name.startswith("host.")
    }


def test_a_process_has_its_children_and_their_children_as_descendants() -> None:
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild == 0:
            os.write(ready[1], b"!")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        (grandchild,) = process_walk.children(child)
        assert child in process_walk.children(os.getpid())
        assert process_walk.descendants(child) == [grandchild]
        assert process_walk.alive(grandchild)
    finally:
        os.write(go[1], b"!!")
        os.waitpid(child, 0)
        for end in (*ready, *go):
            os.close(end)
    assert process_walk.children(child) == []
    assert not process_walk.alive(child)


def test_a_zombie_is_not_alive() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert child in process_walk.children(os.getpid())
    assert child not in process_walk.descendants(os.getpid())
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("release", "at_least_6_14"),
    [("6.14.0", True), ("6.13.9-x", False), ("7.0-rc1", True), ("5.15.0-91-generic", False)],
)
def test_kernel_versions_are_compared_as_numbers(
    release: str, at_least_6_14: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    uname = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((uname[0], uname[1], release, uname[3], uname[4])))
    assert kernel.kernel_at_least(6, 14) is at_least_6_14


def test_no_restriction_is_none() -> None:
    confinement.restrict(None)


def test_only_what_is_protected_is_left_out_of_what_can_be_read(tmp_path: Path) -> None:
    for name in ("a/open", "a/closed", "a/b/closed", "c"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").touch()
    (tmp_path / "a" / "link").symlink_to(tmp_path / "a" / "closed")
    (tmp_path / "a" / "closedly").mkdir()
    root = os.fsencode(tmp_path)
    protected = [root + b"/a/closed", root + b"/a/b/closed", root + b"/missing"]
    found = {os.path.relpath(path, root) for path in confinement.around(root, protected)}
    assert found == {b"a/open", b"a/closedly", b"a/b/file", b"c"}
    assert list(confinement.around(root, [])) == [root]
    assert writable_trees.within(b"/x/y", b"/")
    assert not writable_trees.within(b"/x", b"/x/y")


@pytest.mark.parametrize(
    ("namespace", "launch"),
    [
        (False, {"restrict": {"tier": "A", "private": b"/tmp"}, "hide": []}),
        (False, {"restrict": None, "hide": [b"/etc"]}),
    ],
)
def test_what_needs_a_namespace_is_refused_without(namespace: bool, launch: dict[str, Any]) -> None:
    assert confinement.arrange_mounts_or_why_not(launch, namespace).endswith(b" 38")


# --- Where a server's own control groups are, in both versions; and that a call is born into one of version 2 ---


V1 = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / {place}/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 /docker/x {place}/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / {place}/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2 = "31 23 0:28 {root} {place} rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"


def found(tmp_path: Path, groups: str, mounts: str) -> tuple[Hierarchy, ...]:
    (tmp_path / "cgroup").write_text(groups)
    (tmp_path / "mountinfo").write_text(mounts)
    return own_hierarchies(tmp_path)


def test_version_1_has_a_tree_for_each_controller(tmp_path: Path) -> None:
    mounts = V1.format(place=tmp_path)
    groups = "9:name=systemd:/\n8:pids:/docker/x/y\n4:memory:/user/z\n1:cpu:/\n0::/\n"
    assert set(found(tmp_path, groups, mounts)) == {
        Hierarchy(tmp_path / "memory" / "user" / "z", ("memory",), unified=False),
        Hierarchy(tmp_path / "pids" / "y", ("pids",), unified=False),
    }


def test_version_2_has_one_tree_with_what_was_given_to_it(tmp_path: Path) -> None:
    own = tmp_path / "service"
    own.mkdir()
    (own / "cgroup.controllers").write_text("cpu memory pids\n")
    mounts = V2.format(root="/", place=tmp_path)
    assert found(tmp_path, "0::/service\n", mounts) == (Hierarchy(own, ("pids", "memory"), unified=True),)
    (own / "cgroup.controllers").write_text("cpu\n")
    assert found(tmp_path, "0::/service\n", mounts) == ()


def test_in_a_container_of_its_own_nothing_is_above(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("pids")
    (one,) = found(tmp_path, "0::/\n", V2.format(root="/", place=tmp_path))
    assert one == Hierarchy(tmp_path / ".", ("pids",), unified=True, topmost=True)


def test_where_there_is_nothing_there_are_none(tmp_path: Path) -> None:
    assert own_hierarchies(tmp_path) == ()
    assert found(tmp_path, "0::/../outside\n", V2.format(root="/", place=tmp_path)) == ()


@pytest.mark.parametrize("unified", [True, False])
def test_groups_that_may_not_be_made_are_none(tmp_path: Path, unified: bool) -> None:
    groups = ControlGroups((Hierarchy(tmp_path / "missing", ("pids", "memory"), unified),))
    assert groups.controllers == frozenset()
    assert groups.describe(ProcessLimits(), 0) == []
    groups.close()


def test_a_group_of_others_is_not_divided(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("")
    assert ControlGroups((Hierarchy(tmp_path, ("pids",), unified=True),)).controllers == frozenset()
    assert [path.name for path in tmp_path.iterdir()] == ["cgroup.subtree_control"]


def test_a_call_is_born_into_its_group_of_version_2() -> None:
    place = next(
        (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if "cgroup2" in line), ""
    )
    folder = f"{place}/bedrock-test-{os.getpid()}"
    if not place or not os.access(place, os.W_OK):
        pytest.skip("this user may not make control groups of version 2 here")
    groups = call_limits.Groups([(os.fsencode(folder), "", True, [])])
    try:
        reading, writing = os.pipe()
        child = groups.fork()
        if child == 0:
            os.write(writing, Path("/proc/self/cgroup").read_bytes())
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        assert os.path.basename(folder).encode() in os.read(reading, 10_000)
        os.close(reading)
    finally:
        os.close(groups.born)
        groups.remove()
    assert not os.path.exists(folder)


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


# --- What is kept of a long output ---


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(0, 60))
def test_head_and_tail_frame_exactly_what_was_cut(pieces: list[bytes], limit: int) -> None:
    capture = Capture(limit)
    for piece in pieces:
        capture.add(piece)
    whole = b"".join(pieces)
    head, tail, cut = capture.parts()
    if len(whole) <= limit:
        assert (head, tail, cut) == (whole, b"", 0)
    else:
        assert head == whole[: limit // 2]
        assert tail == whole[len(whole) - (limit - limit // 2) :]
        assert cut == len(whole) - limit


def test_memory_stays_bounded() -> None:
    capture = Capture(1000)
    for _ in range(10_000):
        capture.add(b"x" * 999)
        assert len(capture._head) + len(capture._tail) <= 3000
