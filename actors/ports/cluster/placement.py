"""Which nodes a conversation can be on: those that have its workspace.

A workspace is a directory that only some nodes have, with all that is beneath it, such as a volume that is mounted
there. It is named by its path, which is the label of the conversations in it. Pure functions; paths are compared as
they are written, and no link is followed.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from actors.core.errors import Reason, Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.ports.cluster.membership import Node

EVERYTHING = "*"
"""What a node offers that has its store to itself: there is no other for any workspace."""


def directories_above(path: str) -> tuple[str, ...]:
    """Return a directory and all above it, the innermost first; nothing of a path that is not absolute."""
    if not path.startswith("/"):
        return ()
    found = ["/" + posixpath.normpath(path).lstrip("/")]
    while found[-1] != "/":
        found.append(posixpath.dirname(found[-1]))
    return tuple(found)


def workspace_of(path: str, workspaces: Iterable[str]) -> str:
    """Return the innermost of some workspaces that a directory is, or is beneath; "" if it is in none."""
    known = set(workspaces)
    return next((each for each in directories_above(path) if each in known), "")


def has(node: Node, workspace: str) -> bool:
    """Return whether conversations of a workspace, "" for none, can be on a node."""
    return not workspace or bool(node.labels & {workspace, EVERYTHING})


def node_with(workspace: str, nodes: Iterable[Node]) -> Node:
    """Return the one of some living nodes that gets the next conversation of a workspace: the least busy.

    Raises Rejected (WORKSPACE_OFFLINE) if none of them has it, or all that have it are about to stop.
    """
    found = [each for each in nodes if each.address and not each.draining and has(each, workspace)]
    if not found:
        raise Rejected(
            Reason.WORKSPACE_OFFLINE,
            f"no server that runs has the workspace {workspace}: start one that names it in cluster.workspaces",
        )
    return min(found, key=lambda node: (node.active, node.incarnation))


def label_of(path: str, me: Node, nodes: Iterable[Node]) -> str:
    """Return the label of a new conversation on a node, in a directory that was found there; "" if it is in none.

    Raises Rejected (WORKING_DIRECTORY_INVALID) if it is in a workspace that only others of the living nodes have: the
    path that the client gave leads there by a link, else the call would have been passed on.
    """
    label = workspace_of(path, (each for node in nodes for each in node.labels))
    if has(me, label):
        return label
    raise Rejected(
        Reason.WORKING_DIRECTORY_INVALID,
        f"working_directory: is in the workspace {label} of other servers: give its path there",
    )
