"""The table of all requests, with a rule for each of their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock import v1

from server.contract import limits
from server.contract.field_rules import (
    Rule,
    approval_rule_name,
    budget,
    child_name,
    client_tool_name,
    client_tool_time,
    client_tools,
    conversation_filter,
    conversation_name,
    conversation_order,
    files,
    flag,
    generation,
    images,
    instructions,
    known,
    labels,
    mcp_servers,
    message_text,
    model_name,
    not_negative,
    optional,
    path,
    rule_of_answer,
    selection,
    since_1970,
    slug,
    sub_agent_time,
    task_text,
    tasks,
    text_up_to,
    title,
    tool_name,
    tool_output,
    turns,
    uuid,
    waiting_time,
    whole_approval_rule,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

UPDATABLE_FIELDS: dict[str, Rule] = {
    "slug": slug,
    "title": title,
    "model": model_name,
    "labels": labels,
    "approval_policy": known(v1.ApprovalPolicy),
    "follow_up_policy": known(v1.FollowUpPolicy),
    "budget": budget,
    "client_tools": client_tools,
    "generation": generation,
    "mcp_servers": mcp_servers,
    "auto_continue": flag,
}
"""The rules for the fields of a conversation that UpdateConversation may set."""

CREATED_FIELDS: dict[str, Rule] = {
    "working_directory": path,
    "model": optional(model_name),
    "slug": optional(slug),
    "title": title,
    "mode": known(v1.Mode),
    "labels": labels,
    "approval_policy": known(v1.ApprovalPolicy),
    "follow_up_policy": known(v1.FollowUpPolicy),
    "budget": budget,
    "instructions": instructions,
    "tools": selection,
    "client_tools": client_tools,
    "generation": generation,
    "mcp_servers": mcp_servers,
}
"""The rules for the fields of a conversation that CreateConversation reads."""

CLIENT_TOOL_FIELDS: tuple[tuple[str, Rule], ...] = (
    ("name", client_tool_name),
    ("description", text_up_to(limits.MAX_TOOL_DESCRIPTION_CHARS)),
    ("group", known(v1.ToolGroup)),
    ("timeout", client_tool_time),
)
"""The rules for the fields of a client tool. Its schema is checked later."""

TASK_FIELDS: tuple[tuple[str, Rule], ...] = (
    ("task", task_text),
    ("model", optional(model_name)),
    ("max_turns", turns),
    ("timeout", sub_agent_time),
    ("read_first", files),
    ("working_directory", optional(path)),
)
"""The rules for the fields of a task of SpawnSubAgents."""

_PAGE: tuple[tuple[str, Rule], ...] = (
    ("page_size", not_negative),
    ("page_token", text_up_to(limits.MAX_PAGE_TOKEN_CHARS)),
)

_SELECTION: tuple[tuple[str, Rule], ...] = (("filter", conversation_filter), ("order_by", conversation_order))

_CYCLE: tuple[tuple[str, Rule], ...] = (
    ("name", child_name("requestCycles")),
    ("view", known(v1.ListRequestCyclesRequest.View)),
)

RULES: dict[type[Message], tuple[tuple[str, Rule], ...]] = {
    v1.CreateConversationRequest: (
        *((f"conversation.{field}", rule) for field, rule in CREATED_FIELDS.items()),
        ("request_id", optional(uuid)),
    ),
    v1.GetConversationRequest: (("name", conversation_name),),
    v1.ListConversationsRequest: (
        *_PAGE,
        ("parent", optional(conversation_name)),
        *_SELECTION,
    ),
    v1.UpdateConversationRequest: (("conversation.name", conversation_name),),
    v1.ArchiveConversationRequest: (("name", conversation_name),),
    v1.UnarchiveConversationRequest: (("name", conversation_name),),
    v1.DeleteConversationRequest: (("name", conversation_name), ("etag", text_up_to(limits.MAX_ETAG_CHARS))),
    v1.SendMessageRequest: (
        ("name", conversation_name),
        ("images", images),
        ("text", message_text),
        ("delivery", known(v1.Delivery)),
        ("request_id", optional(uuid)),
        ("expected_run", optional(child_name("requestCycles"))),
        ("generation", generation),
    ),
    v1.CancelConversationRequest: (
        ("name", conversation_name),
        ("run", optional(child_name("requestCycles"))),
        ("reason", text_up_to(limits.MAX_REASON_CHARS)),
    ),
    v1.ResolveApprovalRequest: (
        ("name", child_name("approvals")),
        ("decision", known(v1.ApprovalDecision, v1.APPROVAL_DECISION_WITHDRAWN, required=True)),
        ("note", text_up_to(limits.MAX_NOTE_CHARS)),
        ("rule", rule_of_answer),
    ),
    v1.SubmitToolResultRequest: (
        ("name", child_name("toolCalls")),
        ("output", tool_output),
        ("images", images),
        ("error", tool_output),
        ("request_id", optional(uuid)),
    ),
    v1.AnswerQuestionRequest: (("name", child_name("questions")), ("request_id", optional(uuid))),
    v1.CreateApprovalRuleRequest: (
        ("parent", conversation_name),
        ("approval_rule", whole_approval_rule),
        ("request_id", optional(uuid)),
    ),
    v1.DeleteApprovalRuleRequest: (("name", child_name("approvalRules")),),
    v1.GetApprovalRuleRequest: (("name", approval_rule_name),),
    v1.ListApprovalRulesRequest: (("parent", conversation_name), *_PAGE),
    v1.SetModeRequest: (("name", conversation_name), ("mode", known(v1.Mode, required=True))),
    v1.TriggerContinuationRequest: (("name", conversation_name),),
    v1.ContinueConversationRequest: (("name", conversation_name), ("request_id", optional(uuid))),
    v1.ForkConversationRequest: (
        ("name", conversation_name),
        ("request_cycle", optional(child_name("requestCycles"))),
        *((field, CREATED_FIELDS[field]) for field in ("slug", "title")),
        ("request_id", optional(uuid)),
    ),
    v1.SpawnSubAgentsRequest: (("name", conversation_name), ("tasks", tasks), ("request_id", optional(uuid))),
    v1.DownloadAttachmentRequest: (("name", child_name("attachments")),),
    v1.ListMessagesRequest: (("parent", conversation_name), *_PAGE, ("after_sequence", not_negative)),
    v1.ListQueueRequest: (("parent", conversation_name), *_PAGE),
    v1.WithdrawMessageRequest: (("name", child_name("messages")),),
    v1.ListRequestCyclesRequest: (
        ("parent", conversation_name),
        *_PAGE,
        ("view", known(v1.ListRequestCyclesRequest.View)),
    ),
    v1.ListAuditEntriesRequest: (
        *_PAGE,
        ("start_time", since_1970),
        ("end_time", since_1970),
        ("principal", text_up_to(limits.MAX_PRINCIPAL_CHARS)),
        ("conversation", optional(conversation_name)),
        ("outcome", known(v1.AuditEntry.Outcome)),
    ),
    v1.GetMessageRequest: (("name", child_name("messages")),),
    v1.ListApprovalsRequest: (("parent", conversation_name), *_PAGE),
    v1.GetApprovalRequest: (("name", child_name("approvals")),),
    v1.ListQuestionsRequest: (("parent", conversation_name), *_PAGE),
    v1.GetQuestionRequest: (("name", child_name("questions")),),
    v1.GetAttachmentRequest: (("name", child_name("attachments")),),
    v1.GetRequestCycleRequest: _CYCLE,
    v1.WaitRequestCycleRequest: (*_CYCLE, ("timeout", waiting_time)),
    v1.VerifyConversationRequest: (("name", conversation_name),),
    v1.ReplayConversationRequest: (("name", conversation_name), ("until_revision", not_negative)),
    v1.ExportConversationRequest: (("name", conversation_name),),
    v1.SubscribeRequest: (
        ("name", conversation_name),
        ("after_revision", not_negative),
        ("recent_messages", not_negative),
    ),
    v1.WatchConversationsRequest: _SELECTION,
    v1.BrowseDirectoryRequest: (("path", optional(path)), *_PAGE),
    v1.ListModelsRequest: _PAGE,
    v1.ListNodesRequest: _PAGE,
    v1.ListToolsRequest: _PAGE,
    v1.GetModelRequest: (("name", model_name),),
    v1.GetToolRequest: (("name", tool_name),),
    v1.GetServerInfoRequest: (),
    v1.GetQuotasRequest: (),
}
"""The rules for the fields of every request that this version of the server accepts."""
