"""Tools that are neither built in nor from MCP servers: client tools, and submit_output for runs with an output schema.

A client tool is executed by a client, not by the server. This module decides how models are offered these tools,
checks the input of their calls, and checks that a model supports the requested generation settings (reasoning effort,
temperature, answer length). Thread-safe; no provider is contacted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from actors.common import json_schema
from actors.core.approval import MCP_PREFIX
from actors.core.content import Content, ToolUse, text_of, tool_uses
from actors.core.context import ClientTool, Generation, Mode, ToolGroup, ToolTraits
from actors.core.errors import Reason, Rejected
from actors.core.steps.runs import SUBMIT_OUTPUT
from actors.ports import InvalidToolInputError, ModelAnswer, ModelInfo, ToolSpec
from actors.ports.tools import input_misfit, parse_arguments

# The maximum number of compiled schemas, and of client tool specifications, that are cached.
SCHEMAS = 256


_OUTPUT_DESCRIPTION = (
    "End your work on the user's request with its result: the program that asked expects a value that matches this "
    "schema, not text. Call this once, when everything else is done, as the only call in your response. Text alone "
    "does not count."
)
# Matches a separator between namespaces and a name; no tool's name contains one.
_NAMESPACE = re.compile(r"[.:/]")
# Matches a JSON string that spells a number or a boolean.
_SPELLED = re.compile(r'"\s*(-?\d[\d.e+-]*|true|false)\s*"', re.IGNORECASE)
# Matches the first two sentences of a text's first line.
_SENTENCES = re.compile(r"(.*?[.](?=\s+[^a-z]|\s*$)){1,2}")
# Matches where the first clause of a parameter's description ends.
_CLAUSE_END = re.compile(r"(?<=[^.])[.;](?=\s|$)| \(")
# The JSON Schema keywords that limit sizes, those whose value is any JSON, and those that contain named schemas.
_BOUNDS = frozenset({
    "minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "additionalProperties",
})  # fmt: skip
_VALUES = frozenset({"enum", "const", "default", "examples", "required"})
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_OUTPUT_TRAITS = ToolTraits(SUBMIT_OUTPUT, ToolGroup.OTHER)


@lru_cache(maxsize=SCHEMAS)
def compiled(schema: str) -> json_schema.JsonSchema:
    """The compiled form of a schema, given as JSON text. Raises InvalidSchemaError."""
    return json_schema.JsonSchema(msgspec.json.decode(schema, type=dict))


@lru_cache(maxsize=SCHEMAS)
def spec_of(tool: ClientTool) -> ToolSpec:
    """The specification of a client tool, marked essential: slow models get only essential tools."""
    return ToolSpec(tool.description, msgspec.json.decode(tool.input_schema), tool.traits, essential=True)


def for_model(model: ModelInfo, offered: tuple[ToolSpec, ...], mode: Mode | None) -> tuple[ToolSpec, ...]:
    """The offered tools for this model: only essential ones if it is slow, briefly described if its window is small."""
    specs = (spec for spec in offered if spec.traits.offered_in(mode) and (spec.essential or not model.lean))
    return tuple(brief(spec) if model.small and not spec.traits.client else spec for spec in specs)


def brief(spec: ToolSpec) -> ToolSpec:
    """A tool with short descriptions and without bounds, though its calls are checked against the whole schema."""
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
    """An answer's content, with mistakes in calls corrected and calls to client tools checked.

    Only unambiguous mistakes are corrected: names with a namespace or blanks, and strings that spell numbers or
    booleans. Calls to client tools (`tools`) get `group`, and `bad_input` if their input is invalid.
    """
    specs, by_name = {spec.name: spec for spec in offered}, {tool.name: tool for tool in tools}
    return tuple(
        _checked(_corrected(block, specs), by_name) if isinstance(block, ToolUse) else block for block in content
    )


def _corrected(call: ToolUse, specs: Mapping[str, ToolSpec]) -> ToolUse:
    name = call.name if call.name in specs else _resolve_name(call.name, specs)
    if name not in specs:
        return call
    given, changes = _read_scalars(call.input, specs[name])
    if name != call.name:
        changes.insert(0, f"the name {json_schema.shortened(json.dumps(call.name))} to {name}")
    if not changes:
        return call
    if len(changes) > json_schema.MAX_FAULTS:
        changes[json_schema.MAX_FAULTS :] = [f"and {len(changes) - json_schema.MAX_FAULTS} more"]
    note = f"Note: this call was corrected before it ran: {'; '.join(changes)}."
    return msgspec.structs.replace(call, name=name, input=given, corrected=note)


def _read_scalars(given: str, spec: ToolSpec) -> tuple[str, list[str]]:
    """The input of a call with numbers and booleans in place of strings that spell them, and what was changed."""
    if _SPELLED.search(given):
        try:
            schema = compiled(msgspec.json.encode(spec.input_schema).decode())
            read, spelled = schema.read_scalars(parse_arguments(spec.name, given))
        except (json_schema.InvalidSchemaError, InvalidToolInputError):
            return given, []
        if spelled:
            changes = [f"{place} to {text.strip().lower()} without quotes" for place, text in spelled.items()]
            return json.dumps(read, ensure_ascii=False), changes
    return given, []


def _resolve_name(name: str, names: Container[str]) -> str:
    """The tool's name without blanks and namespaces around it ("functions.bash"); "" if several tools match."""
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
    except (InvalidToolInputError, json_schema.InvalidSchemaError) as invalid:
        bad = str(invalid)
    return msgspec.structs.replace(call, group=tool.group, bad_input=bad)


def output_form(schema: str, model: ModelInfo) -> tuple[json_schema.NativeOutput | None, tuple[ToolSpec, ...]]:
    """The part of a request that demands a value: a schema for the provider to enforce, or else a tool to call."""
    value = json.loads(schema)
    if model.structured_output and (native := json_schema.native_output(value)):
        return native, ()
    return None, (ToolSpec(_OUTPUT_DESCRIPTION, json_schema.object_schema(value), _OUTPUT_TRAITS, essential=True),)


def output_of(schema: str, answer: ModelAnswer) -> tuple[str, str]:
    """An answer's value as JSON and "", or "" and why the value is invalid; ("", "") if there is no value yet.

    The value is the input of submit_output, if that is the only call, or the text of an answer without calls.
    """
    calls = list(tool_uses(answer.content))
    text = text_of(answer.content).strip()
    if [call.name for call in calls] == [SUBMIT_OUTPUT] and not answer.truncated:
        text = calls.pop().input
    return json_schema.validate_output(schema, text) if text and not calls else ("", "")


def check_generation(wanted: Generation, model: ModelInfo) -> None:
    """Raise Rejected (GENERATION_UNSUPPORTED), naming every setting that the model does not support."""
    if problems := "; ".join(_problems(wanted, model)):
        raise Rejected(Reason.GENERATION_UNSUPPORTED, problems)


def supported(wanted: Generation, model: ModelInfo) -> Generation:
    """Those settings in `wanted` that the model supports now; its provider may report other abilities than before."""
    return Generation(
        wanted.reasoning_effort if wanted.reasoning_effort in model.reasoning_efforts else None,
        wanted.temperature if model.temperature else None,
        min(wanted.max_output_tokens, model.answer_limit),
    )


def _problems(wanted: Generation, model: ModelInfo) -> Iterator[str]:
    if wanted.reasoning_effort is not None and wanted.reasoning_effort not in model.reasoning_efforts:
        efforts = ", ".join(model.reasoning_efforts)
        yield f"generation.reasoning_effort: {model.name} supports {f'only {efforts}' if efforts else 'none'}"
    if wanted.temperature is not None and not model.temperature:
        yield f"generation.temperature: {model.name} does not support it"
    if wanted.max_output_tokens > model.answer_limit:
        most = f"allows at most {model.answer_limit} tokens" if model.answer_limit else "does not support it"
        yield f"generation.max_output_tokens: {model.name} {most}"
