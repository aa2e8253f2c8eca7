"""Defines which node of a cluster serves the calls of each gRPC method, and which methods are urgent."""

from __future__ import annotations

from enum import Enum

from server.auth.authorization import CATALOG, CONVERSATIONS, NEEDED
from server.auth.principals import Role

URGENT = frozenset({"CancelConversation", "SetMode"})
"""Methods whose calls are accepted and forwarded before all other waiting calls."""


class ServingNode(Enum):
    """The node of the cluster that serves the calls of a method."""

    HERE = "here"
    """The node that was called. It needs only the shared store or its own settings."""
    OWNER = "owner"
    """The node that owns the conversation, and so runs the actor that may change it."""
    WATCHED = "watched"
    """The node that owns the conversation. Such calls last long, and need events that only the owner has in memory."""
    DIRECTORY = "directory"
    """A node that has the directory in the request: the called one, unless only other nodes have the directory."""
    FORK = "fork"
    """A node that has the working directory of the conversation to fork."""


_OF_THEIR_OWN: dict[str, ServingNode] = {
    f"{CATALOG}BrowseDirectory": ServingNode.DIRECTORY,
    f"{CONVERSATIONS}CreateConversation": ServingNode.DIRECTORY,
    f"{CONVERSATIONS}ForkConversation": ServingNode.FORK,
    f"{CONVERSATIONS}GetConversation": ServingNode.OWNER,
    f"{CONVERSATIONS}Subscribe": ServingNode.WATCHED,
    f"{CONVERSATIONS}WaitRequestCycle": ServingNode.WATCHED,
}

PLACES: dict[str, ServingNode] = {
    method: ServingNode.OWNER if role is Role.USER else ServingNode.HERE for method, role in NEEDED.items()
} | _OF_THEIR_OWN
"""The node that serves each method, by the method's full name.

Methods that need the role USER change a conversation, so the owner of the conversation serves them. The other methods
only read, which every node can do. _OF_THEIR_OWN contains the exceptions.
"""
