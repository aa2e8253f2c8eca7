"""The rules that stand in the contract, for protovalidate, and the server's table judge requests alike.

A client that validates before it sends is refused by its own library exactly where the server would refuse it. What
only the server can say is listed here, with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import protovalidate
import pytest
from bedrock import v1
from hypothesis import given
from hypothesis import strategies as st

from server.contract.errors import MalformedRequestError
from server.contract.request_rules import RULES
from server.contract.validation import check
from tests.unit.server.test_checks import CASES, GOOD, made

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

RULE = 1159
"""The number of protovalidate's options, on messages and on fields."""


def refused_by_server(request: Message) -> set[str]:
    """The first parts of the paths of the fields that the server refuses."""
    try:
        check(request)
    except MalformedRequestError as error:
        return {first(field) for field, _ in error.violations}
    return set()


OF_MESSAGES = {
    "generation.steer": "generation",
    "output_schema.steer": "output_schema",
    "message.empty": "text",
    "result.one": "output",
    "result.images": "output",
}
"""The field that the server refuses for each rule of a whole message."""


def refused_by_contract(request: Message) -> set[str]:
    """The first parts of the paths of the fields that the contract's rules refuse, also by a rule for a message."""
    found = set()
    for violation in protovalidate.collect_violations(request):
        path = violation.proto.field
        named = path.elements[0].field_name if path is not None and path.elements else ""
        found.add(named or OF_MESSAGES[violation.proto.rule_id])
    return found


def first(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]


def has_rule(options: Any) -> bool:
    """Whether one of protovalidate's options is set; the stubs do not know their names."""
    data = options.SerializeToString()
    tag = (RULE << 3) | 2
    return bytes([tag & 0x7F | 0x80, tag >> 7]) in data


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


SERVER_SIDE = {"state", "context_usage", "total_usage", "aside_usage", "images", "update_mask", "filter"}
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
    kind = data.draw(st.sampled_from([kind for kind in RULES if kind is not v1.UpdateConversationRequest]))
    request = data.draw(messages(kind))
    server, contract = refused_by_server(request), refused_by_contract(request)
    assert server == contract, request


def test_a_steer_brings_no_settings_not_even_empty_ones() -> None:
    request = v1.SendMessageRequest(
        name="conversations/c", text="x", delivery=v1.DELIVERY_STEER, generation=v1.Generation()
    )
    request.output_schema.SetInParent()
    assert refused_by_server(request) == refused_by_contract(request) == {"generation", "output_schema"}


LENGTHS = (63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 262_143, 262_144, 262_145)


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_lengths_near_a_bound_are_judged_alike(kind: type[Message]) -> None:
    for path, _ in RULES[kind]:
        field: Any = kind.DESCRIPTOR
        for each in path.split("."):
            field = (field.message_type if hasattr(field, "message_type") else field).fields_by_name[each]
        if field.type != field.TYPE_STRING or field.is_repeated or field.name == "filter":  # which has a grammar
            continue
        for length in LENGTHS:
            request = made(kind, {**GOOD[kind], path: "/".ljust(length, "x")})
            assert refused_by_server(request) == refused_by_contract(request), (path, length)


def nested(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of a request with its path, and those of our messages within that clients write."""
    for field in kind.fields:
        yield prefix + field.name, field
        inner = field.message_type
        if inner is not None and inner.full_name in WRITTEN:
            yield from nested(inner, f"{prefix}{field.name}.")


WRITTEN = {"bedrock.v1.SpawnSubAgentsRequest.Task"}


WITHIN = {
    "conversation.budget",
    "conversation.name",
    "conversation.instructions",
    "conversation.tools",
    "conversation.generation",
    "generation",
    "rule",
}
"""Fields whose rule is within their message, or in that of the field before the dot."""


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_every_field_that_the_server_judges_has_a_rule_in_the_contract(kind: type[Message]) -> None:
    for path, _ in RULES[kind]:
        outer, *inner = path.split(".")
        field: Any = kind.DESCRIPTOR.fields_by_name[outer]
        for each in inner:
            field = field.message_type.fields_by_name[each]
        ruled = has_rule(field.GetOptions()) or path in WITHIN
        assert ruled, (
            f"{kind.__name__}.{path} needs a (buf.validate.field), as its rule in server/contract/request_rules.py"
        )


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_every_rule_in_the_contract_is_one_of_the_server(kind: type[Message]) -> None:
    judged = {first(path) for path, _ in RULES[kind]}
    for path, field in nested(kind.DESCRIPTOR):
        if has_rule(field.GetOptions()):
            assert first(path) in judged, path
