"""Validates requests against the contract's rules, which are protovalidate options on fields and messages.

The rules are read from the descriptors at startup; an unsupported option makes startup fail, so that no rule is
ignored. The few rules that options cannot express are functions. All violations in a request are reported
together. Checks that need the server's state come later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple, NoReturn, TypeAlias

from bedrock import v1
from google.api.field_behavior_pb2 import OPTIONAL, field_behavior
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, OneofDescriptor
from google.protobuf.descriptor_pb2 import FieldOptions, MessageOptions, OneofOptions
from google.protobuf.message import Message

from server.contract import limits, validate_pb2
from server.contract.errors import MalformedRequestError
from server.contract.filters import FilterError, meaning, parse

Violation: TypeAlias = tuple[str, str]
"""The path of a field within a value ("" for the value itself), and what is wrong with that field."""
Check: TypeAlias = "Callable[[Any], Violation | None]"
Maker: TypeAlias = "Callable[[Any, Any, EnumDescriptor | None], Check]"

_RESOURCE = re.compile(r"([A-Za-z]+)s/\[[^]]*]\{1,\d+}")
_IDIOMS = {r"^[^\x00]*$": "not contain a NUL character", r"^[^\x00-\x1f\x7f]*$": "not contain control characters"}
_CALLS = {*dir(v1.ConversationServiceServicer), *dir(v1.CatalogServiceServicer)}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MATCHES = re.compile(r"(!?)this(?:\.(\w+))?\.matches\('(.*)'\)")
# Python versions of the contract's CEL expressions that are more than a pattern, by id: the server has no CEL engine.
_EXPRESSIONS: dict[str, Callable[[Any], object]] = {
    "action.required": lambda this: this.action,
    "content.declined": lambda this: not (this.decline and this.HasField("content")),
    "generation.steer": lambda this: not this.HasField("generation") or this.delivery != v1.DELIVERY_STEER,
    "output_schema.steer": lambda this: not this.HasField("output_schema") or this.delivery != v1.DELIVERY_STEER,
    "output.one": lambda this: bool(this.output) + this.HasField("json") + bool(this.error) <= 1,
    "output.images": lambda this: not this.error or not this.images,
    "output.size": lambda this: len(this.encode()) <= limits.MAX_TOOL_OUTPUT_BYTES,
    "task.blank": lambda this: this.strip(),
    "text.empty": lambda this: this.images or this.text.strip(),
    "text.replace": lambda this: this.text or not this.replace,
    "timeout.least": lambda this: _number(this) == 0 or _number(this) >= 10**9,
    "working_directory.required": lambda this: this.working_directory,
}


class MessageRules(NamedTuple):
    """The contract's rules for messages of one type: for the whole message, and for each field with rules."""

    checks: tuple[Check, ...]
    fields: dict[str, FieldRules]

    def violations(self, message: Message) -> Iterator[Violation]:
        """Yield what is wrong with a message and the messages in it."""
        yield from filter(None, (check(message) for check in self.checks))
        for field in self.fields.values():
            yield from field.violations(message)


class FieldRules:
    """The contract's rules for one field of a message."""

    def __init__(self, field: FieldDescriptor) -> None:
        rules, kind = _rules(field, FieldOptions, validate_pb2.field), field.message_type
        self._name, self._tracked, self._list = field.name, field.has_presence, field.is_repeated
        self._required, self._optional = rules.required, rules.ignore == validate_pb2.IGNORE_IF_ZERO_VALUE
        expressions = (_expression(each, kind, field.full_name) for each in rules.cel)
        self.checks = (*_standard(rules, field.enum_type, field.full_name), *expressions)
        ours = kind is not None and kind.full_name.startswith("bedrock.v1.") and not kind.GetOptions().map_entry
        self._inner = rules_of(kind) if ours and kind and any(rules_of(kind)) else None
        self._apart = kind == v1.Conversation.DESCRIPTOR
        judges = bool(self.checks or self._required or self._inner)
        self.judges = judges and rules.ignore != validate_pb2.IGNORE_ALWAYS

    def violations(self, message: Message) -> Iterator[Violation]:
        """Yield what is wrong with the field in a message. An empty field is not checked if it may be empty."""
        value = getattr(message, self._name)
        absent = not (message.HasField(self._name) if self._tracked else value)
        if (absent and self._tracked and not self._required) or (self._optional and not value):
            return
        found = list(self.of_the_value(value))
        yield from found or ([(self._name, "is required")] if absent and self._required else [])

    def of_the_value(self, value: Any) -> Iterator[Violation]:
        """Yield what is wrong with a value, even if it is empty.

        List elements and conversation settings have paths of their own. A violation within any other message is
        reported for the whole field, and its text names the part.
        """
        for check in self.checks:
            if found := check(value):
                yield self._within(*found)
                if not found[0]:
                    return
        if self._inner and self._list:
            for index, each in enumerate(value):
                place = f"{self._name}[{index}]."
                yield from ((f"{place}{path}".rstrip("."), text) for path, text in self._inner.violations(each))
        elif self._inner:
            yield from (self._within(*each) for each in self._inner.violations(value))

    def _within(self, path: str, text: str) -> Violation:
        return (f"{self._name}.{path}", text) if self._apart else (self._name, f"{path} {text}".lstrip())


@cache
def rules_of(kind: Descriptor) -> MessageRules:
    """The contract's rules for the messages of a type. Raises ValueError for an unsupported option."""
    rules = _rules(kind, MessageOptions, validate_pb2.message)
    choices = (_choice(each) for each in kind.oneofs if _rules(each, OneofOptions, validate_pb2.oneof).required)
    fields = {field.name: judged for field in kind.fields if (judged := FieldRules(field)).judges}
    return MessageRules((*(_expression(each, kind, kind.full_name) for each in rules.cel), *choices), fields)


def _rules(of: Any, kind: Any, extension: Any) -> Any:
    """The rules in the options of `of`, parsed again, because the stubs leave protovalidate's options unparsed."""
    rules = kind.FromString(of.GetOptions().SerializeToString()).Extensions[extension]
    for option, _ in rules.ListFields():
        if option.name not in {"cel", "ignore", "required"} and option.containing_oneof is None:
            _refuse(f"{of.full_name}, {option.name}")
    return rules


def _refuse(what: str) -> NoReturn:
    raise ValueError(f"the contract has a rule that the server does not support: {what}")


def _expression(rule: validate_pb2.Rule, kind: Descriptor | None, where: str) -> Check:
    field = rule.id.partition(".")[0]
    violation = field if kind is not None and field in kind.fields_by_name else "", rule.message
    if found := _MATCHES.fullmatch(rule.expression):
        negated, part, pattern = found.groups()
        search = _searcher(pattern.replace("\\\\", "\\"))
        return lambda this: violation if bool(search(getattr(this, part) if part else this)) == bool(negated) else None
    holds = _EXPRESSIONS.get(rule.id) or _refuse(f"{where}, {rule.id}")
    return lambda this: None if holds(this) else violation


def _choice(oneof: OneofDescriptor) -> Check:
    violation = "", "must have one of " + ", ".join(field.name for field in oneof.fields)
    return lambda this: None if this.WhichOneof(oneof.name) else violation


def _searcher(pattern: str) -> Callable[[str], object]:
    """The search function for an RE2 pattern, where `$` matches only at the end of the text."""
    return re.compile(re.sub(r"\$$", r"\\Z", pattern)).search


def _standard(rules: Any, enum: EnumDescriptor | None, where: str) -> Iterator[Check]:
    chosen = rules.WhichOneof("type")
    bounds = getattr(rules, chosen) if chosen else None
    for option, bound in bounds.ListFields() if bounds else ():
        yield (_STANDARD.get(option.name) or _refuse(f"{where}, {option.name}"))(bound, bounds, enum)


def _must(holds: Callable[[Any], object], text: str) -> Check:
    return lambda value: None if holds(value) else ("", f"must {text}")


def _pattern(pattern: str, *_: Any) -> Check:
    """A check against a pattern; its message describes the pattern in words, or the form of a resource name."""
    search, form = _searcher(pattern), _RESOURCE.sub(r"\1s/{\1}", pattern.strip("^$"))
    if pattern in _IDIOMS:
        return _must(search, _IDIOMS[pattern])
    if not re.fullmatch(r"[\w/{}]+", form):
        _refuse(f"a pattern without a description, {pattern}; make it a cel rule with a message")
    collection = form.split("/")[-2]
    call = f"List{collection[:1].upper()}{collection[1:]}"
    return _must(search, f"be {form}; {call} lists them" if call in _CALLS else f"be {form}")


def _number(value: Any) -> Any:
    return value.seconds * 10**9 + value.nanos if hasattr(value, "nanos") else value


def _excerpt(value: Any) -> str:
    return str(value.ToJsonString()) if hasattr(value, "nanos") else f"{value:g}"


def _one_of(_: Any, bounds: Any, enum: EnumDescriptor | None) -> Check:
    """A check that an enum value is defined: proto3 itself accepts any number."""
    if enum is None or not bounds.defined_only:
        _refuse("defined_only and not_in are supported for enums only, and together")
    allowed = {number: value.name for number, value in enum.values_by_number.items() if number not in bounds.not_in}
    return _must(allowed.__contains__, f"be one of {', '.join(name for number, name in allowed.items() if number)}")


def _each(of: Callable[[Any], Iterable[Any]], what: str) -> Maker:
    def make(rules: Any, _: Any, enum: EnumDescriptor | None) -> Check:
        if rules.cel or rules.ignore:
            _refuse(f"expressions for {what} of a list or a map")
        checks = tuple(_standard(rules, enum, what))

        def check(value: Any) -> Violation | None:
            found = (wrong[1] for each in of(value) for check in checks if (wrong := check(each)))
            return next((("", f"{what} {text}") for text in found), None)

        return check

    return make


# Protovalidate's standard rules that the contract uses, by their names.
_STANDARD: dict[str, Maker] = {
    "pattern": _pattern,
    "uuid": lambda *_: _must(_UUID.fullmatch, "be a UUID, such as 123e4567-e89b-12d3-a456-426614174000"),
    "min_len": lambda n, *_: _must(lambda value: len(value) >= n, f"have at least {n} character{'s' * (n > 1)}"),
    "max_len": lambda n, *_: _must(lambda value: len(value) <= n, f"have at most {n} characters"),
    "max_bytes": lambda n, *_: _must(lambda value: len(value.encode()) <= n, f"have at most {n} bytes in UTF-8"),
    "gte": lambda n, *_: _must(lambda value: _number(value) >= _number(n), f"be at least {_excerpt(n)}"),
    "lte": lambda n, *_: _must(lambda value: _number(value) <= _number(n), f"be at most {_excerpt(n)}"),
    **dict.fromkeys(("defined_only", "not_in"), _one_of),
    "min_items": lambda n, *_: _must(lambda value: len(value) >= n, f"have at least {n} entr{'ies' if n > 1 else 'y'}"),
    "max_items": lambda n, *_: _must(lambda value: len(value) <= n, f"have at most {n} entries"),
    "max_pairs": lambda n, *_: _must(lambda value: len(value) <= n, f"have at most {n} entries"),
    "items": _each(iter, "each"),
    "keys": _each(iter, "keys"),
    "values": _each(lambda value: value.values(), "values"),
}


ALL = "*"


def paths_to_set(request: v1.UpdateConversationRequest, settable: Collection[str]) -> list[str]:
    """The paths that an update sets: without a mask, the given fields in `settable`; with `*`, all of `settable`."""
    named = list(request.update_mask.paths)
    if not named:
        given = {field.name for field, _ in request.conversation.ListFields()}
        return [field for field in settable if field in given]
    return list(settable) if named == [ALL] else named


def key_of_label(path: str) -> str:
    """The key in a path such as `labels.key`. A key with a dot must be in backticks; any other key may be."""
    key = path.partition(".")[2]
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == "`" else key


_BEHAVIOR: Any = field_behavior
_SETTINGS = rules_of(v1.Conversation.DESCRIPTOR).fields
# The conversation fields that UpdateConversation may set; the mode has its own call.
UPDATABLE = tuple(
    field.name
    for field in v1.Conversation.DESCRIPTOR.fields
    if list(field.GetOptions().Extensions[_BEHAVIOR]) == [OPTIONAL] and field.name not in {"mode", "etag"}
)

for _name in dir(v1):
    if _name.endswith("Request"):
        rules_of(getattr(v1, _name).DESCRIPTOR)  # so that an unsupported rule fails at startup, not in a call


def check(request: Message) -> None:
    """Raise MalformedRequestError, with the first violation in each field, if fields of the request are invalid."""
    found: dict[str, str] = {}
    for field, text in _update(request) if isinstance(request, v1.UpdateConversationRequest) else _violations(request):
        found.setdefault(field, text)
    if found:
        raise MalformedRequestError(*found.items())


def _violations(request: Message) -> Iterator[Violation]:
    found = list(rules_of(request.DESCRIPTOR).violations(request))
    if isinstance(request, v1.ListConversationsRequest | v1.WatchConversationsRequest) and "filter" not in dict(found):
        try:
            parse(request.filter, meaning)  # a grammar, which no option can express
        except FilterError as error:
            yield "filter", str(error)
    yield from found


def _update(request: v1.UpdateConversationRequest) -> Iterator[Violation]:
    """Violations in the fields that an update sets. Options cannot express which fields a mask selects.

    Other fields are ignored, so a client may send a whole conversation to change one field.
    """
    wanted, whole = request.conversation, rules_of(request.DESCRIPTOR).fields["conversation"]
    yield from ((f"conversation.{path}", text) for path, text in filter(None, (each(wanted) for each in whole.checks)))
    for each in paths_to_set(request, UPDATABLE):
        field, _, inner = each.partition(".")
        part = getattr(wanted, field) if field in {"budget", "generation"} else None
        found: Iterable[Violation] = ()
        if each in UPDATABLE:
            found = _SETTINGS[each].of_the_value(getattr(wanted, each)) if each in _SETTINGS else ()
        elif field == "labels" and inner:
            label = {(key := key_of_label(each)): wanted.labels.get(key, "")}
            found = ((each, text) for _, text in _SETTINGS[field].of_the_value(label))
        elif part is not None and inner in part.DESCRIPTOR.fields_by_name:
            found = ((each, text) for _, text in rules_of(part.DESCRIPTOR).fields[inner].violations(part))
        else:
            paths = f"{', '.join(UPDATABLE)}, labels.KEY, budget.FIELD, generation.FIELD, or {ALL} alone"
            yield "update_mask", f"{each!r} cannot be updated; these can: {paths}"
        yield from ((f"conversation.{path}", text) for path, text in found)
