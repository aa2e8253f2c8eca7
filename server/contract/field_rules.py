"""Rules for fields of requests: functions that take a field's value and return what is wrong with it, or None."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from bedrock import v1

from actors.core.content import LATEST_MS
from actors.runtime.system_clock import has_form_of_id
from server.contract import limits
from server.contract import resource_names as names
from server.contract.filters.fields import meaning
from server.contract.filters.order_by import order_of
from server.contract.filters.syntax import FilterError, parse

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp

Rule: TypeAlias = Callable[[Any], str | None]

LATEST_SECONDS = LATEST_MS // 1000
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SERVER = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_VISIBLE = re.compile(r"[^\x00-\x20]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
NO_SUBJECT = "must be about one of tool, command, command_prefix, path and mcp_server"


def conversation_name(value: str) -> str | None:
    """Check that a value is the name of a conversation, which is required. Return what is wrong, or None."""
    if not value:
        return "is required: conversations/{conversation}"
    if names.parse_conversation(value) is None:
        return "must be conversations/{conversation}, with the id or the slug"
    return None


def child_name(kind: str) -> Rule:
    """Return a rule that accepts only names like `conversations/abc/KIND/xyz`, with this kind."""

    def rule(value: str) -> str | None:
        if not value:
            return f"is required: conversations/{{conversation}}/{kind}/…"
        return None if names.parse_child(value, kind) else f"must be conversations/{{conversation}}/{kind}/…"

    return rule


def approval_rule_name(value: str) -> str | None:
    """Check that a value is the name of an approval rule, which belongs to a conversation or to the operator.

    Return what is wrong, or None.
    """
    if names.parse_approval_rule(value):
        return None
    return "must be conversations/{conversation}/approvalRules/… or approvalRules/…; ListApprovalRules names them"


def model_name(value: str) -> str | None:
    """Check that a value is the name of a model. Return what is wrong, or None."""
    return None if names.parse_model(value) else "must be models/{model}; ListModels names them"


def tool_name(value: str) -> str | None:
    """Check that a value is the name of a tool. Return what is wrong, or None."""
    return None if names.parse_tool(value) else "must be tools/{tool}; ListTools names them"


def optional(rule: Rule) -> Rule:
    """Return a rule that accepts an empty value, and checks any other value by `rule`."""
    return lambda value: rule(value) if value else None


def known(enum: Any, *refused: int, required: bool = False) -> Rule:
    """Return a rule that accepts only the values that `enum` defines, without those in `refused`.

    proto3 itself accepts any number. With `required`, the rule also refuses zero, the unset value.
    """
    allowed = [number for number in enum.values() if number not in refused and (number or not required)]
    offered = ", ".join(enum.Name(number) for number in allowed if number)
    return lambda value: None if value in allowed else f"must be one of {offered}"


def text_up_to(characters: int) -> Rule:
    """Return a rule for text with at most this many characters and without NUL; line breaks are allowed."""

    def rule(value: str) -> str | None:
        if len(value) > characters:
            return f"must have at most {characters} characters"
        return "must not contain a NUL character" if "\0" in value else None

    return rule


def title(value: str) -> str | None:
    """Check a title: one line, of limited length. Return what is wrong, or None."""
    if _CONTROL.search(value):
        return "must not contain control characters"
    return text_up_to(limits.MAX_TITLE_CHARS)(value)


def slug(value: str) -> str | None:
    """Check a slug (a readable name for a conversation), which must not look like an id.

    Return what is wrong, or None.
    """
    if len(value) > limits.MAX_SLUG_CHARS or not _SLUG.fullmatch(value):
        return f"must be lower-case letters, digits and inner hyphens, at most {limits.MAX_SLUG_CHARS}"
    if has_form_of_id(value):
        return "must not have the form of a conversation's id; another length or another hyphen will do"
    return None


def message_text(value: str) -> str | None:
    """Check the size of a message's text, in bytes of UTF-8. Return what is wrong, or None."""
    if len(value) > limits.MAX_TEXT_BYTES or len(value.encode()) > limits.MAX_TEXT_BYTES:
        return f"must have at most {limits.MAX_TEXT_BYTES} bytes in UTF-8"
    return None


def images(value: Any) -> str | None:
    """Check the number of images. The images themselves are checked later. Return what is wrong, or None."""
    most = limits.MAX_IMAGES_PER_MESSAGE
    return f"must be at most {most}" if len(value) > most else None


def uuid(value: str) -> str | None:
    """Check a request id, which must be a UUID. Return what is wrong, or None."""
    return None if _UUID.fullmatch(value) else "must be a UUID, like 123e4567-e89b-12d3-a456-426614174000"


def path(value: str) -> str | None:
    """Check a path on the server, which is required. Return what is wrong, or None."""
    if not value:
        return "is required: an absolute path on the server"
    if "\0" in value:
        return "must not contain a NUL character"
    if len(value.encode()) > limits.MAX_PATH_BYTES:
        return f"must have at most {limits.MAX_PATH_BYTES} bytes"
    return None


def labels(value: Mapping[str, str]) -> str | None:
    """Check the number and the sizes of labels. Return what is wrong, or None."""
    if len(value) > limits.MAX_LABELS:
        return f"must have at most {limits.MAX_LABELS} entries"
    for key, text in value.items():
        if not key or len(key) > limits.MAX_LABEL_KEY_CHARS or _CONTROL.search(key):
            return f"keys must have 1 to {limits.MAX_LABEL_KEY_CHARS} characters, none of them a control character"
        if len(text) > limits.MAX_LABEL_VALUE_CHARS or "\0" in text:
            return f"values must have at most {limits.MAX_LABEL_VALUE_CHARS} characters and no NUL"
    return None


def tasks(value: Any) -> str | None:
    """Check the number of tasks. The tasks themselves are checked later. Return what is wrong, or None."""
    most = limits.SUB_AGENTS.per_call
    return None if 1 <= len(value) <= most else f"must be 1 to {most}"


def task_text(value: str) -> str | None:
    """Check the text of a sub-agent's task, which is required. Return what is wrong, or None."""
    most = limits.SUB_AGENTS.task_bytes
    if not value.strip():
        return "is required: what to do"
    if len(value.encode()) > most:
        return f"must have at most {most} bytes in UTF-8; put what is long into files, and name them in read_first"
    return "must not contain a NUL character" if "\0" in value else None


def turns(value: int) -> str | None:
    """Check a sub-agent's maximum number of turns. 0 means unset, and is accepted. Return what is wrong, or None."""
    most = limits.SUB_AGENTS.max_turns
    return None if 0 <= value <= most else f"must be 1 to {most}"


def sub_agent_time(value: Duration) -> str | None:
    """Check the time limit of a sub-agent. Zero means unset, and is accepted. Return what is wrong, or None."""
    least, most = limits.SUB_AGENTS.min_timeout_ms, limits.SUB_AGENTS.max_timeout_ms
    nanos = value.seconds * 10**9 + value.nanos
    if nanos == 0 or least * 10**6 <= nanos <= most * 10**6:
        return None
    return f"must be {least // 1000} to {most // 1000} seconds"


def waiting_time(value: Duration) -> str | None:
    """Check the time that WaitRequestCycle shall wait. Return what is wrong, or None."""
    if 0 <= value.seconds * 10**9 + value.nanos <= limits.MAX_WAIT_SECONDS * 10**9:
        return None
    return f"must be 0 to {limits.MAX_WAIT_SECONDS:g} seconds"


def since_1970(value: Timestamp) -> str | None:
    """Check that a time is between 1970 and the year 9999. Return what is wrong, or None."""
    seconds = value.seconds + value.nanos // 10**9
    if seconds < 0:
        return "must not be before 1970"
    return None if seconds <= LATEST_SECONDS else "must not be after the year 9999"


def files(value: Any) -> str | None:
    """Check the number of paths of files, and each path, which may be absolute or relative.

    Return what is wrong, or None.
    """
    most = limits.SUB_AGENTS.files
    if len(value) > most:
        return f"must be at most {most}"
    return next((f"must be paths on the server; one {text}" for each in value if (text := path(each))), None)


def tools(value: Any) -> str | None:
    """Check the number of tool names, and the form of each. Return what is wrong, or None."""
    if len(value) > limits.MAX_TOOL_NAMES or any(names.parse_tool(each) is None for each in value):
        return "must be names of tools, tools/{tool}"
    return None


def approval_rule(value: v1.ApprovalRule) -> str | None:
    """Check an approval rule: its subject (such as a tool or a path) is required; its action may be unset.

    Return what is wrong, or None.
    """
    if value.action not in v1.ApprovalRule.Action.values():
        return "must have one of the actions ACTION_ALLOW, ACTION_ASK and ACTION_DENY"
    subject = value.WhichOneof("subject")
    text: str = getattr(value, subject) if subject else ""
    if not _VISIBLE.search(text):
        return NO_SUBJECT
    if subject == "tool":
        return None if names.parse_tool(text) else "must name a tool as tools/{tool}"
    if subject == "mcp_server":
        return None if _SERVER.fullmatch(text) else "must name an MCP server: lower-case letters, digits and hyphens"
    if subject == "path" and not text.startswith("/"):
        return "must name a directory by its absolute path"
    return text_up_to(limits.MAX_RULE_CHARS)(text)


def rule_of_answer(value: v1.ApprovalRule) -> str | None:
    """Check the approval rule that a client creates with its answer to an approval; an empty rule is accepted.

    Return what is wrong, or None.
    """
    return approval_rule(value) if value.ByteSize() else None


def whole_approval_rule(value: v1.ApprovalRule) -> str | None:
    """Check an approval rule whose action and subject (such as a tool) are required. Return what is wrong, or None."""
    return approval_rule(value) if value.action else "must have an action: ACTION_ALLOW, ACTION_ASK or ACTION_DENY"


def budget(value: v1.Budget) -> str | None:
    """Check that no amount in a budget is negative. Return what is wrong, or None."""
    amounts = (value.run_tokens, value.conversation_tokens, value.conversation_cost_micros)
    return "must not be negative" if min(amounts) < 0 else None


def instructions(value: v1.Instructions) -> str | None:
    """Check the text of a conversation's instructions, which is required if it is to replace the server's prompt.

    Return what is wrong, or None.
    """
    if len(value.text.encode()) > limits.MAX_INSTRUCTIONS_BYTES:
        return f"text must have at most {limits.MAX_INSTRUCTIONS_BYTES} bytes in UTF-8"
    if "\0" in value.text:
        return "text must not contain a NUL character"
    return "text is required with replace" if value.replace and not value.text else None


def selection(value: v1.ToolSelection) -> str | None:
    """Check the names in a selection of tools.

    Whether the tools exist is checked later. Return what is wrong, or None.
    """
    return tools(value.tools)


def client_tools(value: Any) -> str | None:
    """Check the number of client tools. The tools themselves are checked later. Return what is wrong, or None."""
    most = limits.MAX_CLIENT_TOOLS
    return f"must be at most {most}" if len(value) > most else None


def client_tool_name(value: str) -> str | None:
    """Check the name of a client tool, which must have a form that every model provider accepts.

    Return what is wrong, or None.
    """
    return None if _TOOL_NAME.fullmatch(value) else "must be 1 to 64 letters, digits, _ and -"


def client_tool_time(value: Duration) -> str | None:
    """Check how long a call of a client tool waits for an answer.

    Zero means unset, and is accepted. Return what is wrong, or None.
    """
    least, most = limits.CLIENT_TOOL_SECONDS
    nanos = value.seconds * 10**9 + value.nanos
    return None if nanos == 0 or least * 10**9 <= nanos <= most * 10**9 else f"must be {least} to {most} seconds"


def mcp_servers(value: Any) -> str | None:
    """Check the number and the names of MCP servers.

    Their commands and addresses are checked later. Return what is wrong, or None.
    """
    if len(value) > limits.MAX_MCP_SERVERS:
        return f"must be at most {limits.MAX_MCP_SERVERS}"
    if any(not _SERVER.fullmatch(server.name) for server in value):
        return "must have names of 1 to 32 small letters, digits and -, which begin with no -"
    return None


TOOL_OUTPUT_TOO_LARGE = (
    f"must have at most {limits.MAX_TOOL_OUTPUT_BYTES} bytes in UTF-8; the call still waits: answer with less of it, "
    "or with an error"
)


def tool_output(value: str) -> str | None:
    """Check the size of a client's answer to a tool call, in bytes of UTF-8. Return what is wrong, or None."""
    return TOOL_OUTPUT_TOO_LARGE if len(value.encode()) > limits.MAX_TOOL_OUTPUT_BYTES else None


def generation(value: v1.Generation) -> str | None:
    """Check generation settings. Whether the model supports them is checked later. Return what is wrong, or None."""
    if value.reasoning_effort not in v1.ReasoningEffort.values():
        return "reasoning_effort must be one of none, low, medium, high, max"
    if value.HasField("temperature") and not 0 <= value.temperature <= limits.MAX_TEMPERATURE:
        return f"temperature must be from 0 to {limits.MAX_TEMPERATURE}"
    if value.HasField("max_output_tokens") and value.max_output_tokens < 1:
        return "max_output_tokens must be at least 1"
    return None


def flag(_: bool) -> str | None:
    """Check a yes or no: both are valid."""
    return None


def not_negative(value: int) -> str | None:
    """Check that a number is not negative. Return what is wrong, or None."""
    return "must not be negative" if value < 0 else None


def conversation_filter(value: str) -> str | None:
    """Check that a filter of conversations is not too long, and can be parsed. Return what is wrong, or None."""
    if len(value.encode()) > limits.MAX_FILTER_BYTES:
        return f"must have at most {limits.MAX_FILTER_BYTES} bytes in UTF-8"
    if "\0" in value:
        return "must not contain a NUL character"
    try:
        parse(value, meaning)
    except FilterError as error:
        return str(error)
    return None


def conversation_order(value: str) -> str | None:
    """Check that an order of conversations is not too long, and can be parsed. Return what is wrong, or None."""
    if len(value) > limits.MAX_ORDER_BY_CHARS:
        return f"must have at most {limits.MAX_ORDER_BY_CHARS} characters"
    try:
        order_of(value)
    except FilterError as error:
        return str(error)
    return None
