"""Base classes of the frozen dataclasses that wrap the API's protobuf messages, and the conversion of their values.

A wrapper class names its message as the argument of `Wrapper`, and has an attribute for each field of the message, with
the same name and this type:

| in protobuf | in Python |
|---|---|
| enum | `str`, the name in lower case without its prefix; the number in digits if this version does not define it |
| Timestamp, Duration | aware `datetime` in UTC, `timedelta` |
| Struct, Value | `dict` or another plain value, whole numbers as `int`; None if it is not set |
| another message | its wrapper |
| repeated, map | `tuple`, `dict` |

A message field that is not set becomes None where the annotation allows None, and a default value elsewhere; the
default of a time is the beginning of 1970. A time or a duration that Python cannot represent becomes the nearest one
that it can.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from numbers import Integral, Real
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast, get_args, get_origin, get_type_hints

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.struct_pb2 import Struct

if TYPE_CHECKING:
    from google.protobuf.descriptor import EnumDescriptor
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper
    from google.protobuf.struct_pb2 import Value as StructValue
    from google.protobuf.timestamp_pb2 import Timestamp

MessageT = TypeVar("MessageT", bound=Message)

_BITS = {FieldDescriptor.CPPTYPE_INT32: 32, FieldDescriptor.CPPTYPE_INT64: 64}

_SECOND = 10**9
# The first and the last time that protobuf's JSON mapping allows, the years 1 to 9999, in nanoseconds since 1970.
_TIMES = -62_135_596_800 * _SECOND, 253_402_300_800 * _SECOND - 1
# The longest duration that protobuf's JSON mapping allows, about 10,000 years, in nanoseconds.
_LONGEST = 315_576_000_001 * _SECOND - 1

# Stands for an empty dict among default values: each wrapper gets its own dict, because dicts are mutable.
_NEW_DICT = object()


@dataclass(frozen=True, slots=True)
class Wrapper(Generic[MessageT]):
    proto: MessageT = field(repr=False, compare=False, kw_only=True)
    """The protobuf message. It may contain fields for which only newer versions of this package have attributes."""

    @classmethod
    def from_proto(cls, proto: MessageT) -> Self:
        return cls(proto=proto, **_values(cls, proto))

    def to_dict(self) -> dict[str, Any]:
        """Return the message as values for JSON, with the protobuf field names.

        This is protobuf's JSON mapping: enums by full names, 64-bit integers as strings, times in RFC 3339, no unset
        fields. Values out of range become the nearest valid ones.
        """
        return _json_values(self.proto)


@dataclass(frozen=True, slots=True)
class Value(Wrapper[MessageT]):
    """A wrapper that callers may also create themselves: the protobuf message is made from the attributes."""

    proto: MessageT = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Create the protobuf message. Raises what `new_message` raises."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        given = {name: value for name, value in values.items() if value != {}}
        object.__setattr__(self, "proto", new_message(message_type(type(self)), **given))

    @classmethod
    def from_proto(cls, proto: MessageT) -> Self:
        value = cls(**_values(cls, proto))
        object.__setattr__(value, "proto", proto)
        return value


def message_type(wrapper: type[Wrapper[Any]]) -> type[Message]:
    (base,) = vars(wrapper)["__orig_bases__"]
    return cast("type[Message]", get_args(base)[0])


def new_message(kind: type[MessageT], **values: Any) -> MessageT:
    """Create a protobuf message from a caller's arguments, among them enum values as short names, and plain dicts.

    Raises TypeError or ValueError, which name the field.
    """
    for name, value in values.items():
        descriptor = cast("FieldDescriptor", kind.DESCRIPTOR.fields_by_name[name])
        if value is not None or not descriptor.has_presence:
            _check(descriptor, value)
    return kind(**{name: _sent(kind, name, value) for name, value in values.items()})


def struct_message(name: str, value: Mapping[str, Any]) -> Struct:
    """Convert a dict into a protobuf Struct.

    Raises TypeError, beginning with `name`, if the dict cannot be JSON or is nested too deeply.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: must be a dict, not {type(value)!r}")
    try:
        made = json_format.ParseDict(dict(value), Struct())
        Struct.FromString(made.SerializeToString())
    except json_format.ParseError as error:
        raise TypeError(f"{name}: must contain only JSON values: {error}") from None
    except (RecursionError, DecodeError):
        raise TypeError(f"{name}: must not be nested this deeply") from None
    return made


def _sent(kind: type[Message], name: str, value: Any) -> Any:
    """A caller's value, converted for a protobuf field.

    Raises TypeError if the field needs a timedelta or JSON and the value is neither, and ValueError for an unknown
    enum name.
    """
    descriptor = cast("FieldDescriptor", kind.DESCRIPTOR.fields_by_name[name])
    message, enum = descriptor.message_type, descriptor.enum_type
    if isinstance(value, Wrapper):
        return value.proto
    if message is not None and isinstance(value, list | tuple):
        return [_sent(kind, name, each) for each in value]
    if message is not None and message.full_name == "google.protobuf.Duration":
        if not isinstance(value, timedelta):  # versions of protobuf raise different errors for a wrong type
            raise TypeError(f"{name}: must be a timedelta, not {value!r}")
        return value or None
    if message is not None and message.full_name == "google.protobuf.Struct":
        return None if value is None else struct_message(name, value)
    if enum is None or not isinstance(value, str):
        return value
    known = {short: number for number, short in _short_names(enum).items()}
    if value in known:
        return known[value]
    raise ValueError(f"{name}: {value!r} is not a valid {enum.name}; choose one of: {', '.join(filter(None, known))}")


def _check(descriptor: FieldDescriptor, value: Any) -> None:
    """Check a value for a string or number field. Raises TypeError or ValueError, which name the field."""
    if isinstance(descriptor.default_value, list):
        if descriptor.message_type is None:
            check_list(descriptor.name, value)
            for each in value:
                _check_type(descriptor.name, each, str, "a list of strings")
    elif bits := _BITS.get(descriptor.cpp_type):
        _check_type(descriptor.name, value, Integral, "a whole number")
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        if not low <= value <= high:
            raise ValueError(f"{descriptor.name}: must be between {low} and {high}, not {value}")
    elif descriptor.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        _check_type(descriptor.name, value, Real, "a number")
    elif descriptor.cpp_type == FieldDescriptor.CPPTYPE_STRING and value is not None:
        _check_type(descriptor.name, value, str, "a string")


def check_list(name: str, value: object) -> None:
    """Raise TypeError unless a value is iterable. A str or bytes is refused although it is iterable."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name}: must be a list, not {value!r}")


def _check_type(name: str, value: object, kind: type[Any], words: str) -> None:
    if not isinstance(value, kind) or (kind in (Integral, Real) and isinstance(value, bool)):
        raise TypeError(f"{name}: must be {words}, not {value!r}")


def moment(timestamp: Timestamp) -> datetime:
    """A protobuf timestamp as a datetime in UTC; a time out of range becomes the nearest possible one."""
    try:
        return timestamp.ToDatetime(tzinfo=UTC)
    except (OverflowError, ValueError):  # one bad time must not end a loop over events
        return (datetime.max if timestamp.seconds > 0 else datetime.min).replace(tzinfo=UTC)


def length(duration: Duration) -> timedelta:
    """Convert a protobuf duration into a timedelta. If out of range, it becomes `timedelta.max` or `timedelta.min`."""
    try:
        return duration.ToTimedelta()
    except (OverflowError, ValueError):
        return timedelta.max if duration.seconds > 0 else timedelta.min


def _json_values(proto: Message) -> dict[str, Any]:
    """Protobuf's JSON mapping, with the protobuf field names.

    Times and durations out of range become the nearest valid ones, and numbers that JSON lacks become strings such as
    "NaN".
    """
    try:
        return _mapping(proto)
    except json_format.SerializeToJsonError:  # one bad value must not end a loop over events
        copy = type(proto)()
        copy.CopyFrom(proto)
        _clamp(copy)
        return _mapping(copy)


def _mapping(proto: Message) -> dict[str, Any]:
    values: dict[str, Any] = json_format.MessageToDict(proto, preserving_proto_field_name=True)
    return values


def _clamp(proto: Any) -> None:
    match proto.DESCRIPTOR.full_name:
        case "google.protobuf.Timestamp":
            _clamp_time(proto, *_TIMES)
        case "google.protobuf.Duration":
            _clamp_time(proto, -_LONGEST, _LONGEST)
        case "google.protobuf.Value" if not math.isfinite(proto.number_value):
            proto.string_value = json.dumps(proto.number_value)
        case _:
            for descriptor, value in proto.ListFields():
                for each in _messages(descriptor, value):
                    _clamp(each)


def _clamp_time(proto: Any, low: int, high: int) -> None:
    proto.FromNanoseconds(min(max(proto.seconds * _SECOND + proto.nanos, low), high))


def _messages(descriptor: FieldDescriptor, value: Any) -> Iterable[Message]:
    """The messages in the value of a single, repeated or map field; none if its values are not messages."""
    if not descriptor.is_repeated:
        return (value,) if isinstance(value, Message) else ()
    values = value.values() if hasattr(value, "values") else value
    return [each for each in values if isinstance(each, Message)]


def plain(struct: Struct) -> dict[str, Any]:
    return {key: _plain_value(value) for key, value in struct.fields.items()}


def _plain_value(value: StructValue) -> Any:
    match value.WhichOneof("kind"):
        case "struct_value":
            return plain(value.struct_value)
        case "list_value":
            return [_plain_value(item) for item in value.list_value.values]
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case _:
            return None


def _values(wrapper: Any, proto: Message) -> dict[str, Any]:
    """The values of a wrapper's attributes. Most fields are unset; these take cached defaults, without conversion."""
    converters = _converters(wrapper)
    values = dict(_values_of_unset(wrapper))
    for descriptor, value in proto.ListFields():
        if convert := converters.get(descriptor.name):
            values[descriptor.name] = convert(value)
    return {name: {} if value is _NEW_DICT else value for name, value in values.items()}


@cache
def _converters(wrapper: type[Any]) -> dict[str, Callable[[Any], Any]]:
    """Return, for each attribute of a wrapper class, the function that converts the value of its protobuf field."""
    return {name: _converter(descriptor, hint) for name, descriptor, hint in _typed_fields(wrapper)}


@cache
def _values_of_unset(wrapper: type[Any]) -> dict[str, Any]:
    """Return, for each attribute of a wrapper class, the value that it has if the message does not set the field."""
    empty = message_type(wrapper)()
    values: dict[str, Any] = {}
    for name, descriptor, hint in _typed_fields(wrapper):
        if get_origin(hint) is dict:
            values[name] = _NEW_DICT
        elif descriptor.has_presence and (hint is Any or NoneType in get_args(hint)):
            values[name] = None
        else:
            values[name] = _converter(descriptor, hint)(getattr(empty, name))
    return values


def _typed_fields(wrapper: type[Wrapper[Any]]) -> Iterator[tuple[str, FieldDescriptor, Any]]:
    """Yield the name, the protobuf descriptor and the annotation of each attribute of a wrapper, except `proto`."""
    hints = get_type_hints(wrapper)
    descriptors = message_type(wrapper).DESCRIPTOR.fields_by_name
    for name in (each.name for each in fields(wrapper) if each.name != "proto"):
        yield name, cast("FieldDescriptor", descriptors[name]), hints[name]


def _converter(descriptor: FieldDescriptor, hint: Any) -> Callable[[Any], Any]:
    """The function that converts the value of a single, repeated or map field."""
    types = get_args(hint)
    if get_origin(hint) is tuple:
        convert = _conversion(descriptor, types[0])
        return lambda values: tuple([convert(each) for each in values])
    if descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry:
        convert = _conversion(descriptor.message_type.fields_by_name["value"], types[1])
        return lambda values: {key: convert(each) for key, each in values.items()}
    named = [each for each in types if isinstance(get_origin(each) or each, type) and each is not NoneType]
    return _conversion(descriptor, named[0] if NoneType in types else hint)


def _conversion(descriptor: FieldDescriptor, hint: Any) -> Callable[[Any], Any]:
    """The function that converts a single value; for repeated and map fields, one element."""
    if (enum := descriptor.enum_type) is not None:
        return lambda number: number_name(enum, number)
    if descriptor.message_type is None:
        return lambda value: value
    match descriptor.message_type.full_name:
        case "google.protobuf.Timestamp":
            return moment
        case "google.protobuf.Duration":
            return length
        case "google.protobuf.Struct":
            return plain
        case "google.protobuf.Value":
            return _plain_value
        case _:
            return cast("Callable[[Any], Any]", hint.from_proto)


E = TypeVar("E", bound=int)


def enum_value(enum: _EnumTypeWrapper[E], value: str | None) -> E:
    """The enum value of a short name such as "follow_up"; 0 for None. Raises ValueError, which lists the names."""
    if value is None:
        return cast("E", 0)
    known = {name: number for number, name in _short_names(enum.DESCRIPTOR).items() if number}
    if value in known:
        return cast("E", known[value])
    raise ValueError(f"{value!r} is not a valid {enum.DESCRIPTOR.name}; choose one of: {', '.join(known)}")


def enum_name(enum: _EnumTypeWrapper[E], value: E) -> str:
    """The short name of an enum value, e.g. "follow_up"; see `number_name`."""
    return number_name(enum.DESCRIPTOR, value)


def number_name(enum: EnumDescriptor, number: int) -> str:
    """The short name, e.g. "follow_up" for 3; "" for 0 ("not set"), and digits for an unknown number."""
    return _short_names(enum).get(number, str(number))


def resource_name(collection: str, name: str) -> str:
    """The full resource name for an id, a slug, or a full name. Raises ValueError for ""."""
    if not name:
        raise ValueError(f"one of the {collection} has an empty name")
    return name if name.startswith(collection + "/") else f"{collection}/{name}"


@cache
def _short_names(enum: EnumDescriptor) -> dict[int, str]:
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
    names = {number: value.name.removeprefix(prefix).lower() for number, value in enum.values_by_number.items()}
    return {**names, 0: ""}
