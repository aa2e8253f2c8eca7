"""Parsing of JSON, and validation against JSON Schemas (draft 2020-12) that models and clients wrote.

Safe to call from any thread. Schemas may be untrusted: patterns are matched in linear time, and no reference is
fetched.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import operator
from typing import TYPE_CHECKING, Any, NoReturn

from actors.ports.schemas.comparisons import Comparisons, UnboundedSchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jsonschema_rs import ValidationError

MAX_FAULTS = 3
"""The maximum number of faults of a value that are reported."""

MAX_FAULT_CHARACTERS = 300

MAX_DEPTH = 100
"""The maximum nesting of values and of schemas; beyond it, the compiled validator could overflow its stack."""

TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"

TOO_LARGE_A_NUMBER = "a number is beyond 1.7e308"

PATTERN_BYTES = 1 << 20
"""The maximum size of a compiled pattern (regular expression), in bytes."""

PATTERNS_BYTES = 4 << 20
"""The maximum size of all compiled patterns (regular expressions) of one schema together, in bytes."""

TOO_MUCH = "it is too large to be compared with the schema"


class InvalidSchemaError(ValueError):
    """The schema is not a valid JSON Schema, or is valid but not supported; the text says why."""


class JsonSchema:
    """A JSON Schema, which is compiled once."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Compile the schema. Raises InvalidSchemaError, also if validation against the schema could take forever."""
        if is_too_deep(schema):
            raise InvalidSchemaError(TOO_DEEP)
        own, each_pattern = dict(schema), PATTERNS_BYTES // max(1, _patterns(schema))
        import jsonschema_rs  # noqa: PLC0415 -- 15 MB of memory that a server without schemas need not load

        try:
            self._validator = jsonschema_rs.Draft202012Validator(
                own,
                retriever=_fetch_nothing,
                # Lookarounds and back references are refused: with them, a pattern can take exponential time.
                pattern_options=jsonschema_rs.RegexOptions(size_limit=min(PATTERN_BYTES, each_pattern)),
            )
            self._comparisons = Comparisons(own)
        except jsonschema_rs.ValidationError as error:
            raise InvalidSchemaError(_fault_text(error)) from None
        except UnboundedSchemaError as error:
            raise InvalidSchemaError(str(error)) from None

    def problem(self, value: Any) -> str:
        """Return why a JSON value does not match the schema, with the place of each fault; "" if it matches."""
        if is_too_deep(value):
            return TOO_DEEP
        if self._comparisons.take_too_long(value):  # validation cannot be interrupted and blocks all threads
            return TOO_MUCH
        faults = sorted(self._validator.iter_errors(value), key=_place)
        shown = [_fault_text(fault) for fault in faults[:MAX_FAULTS]]
        return "; ".join((*shown, f"and {len(faults) - MAX_FAULTS} more") if len(faults) > MAX_FAULTS else shown)

    def read_scalars(self, value: Any) -> tuple[Any, dict[str, str]]:
        """Return a JSON value that fits the schema, with numbers and booleans in place of texts that spell them.

        Only texts that do not fit are replaced, so that each has one meaning. Also returns these texts by their places.
        Returns `value` and {} if it fits as it is, or not even so.
        """
        if is_too_deep(value) or self._comparisons.take_too_long(value):
            return value, {}
        read, spelled = copy.deepcopy(value), dict[str, str]()
        for fault in self._validator.iter_errors(value):
            for last in fault.instance_path[-1:]:  # a fault of the whole value has no path
                holder = functools.reduce(operator.getitem, fault.instance_path[:-1], read)
                if (scalar := _scalar(holder[last])) is not None:
                    spelled[_place(fault)] = holder[last]
                    holder[last] = scalar
        return (read, spelled) if spelled and not self.problem(read) else (value, {})


def is_schema(value: dict[str, Any]) -> bool:
    """Return whether an object is a valid JSON Schema. `JsonSchema` may still refuse a valid one.

    The object must have no `$schema` key. The caller must have checked that it is not nested too deeply.
    """
    import jsonschema_rs  # noqa: PLC0415 -- 15 MB of memory that a server without schemas need not load

    return jsonschema_rs.meta.is_valid(value)


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError, whose text says what is wrong.

    NaN, infinities, numbers too large for a double and lone surrogates are refused, because they cannot be stored or
    sent.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_double, parse_int=_whole_number)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair: write the character itself") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if is_too_deep(value):
        raise ValueError(TOO_DEEP)
    return value


def is_too_deep(value: Any, most: int = MAX_DEPTH) -> bool:
    """Return whether objects and lists are nested more than `most` levels deep."""
    level = [value]
    for _ in range(most):
        level = [inner for each in level for inner in _inside(each)]
        if not level:  # an early end, because most values have only one or two levels
            return False
    return any(isinstance(each, (dict, list)) for each in level)


def _patterns(schema: Any) -> int:
    """Return an upper bound of the number of regular expressions in a schema."""
    if not isinstance(schema, dict):
        return sum(map(_patterns, schema)) if isinstance(schema, list) else 0
    named = schema.get("patternProperties")
    here = ("pattern" in schema) + (len(named) if isinstance(named, dict) else 0)
    return here + sum(map(_patterns, schema.values()))


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def shortened(text: str) -> str:
    """Return the text, cut to MAX_FAULT_CHARACTERS characters."""
    return text if len(text) <= MAX_FAULT_CHARACTERS else f"{text[:MAX_FAULT_CHARACTERS]}…"


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number in JSON")


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
    """Return the number or boolean that a text spells; None if it spells none."""
    try:
        value = parse_json(text.lower()) if isinstance(text, str) else None
    except ValueError:
        return None
    return value if isinstance(value, (int, float)) else None


def _fetch_nothing(_uri: str) -> NoReturn:
    raise ValueError("a $ref can only name a place in the schema itself")


def _place(fault: ValidationError) -> str:
    """Return the path of the value that does not match, for example `items[2].name`; "" for the whole value."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault.instance_path)
    return path.removeprefix(".")


def _fault_text(fault: ValidationError) -> str:
    place, message = _place(fault), fault.message
    options: list[Any] = getattr(fault.kind, "options", [])
    if options:  # the library's own message names only two of the allowed values
        message = f"{json.dumps(fault.instance)} is not one of {json.dumps(options)[1:-1]}"
    return shortened(f"`{place}`: {message}" if place else message)
