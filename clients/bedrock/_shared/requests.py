"""Builds the API's protobuf requests from the arguments of the client's methods."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from google.protobuf.field_mask_pb2 import FieldMask

from bedrock import v1
from bedrock._shared import wrapper
from bedrock._shared.wrapper import MessageT, Wrapper
from bedrock.catalog import McpServer
from bedrock.conversations import Budget, ClientTool, Generation, Instructions, Task, ToolSelection, quoted
from bedrock.messages import ToolCall
from bedrock.request_cycles import RequestCycle
from bedrock.states import Approval, ApprovalRule, Question
from bedrock.types import ApprovalDecision, AuditOutcome, CycleView, Delivery, Disposition, RuleAction

# An image: its bytes, the path of its file, or a protobuf message.
ImageSource = v1.Image | bytes | str | os.PathLike[str]

# The largest request that a server accepts.
MAX_REQUEST_BYTES = 32 * 1024 * 1024

# The longest wait in seconds that one WaitRequestCycle call may ask for.
LONGEST_WAIT = 600.0

_MAGIC = ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


class Page(Protocol):
    """The protobuf response of a List method, such as `v1.ListMessagesResponse`."""

    @property
    def next_page_token(self) -> str:
        """The token with which to request the next page; "" on the last page."""
        ...


def new_request_id() -> str:
    return str(uuid.uuid4())


def create(
    working_directory: str | os.PathLike[str] | None,
    *,
    client_tools: Sequence[ClientTool],
    allow_unoffered: bool,
    request_id: str | None,
    **settings: Any,
) -> v1.CreateConversationRequest:
    """Make the request that creates a conversation, by default in the current directory.

    Raises what `_conversation` raises.
    """
    directory = str(Path(working_directory or ".").absolute())
    return v1.CreateConversationRequest(
        conversation=_conversation(working_directory=directory, client_tools=client_tools, **settings),
        request_id=request_id or new_request_id(),
        refuse_unoffered_tools=bool(client_tools) and not allow_unoffered,
    )


def _conversation(**settings: Any) -> v1.Conversation:
    """Make the message of a conversation, with the settings that are not None.

    Raises TypeError, which names the setting, or ValueError for an unknown name or a number out of range.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    converted = {name: convert(given[name]) for name, convert in _SETTINGS.items() if name in given}
    return wrapper.new_message(v1.Conversation, **given | converted)


def conversations(
    *,
    archived: bool | None,
    parent: str,
    working_directory: str | os.PathLike[str] | None = None,
    filter: str = "",  # noqa: A002 -- the name of the field in the API
    order_by: str = "",
) -> v1.ListConversationsRequest:
    """Make the request that lists conversations, or the sub-agents of `parent`.

    None as an argument means no restriction.
    """
    parts = [filter] if filter.strip() else []  # OR binds tighter than AND, so the filter needs no parentheses
    if archived is not None:
        parts.append(f"archived = {str(archived).lower()}")
    if working_directory is not None:
        parts.append(f"working_directory = {quoted(str(Path(working_directory).absolute()))}")
    return v1.ListConversationsRequest(
        parent=wrapper.resource_name("conversations", parent) if parent else "",
        filter=" AND ".join(parts),
        order_by=order_by,
    )


def audit(
    *, since: datetime | None, until: datetime | None, principal: str, conversation: str, outcome: AuditOutcome | None
) -> v1.ListAuditEntriesRequest:
    """Make the request that reads the audit trail. Raises ValueError if a time has no time zone."""
    about = wrapper.resource_name("conversations", conversation) if conversation else ""
    request = wrapper.new_message(v1.ListAuditEntriesRequest, principal=principal, conversation=about, outcome=outcome)
    for field, time in ((request.start_time, since), (request.end_time, until)):
        if time is None:
            continue
        if time.tzinfo is None:
            raise ValueError("since and until must have a time zone")
        field.FromDatetime(time)
    return request


def send(
    name: str,
    text: str,
    *,
    delivery: Delivery | None = None,
    images: ImageSource | Sequence[ImageSource] = (),
    generation: Generation | None = None,
    request_id: str | None = None,
    **fields: Any,
) -> v1.SendMessageRequest:
    """Make the request that sends a message; `fields` are further fields of the request.

    Raises TypeError, which names the argument, ValueError for an unknown delivery or image format, or OSError.
    """
    return wrapper.new_message(
        v1.SendMessageRequest, name=name, text=text, images=image_messages(images),
        delivery=wrapper.enum_value(v1.Delivery, delivery), generation=_proto("generation", generation, Generation),
        request_id=request_id or new_request_id(), **fields,
    )  # fmt: skip


def cancel_abandoned(name: str, run: str) -> v1.CancelConversationRequest:
    return v1.CancelConversationRequest(name=name, run=run, reason="the caller is no longer waiting for the answer")


def latest_cycles(name: str) -> v1.ListRequestCyclesRequest:
    return v1.ListRequestCyclesRequest(parent=name, view=v1.ListRequestCyclesRequest.VIEW_FULL, descending=True)


def child_name(conversation: str, kind: str, name: str) -> str:
    """``{conversation}/{kind}/{id}``, where `name` is that full name or only the id; "" if `name` is empty."""
    child = name.rpartition(f"{kind}/")[2]
    return f"{conversation}/{kind}/{child}" if child else ""


def cycle_name(conversation: str, run: RequestCycle | str) -> str:
    return child_name(conversation, "requestCycles", run if isinstance(run, str) else run.name)


def wait_for_cycle(
    conversation: str, run: RequestCycle | str, view: CycleView, seconds: float | None
) -> v1.WaitRequestCycleRequest:
    """Make the request that waits for a run to end, for `seconds` or `LONGEST_WAIT`, whichever is shorter."""
    request = v1.WaitRequestCycleRequest(
        name=cycle_name(conversation, run), view=wrapper.enum_value(v1.ListRequestCyclesRequest.View, view)
    )
    request.timeout.FromNanoseconds(int(1e9 * min(LONGEST_WAIT if seconds is None else seconds, LONGEST_WAIT)))
    return request


def disposition(response: v1.SendMessageResponse | v1.SpawnSubAgentsResponse) -> Disposition | Literal[""]:
    """What the server did with a message, e.g. "steer_queued"; "direct" for a call that spawns sub-agents."""
    if isinstance(response, v1.SendMessageResponse):
        return cast("Disposition", wrapper.enum_name(v1.Disposition, response.disposition))
    return "direct"


def sub_agents(response: v1.SendMessageResponse | v1.SpawnSubAgentsResponse) -> list[str]:
    return list(response.sub_agents) if isinstance(response, v1.SpawnSubAgentsResponse) else []


def spawn(name: str, tasks: Sequence[str | Task], request_id: str | None) -> v1.SpawnSubAgentsRequest:
    """Make the request that starts sub-agents; a task may be a string. Raises TypeError if `tasks` is not a list."""
    wrapper.check_list("tasks", tasks)
    return v1.SpawnSubAgentsRequest(
        name=name,
        tasks=[(Task(task=task) if isinstance(task, str) else task).to_proto() for task in tasks],
        request_id=request_id or new_request_id(),
    )


def resolve(
    conversation: str, approval: Approval | str, decision: ApprovalDecision, note: str, rule: ApprovalRule | None = None
) -> v1.ResolveApprovalRequest:
    """Make the request that answers an approval and creates `rule`, if any.

    Raises ValueError for an unknown decision.
    """
    name = approval.name if isinstance(approval, Approval) else approval
    if "/approvals/" not in name:
        name = f"{conversation}/approvals/{name}"
    return v1.ResolveApprovalRequest(
        name=name,
        decision=wrapper.enum_value(v1.ApprovalDecision, decision),
        note=note,
        rule=None if rule is None else v1.ApprovalRule(**_subject(**{rule.kind: rule.subject})),
    )


def create_approval_rule(conversation: str, action: RuleAction, **subject: str) -> v1.CreateApprovalRuleRequest:
    """Make the request that creates a rule. Raises ValueError for an unknown action, or without exactly one subject."""
    rule = wrapper.new_message(
        v1.ApprovalRule, action=wrapper.enum_value(v1.ApprovalRule.Action, action), **_subject(**subject)
    )
    return v1.CreateApprovalRuleRequest(parent=conversation, approval_rule=rule, request_id=new_request_id())


def approval_rule_name(conversation: str, rule: ApprovalRule | str) -> str:
    """The resource name of an approval rule, given as an object, its name, or its id."""
    name = rule.name if isinstance(rule, ApprovalRule) else rule
    return name if "/" in name else f"{conversation}/approvalRules/{name}"


def _subject(**given: str) -> dict[str, Any]:
    """The subject as keyword arguments of `v1.ApprovalRule`. Raises ValueError unless exactly one is given."""
    chosen = {name: value for name, value in given.items() if value}
    if len(chosen) != 1:
        raise ValueError("give exactly one of tool, command, command_prefix, path or mcp_server")
    return {name: wrapper.resource_name("tools", value) if name == "tool" else value for name, value in chosen.items()}


def update(
    name: str, *, allow_unoffered: bool, merge_generation: bool, etag: str, **settings: Any
) -> v1.UpdateConversationRequest:
    """Make the request that changes the settings that are not None; `merge_generation` keeps other generation settings.

    Raises what `_conversation` raises.
    """
    conversation = _conversation(name=name, etag=etag, **settings)
    mask = FieldMask(paths=[field for field, value in settings.items() if value is not None])
    if merge_generation and "generation" in mask.paths:
        mask.paths.remove("generation")
        mask.paths.extend(f"generation.{field.name}" for field, _ in conversation.generation.ListFields())
    refuse = bool(conversation.client_tools) and not allow_unoffered
    return v1.UpdateConversationRequest(conversation=conversation, update_mask=mask, refuse_unoffered_tools=refuse)


def _proto(name: str, value: Wrapper[MessageT] | None, kind: type[Wrapper[Any]], or_text: str = "") -> MessageT | None:
    if value is None or isinstance(value, kind):
        return None if value is None else value.proto
    raise TypeError(f"{name}: must be a {or_text}bedrock.{kind.__name__}, not {type(value)!r}")


def _protos(name: str, values: Sequence[Wrapper[MessageT]], kind: type[Wrapper[Any]]) -> list[MessageT]:
    wrapper.check_list(name, values)
    for value in values:
        if not isinstance(value, kind):
            raise TypeError(f"{name}: must be a list of bedrock.{kind.__name__}, not of {type(value)!r}")
    return [value.proto for value in values]


def _instructions(given: str | Instructions) -> v1.Instructions | None:
    return _proto("instructions", Instructions(given) if isinstance(given, str) else given, Instructions, "str or ")


def _selection_message(tools: Sequence[str]) -> v1.ToolSelection:
    wrapper.check_list("tools", tools)
    return ToolSelection(tuple(wrapper.resource_name("tools", tool) for tool in tools)).proto


# How settings become fields of the conversation message; settings that are missing here need no conversion.
_SETTINGS: dict[str, Callable[[Any], Any]] = {
    "model": lambda model: wrapper.resource_name("models", model) if model else "",
    "mode": partial(wrapper.enum_value, v1.Mode),
    "approval_policy": partial(wrapper.enum_value, v1.ApprovalPolicy),
    "follow_up_policy": partial(wrapper.enum_value, v1.FollowUpPolicy),
    "budget": lambda budget: _proto("budget", budget, Budget),
    "instructions": _instructions,
    "tools": _selection_message,
    "client_tools": lambda tools: _protos("client_tools", tools, ClientTool),
    "generation": lambda generation: _proto("generation", generation, Generation),
    "mcp_servers": lambda servers: _protos("mcp_servers", servers, McpServer),
}


def declare(conversation: str, tools: Iterable[v1.ClientTool]) -> v1.UpdateConversationRequest:
    wanted = v1.Conversation(name=conversation, client_tools=tools)
    return v1.UpdateConversationRequest(conversation=wanted, update_mask=FieldMask(paths=["client_tools"]))


def tool_result(
    conversation: str,
    call: ToolCall | str,
    output: str = "",
    *,
    json: Mapping[str, Any] | None = None,
    images: ImageSource | Sequence[ImageSource] = (),
    error: str = "",
    request_id: str | None = None,
) -> v1.SubmitToolResultRequest:
    """Make the request that answers a client tool call.

    Raises TypeError, which names the argument, ValueError for an unknown image format, or OSError.
    """
    call_id = call if isinstance(call, str) else call.tool_use_id
    return wrapper.new_message(
        v1.SubmitToolResultRequest, name=f"{conversation}/toolCalls/{call_id}", output=output, error=error, json=json,
        images=image_messages(images), request_id=request_id or new_request_id(),
    )  # fmt: skip


def answer_question(
    conversation: str, question: Question | str, content: Mapping[str, Any] | None, request_id: str | None
) -> v1.AnswerQuestionRequest:
    """Make the request that answers a tool's question. Raises TypeError if `content` is not a dict of JSON values."""
    request = _to_question(conversation, question, request_id)
    if content is not None:
        request.content.CopyFrom(wrapper.struct_message("content", content))
    return request


def decline_question(conversation: str, question: Question | str, request_id: str | None) -> v1.AnswerQuestionRequest:
    request = _to_question(conversation, question, request_id)
    request.decline = True
    return request


def _to_question(conversation: str, question: Question | str, request_id: str | None) -> v1.AnswerQuestionRequest:
    name = question if isinstance(question, str) else question.name
    return v1.AnswerQuestionRequest(
        name=child_name(conversation, "questions", name), request_id=request_id or new_request_id()
    )


def image_messages(sources: ImageSource | Sequence[ImageSource]) -> list[v1.Image]:
    if isinstance(sources, v1.Image | bytes | str | os.PathLike):
        return [image(sources)]
    wrapper.check_list("images", sources)
    return [image(source) for source in sources]


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Read a file or pipe that a user has named.

    Raises OSError for a device, a directory, or a file that is too large.
    """
    with open(path, "rb") as file:
        kind = os.fstat(file.fileno()).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            raise OSError(errno.EINVAL, "it is neither a file nor a pipe", os.fspath(path))
        content = file.read(MAX_REQUEST_BYTES + 1)
    if len(content) > MAX_REQUEST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_REQUEST_BYTES >> 20} MiB", os.fspath(path))
    return content


def image(source: ImageSource) -> v1.Image:
    """Make the message of an image. Raises TypeError, OSError, or ValueError (neither PNG, JPEG, GIF nor WebP)."""
    if isinstance(source, v1.Image):
        return source
    if not isinstance(source, bytes | str | os.PathLike):
        raise TypeError(f"images: must be paths or bytes, not {source!r}")
    content = source if isinstance(source, bytes) else read_file(source)
    for magic, media_type in _MAGIC:
        if content.startswith(magic):
            return v1.Image(media_type=media_type, data=content)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return v1.Image(media_type="image/webp", data=content)
    raise ValueError("the image is not a PNG, JPEG, GIF or WebP file")
