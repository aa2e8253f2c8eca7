"""Converts between resource names of the gRPC API, such as `conversations/abc`, and the ids in them."""

from __future__ import annotations

import re
from typing import Any

from server.contract.limits import MAX_NAME_CHARS

_SEGMENT = r"[A-Za-z0-9_.~:@+-]{1,128}"
_CONVERSATION = re.compile(rf"conversations/({_SEGMENT})")
_CHILD = {
    kind: re.compile(rf"conversations/({_SEGMENT})/{kind}/([^\x00-\x1f\x7f]{{1,256}})")
    for kind in ("messages", "approvals", "requestCycles", "attachments", "toolCalls", "questions", "approvalRules")
}
_OPERATOR_RULE = re.compile(r"approvalRules/([^\x00-\x1f\x7f]{1,256})")
_MODEL = re.compile(r"models/([!-~]{1,200})")
# The parent in a list request that stands for all conversations of the caller (Google's AIP-159).
ALL_CONVERSATIONS = "conversations/-"
_TOOL = re.compile(r"tools/([^\x00-\x1f\x7f]{1,256})")


def name_in(request: Any) -> str:
    """The resource name in a request, as the caller wrote it; "" if the request names no resource."""
    about = getattr(request, "conversation", request)
    name = about if isinstance(about, str) else getattr(about, "name", "") or getattr(about, "parent", "")
    return str(name)


def conversation_in(request: Any) -> str:
    """The name of the conversation in a request, or of the conversation that the resource belongs to; "" for none."""
    return "/".join(name_in(request).split("/")[:2])


def conversation(conversation_id: str) -> str:
    return f"conversations/{conversation_id}" if conversation_id else ""


def message(conversation_id: str, message_id: str) -> str:
    return f"conversations/{conversation_id}/messages/{message_id}"


def approval(conversation_id: str, tool_use_id: str) -> str:
    return f"conversations/{conversation_id}/approvals/{tool_use_id}"


def question(conversation_id: str, number: int) -> str:
    return f"conversations/{conversation_id}/questions/{number}"


def attachment(conversation_id: str, attachment_id: str) -> str:
    return f"conversations/{conversation_id}/attachments/{attachment_id}"


def approval_rule(conversation_id: str, rule_id: str) -> str:
    """The name of a conversation's rule, or the operator's if `conversation_id` is ""; "" for an empty rule id."""
    if not rule_id:
        return ""
    return f"conversations/{conversation_id}/approvalRules/{rule_id}" if conversation_id else f"approvalRules/{rule_id}"


def cycle(conversation_id: str, run: str) -> str:
    return f"conversations/{conversation_id}/requestCycles/{run}" if run else ""


def model(model_id: str) -> str:
    return f"models/{model_id}"


def tool(name: str) -> str:
    return f"tools/{name}"


def parse_conversation(name: str) -> str | None:
    """The id or slug in the resource name of a conversation; None if `name` is not such a name."""
    found = _CONVERSATION.fullmatch(name)
    return found.group(1) if found else None


def parse_child(name: str, kind: str) -> tuple[str, str] | None:
    """The conversation's id or slug, and the resource's id; None if `name` is not a name of this kind."""
    found = _CHILD[kind].fullmatch(name) if len(name) <= MAX_NAME_CHARS else None
    return (found.group(1), found.group(2)) if found else None


def parse_approval_rule(name: str) -> tuple[str, str] | None:
    """The conversation's id or slug ("" for an operator's rule), and the rule's id; None for any other name."""
    found = _OPERATOR_RULE.fullmatch(name) if len(name) <= MAX_NAME_CHARS else None
    return ("", found.group(1)) if found else parse_child(name, "approvalRules")


def parse_model(name: str) -> str | None:
    found = _MODEL.fullmatch(name)
    return found.group(1) if found else None


def parse_tool(name: str) -> str | None:
    found = _TOOL.fullmatch(name)
    return found.group(1) if found else None
