"""The parts of the tool host that can be looked at alone; the whole is tested with real trees."""

import ast
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.sandbox import fork_server, toolhost
from actors.adapters.sandbox.host import confinement, kernel, process_walk, writable_trees
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
