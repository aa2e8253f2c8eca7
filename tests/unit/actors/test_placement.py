"""Which nodes a conversation can be on: the rules of docs/cluster.md."""

from __future__ import annotations

import pytest

from actors.core.errors import Reason, Rejected
from actors.ports.cluster import EVERYTHING, Node, directories_above, has, label_of, node_with, workspace_of

A, B = "/mnt/a", "/mnt/a/b"


def node(number: int, *labels: str, active: int = 0, draining: bool = False, address: str = "node:1") -> Node:
    return Node(number, address=address, labels=frozenset(labels), draining=draining, active=active)


@pytest.mark.parametrize(
    ("path", "workspace"),
    [
        ("/mnt/a", A),
        ("/mnt/a/", A),
        ("//mnt/./a/c", A),
        ("/mnt/a/b/c", B),
        ("/mnt/a/c/../b", B),
        ("/mnt/a/b/../c", A),
        ("/mnt/a/../b", ""),
        ("/mnt/ab", ""),
        ("/mnt", ""),
        ("/", ""),
        ("mnt/a", ""),
        ("", ""),
    ],
)
def test_a_directory_is_in_the_innermost_workspace(path: str, workspace: str) -> None:
    assert workspace_of(path, (A, B)) == workspace_of(path, (B, A)) == workspace
    assert workspace_of(path, ()) == ""


def test_directories_go_up_to_the_root() -> None:
    assert directories_above("/mnt/a/") == ("/mnt/a", "/mnt", "/")


def test_a_node_has_what_it_names_and_what_is_in_no_workspace() -> None:
    assert has(node(1, A), A)
    assert not has(node(1, A), B), "an inner one has to be named, too"
    assert has(node(1), "")
    assert not has(node(1), A)
    assert has(node(1, EVERYTHING), A)


def test_the_least_busy_node_that_has_a_workspace_gets_its_next_conversation() -> None:
    nodes = [node(1, active=0), node(2, A, active=5), node(3, A, B, active=4), node(4, A, active=4), node(5, B)]
    assert node_with(A, nodes).incarnation == 3
    assert node_with(A, reversed(nodes)).incarnation == 3


def test_a_workspace_of_no_node_that_goes_on_is_offline() -> None:
    with pytest.raises(Rejected, match=r"workspace /mnt/a: start one that names it in cluster\.workspaces") as refused:
        node_with(A, [node(1), node(2, B), node(3, A, draining=True), node(4, A, address="")])
    assert refused.value.reason is Reason.WORKSPACE_OFFLINE


def test_a_new_conversation_belongs_to_a_workspace_of_its_node_or_to_none() -> None:
    me, other = node(1, A), node(2, A, B)
    assert label_of("/mnt/a/c", me, (me, other)) == A
    assert label_of("/srv", me, (me, other)) == ""
    assert label_of("/mnt/a/b", other, (me, other)) == B
    with pytest.raises(Rejected, match="in the workspace /mnt/a/b of other servers") as refused:
        label_of("/mnt/a/b/c", me, (me, other))
    assert refused.value.reason is Reason.WORKING_DIRECTORY_INVALID
