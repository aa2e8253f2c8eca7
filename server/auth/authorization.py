"""Authorization: which role each method of the gRPC API requires. Methods without an entry are refused to everybody."""

from __future__ import annotations

from actors.core.errors import Reason, Rejected
from server.auth.principals import Role

CATALOG, CONVERSATIONS = "/bedrock.v1.CatalogService/", "/bedrock.v1.ConversationService/"

NEEDED: dict[str, Role] = {
    **dict.fromkeys(
        (
            f"{CATALOG}BrowseDirectory",
            f"{CATALOG}GetModel",
            f"{CATALOG}GetQuotas",
            f"{CATALOG}GetServerInfo",
            f"{CATALOG}GetTool",
            f"{CATALOG}ListModels",
            f"{CATALOG}ListTools",
            f"{CONVERSATIONS}DownloadAttachment",
            f"{CONVERSATIONS}ExportConversation",
            f"{CONVERSATIONS}GetApproval",
            f"{CONVERSATIONS}GetApprovalRule",
            f"{CONVERSATIONS}GetAttachment",
            f"{CONVERSATIONS}GetConversation",
            f"{CONVERSATIONS}GetMessage",
            f"{CONVERSATIONS}GetQuestion",
            f"{CONVERSATIONS}GetRequestCycle",
            f"{CONVERSATIONS}ListApprovalRules",
            f"{CONVERSATIONS}ListApprovals",
            f"{CONVERSATIONS}ListConversations",
            f"{CONVERSATIONS}ListMessages",
            f"{CONVERSATIONS}ListQuestions",
            f"{CONVERSATIONS}ListQueue",
            f"{CONVERSATIONS}ListRequestCycles",
            f"{CONVERSATIONS}ReplayConversation",
            f"{CONVERSATIONS}Subscribe",
            f"{CONVERSATIONS}VerifyConversation",
            f"{CONVERSATIONS}WaitRequestCycle",
            f"{CONVERSATIONS}WatchConversations",
        ),
        Role.READER,
    ),
    **dict.fromkeys(
        (
            f"{CONVERSATIONS}AnswerQuestion",
            f"{CONVERSATIONS}ArchiveConversation",
            f"{CONVERSATIONS}CancelConversation",
            f"{CONVERSATIONS}ContinueConversation",
            f"{CONVERSATIONS}CreateApprovalRule",
            f"{CONVERSATIONS}CreateConversation",
            f"{CONVERSATIONS}DeleteApprovalRule",
            f"{CONVERSATIONS}DeleteConversation",
            f"{CONVERSATIONS}ForkConversation",
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
        Role.USER,
    ),
    f"{CATALOG}ListNodes": Role.OPERATOR,
    f"{CONVERSATIONS}ListAuditEntries": Role.OPERATOR,
}
"""The required role by the full name of the method."""


def check_role(method: str, role: Role) -> None:
    """Raise Rejected if a caller with this role may not call the method. Nobody may call a method without an entry."""
    needed = NEEDED.get(method)
    if needed is None or not role.includes(needed):
        may = f"it needs the role {needed}" if needed else "nobody may"
        raise Rejected(Reason.PERMISSION_DENIED, f"this token has the role {role}, which may not do that: {may}")
