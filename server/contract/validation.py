"""Validates requests: each field by its own rules, and fields that are only valid in certain combinations.

All violations in a request are reported together. Checks that need the server's state come later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bedrock import v1

from server.contract.errors import MalformedRequestError
from server.contract.field_rules import NO_SUBJECT, client_tools, generation, labels, not_negative, tasks
from server.contract.request_rules import CLIENT_TOOL_FIELDS, RULES, TASK_FIELDS, UPDATABLE_FIELDS
from server.contract.update_mask import ALL, key_of_label, paths_to_set

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

UPDATABLE = tuple(UPDATABLE_FIELDS)
"""The names of the fields of a conversation that UpdateConversation may set."""


def check(request: Message) -> None:
    """Raise MalformedRequestError, with all violations, if fields of the request are invalid."""
    violations = [
        (field, text) for field, rule in RULES.get(type(request), ()) if (text := rule(_value(request, field)))
    ]
    if isinstance(request, v1.UpdateConversationRequest):
        violations.extend(_update(request))
    if isinstance(request, v1.CreateConversationRequest) and not client_tools(request.conversation.client_tools):
        violations.extend(_client_tools(request.conversation))
    if isinstance(request, v1.AnswerQuestionRequest) and request.decline and request.HasField("content"):
        violations.append(("content", "a question that is declined gets no content"))
    if isinstance(request, v1.SubmitToolResultRequest) and (text := _answer(request)):
        violations.append(("output", text))
    if isinstance(request, v1.SpawnSubAgentsRequest) and not tasks(request.tasks):
        violations.extend(_tasks(request))
    if isinstance(request, v1.SendMessageRequest) and not request.text.strip() and not request.images:
        violations.append(("text", "must not be empty, unless there is an image"))
    if isinstance(request, v1.SendMessageRequest) and request.delivery == v1.DELIVERY_STEER:
        violations.extend(_of_a_steer(request))
    if isinstance(request, v1.ResolveApprovalRequest) and request.HasField("rule") and not request.rule.ByteSize():
        violations.append(("rule", NO_SUBJECT))
    if violations:
        raise MalformedRequestError(*violations)


def _of_a_steer(request: v1.SendMessageRequest) -> Iterator[tuple[str, str]]:
    """Yield a violation for each field that a steer (a message for a run in progress) sets, but must not set."""
    if request.HasField("generation"):
        yield "generation", "cannot be set with a steer, which goes into a run that has its settings"
    if request.HasField("output_schema"):
        yield "output_schema", "cannot be set with a steer, which goes into a run that has its output"


def _value(request: Message, field: str) -> Any:
    value: Any = request
    for part in field.split("."):
        value = getattr(value, part)
    return value


def _update(request: v1.UpdateConversationRequest) -> Iterator[tuple[str, str]]:
    """Yield the violations in the fields that an update sets. Other fields are ignored.

    So a client may send a whole conversation in order to change a single field.
    """
    wanted = request.conversation
    for each in paths_to_set(request, UPDATABLE):
        field, _, inner = each.partition(".")
        if field == "labels" and inner:
            key = key_of_label(each)
            text = labels({key: wanted.labels.get(key, "")})
        elif field == "budget" and inner in v1.Budget.DESCRIPTOR.fields_by_name:
            text = not_negative(getattr(wanted.budget, inner))
        elif field == "generation" and inner in v1.Generation.DESCRIPTOR.fields_by_name:
            text = generation(_only(wanted.generation, inner))
        elif each in UPDATABLE_FIELDS:
            text = UPDATABLE_FIELDS[each](getattr(wanted, each))
        else:
            paths = f"{', '.join(UPDATABLE)}, labels.KEY, budget.FIELD, generation.FIELD, or {ALL} alone"
            yield "update_mask", f"{each!r} cannot be updated; these can: {paths}"
            continue
        if text:
            yield f"conversation.{each}", text
        elif each == "client_tools":
            yield from _client_tools(wanted)


def _only(value: v1.Generation, field: str) -> v1.Generation:
    """Return a copy of generation settings in which only this field is set, if it is set in `value`."""
    one = v1.Generation()
    one.MergeFrom(value)
    for other, _ in value.ListFields():
        if other.name != field:
            one.ClearField(other.name)  # type: ignore[arg-type]
    return one


def _client_tools(wanted: v1.Conversation) -> Iterator[tuple[str, str]]:
    """Yield the violations in each client tool, with the position of the tool in the path of the field."""
    for index, tool in enumerate(wanted.client_tools):
        for field, rule in CLIENT_TOOL_FIELDS:
            if text := rule(getattr(tool, field)):
                yield f"conversation.client_tools[{index}].{field}", text


def _answer(request: v1.SubmitToolResultRequest) -> str | None:
    """Return what is wrong if an answer to a tool call contains results that exclude each other; otherwise None."""
    if bool(request.output) + request.HasField("json") + bool(request.error) > 1:
        return "only one of output, json and error can be set"
    return "images belong to a result, not to an error" if request.error and request.images else None


def _tasks(request: v1.SpawnSubAgentsRequest) -> Iterator[tuple[str, str]]:
    """Yield the violations in each task, with the task's position in the path of the field, as in `tasks[2].model`."""
    for index, task in enumerate(request.tasks):
        for field, rule in TASK_FIELDS:
            if text := rule(getattr(task, field)):
                yield f"tasks[{index}].{field}", text
