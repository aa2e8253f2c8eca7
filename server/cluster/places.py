"""For each method: which node serves its calls, and whether they are urgent."""

from __future__ import annotations

from enum import Enum

from server.auth.authorization import CATALOG, CONVERSATIONS

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


PLACES: dict[str, ServingNode] = {
    **dict.fromkeys(
        (
            f"{CATALOG}GetModel",
            f"{CATALOG}GetQuotas",
            f"{CATALOG}GetServerInfo",
            f"{CATALOG}GetTool",
            f"{CATALOG}ListModels",
            f"{CATALOG}ListNodes",
            f"{CATALOG}ListTools",
            f"{CONVERSATIONS}DownloadAttachment",
            f"{CONVERSATIONS}ExportConversation",
            f"{CONVERSATIONS}GetApproval",
            f"{CONVERSATIONS}GetApprovalRule",
            f"{CONVERSATIONS}GetAttachment",
            f"{CONVERSATIONS}GetMessage",
            f"{CONVERSATIONS}GetQuestion",
            f"{CONVERSATIONS}GetRequestCycle",
            f"{CONVERSATIONS}ListApprovalRules",
            f"{CONVERSATIONS}ListApprovals",
            f"{CONVERSATIONS}ListAuditEntries",
            f"{CONVERSATIONS}ListConversations",
            f"{CONVERSATIONS}ListMessages",
            f"{CONVERSATIONS}ListQuestions",
            f"{CONVERSATIONS}ListQueue",
            f"{CONVERSATIONS}ListRequestCycles",
            f"{CONVERSATIONS}ReplayConversation",
            f"{CONVERSATIONS}VerifyConversation",
            f"{CONVERSATIONS}WatchConversations",
        ),
        ServingNode.HERE,
    ),
    **dict.fromkeys(
        (
            f"{CONVERSATIONS}AnswerQuestion",
            f"{CONVERSATIONS}ArchiveConversation",
            f"{CONVERSATIONS}CancelConversation",
            f"{CONVERSATIONS}ContinueConversation",
            f"{CONVERSATIONS}CreateApprovalRule",
            f"{CONVERSATIONS}DeleteApprovalRule",
            f"{CONVERSATIONS}DeleteConversation",
            f"{CONVERSATIONS}GetConversation",
            f"{CONVERSATIONS}ResolveApproval",
            f"{CONVERSATIONS}SendMessage",
            f"{CONVERSATIONS}SetMode",
            f"{CONVERSATIONS}SpawnSubAgents",
            f"{CONVERSATIONS}SubmitToolResult",
            f"{CONVERSATIONS}TriggerContinuation",
            f"{CONVERSATIONS}UnarchiveConversation",
            f"{CONVERSATIONS}UpdateConversation",
            f"{CONVERSATIONS}WithdrawMessage",
        ),
        ServingNode.OWNER,
    ),
    **dict.fromkeys((f"{CATALOG}BrowseDirectory", f"{CONVERSATIONS}CreateConversation"), ServingNode.DIRECTORY),
    f"{CONVERSATIONS}ForkConversation": ServingNode.FORK,
    **dict.fromkeys((f"{CONVERSATIONS}Subscribe", f"{CONVERSATIONS}WaitRequestCycle"), ServingNode.WATCHED),
}
"""The serving node of each method, by the method's full name."""
