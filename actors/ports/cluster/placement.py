"""Decides which nodes (server processes) can own a conversation: those that have its workspace.

A workspace is a directory that only some nodes have, with everything beneath it, such as a mounted volume. Its path is
the workspace label of the conversations in it. All functions are pure: they compare paths as text and follow no
symbolic links.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from actors.core.errors import Reason, Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.ports.cluster.membership import Node

EVERYTHING = "*"
"""The label of a node that shares its store with nobody, and therefore has every workspace."""


def directories_above(path: str) -> tuple[str, ...]:
    """Return a directory and all directories above it, the innermost first; () if the path is not absolute."""
    if not path.startswith("/"):
        return ()
    found = ["/" + posixpath.normpath(path).lstrip("/")]
    while found[-1] != "/":
        found.append(posixpath.dirname(found[-1]))
    return tuple(found)


def workspace_of(path: str, workspaces: Iterable[str]) -> str:
    """Return the innermost workspace that contains the path or equals it; "" if none does."""
    known = set(workspaces)
    return next((each for each in directories_above(path) if each in known), "")


def has(node: Node, workspace: str) -> bool:
    """Return whether a node can own conversations of this workspace; always True for "" (no workspace)."""
    return not workspace or bool(node.labels & {workspace, EVERYTHING})


def node_with(workspace: str, nodes: Iterable[Node]) -> Node:
    """Return the node with the fewest active conversations of those living `nodes` that have a workspace.

    Raises Rejected (WORKSPACE_OFFLINE) if none of the nodes has it, or if all that have it are about to stop.
    """
    found = [each for each in nodes if each.address and not each.draining and has(each, workspace)]
    if not found:
        raise Rejected(
            Reason.WORKSPACE_OFFLINE,
            f"no server that runs has the workspace {workspace}: start one that names it in cluster.workspaces",
        )
    return min(found, key=lambda node: (node.active, node.incarnation))


def label_of(path: str, me: Node, nodes: Iterable[Node]) -> str:
    """Return the workspace label of a new conversation on the node `me`; "" if the directory is in no workspace.

    Raises Rejected (WORKING_DIRECTORY_INVALID) if the directory is in a workspace that only other nodes have. This
    happens only if the client's path leads there through a symbolic link: otherwise the call would have been passed on
    to such a node.
    """
    label = workspace_of(path, (each for node in nodes for each in node.labels))
    if has(me, label):
        return label
    raise Rejected(
        Reason.WORKING_DIRECTORY_INVALID,
        f"working_directory: is in the workspace {label} of other servers: give its path there",
    )
