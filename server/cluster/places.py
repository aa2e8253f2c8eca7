"""What the way of a call to its conversation depends on: which node serves it, and what it may wait for."""

from __future__ import annotations

from enum import Enum

from server.auth.authorization import CATALOG, CONVERSATIONS

URGENT = frozenset({"CancelConversation", "SetMode"})
"""Methods whose calls are accepted and forwarded before all others, even if many of those wait."""


class ServingNode(Enum):
    """Which node serves the calls of a method."""

    HERE = "here"
    """The one that was called: it reads the store, or its own settings."""
    OWNER = "owner"
    """The one that owns the conversation, whose actor it has."""
    WATCHED = "watched"
    """As OWNER, and the call lasts: it is told what happens by the owner's memory."""
    DIRECTORY = "directory"
    """One that has the directory: the one that was called, unless the directory is in a workspace that it has not."""
    FORK = "fork"
    """As DIRECTORY, with that of the conversation to fork."""


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
"""The place of each method, by the method's full name."""
