"""Converts JSON, the path and the query of an HTTP request to a request of the contract.

The conversion is that of protobuf's `json_format`. Some of its errors only describe its own internals, and it accepts
invalid Base64, so the JSON is first checked against the fields of the message.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NoReturn, cast
from urllib.parse import parse_qsl

from google.api.field_behavior_pb2 import OUTPUT_ONLY, field_behavior
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError, Message

from server.contract.errors import MalformedRequestError
from server.gateway.routes import ALL, Route

_BEHAVIOR: Any = field_behavior
_OURS = "bedrock.v1."
_MASK = "google.protobuf.FieldMask"
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_PATH = re.compile(r"(?:`[^`]*`|[^,`])+")
_DECIMAL = re.compile(r"-?[0-9]{1,20}")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|NaN|-?Infinity")
# The accepted forms of durations and times. protobuf itself also accepts underscores, digits of other scripts, and
# times that no clock shows.
_FORMS = {
    "google.protobuf.Duration": re.compile(r"-?[0-9]+(\.[0-9]{1,9})?s"),
    "google.protobuf.Timestamp": re.compile(r"[0-9T:.-]+(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"),
}
_WRONG = "is not valid JSON for this field's type"
_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64),
}
TOO_DEEP = "the JSON in the body is nested too deeply"


def request_from(route: Route, name: str, query: str, body: bytes) -> Message:
    """The request for a route; `name` comes from the path. Raises MalformedRequestError, which names the field."""
    if body and not route.body:
        _refuse("", f"{route.verb} takes no body; put the fields in the query string")
    return request_of(route, name, query, decoded(body) if body else {})


def request_of(route: Route, name: str, query: str, body: Any) -> Message:
    """Like `request_from`, for a decoded body."""
    given = _body(route, body)
    for key, value in _query(query):
        _place(route, given, key, value)
    _set_name(route, given, name)
    masks = dict(_masks(route, given))
    _check(route.method.input_type, given, "")
    try:
        request = ParseDict(given, route.request())
        # The server's parser counts each level of a Struct as three, and must not be sent JSON that it cannot read.
        type(request).FromString(request.SerializeToString())
    except (RecursionError, DecodeError):
        _refuse("", TOO_DEEP)
    except (ParseError, ValueError, OverflowError) as error:
        found = re.search(r"^Failed to parse (\w+) field", str(error))
        _refuse(found[1] if found else "", _WRONG)
    for field, paths in masks.items():
        getattr(request, field).paths.extend(paths)
    return request


def _body(route: Route, body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        _refuse("" if route.body == ALL else _body_key(route), "must be a JSON object")
    return {_body_key(route): body} if route.body not in {"", ALL} else body


def _body_key(route: Route) -> str:
    return route.method.input_type.fields_by_name[route.body].json_name


def decoded(body: bytes) -> Any:
    """The JSON in a body. Raises MalformedRequestError if it is invalid, repeats a key, or has a lone surrogate."""
    try:
        return json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_no_number)
    except UnicodeDecodeError:
        _refuse("", "the body is not UTF-8")
    except RecursionError:
        _refuse("", TOO_DEEP)
    except ValueError as error:
        _refuse("", f"the body is not valid JSON: {error}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    for key, value in found.items():
        if not all(map(_is_text, (key, *_texts(value)))):
            _refuse(key, "contains a lone surrogate")
    if len(found) < len(pairs):
        _refuse(Counter(key for key, _ in pairs).most_common(1)[0][0], "must not be given twice")
    return found


def _texts(value: Any) -> Iterator[str]:
    """A string, or the strings in an array; those in objects have already been checked."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from chain.from_iterable(map(_texts, value))


def _no_number(text: str) -> NoReturn:
    _refuse("", f"{text} is not valid JSON")


def _query(query: str) -> Iterable[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=100)
    except UnicodeDecodeError:
        _refuse("", "the query string is not UTF-8")
    except ValueError:
        _refuse("", "the query string has too many parameters")


def _place(route: Route, given: dict[str, Any], path: str, text: str) -> None:
    if route.body == ALL:
        _refuse(path, "must be in the body, not in the query string")
    kind, place = route.method.input_type, given
    *outer, last = path.split(".")
    for part in outer:
        field = _field(kind, part)
        if field is None or field.message_type is None or field.is_repeated or field.name == route.body:
            _refuse(path, _unknown(kind))
        kind, place = field.message_type, place.setdefault(field.json_name, {})
    field = _field(kind, last)
    if field is None or (field.name == route.body and kind == route.method.input_type):
        _refuse(path, _unknown(kind))
    value = _parameter(field, path, text)
    if not isinstance(place, dict):
        _refuse(path, "must not be given twice")
    if field.is_repeated:
        place.setdefault(field.json_name, []).append(value)
    elif field.json_name in place:
        _refuse(path, "must not be given twice")
    else:
        place[field.json_name] = value


def _parameter(field: FieldDescriptor, path: str, text: str) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return text == "true" if text in {"true", "false"} else _refuse(path, "must be true or false")
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM and _DECIMAL.fullmatch(text):
        return int(text)
    if field.message_type is not None and field.message_type.full_name.startswith(_OURS):
        _refuse(path, "must name a field of this message, such as a.b")
    return text


def _set_name(route: Route, given: dict[str, Any], name: str) -> None:
    if not route.field:
        return
    *outer, last = route.field.split(".")
    place = given
    for part in outer:
        place = place.setdefault(part, {})
    if place.get(last) is None:
        place[last] = name
    elif place[last] != name:
        _refuse(route.field, f"must be {name}, as in the URL's path")


def _check(kind: Descriptor, given: dict[str, Any], path: str) -> None:
    seen: dict[str, str] = {}
    for key, value in given.items():
        field = _field(kind, key)
        where = f"{path}.{key}".lstrip(".")
        if field is None:
            _refuse(where, _unknown(kind))
        if value is None:
            continue
        choice = field.containing_oneof.name if field.containing_oneof else field.name
        if (other := seen.setdefault(choice, key)) != key:
            _refuse(where, f"must not be set together with {other}")
        for place, each in _elements(field, value, where):
            _check_value(field, each, place)


def _elements(field: FieldDescriptor, value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        if not isinstance(value, dict):
            _refuse(where, "must be an object")
        yield from ((f"{where}.{key}", each) for key, each in value.items())
    elif not field.is_repeated:
        yield where, value
    elif isinstance(value, list):
        yield from ((f"{where}[{index}]", each) for index, each in enumerate(value))
    else:
        _refuse(where, "must be an array")


def _check_value(field: FieldDescriptor, value: Any, where: str) -> None:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        field = kind.fields_by_name["value"]
        kind = field.message_type
    if kind is not None:
        if kind.full_name.startswith(_OURS):
            if not isinstance(value, dict):
                _refuse(where, "must be an object")
            _check(kind, value, where)
        elif (form := _FORMS.get(kind.full_name)) and not (isinstance(value, str) and form.fullmatch(value)):
            _refuse(where, _WRONG)
    elif (wanted := _wanted(field, value)) is not None:
        _refuse(where, wanted)


def _wanted(field: FieldDescriptor, value: Any) -> str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if (bounds := _BITS.get(field.cpp_type)) is not None:
        whole = (number and value == value // 1) or (isinstance(value, str) and _DECIMAL.fullmatch(value))
        return None if whole and bounds[0] <= int(value) < bounds[1] else "must be a whole number in its type's range"
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return None if isinstance(value, bool) else "must be true or false"
        case FieldDescriptor.CPPTYPE_ENUM:
            values = cast("EnumDescriptor", field.enum_type).values_by_name
            known = (
                isinstance(value, int)
                if number
                else isinstance(value, str) and "\0" not in value and _sendable(value) in values
            )
            return (
                None if known else f"must be one of {', '.join(name for name, each in values.items() if each.number)}"
            )
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            right = isinstance(value, str) and _BASE64.fullmatch(value) and len(value.rstrip("=")) % 4 != 1
            return None if right else "must be Base64"
        case FieldDescriptor.CPPTYPE_STRING:
            return None if isinstance(value, str) else "must be a string"
        case _:
            return None if number or (isinstance(value, str) and _NUMBER.fullmatch(value)) else "must be a number"


def _masks(route: Route, given: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Remove and yield the field masks: `json_format` would change a label's key in a path, or refuse the path."""
    kind = route.method.input_type
    updated = kind.fields_by_name[route.body].message_type if route.body in kind.fields_by_name else None
    for key in tuple(given):
        field = _field(kind, key)
        if field is None or field.message_type is None or field.message_type.full_name != _MASK:
            continue
        value = given.pop(key)
        if not isinstance(value, str) or "\0" in value or value.count("`") % 2:
            _refuse(key, "must be a string of comma-separated paths")
        yield field.name, [_path(updated, path.strip()) for path in _PATH.findall(value)]


def _path(kind: Descriptor | None, path: str) -> str:
    """A path of a field mask with the contract's names. The part after the name of a map is a key, and is kept."""
    name, dot, rest = path.partition(".")
    field = _field(kind, name) if kind is not None and not kind.GetOptions().map_entry else None
    return path if field is None else f"{field.name}{dot}{_path(field.message_type, rest) if dot else ''}"


def _field(kind: Descriptor, name: str) -> FieldDescriptor | None:
    if "\0" in name:  # protobuf's lookup would end there
        return None
    return kind.fields_by_name.get(name) or kind.fields_by_camelcase_name.get(name)


def _unknown(kind: Descriptor) -> str:
    known = [field.json_name for field in kind.fields if OUTPUT_ONLY not in field.GetOptions().Extensions[_BEHAVIOR]]
    return f"unknown field; known fields: {', '.join(known) or 'none'}"


def _refuse(field: str, text: str) -> NoReturn:
    # JSON keys can contain a lone surrogate ("\\ud800"), which no response can.
    raise MalformedRequestError((_sendable(field), _sendable(text)))


def _is_text(text: str) -> bool:
    return text.isascii() or text == _sendable(text)


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
