"""JSON Schemas (draft 2020-12) that models and clients wrote: parsing, validation, and the part providers enforce.

Thread-safe. Schemas may be untrusted: patterns are matched in linear time, and no reference is
fetched. An output schema describes the value that a model must return. Providers can enforce only part of JSON Schema,
and only for objects. A schema within that part is sent to them, in a form that forbids unnamed properties; with any
other schema, the model is asked to pass the value to a tool. Either way, the answer is checked against the whole
schema.
"""

from __future__ import annotations

import copy
import functools
import graphlib
import json
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

from msgspec import Struct

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError


MAX_FAULTS = 3

MAX_FAULT_CHARACTERS = 300

# The maximum nesting of values and of schemas; beyond it, the compiled validator could overflow its stack.
MAX_DEPTH = 100

TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"

TOO_LARGE_A_NUMBER = "a number is outside the range of ±1.7e308"

# The maximum size of a compiled pattern (regular expression), in bytes.
PATTERN_BYTES = 1 << 20

# The maximum size of all compiled patterns (regular expressions) of one schema together, in bytes.
PATTERNS_BYTES = 4 << 20

MAX_PATTERNS = 100
MAX_REFERENCES = 500
# The maximum number of subschemas that are evaluated for one part of a value, such as one item of a list.
MAX_SCHEMAS = 10_000

# The maximum number of characters and values, times the subschemas that check them. This much work takes about a
# second, during which the library cannot be interrupted and lets no other thread run.
MAX_WORK = 20_000_000

# The maximum number of pairs of a subschema and a nesting level for which the work is counted.
MAX_STEPS = 50_000

TOO_MUCH = "it is too large to check against the schema"


class InvalidSchemaError(ValueError):
    """The schema is not a valid JSON Schema, or is valid but not supported; the message says why."""


class JsonSchema:
    """A JSON Schema, compiled once."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Compile the schema. Raises InvalidSchemaError, for example if validation could take forever."""
        if is_too_deep(schema):
            raise InvalidSchemaError(TOO_DEEP)
        own, patterns = dict(schema), _count(schema, "pattern", "patternProperties")
        if patterns > MAX_PATTERNS:
            raise InvalidSchemaError(f"it has more than {MAX_PATTERNS} patterns")
        if _count(schema, "$ref") > MAX_REFERENCES:
            raise InvalidSchemaError(f"it has more than {MAX_REFERENCES} references")
        each_pattern = min(PATTERN_BYTES, PATTERNS_BYTES // max(1, patterns))
        import jsonschema_rs  # noqa: PLC0415 -- 15 MB of memory that a server without schemas need not load

        try:
            self._validator = jsonschema_rs.Draft202012Validator(
                own,
                retriever=_fetch_nothing,
                # Lookarounds and back references are refused: with them, a pattern can take exponential time.
                pattern_options=jsonschema_rs.RegexOptions(size_limit=each_pattern),
            )
            self._work = _Work(own)
        except jsonschema_rs.ValidationError as error:
            raise InvalidSchemaError(_fault_text(error)) from None
        except graphlib.CycleError:
            raise InvalidSchemaError("part of it refers to itself without descending into the value") from None
        except RecursionError:
            raise InvalidSchemaError("its references are nested too deeply") from None

    def problem(self, value: Any) -> str:
        """Why a JSON value does not match the schema, with the place of each fault; "" if it matches."""
        if is_too_deep(value):
            return TOO_DEEP
        if self._work.is_too_much(value):
            return TOO_MUCH
        faults = sorted(self._validator.iter_errors(value), key=_place)
        shown = [_fault_text(fault) for fault in faults[:MAX_FAULTS]]
        return "; ".join((*shown, f"and {len(faults) - MAX_FAULTS} more") if len(faults) > MAX_FAULTS else shown)

    def read_scalars(self, value: Any) -> tuple[Any, dict[str, str]]:
        """Replace strings that do not match the schema but spell numbers or booleans; also return these, by place.

        Returns the unchanged value and {} if it matches already, or would not match even with the replacements.
        """
        if is_too_deep(value) or self._work.is_too_much(value):
            return value, {}
        read, spelled = copy.deepcopy(value), dict[str, str]()
        for fault in self._validator.iter_errors(value):
            for last in fault.instance_path[-1:]:  # a fault of the whole value has no path
                holder = functools.reduce(operator.getitem, fault.instance_path[:-1], read)
                if (scalar := _scalar(holder[last])) is not None:
                    spelled[_place(fault)] = holder[last]
                    holder[last] = scalar
        return (read, spelled) if spelled and not self.problem(read) else (value, {})


class _Work:
    """Recognises values that would be too much work to validate: references in a schema can multiply this work."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        """Analyse the whole schema.

        Raises InvalidSchemaError, RecursionError, or CycleError for a part that leads to itself.
        """
        self._root = root
        self._known: dict[tuple[int, int], int] = {}
        same_place, found, waiting = dict[int, list[int]](), list[Mapping[str, Any]](), [root]
        while waiting:
            schema = waiting.pop()
            if isinstance(schema, dict) and id(schema) not in same_place:
                if "$dynamicRef" in schema or (schema is not root and isinstance(schema.get("$id"), str)):
                    raise InvalidSchemaError("$dynamicRef, and $id below the top level, are not supported")
                here, one_of, every = [*self._here(schema)], *_below(schema)
                same_place[id(schema)] = [*map(id, here)]
                found.append(schema)
                waiting += [*here, *one_of, *every]
        graphlib.TopologicalSorter(same_place).prepare()
        if any(self._evaluations(schema, 0) > MAX_SCHEMAS + _weight(schema) for schema in found):
            raise InvalidSchemaError(f"it checks the same part of a value against more than {MAX_SCHEMAS} subschemas")

    def is_too_much(self, value: Any) -> bool:
        """Whether validating a value, which is not nested too deeply, may be more work than MAX_WORK."""
        work, level = 0, [value]
        for depth in range(MAX_DEPTH + 2):
            if not level:
                break
            # A subschema that fails on a value takes as long as a pattern takes for four characters.
            size = sum(4 + len(each) if isinstance(each, str) else 4 for each in level)
            work += size and size * self._evaluations(self._root, depth)
            if work > MAX_WORK or len(self._known) > MAX_STEPS:
                return True
            names = (name for each in level if isinstance(each, dict) for name in each)
            level = [*names, *(inner for each in level for inner in _inside(each))]
        return False

    def _evaluations(self, schema: Any, depth: int) -> int:
        """The maximum number of subschemas evaluated for one part of a value that is nested `depth` levels deep."""
        if not isinstance(schema, dict):
            return not depth
        key = id(schema), depth
        if key not in self._known:
            count = 0 if depth else _weight(schema)
            if depth:
                one_of, every = _below(schema)
                count += max((self._evaluations(each, depth - 1) for each in one_of), default=0)
                count += sum(self._evaluations(each, depth - 1) for each in every)
            count += sum(self._evaluations(each, depth) for each in self._here(schema))
            # The library evaluates all parts once more for an `unevaluated…` keyword.
            twice = "unevaluatedProperties" in schema or "unevaluatedItems" in schema
            self._known[key] = count * 2 if twice else count
        return self._known[key]

    def _here(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the subschemas that check the same value as `schema` itself, such as those in `allOf` or a `$ref`."""
        for key in ("allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies"):
            yield from _inside(schema.get(key))
        yield from (schema[key] for key in ("not", "if", "then", "else") if key in schema)
        if "$ref" in schema:
            yield self._target(schema["$ref"])

    def _target(self, reference: str) -> Any:
        """The subschema that a reference names. Raises InvalidSchemaError."""
        first, *steps = unquote(reference).split("/")
        if first != "#":
            raise InvalidSchemaError("a $ref must be a path within the schema itself, such as #/$defs/name")
        found: Any = self._root
        for step in steps:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found[int(name)] if isinstance(found, list) else found[name]
        return found


def _below(schema: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Two groups of subschemas: only one of the first checks a given item or property; several of the second may."""
    keys = ("additionalProperties", "propertyNames", "unevaluatedProperties", "items", "contains", "unevaluatedItems")
    every = [*_inside(schema.get("patternProperties")), *(schema[key] for key in keys if key in schema)]
    return [*_inside(schema.get("properties")), *_inside(schema.get("prefixItems"))], every


def _weight(schema: Mapping[str, Any]) -> int:
    return 1 + sum(len(each) for key in ("enum", "required") if isinstance(each := schema.get(key), list))


def is_schema(value: dict[str, Any]) -> bool:
    """Whether an object without `$schema` is a valid JSON Schema. The object must not be nested too deeply."""
    import jsonschema_rs  # noqa: PLC0415 -- 15 MB of memory that a server without schemas need not load

    return jsonschema_rs.meta.is_valid(value)


def parse_json(text: str) -> Any:
    """Parse JSON. Raises ValueError, whose message says what is wrong.

    NaN, infinities, numbers too large for a double and lone surrogates cannot be stored or sent, and are refused.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_double, parse_int=_whole_number)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("lone surrogate; write the character itself") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if is_too_deep(value):
        raise ValueError(TOO_DEEP)
    return value


def is_too_deep(value: Any, most: int = MAX_DEPTH) -> bool:
    """Whether objects and lists are nested more than `most` levels deep."""
    level = [value]
    for _ in range(most):
        level = [inner for each in level for inner in _inside(each)]
        if not level:  # most values have only one or two levels
            return False
    return any(isinstance(each, (dict, list)) for each in level)


def _count(schema: Any, *keywords: str) -> int:
    """An upper bound on how often a schema has these keywords; a keyword counts once for each of its entries."""
    here = [schema[key] for key in keywords if key in schema] if isinstance(schema, dict) else []
    return sum(len(each) if isinstance(each, dict) else 1 for each in here) + sum(
        _count(each, *keywords) for each in _inside(schema)
    )


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def shortened(text: str) -> str:
    return text if len(text) <= MAX_FAULT_CHARACTERS else f"{text[:MAX_FAULT_CHARACTERS]}…"


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a valid JSON number")


def _double(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(TOO_LARGE_A_NUMBER)
    return number


def _whole_number(digits: str) -> int:
    if math.isinf(float(digits)):
        raise ValueError(TOO_LARGE_A_NUMBER)
    return int(digits)


def _scalar(text: object) -> float | bool | None:
    """The number or boolean that a string spells; None if it spells neither."""
    try:
        value = parse_json(text.lower()) if isinstance(text, str) else None
    except ValueError:
        return None
    return value if isinstance(value, (int, float)) else None


def _fetch_nothing(_uri: str) -> NoReturn:
    raise ValueError("a $ref must point to a place within the schema itself")


def _place(fault: ValidationError) -> str:
    """The path of the value that does not match, for example `items[2].name`; "" for the whole value."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault.instance_path)
    return path.removeprefix(".")


def _fault_text(fault: ValidationError) -> str:
    place, message = _place(fault), fault.message
    options: list[Any] = getattr(fault.kind, "options", [])
    if options:  # the library's own message names only two of the allowed values
        message = f"{json.dumps(fault.instance)} is not one of {json.dumps(options)[1:-1]}"
    return shortened(f"`{place}`: {message}" if place else message)


# The maximum size of an output schema as JSON, in bytes.
MAX_SCHEMA_BYTES = 64 * 1024
# The maximum nesting of output schemas and outputs. A level takes several of the 100 levels that gRPC allows.
MAX_OUTPUT_DEPTH = 24

# If an output's schema also allows non-objects, the output is wrapped in an object, as the property with this name.
WRAPPER = "value"

# The JSON Schema keywords that providers enforce and whose values contain no subschemas.
_ENFORCEABLE = frozenset({"type", "enum", "const", "title", "description", "required", "$ref"})
# Keywords that not every provider enforces: they are left out of requests, and enforced by checking the answer.
_NARROWING = frozenset({
    "$schema", "$id", "$comment", "default", "examples", "format", "pattern", "minLength", "maxLength", "minimum",
    "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "uniqueItems",
    "minProperties", "maxProperties", "deprecated", "readOnly", "writeOnly",
})  # fmt: skip

_WITH_SCHEMAS = frozenset({"properties", "$defs", "items", "anyOf"})
_KNOWN = _ENFORCEABLE | _NARROWING | _WITH_SCHEMAS | {"additionalProperties"}

_FENCE = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)


class NativeOutput(Struct, frozen=True):
    """A schema for a provider that enforces schemas itself."""

    schema: dict[str, Any]
    strict: bool
    """Whether all properties of all objects are required, which some providers demand for strict enforcement."""


class _NotKeptError(Exception):
    """The schema needs something that providers cannot enforce."""


@lru_cache(maxsize=64)
def compiled(schema: str) -> JsonSchema:
    """Compile an output schema, given as JSON text. Raises InvalidSchemaError."""
    value = json.loads(schema)
    if is_too_deep(value, MAX_OUTPUT_DEPTH):
        raise InvalidSchemaError(_TOO_DEEP)
    return JsonSchema(value)


def is_wrapped(schema: dict[str, Any]) -> bool:
    """Whether values of this schema are wrapped in an object, because the schema also allows non-objects."""
    return schema.get("type") != "object"


def object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a tool input that contains the value: `schema` itself or, if needed, an object that wraps it."""
    if not is_wrapped(schema):
        return schema
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    outer = {"type": "object", "properties": {WRAPPER: inner}, "required": [WRAPPER], "additionalProperties": False}
    return outer | ({"$defs": schema["$defs"]} if "$defs" in schema else {})


def native_output(schema: dict[str, Any]) -> NativeOutput | None:
    """The schema in the form in which providers enforce it; None if they cannot enforce it."""
    if "anyOf" in schema and not is_wrapped(schema):
        return None  # no provider accepts anyOf at the top level
    try:
        kept = _enforceable(object_schema(schema))
    except _NotKeptError:
        return None
    return NativeOutput(kept, strict=_all_required(kept))


def validate_output(schema: str, text: str) -> tuple[str, str]:
    """Check an output that a model wrote; return (canonical JSON, "") or ("", why it is invalid).

    `text` is the input of a tool call or a whole answer, from which a Markdown code fence is removed.
    """
    fenced = _FENCE.fullmatch(text.strip())
    try:
        value = parse_json(fenced[1] if fenced else text)
    except ValueError as error:
        return "", f"it is not valid JSON: {error}"
    if is_wrapped(json.loads(schema)) and isinstance(value, dict) and value.keys() == {WRAPPER}:
        value = value[WRAPPER]
    problem = _TOO_DEEP if is_too_deep(value, MAX_OUTPUT_DEPTH) else compiled(schema).problem(value)
    if problem:
        return "", problem
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True), ""


def _enforceable(schema: Any) -> dict[str, Any]:
    """A copy of the schema with only the keywords that providers enforce; it forbids unnamed properties.

    Raises _NotKeptError.
    """
    if not isinstance(schema, dict) or schema.keys() - _KNOWN:
        raise _NotKeptError
    kept = {
        key: _enforceable_keyword(key, value)
        for key, value in schema.items()
        if key in _ENFORCEABLE or key in _WITH_SCHEMAS
    }
    kind = schema.get("type", "")
    if kind == "object":
        if not schema.get("properties") or schema.get("additionalProperties", False) is not False:
            raise _NotKeptError  # the schema allows objects with any properties
        return kept | {"additionalProperties": False}
    if "properties" in kept or ("array" in kind and "items" not in kept) or "object" in kind:
        raise _NotKeptError  # the schema allows objects, or arrays of anything
    if not kept.keys() & {"type", "enum", "const", "anyOf", "$ref"}:
        raise _NotKeptError  # the schema allows any value
    return kept


def _enforceable_keyword(key: str, value: Any) -> Any:
    if key in ("properties", "$defs"):
        return {name: _enforceable(each) for name, each in value.items()}
    if key == "anyOf":
        return [_enforceable(each) for each in value]
    if key == "$ref" and not value.startswith("#/$defs/"):
        raise _NotKeptError
    return _enforceable(value) if key == "items" else value


def _all_required(schema: Any) -> bool:
    if isinstance(schema, list):
        return all(map(_all_required, schema))
    if not isinstance(schema, dict):
        return True
    named = schema.get("properties")
    if isinstance(named, dict) and schema.get("type") == "object" and set(named) != set(schema.get("required", ())):
        return False
    return all(map(_all_required, schema.values()))


_TOO_DEEP = f"it is nested more than {MAX_OUTPUT_DEPTH} levels deep"
