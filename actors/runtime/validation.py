"""Validates a caller's choices of working directory, model and mode, and a model's tool calls.

Safe to call from any thread; no provider is contacted. What looks at directories blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from actors.core.approval.approval_rules import CallSubject
from actors.core.content import ToolUse, tool_uses
from actors.core.context import ApprovalPolicy, Mode, wider
from actors.core.errors import LlmFailure, Reason, Rejected
from actors.core.steps.approvals import REQUEST_MODE_UPGRADE, requested_mode
from actors.core.steps.submissions import SUBMISSIONS, SUBMIT_OUTPUT
from actors.ports import InvalidToolInputError, parse_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.core.content import Content
    from actors.core.context import ConvContext
    from actors.ports import ConversationRecord, Model, Tool
    from actors.runtime.services import Services


def working_directory(services: Services, path: str, principal: str) -> str:
    """Return the real path of a directory in which the principal may work. Raises Rejected for any other directory."""
    try:
        return services.workspace.check(path, services.permissions(principal).roots)
    except ValueError as error:
        raise Rejected(Reason.WORKING_DIRECTORY_INVALID, f"working_directory: {error}") from None


def offered_model(services: Services, name: str, principal: str) -> Model:
    """Return a requested model. Raises Rejected unless the principal may use the model and a provider serves it.

    If a provider lists its models itself, the caller must have read that list (see `actors.runners.model_choice`).
    """
    if not services.permissions(principal).allows_model(name):
        raise Rejected(Reason.MODEL_UNAVAILABLE, f"this principal may not use the model {name}")
    if not services.models.offers(name):
        raise Rejected(Reason.MODEL_UNAVAILABLE, model_refusal(services, name, principal).message)
    return served_model(services, name)


def model_refusal(services: Services, name: str, principal: str) -> LlmFailure:
    """Return why no provider serves a model. For a principal limited to some models, the text lists no models."""
    failure = services.models.refusal(name)
    if services.permissions(principal).models is None:
        return failure
    return replace(failure, message=f"the model {name!r} is not available; ListModels names those that are")


def served_model(services: Services, name: str) -> Model:
    """Return the model of a conversation. Raises Rejected if no provider serves it now."""
    model = services.models.get(name)
    if model is None:
        raise Rejected(Reason.MODEL_UNAVAILABLE, services.models.refusal(name).message)
    return model


def check_images(services: Services, model: str) -> None:
    """Raise Rejected (IMAGE_INVALID) if it is known that a conversation's model takes no images."""
    if not services.takes_images(model):
        text = (
            f"the model {model} takes no images: send the message without them, or choose another model. If it does "
            f'take them, set images = true in [models."{model}"] of the server\'s settings, and restart the server'
        )
        raise Rejected(Reason.IMAGE_INVALID, text)


def check_images_in(services: Services, conversation_id: str) -> None:
    """Do the same for a stored conversation, if it exists. Blocks. Raises Rejected or StoreError."""
    record = services.store.load(conversation_id)
    if record is not None:
        check_images(services, record.model)


def initial_mode(services: Services, wanted: Mode | None, cwd: str, principal: str) -> Mode:
    """Return the mode of a new conversation: `wanted` or, if that is None, the default mode.

    The default is restricted, or unrestricted if the sandbox cannot enforce restricted. Raises Rejected if
    conversations of the principal cannot have this mode in this directory.
    """
    narrowest = Mode.RESTRICTED if services.sandbox.report.restriction_available else Mode.UNRESTRICTED
    mode = wanted or narrowest
    check_mode(services, mode, cwd, principal)
    return mode


def check_mode(services: Services, mode: Mode, cwd: str, principal: str) -> None:
    """Raise Rejected if conversations of the principal cannot have this mode in this directory."""
    reason = services.sandbox_of(principal).mode_refusal(mode, cwd)
    if reason:
        report = services.sandbox.report
        offered = report.restriction_available or not report.by_setting
        text = f"{mode.value} mode cannot be kept here" if offered else f"{mode.value} mode is not offered here"
        is_about_cwd = report.workspace_available and reason == services.sandbox.mode_refusal(Mode.WORKSPACE, cwd)
        raise Rejected(Reason.MODE_UNAVAILABLE, f"{text}: {reason}", "directory" if is_about_cwd else "")


def tool_for(services: Services, context: ConvContext, name: str, given: str) -> tuple[Tool, Mapping[str, Any]]:
    """Return the tool of the server that a call is for, and the arguments of the call.

    Raises InvalidToolInputError if there is no such tool in this conversation, or if the input does not fit its schema.
    """
    offered = [traits.name for traits in context.tools]
    # Sub-agents get no MCP tools.
    mcp_tool = services.mcp.tool(name, context.conversation_id) if name in offered else None
    tool = mcp_tool or services.toolbox.get(name)
    if tool is not None and name not in offered and not context.is_sub_agent:
        there_are = f"The tools are: {', '.join(offered)}." if offered else "There are none."
        raise InvalidToolInputError(f"There is no tool {name!r} in this conversation. {there_are}")
    arguments = services.toolbox.parse(name, given) if mcp_tool is None else parse_arguments(name, given)
    if tool is None:
        raise InvalidToolInputError(f"{name} cannot be called here.")
    return tool, arguments


def with_refusals(services: Services, record: ConversationRecord, content: tuple[Content, ...]) -> tuple[Content, ...]:
    """Return an answer's content with `bad_input` set in calls of the server's tools that cannot run."""
    context = services.context_of(record)
    others = {tool.name for tool in record.profile.client_tools}
    others |= SUBMISSIONS if context.is_sub_agent else {SUBMIT_OUTPUT}
    return tuple(
        replace(block, bad_input=_refusal(services, context, record.principal, block))
        if isinstance(block, ToolUse) and block.name not in others
        else block
        for block in content
    )


def _refusal(services: Services, context: ConvContext, principal: str, call: ToolUse) -> str:
    try:
        tool_for(services, context, call.name, call.input)
    except InvalidToolInputError as invalid:
        return str(invalid)
    mode = requested_mode(call) if call.name == REQUEST_MODE_UPGRADE else context.mode
    if not wider(mode, context.mode):
        return ""
    why = services.sandbox_of(principal).mode_refusal(mode, context.working_dir)
    return f"The {mode.value} mode cannot be kept here: {why}. The mode is {context.mode.value} still." if why else ""


def call_subjects(
    services: Services, record: ConversationRecord, content: tuple[Content, ...]
) -> tuple[CallSubject, ...]:
    """Return what each tool call concerns (commands, paths, a mode); () if no approval of a call can depend on it."""
    calls = tuple(tool_uses(content))
    ruled = record.approval_policy is not ApprovalPolicy.AUTO or record.approval_rules or services.approval_rules
    if not ruled and all(call.name != REQUEST_MODE_UPGRADE for call in calls):
        return ()
    return tuple(_subject(services, record, call) for call in calls)


def _subject(services: Services, record: ConversationRecord, call: ToolUse) -> CallSubject:
    if call.name != REQUEST_MODE_UPGRADE:
        return services.toolbox.subject(call, record.cwd, services.permissions(record.principal).roots)
    narrower = wider(requested_mode(call), Mode.WORKSPACE) and wider(Mode.WORKSPACE, record.mode)
    refusal = services.sandbox_of(record.principal).mode_refusal(Mode.WORKSPACE, record.cwd)
    return CallSubject(workspace=narrower and not refusal)
