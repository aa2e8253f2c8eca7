"""What conversations are offered, and checks of what is chosen: directories, models, modes, settings, tools and calls.

Safe to call from any thread; no provider is contacted. What looks at directories blocks.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from actors.core.approval.approval_rules import CallSubject
from actors.core.approval.rule_matching import MCP_PREFIX
from actors.core.content import ToolUse, text_of, tool_uses
from actors.core.context import ApprovalPolicy, Mode, ToolGroup, ToolTraits, wider
from actors.core.errors import LlmFailure, Reason, Rejected
from actors.core.profile import Generation
from actors.core.steps.approvals import REQUEST_MODE_UPGRADE, requested_mode
from actors.core.steps.submissions import SUBMISSIONS, SUBMIT_OUTPUT
from actors.ports import InvalidToolInputError, ToolSpec
from actors.ports.schemas.json_schema import MAX_FAULTS, InvalidSchemaError, JsonSchema, shortened
from actors.ports.schemas.output_schema import judged_output, native_output, object_schema
from actors.ports.tools import input_misfit, parse_arguments

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from actors.core.content import Content
    from actors.core.context import ConvContext
    from actors.core.profile import ClientTool
    from actors.ports import ConversationRecord, Model, ModelAnswer, ModelInfo, Tool
    from actors.ports.schemas.output_schema import NativeOutput
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


SCHEMAS = 256
"""The maximum number of compiled schemas, and of client tool specifications, that are cached."""


_OUTPUT_DESCRIPTION = (
    "End your work on the person's request with its result: the program that asked wants a value that fits this "
    "schema, and no text. Call this once, when everything else is done, as the only call of your response. Text alone "
    "does not count."
)
#: Separates namespaces from a name; no tool's name contains it.
_NAMESPACE = re.compile(r"[.:/]")
#: Matches a JSON text that spells a number or a boolean.
_SPELLED = re.compile(r'"\s*(-?\d[\d.e+-]*|true|false)\s*"', re.IGNORECASE)
#: Matches the first two sentences of a text's first line.
_SENTENCES = re.compile(r"(.*?[.](?=\s+[^a-z]|\s*$)){1,2}")
#: Matches where the first clause of a parameter's description ends.
_CLAUSE_END = re.compile(r"(?<=[^.])[.;](?=\s|$)| \(")
#: The keywords of JSON Schema that limit sizes, those whose value is any JSON, and those that have schemas by name.
_BOUNDS = frozenset({
    "minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "additionalProperties",
})  # fmt: skip
_VALUES = frozenset({"enum", "const", "default", "examples", "required"})
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_OUTPUT_TRAITS = ToolTraits(SUBMIT_OUTPUT, ToolGroup.OTHER)


@lru_cache(maxsize=SCHEMAS)
def compiled(schema: str) -> JsonSchema:
    """Return the compiled form of a schema, given as JSON text. Raises InvalidSchemaError."""
    return JsonSchema(msgspec.json.decode(schema, type=dict))


@lru_cache(maxsize=SCHEMAS)
def spec_of(tool: ClientTool) -> ToolSpec:
    """Return the specification of a client tool, as models get it.

    The tool counts as essential, because the client chose it for the conversation. So even slow ("lean") models, which
    get only essential tools, are offered it.
    """
    return ToolSpec(tool.description, msgspec.json.decode(tool.input_schema), tool.traits, essential=True)


def for_model(model: ModelInfo, offered: tuple[ToolSpec, ...], mode: Mode | None) -> tuple[ToolSpec, ...]:
    """Return those of the offered tools that requests to a model contain in a run that began in this mode.

    A slow model gets the essential ones, one with a small window short descriptions.
    """
    specs = (spec for spec in offered if spec.traits.offered_in(mode) and (spec.essential or not model.lean))
    return tuple(brief(spec) if model.small and not spec.traits.client else spec for spec in specs)


def brief(spec: ToolSpec) -> ToolSpec:
    """Return a tool with a description of two sentences, and of a clause for each parameter, and without its bounds.

    Calls are checked against the whole schema all the same.
    """
    described = _SENTENCES.match(spec.description)
    description = described[0] if described else spec.description
    return msgspec.structs.replace(spec, description=description, input_schema=_brief_schema(spec.input_schema))


def _brief_schema(schema: Any) -> Any:
    match schema:
        case dict():
            return {key: _brief_value(key, value) for key, value in schema.items() if key not in _BOUNDS}
        case list():
            return [_brief_schema(each) for each in schema]
        case _:
            return schema


def _brief_value(key: str, value: Any) -> Any:
    if key == "description" and isinstance(value, str):
        return _CLAUSE_END.split(value)[0]
    if key in _NAMED and isinstance(value, dict):
        return {name: _brief_schema(each) for name, each in value.items()}
    return value if key in _VALUES else _brief_schema(value)


def checked_calls(
    content: tuple[Content, ...], offered: tuple[ToolSpec, ...], tools: tuple[ClientTool, ...]
) -> tuple[Content, ...]:
    """Return an answer's content with calls that can be carried out.

    What has only one meaning with the tools that the model was offered is corrected: a name with a namespace or blanks,
    and texts that spell a number or a boolean. Calls of client tools (`tools`) get two fields set: `group`, and
    `bad_input`, which says why the input is invalid; "" if it is valid.
    """
    specs, by_name = {spec.name: spec for spec in offered}, {tool.name: tool for tool in tools}
    return tuple(
        _checked(_corrected(block, specs), by_name) if isinstance(block, ToolUse) else block for block in content
    )


def _corrected(call: ToolUse, specs: Mapping[str, ToolSpec]) -> ToolUse:
    name = call.name if call.name in specs else _meant(call.name, specs)
    if name not in specs:
        return call
    given, changes = _read_scalars(call.input, specs[name])
    if name != call.name:
        changes.insert(0, f"the name {shortened(json.dumps(call.name))} to {name}")
    if not changes:
        return call
    if len(changes) > MAX_FAULTS:
        changes[MAX_FAULTS:] = [f"and {len(changes) - MAX_FAULTS} more"]
    note = f"Note: this call was corrected before it ran: {'; '.join(changes)}."
    return msgspec.structs.replace(call, name=name, input=given, corrected=note)


def _read_scalars(given: str, spec: ToolSpec) -> tuple[str, list[str]]:
    """Return the input of a call with numbers and booleans in place of texts, and what was changed."""
    if _SPELLED.search(given):
        try:
            schema = compiled(msgspec.json.encode(spec.input_schema).decode())
            read, spelled = schema.read_scalars(parse_arguments(spec.name, given))
        except (InvalidSchemaError, InvalidToolInputError):
            return given, []
        if spelled:
            changes = [f"{place} to {text.strip().lower()} without quotes" for place, text in spelled.items()]
            return json.dumps(read, ensure_ascii=False), changes
    return given, []


def _meant(name: str, names: Container[str]) -> str:
    """Return the tool's name without blanks and namespaces around it ("functions.bash"); "" if it may be several."""
    parts = [part.strip() for part in _NAMESPACE.split(name.strip())]
    path = "__".join(parts)
    last = "" if parts[0] == "mcp" else parts[-1]
    meant = {each for each in (last, path, f"{MCP_PREFIX}{path}") if each in names}
    return meant.pop() if len(meant) == 1 else ""


def _checked(call: ToolUse, by_name: Mapping[str, ClientTool]) -> ToolUse:
    tool = by_name.get(call.name)
    if tool is None:
        return call
    try:
        arguments = parse_arguments(call.name, call.input)
        problem = compiled(tool.input_schema).problem(arguments)
        bad = input_misfit(call.name, problem) if problem else ""
    except InvalidToolInputError as invalid:
        bad = str(invalid)
    return msgspec.structs.replace(call, group=tool.group, bad_input=bad)


def output_form(schema: str, model: ModelInfo) -> tuple[NativeOutput | None, tuple[ToolSpec, ...]]:
    """Return what a request for a value must contain: a schema for the provider to enforce, or else a tool to call."""
    value = json.loads(schema)
    if model.structured_output and (native := native_output(value)):
        return native, ()
    return None, (ToolSpec(_OUTPUT_DESCRIPTION, object_schema(value), _OUTPUT_TRAITS, essential=True),)


def output_of(schema: str, answer: ModelAnswer) -> tuple[str, str]:
    """Return an answer's value as JSON, or "" and why it is invalid; both are "" if the answer contains no value yet.

    The value is the input of submit_output, if that is the only call, or the text of an answer without calls.
    """
    calls = list(tool_uses(answer.content))
    text = text_of(answer.content).strip()
    if [call.name for call in calls] == [SUBMIT_OUTPUT] and not answer.truncated:
        text = calls.pop().input
    return judged_output(schema, text) if text and not calls else ("", "")


def check_generation(wanted: Generation, model: ModelInfo) -> None:
    """Check that the model supports all settings that are set.

    Raises Rejected (GENERATION_UNSUPPORTED), whose text names every setting that is not supported.
    """
    if problems := "; ".join(_problems(wanted, model)):
        raise Rejected(Reason.GENERATION_UNSUPPORTED, problems)


def supported(wanted: Generation, model: ModelInfo) -> Generation:
    """Return `wanted` without settings that the model does not support, and with a supported answer length.

    The settings were supported when they were chosen, but the provider may since have reported that the model has
    other abilities.
    """
    return Generation(
        wanted.reasoning_effort if wanted.reasoning_effort in model.reasoning_efforts else None,
        wanted.temperature if model.temperature else None,
        min(wanted.max_output_tokens, model.answer_limit),
    )


def _problems(wanted: Generation, model: ModelInfo) -> Iterator[str]:
    if wanted.reasoning_effort is not None and wanted.reasoning_effort not in model.reasoning_efforts:
        there_are = ", ".join(model.reasoning_efforts)
        yield f"generation.reasoning_effort: {model.name} offers {there_are or 'no choice'}"
    if wanted.temperature is not None and not model.temperature:
        yield f"generation.temperature: {model.name} takes none"
    if wanted.max_output_tokens > model.answer_limit:
        most = f"{model.answer_limit} tokens at most" if model.answer_limit else "no limit"
        yield f"generation.max_output_tokens: {model.name} takes {most}"
