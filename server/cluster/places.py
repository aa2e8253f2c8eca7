"""For each method: which node serves its calls, and whether they are urgent."""

from __future__ import annotations

from enum import Enum

from server.auth.authorization import CATALOG, CONVERSATIONS, NEEDED
from server.auth.principals import Role

URGENT = frozenset({"CancelConversation", "SetMode"})
"""Methods whose calls are accepted and forwarded before all other waiting calls."""


class ServingNode(Enum):
    """The node that serves the calls of a method."""

    HERE = "here"
    """The node that was called: it reads the store, or its own settings."""
    OWNER = "owner"
    """The node that owns the conversation and runs its actor."""
    WATCHED = "watched"
    """The owner, as a stream: it reports events from the owner's memory."""
    DIRECTORY = "directory"
    """A node with the directory in the request: the called one, unless the directory is in a workspace of others."""
    FORK = "fork"
    """As DIRECTORY, for the directory of the conversation to fork."""


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
"""Which node serves each method, by the method's full name. What only users may do changes a conversation, whose owner
does it; the rest is read, which any node can. Those of _OF_THEIR_OWN need more."""
