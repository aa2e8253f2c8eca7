"""Where a server's own control groups are, in both versions; and that a call is born into one of version 2."""

import os
from pathlib import Path

import pytest

from actors.adapters.sandbox.control_groups import ControlGroups, Hierarchy, own_hierarchies
from actors.adapters.sandbox.host import call_limits
from actors.ports import ProcessLimits

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
