"""Converts API requests to commands for the actors, and their results to responses.

The functions are named after the API methods. docs/contributing.md lists the places to change for a new request field.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from typing import Any, TypeVar

from bedrock import v1
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from actors import messages as requests
from actors.common import json_schema as output_schema
from actors.common.terminal_text import without_escapes
from actors.conversation import settings
from actors.core.content import Delivery, Image, ToolError, ToolSuccess
from actors.core.context import (
    ApprovalPolicy,
    Budget,
    ClientTool,
    FollowUpPolicy,
    Generation,
    Mode,
    Profile,
    ReasoningEffort,
    ToolGroup,
)
from actors.core.notifications import Fate
from actors.core.states import RunOptions
from server.contract import limits
from server.contract import resource_names as names
from server.contract.errors import MalformedRequestError
from server.contract.validation import UPDATABLE, key_of_label, paths_to_set
from server.wire import conversation_messages, messages
from server.wire.messages import plain

M = TypeVar("M", bound=Message)

_MODE: dict[int, Mode] = {number: mode for mode, number in messages.MODE.items()}
_APPROVAL_POLICY: dict[int, ApprovalPolicy] = {number: policy for policy, number in messages.APPROVAL_POLICY.items()}
_FOLLOW_UP_POLICY: dict[int, FollowUpPolicy] = {number: policy for policy, number in messages.FOLLOW_UP_POLICY.items()}
_TOOL_GROUP: dict[int, ToolGroup] = {number: group for group, number in messages.TOOL_GROUP.items()}
_REASONING_EFFORT: dict[int, ReasoningEffort] = {number: effort for effort, number in messages.REASONING_EFFORT.items()}
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_DELIVERY: dict[int, Delivery] = {
    v1.DELIVERY_UNSPECIFIED: Delivery.REJECT,
    v1.DELIVERY_DIRECT: Delivery.REJECT,
    v1.DELIVERY_STEER: Delivery.STEER,
    v1.DELIVERY_FOLLOW_UP: Delivery.FOLLOW_UP,
}


def body_hash(request: Message, *apart: str) -> str:
    """A hash that identifies a repeated request: over all fields except the request id and the fields `apart`."""
    body = type(request)()
    body.CopyFrom(request)
    for field in ("request_id", *apart):
        body.ClearField(field)
    return hashlib.sha256(body.SerializeToString(deterministic=True)).hexdigest()


def create_conversation(request: v1.CreateConversationRequest, principal: str) -> requests.CreateConversationCommand:
    wanted = request.conversation
    return requests.CreateConversationCommand(
        principal=principal,
        working_directory=wanted.working_directory,
        model=names.parse_model(wanted.model) or "",
        slug=wanted.slug,
        title=wanted.title,
        mode=_MODE.get(wanted.mode),
        labels=dict(wanted.labels),
        approval_policy=_APPROVAL_POLICY.get(wanted.approval_policy, ApprovalPolicy.AUTO),
        follow_up_policy=_FOLLOW_UP_POLICY.get(wanted.follow_up_policy, FollowUpPolicy.ALWAYS),
        budget=_budget(wanted.budget),
        profile=_profile(wanted),
        refuse_unoffered_tools=request.refuse_unoffered_tools,
        request_id=request.request_id.lower(),
        body_hash=body_hash(request),
    )


def _profile(wanted: v1.Conversation) -> Profile:
    chosen = tuple(name for each in wanted.tools.tools if (name := names.parse_tool(each)))
    return Profile(
        instructions=wanted.instructions.text,
        replaces_prompt=wanted.instructions.replace,
        tools=chosen if wanted.HasField("tools") else None,
        client_tools=_client_tools(wanted),
        generation=_generation(wanted.generation),
        mcp_servers=conversation_messages.chosen_mcp_servers(wanted.mcp_servers),
        auto_continue=wanted.auto_continue,
    )


def _generation(value: v1.Generation) -> Generation:
    return Generation(
        _REASONING_EFFORT.get(value.reasoning_effort),
        value.temperature if value.HasField("temperature") else None,
        value.max_output_tokens,
    )


def _client_tools(wanted: v1.Conversation) -> tuple[ClientTool, ...]:
    return tuple(_client_tool(index, tool) for index, tool in enumerate(wanted.client_tools))


def _client_tool(index: int, tool: v1.ClientTool) -> ClientTool:
    standard = ClientTool(tool.name)
    field = f"conversation.client_tools[{index}].input_schema"
    schema = _schema_text(tool.input_schema, field, settings.MAX_SCHEMA_BYTES)
    return ClientTool(
        name=tool.name,
        description=tool.description,
        input_schema=schema if tool.input_schema.fields else standard.input_schema,
        group=_TOOL_GROUP.get(tool.group, ToolGroup.OTHER),
        timeout_ms=tool.timeout.ToMilliseconds() or standard.timeout_ms,
        read_only=tool.read_only,
        requires_approval=tool.requires_approval,
    )


def update_conversation(request: v1.UpdateConversationRequest) -> requests.UpdateConversationCommand:
    """Convert an update. Settings that the mask does not name are None."""
    wanted, mask = request.conversation, set(paths_to_set(request, UPDATABLE))
    keys = () if "labels" in mask else (key_of_label(each) for each in mask if each.startswith("labels."))
    amounts = () if "budget" in mask else _inner(mask, "budget")
    settings = () if "generation" in mask else _inner(mask, "generation")
    generation = _generation(wanted.generation)
    return requests.UpdateConversationCommand(
        etag=wanted.etag,
        slug=wanted.slug if "slug" in mask else None,
        title=wanted.title if "title" in mask else None,
        model=names.parse_model(wanted.model) if "model" in mask else None,
        labels=dict(wanted.labels) if "labels" in mask else None,
        some_labels={key: wanted.labels.get(key) for key in keys},
        approval_policy=(
            _APPROVAL_POLICY.get(wanted.approval_policy, ApprovalPolicy.AUTO) if "approval_policy" in mask else None
        ),
        follow_up_policy=(
            _FOLLOW_UP_POLICY.get(wanted.follow_up_policy, FollowUpPolicy.ALWAYS)
            if "follow_up_policy" in mask
            else None
        ),
        budget=_budget(wanted.budget) if "budget" in mask else None,
        some_amounts={amount: getattr(wanted.budget, amount) for amount in amounts},
        client_tools=_client_tools(wanted) if "client_tools" in mask else None,
        refuse_unoffered_tools=request.refuse_unoffered_tools,
        generation=generation if "generation" in mask else None,
        some_generation={name: getattr(generation, name) for name in settings},
        mcp_servers=conversation_messages.chosen_mcp_servers(wanted.mcp_servers) if "mcp_servers" in mask else None,
        auto_continue=wanted.auto_continue if "auto_continue" in mask else None,
    )


def _inner(mask: Collection[str], field: str) -> list[str]:
    return [path.removeprefix(f"{field}.") for path in mask if path.startswith(f"{field}.")]


def send_message(request: v1.SendMessageRequest, images: tuple[Image, ...] = ()) -> requests.SendMessageCommand:
    """`images` are references to stored images."""
    return requests.SendMessageCommand(
        text=request.text,
        images=images,
        delivery=_DELIVERY[request.delivery].value,
        expected_run=run_in(request.expected_run),
        options=RunOptions(
            generation=_generation(request.generation) if request.HasField("generation") else None,
            output_schema=_schema_text(request.output_schema, "output_schema", output_schema.MAX_SCHEMA_BYTES)
            if request.HasField("output_schema")
            else "",
        ),
        request_id=request.request_id.lower(),
        body_hash=body_hash(request, "name"),
    )


def cancel_conversation(request: v1.CancelConversationRequest) -> requests.CancelConversationCommand:
    return requests.CancelConversationCommand(
        run_id=run_in(request.run),
        discard_queued=request.discard_queued,
        kill_jobs=request.kill_jobs,
        reason=request.reason,
    )


def resolve_approval(
    request: v1.ResolveApprovalRequest, tool_use_id: str, principal: str
) -> requests.ResolveApprovalCommand:
    """`principal` is recorded as the creator of a rule, if there is one."""
    return requests.ResolveApprovalCommand(
        tool_use_id=tool_use_id,
        approve=request.decision != v1.APPROVAL_DECISION_DENY,
        rule=conversation_messages.parsed_rule(request.rule) if request.HasField("rule") else None,
        note=request.note,
        principal=principal,
    )


def create_approval_rule(request: v1.CreateApprovalRuleRequest, principal: str) -> requests.CreateApprovalRuleCommand:
    """`principal` is recorded as the rule's creator."""
    return requests.CreateApprovalRuleCommand(
        rule=conversation_messages.parsed_rule(request.approval_rule),
        principal=principal,
        request_id=request.request_id.lower(),
        body_hash=body_hash(request, "parent"),
    )


def submit_tool_result(
    request: v1.SubmitToolResultRequest, tool_use_id: str, images: tuple[Image, ...]
) -> requests.SubmitToolResultCommand:
    """`images` are references to stored images.

    Raises MalformedRequestError for a JSON result that is too large, or has NaN or infinity.
    """
    result: ToolSuccess | ToolError
    if request.error:
        result = ToolError(tool_use_id, without_escapes(request.error))
    else:
        output = _json_output(request.json) if request.HasField("json") else without_escapes(request.output)
        result = ToolSuccess(tool_use_id, output, images)
    return requests.SubmitToolResultCommand(tool_use_id, result, request.request_id.lower(), body_hash(request, "name"))


def _json_output(value: Struct) -> str:
    text = _finite_text(value, "json")
    if len(text.encode()) > limits.MAX_TOOL_OUTPUT_BYTES:
        most = f"must have at most {limits.MAX_TOOL_OUTPUT_BYTES} bytes as JSON text; the call is still waiting: "
        raise MalformedRequestError(("json", f"{most}answer with less output or with an error"))
    return text


def _schema_text(schema: Struct, field: str, most: int) -> str:
    """The schema as JSON text.

    Raises MalformedRequestError, without converting the schema, if the text is certain to exceed `most` bytes: a Struct
    takes less than eight times as many bytes as its text.
    """
    if schema.ByteSize() > 8 * most:
        raise MalformedRequestError((field, f"must be at most {most} bytes of JSON"))
    return _finite_text(schema, field)


def _finite_text(value: Struct, field: str) -> str:
    try:
        return json_text(plain(value))
    except ValueError:
        raise MalformedRequestError((field, "must contain only finite numbers")) from None


def json_text(value: dict[str, Any]) -> str:
    """A JSON object as compact text. Raises ValueError for NaN and infinities, which JSON does not have."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def answer_question(request: v1.AnswerQuestionRequest, number: str) -> requests.AnswerQuestionCommand:
    """`number` comes from the question's name. Raises MalformedRequestError for NaN or infinity."""
    content = _finite_text(request.content, "content") if request.HasField("content") else ""
    return requests.AnswerQuestionCommand(
        number=int(number) if _NUMBER.fullmatch(number) else 0,
        accept=not request.decline,
        content=content,
        request_id=request.request_id.lower(),
        body_hash=body_hash(request, "name"),
    )


def set_mode(request: v1.SetModeRequest) -> requests.SetModeCommand:
    return requests.SetModeCommand(_MODE[request.mode], request.stop_running)


def continue_conversation(request: v1.ContinueConversationRequest) -> requests.ContinueConversationCommand:
    return requests.ContinueConversationCommand(
        include_summary=request.include_summary,
        request_id=request.request_id.lower(),
        body_hash=body_hash(request, "name"),
    )


def fork_conversation(
    request: v1.ForkConversationRequest, origin: str, principal: str
) -> requests.ForkConversationCommand:
    named_by_id = v1.ForkConversationRequest()
    named_by_id.CopyFrom(request)
    named_by_id.name = names.conversation(origin)
    return requests.ForkConversationCommand(
        principal=principal,
        origin=origin,
        run=run_in(request.request_cycle),
        slug=request.slug,
        title=request.title,
        request_id=request.request_id.lower(),
        body_hash=body_hash(named_by_id),
    )


def run_in(name: str) -> str:
    found = names.parse_child(name, "requestCycles") if name else None
    return found[1] if found else ""


def _budget(value: v1.Budget) -> Budget:
    return Budget(value.run_tokens, value.conversation_tokens, value.conversation_cost_micros)


def spawn_sub_agents(request: v1.SpawnSubAgentsRequest) -> requests.SpawnSubAgentsCommand:
    return requests.SpawnSubAgentsCommand(
        tasks=tuple(map(_task, request.tasks)),
        request_id=request.request_id.lower(),
        body_hash=body_hash(request, "name"),
    )


def _task(task: v1.SpawnSubAgentsRequest.Task) -> requests.SpawnSubAgentsTask:
    return requests.SpawnSubAgentsTask(
        task=task.task,
        model=names.parse_model(task.model) or "",
        max_turns=task.max_turns,
        timeout_ms=task.timeout.ToMilliseconds(),
        read_first=tuple(task.read_first),
        working_directory=task.working_directory,
    )


def submit_tool_result_response(
    conversion: messages.ConversionContext, conversation_id: str, answer: requests.SubmitToolResultResult
) -> v1.SubmitToolResultResponse:
    return v1.SubmitToolResultResponse(
        message=messages.message(conversion, conversation_id, answer.message), duplicate=answer.duplicate
    )


def send_message_response(
    conversion: messages.ConversionContext, conversation_id: str, answer: requests.SendMessageResult
) -> v1.SendMessageResponse:
    delivery = "steer" if answer.disposition == "steer_queued" else "follow_up"
    if answer.message is not None:
        message = messages.message(conversion, conversation_id, answer.message)
    elif answer.queued is not None:
        message = messages.queued_message(conversation_id, answer.queued, delivery, answer.run)
    else:
        message = v1.Message(name=names.message(conversation_id, answer.message_id), role=v1.ROLE_USER)
    return v1.SendMessageResponse(
        message=message,
        disposition=v1.DISPOSITION_DUPLICATE if answer.duplicate else messages.DISPOSITION[answer.disposition],
        run=names.cycle(conversation_id, answer.run),
        revision=answer.revision,
    )


def cancel_conversation_response(
    conversion: messages.ConversionContext, conversation_id: str, answer: requests.CancelConversationResult
) -> v1.CancelConversationResponse:
    settled: dict[Fate, list[v1.QueuedMessage]] = {Fate.RETURNED: [], Fate.DISCARDED: []}
    for change in answer.settled:
        settled[change.fate].append(messages.queued(conversation_id, change, at=answer.settled_at))
    return v1.CancelConversationResponse(
        no_op=answer.no_op,
        state=conversation_messages.state(conversion, conversation_id, answer.state, answer.state_entered_at),
        run=names.cycle(conversation_id, answer.run),
        llm_request_id=answer.llm_request_id,
        tool_use_ids=answer.tool_use_ids,
        sub_agents=[names.conversation(agent) for agent in answer.sub_agents],
        returned_steers=settled[Fate.RETURNED],
        discarded_follow_ups=settled[Fate.DISCARDED],
        surviving_jobs=answer.surviving_jobs,
        ended_jobs=answer.ended_jobs,
        revision=0 if answer.no_op else answer.revision,
        unrecorded=not answer.recorded,
    )


def withdraw_message_response(
    conversation_id: str, answer: requests.WithdrawMessageResult
) -> v1.WithdrawMessageResponse:
    return v1.WithdrawMessageResponse(message=messages.queued(conversation_id, answer.change, at=answer.at))


def spawn_sub_agents_response(
    conversion: messages.ConversionContext, conversation_id: str, answer: requests.SpawnSubAgentsResult
) -> v1.SpawnSubAgentsResponse:
    return v1.SpawnSubAgentsResponse(
        message=messages.message(conversion, conversation_id, answer.message),
        run=names.cycle(conversation_id, answer.run),
        sub_agents=[names.conversation(agent) for agent in answer.sub_agents],
        revision=answer.revision,
    )
