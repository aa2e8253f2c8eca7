"""Makes tools from typed Python functions: converts parameters to JSON Schema, calls to arguments, results to text."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, get_type_hints

import msgspec

from bedrock import v1
from bedrock.answers import ToolAnswer
from bedrock.conversations import ClientTool
from bedrock.errors import ToolNotOffered
from bedrock.messages import ToolCall
from bedrock.types import ToolGroup

MINUTES = 5

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class ToolFunction:
    """A Python function that answers calls to one tool, with the declaration of that tool."""

    declaration: ClientTool
    function: Callable[..., Any]
    parameters: type[msgspec.Struct]
    """A struct type with one field for each parameter. A parameter with a default value may be absent."""
    allow_unoffered: bool = False

    def arguments(self, call: ToolCall) -> dict[str, Any]:
        """The input of a call as keyword arguments. Raises ValueError, which names the parameter that does not fit."""
        given = json.loads(call.raw_input) if call.raw_input else call.input
        parsed = msgspec.convert(given, self.parameters)
        values = {name: getattr(parsed, name) for name in self.parameters.__struct_fields__}
        return {name: value for name, value in values.items() if value is not msgspec.UNSET}


def tool_function(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    group: ToolGroup = "other",
    timeout: timedelta | None = None,
    read_only: bool = False,
    requires_approval: bool = False,
    allow_unoffered: bool = False,
) -> ToolFunction:
    """Make a tool from a typed function: parameters become the schema, the docstring the default description.

    Raises TypeError if `function` is not callable, or if a parameter has no type, a type without a JSON equivalent, or
    no name.
    """
    if not callable(function):
        raise TypeError(f"client_tools: must be a list of functions or bedrock.ClientTool, not of {function!r}")
    called = name or str(getattr(function, "__name__", ""))
    parameters = _parameters(function, called)
    declaration = ClientTool(
        called, inspect.getdoc(function) or "" if description is None else description, _schema(parameters, called),
        group, timedelta(minutes=MINUTES) if timeout is None else timeout, read_only, requires_approval,
    )  # fmt: skip
    return ToolFunction(declaration, function, parameters, allow_unoffered)


def check_offered(conversation: v1.Conversation, functions: Mapping[str, ToolFunction]) -> None:
    """Raise ToolNotOffered if the conversation does not offer a function that lacks `allow_unoffered`."""
    missing = [tool for tool in conversation.unoffered_tools if tool.name in functions]
    if missing := [tool for tool in missing if not functions[tool.name].allow_unoffered]:
        names = ", ".join(tool.name for tool in missing)
        text = f"{names} would not be offered: {missing[0].text}"
        raise ToolNotOffered(text, reason="TOOL_NOT_OFFERED", code="FAILED_PRECONDITION")


def _parameters(function: Callable[..., Any], name: str) -> type[msgspec.Struct]:
    """A struct type with a field for each parameter. Raises TypeError for a parameter without a usable type or name."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"{name}: a parameter's type cannot be resolved: {error}") from None
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in _NAMED:
            raise TypeError(f"{name}: {parameter} cannot be passed by name; declare each parameter by name")
        if parameter.name not in hints:
            raise TypeError(f"{name}: parameter {parameter.name} needs a type annotation, as in {parameter.name}: str")
        hint = hints[parameter.name]
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint | msgspec.UnsetType, msgspec.UNSET))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _schema(parameters: type[msgspec.Struct], name: str) -> dict[str, Any]:
    """The JSON Schema of the parameters, with nested types in `$defs`. Raises TypeError for types that JSON lacks."""
    try:
        (schema,), shared = msgspec.json.schema_components([parameters], ref_template="#/$defs/{name}")
        msgspec.json.Decoder(parameters)  # otherwise, first calls on two threads at once would crash the process
    except TypeError as error:
        raise TypeError(f"{name}: a parameter's type has no JSON equivalent: {error}") from None
    own = schema["$ref"].rpartition("/")[2]
    return {**shared.pop(own), **({"$defs": shared} if shared else {})}


def answer_of(value: Any) -> ToolAnswer:
    """A result as text: strings unchanged, None as "", other values as JSON.

    Raises TypeError for types that JSON lacks.
    """
    answer = value if isinstance(value, ToolAnswer) else ToolAnswer(value)
    if isinstance(answer.value, str):
        return answer
    return ToolAnswer("" if answer.value is None else msgspec.json.encode(answer.value).decode(), answer.images)


def failure_of(error: Exception) -> str:
    """The text that the model reads when a tool function raised this exception."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
