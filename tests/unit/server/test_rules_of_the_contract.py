"""The server reads protovalidate's options in the contract as protovalidate does: both judge requests alike.

A client that validates before it sends is refused by its own library exactly where the server would refuse it.
"""

from collections.abc import Iterator
from typing import Any

import protovalidate
import pytest
from bedrock import v1
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from server.contract import validate_pb2
from server.contract.errors import MalformedRequestError
from server.contract.validation import check, rules_of
from tests.unit.server.test_checks import CASES, GOOD, made


def refused_by_server(request: Message) -> set[str]:
    """The first parts of the paths of the fields that the server refuses."""
    try:
        check(request)
    except MalformedRequestError as error:
        return {first(field) for field, _ in error.violations}
    return set()


def refused_by_contract(request: Message) -> set[str]:
    """The first parts of the paths of the fields that the contract's rules refuse, also by a rule for a message."""
    found = set()
    for violation in protovalidate.collect_violations(request):
        path = violation.proto.field
        named = path.elements[0].field_name if path is not None and path.elements else ""
        found.add(named or first(violation.proto.rule_id))
    return found


def first(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_what_the_server_takes_the_contract_allows(kind: type[Message]) -> None:
    assert refused_by_contract(made(kind, GOOD[kind])) == set()


@pytest.mark.parametrize(
    ("kind", "field", "value"), CASES, ids=[f"{kind.__name__}-{field}-{n}" for n, (kind, field, _) in enumerate(CASES)]
)
def test_what_the_server_refuses_the_contract_forbids(kind: type[Message], field: str, value: Any) -> None:
    request = made(kind, {**GOOD[kind], field: value})
    assert refused_by_contract(request) == refused_by_server(request) == {first(field)}


TEXTS = st.text(max_size=20) | st.sampled_from(
    ["a" * 63, "a" * 64, "conversations/c", "conversations/a~b", "conversations/" + "x" * 129, "models/a/b", "models/ä",
     "conversations/c/messages/m", "conversations/c/requestCycles/c:1", "conversations/c/approvals/a b", "\u00a0",
     "\x1c", "\u2003\u3000", "\x85", "a-", "-a", "a-b", "abcdefghijkm2345", "abcdefghijkm2345-a1",
     "/work", "work", "/a\0b",
     "123e4567-e89b-12d3-a456-426614174000", "123E4567-E89B-12D3-A456-42661417400", "x" * 256, "x" * 257, "é" * 2049,
     "x" * 1024, "x" * 1025, "é" * 8192, "x" * 16385, "\x7f", "\n", "\u017f", "\u0130"],
)  # fmt: skip


def messages(kind: type[Message], depth: int = 0) -> st.SearchStrategy[Message]:
    """Requests of this kind with any values, mostly small and near the bounds."""
    fields = {field.name: values(field, depth) for field in kind.DESCRIPTOR.fields if field.name not in SERVER_SIDE}
    chosen = st.fixed_dictionaries({}, optional={name: each for name, each in fields.items() if each is not None})
    return chosen.map(lambda given: kind(**given))


SERVER_SIDE = {"context_usage", "total_usage", "aside_usage", "images", "update_mask", "filter"}
"""Fields that the server sets or looks at elsewhere: images when it decodes them, masks in tests of their own. No rule
of the contract knows the language of filters."""


def values(field: Any, depth: int) -> st.SearchStrategy[Any] | None:
    message, enum = field.message_type, field.enum_type
    one: st.SearchStrategy[Any] | None
    if message is not None and message.GetOptions().map_entry:
        return st.dictionaries(TEXTS, TEXTS, max_size=3)
    if message is not None:
        known = message.full_name.startswith("bedrock.v1.") and depth < 2
        one = messages(message._concrete_class, depth + 1) if known else None
    elif enum is not None:
        one = st.integers(0, len(enum.values) + 1)
    elif field.type == field.TYPE_STRING:
        one = TEXTS
    elif field.type == field.TYPE_BOOL:
        one = st.booleans()
    else:
        one = st.sampled_from([-1, 0, 1, 100, 101])
    return st.lists(one, max_size=3) if one is not None and field.is_repeated else one


@given(st.data())
def test_any_request_is_judged_alike(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([kind for kind in GOOD if kind is not v1.UpdateConversationRequest]))
    request = data.draw(messages(kind))
    server, contract = refused_by_server(request), refused_by_contract(request)
    assert server == contract, request


def test_a_steer_brings_no_settings_not_even_empty_ones() -> None:
    request = v1.SendMessageRequest(
        name="conversations/c", text="x", delivery=v1.DELIVERY_STEER, generation=v1.Generation()
    )
    request.output_schema.SetInParent()
    assert refused_by_server(request) == refused_by_contract(request) == {"generation", "output_schema"}


def fields(kind: Any, prefix: str = "") -> Iterator[tuple[str, FieldDescriptor]]:
    """Every field of a request with its path, and those of the conversation in it."""
    for field in kind.fields:
        yield prefix + field.name, field
        if field.name == "conversation" and field.message_type is not None:
            yield from fields(field.message_type, "conversation.")


LENGTHS = (63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 262_143, 262_144, 262_145)


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_lengths_near_a_bound_are_judged_alike(kind: type[Message]) -> None:
    for path, field in fields(kind.DESCRIPTOR):
        if kind is v1.UpdateConversationRequest and path != "conversation.name":  # only what the mask names is judged
            continue
        if field.type != field.TYPE_STRING or field.is_repeated or field.name == "filter":  # which has a grammar
            continue
        for length in LENGTHS:
            request = made(kind, {**GOOD[kind], path: "/".ljust(length, "x")})
            assert refused_by_server(request) == refused_by_contract(request), (path, length)


def described(option: validate_pb2.FieldRules) -> Descriptor:
    """A message with one field, and this rule for it."""
    field = FieldDescriptorProto(name="text", number=1, type=FieldDescriptorProto.TYPE_STRING)
    extension: Any = validate_pb2.field
    field.options.Extensions[extension].CopyFrom(option)
    file = FileDescriptorProto(name="a.proto", message_type=[DescriptorProto(name="A", field=[field])])
    pool = DescriptorPool()
    pool.Add(file)
    return pool.FindMessageTypeByName("A")


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"string": {"email": True}}, "A.text, email"),
        ({"string": {"not_in": ["b"]}}, "for enums"),
        ({"cel_expression": ["size(this) == 1"]}, "A.text, cel_expression"),
        ({"string": {"pattern": "^a+$"}}, "make it a cel rule with a message"),
        ({"cel": [{"id": "text.odd", "message": "must be odd", "expression": "size(this) % 2 == 1"}]}, "text.odd"),
    ],
)
def test_a_rule_that_the_server_cannot_judge_ends_the_start(rule: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        rules_of(described(validate_pb2.FieldRules(**rule)))
