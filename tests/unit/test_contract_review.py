"""The contract as a reviewer of Google's API improvement proposals (https://aip.dev) would read it.

Each test names the proposal. What is annotated is read from the descriptors, what is promised from the comments: a new
message, field or call is judged as soon as it is in protos/.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest
from google.api import annotations_pb2, field_behavior_pb2, field_info_pb2, resource_pb2
from google.protobuf.descriptor import Descriptor, DescriptorBase, FieldDescriptor, MethodDescriptor

from server.contract.validation import rules_of
from tests.generate.contract import Message, read_contract
from tests.unit.test_contract import FILES, all_messages, all_methods

READS = ("Browse", "Download", "Export", "Get", "List", "Replay", "Subscribe", "Verify", "Wait", "Watch")
"""The names of calls that change nothing begin with these."""

DOMAIN = "bedrock.dev"
PACKAGE = "bedrock.v1."
PATTERN = re.compile(r"[a-z][A-Za-z]*/\{\w+\}(?:/[a-z][A-Za-z]*/\{\w+\})*")
_Behavior = field_behavior_pb2.FieldBehavior


class Resource(NamedTuple):
    """A kind of resource."""

    type: str
    message: str
    """The message that shows one."""


def extension(descriptor: DescriptorBase, kind: Any) -> Any:
    """What a file, message or field is annotated with, of one kind."""
    return descriptor.GetOptions().Extensions[kind]


@cache
def comments() -> dict[str, str]:
    """The comment of every field, by its full name without the package."""

    def nested(messages: tuple[Message, ...]) -> Iterator[Message]:
        for message in messages:
            yield message
            yield from nested(message.messages)

    return {
        f"{message.name}.{field.name}": " ".join(field.comment.split())
        for file in read_contract()
        for message in nested(file.messages)
        for field in message.fields
    }


def comment(field: FieldDescriptor) -> str:
    return comments()[field.full_name.removeprefix(PACKAGE)]


def behaviors(field: FieldDescriptor) -> set[str]:
    found = extension(field, field_behavior_pb2.field_behavior)
    return {_Behavior.Name(value) for value in found}


def reference(field: FieldDescriptor) -> str:
    """The type that a field refers to, or whose parent it refers to; empty if there is none."""
    found = extension(field, resource_pb2.resource_reference)
    return str(found.type or found.child_type)


def resource_of(message: Descriptor) -> resource_pb2.ResourceDescriptor | None:
    found = extension(message, resource_pb2.resource)
    return found if found.type else None


@cache
def resources() -> dict[str, Resource]:
    """Every kind of resource, by its pattern."""
    found: dict[str, Resource] = {}
    for message in all_messages():
        if (resource := resource_of(message)) is not None:
            for pattern in resource.pattern:
                found[pattern] = Resource(resource.type, message.name)
    for file in FILES:
        for resource in extension(file, resource_pb2.resource_definition):
            for pattern in resource.pattern:
                found[pattern] = Resource(resource.type, "")
    return found


MESSAGES = [message for message in all_messages() if message.fields and not message.GetOptions().map_entry]
METHODS = tuple(all_methods())
by_message = pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.full_name.removeprefix(PACKAGE))
by_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


def sent_by_clients() -> set[str]:
    """The names of messages that stand in a request, as far as clients write them: not what only the server sets."""
    found: set[str] = set()

    def visit(message: Descriptor) -> None:
        if message.full_name in found or not message.full_name.startswith(PACKAGE):
            return
        found.add(message.full_name)
        for field in message.fields:
            if field.message_type is not None and "OUTPUT_ONLY" not in behaviors(field):
                visit(field.message_type)

    for method in METHODS:
        visit(method.input_type)
    return found


# --- resources (AIP-122, 123) -----------------------------------------------------------------------------------------


def test_every_kind_of_resource_is_declared_once_and_well() -> None:
    declared = [resource for message in all_messages() if (resource := resource_of(message)) is not None]
    assert len({resource.type for resource in declared}) == len(declared)
    for resource in declared:
        domain, _, kind = resource.type.partition("/")
        assert domain == DOMAIN
        assert resource.singular == kind[0].lower() + kind[1:]
        for pattern in resource.pattern:
            *_, collection, variable = pattern.split("/")
            assert collection == resource.plural
            assert (
                variable == "{" + re.sub(r"[A-Z]", lambda upper: "_" + upper.group().lower(), resource.singular) + "}"
            )


def test_a_message_is_a_resource_if_its_name_has_a_pattern() -> None:
    for message in all_messages():
        name = message.fields_by_name.get("name")
        if name is None or message.name.endswith("Request") or not PATTERN.search(comment(name)):
            continue
        resource = resource_of(message)
        assert resource is not None, f"{message.name} needs (google.api.resource)"
        assert set(PATTERN.findall(comment(name))) & set(resource.pattern), message.name
        assert "IDENTIFIER" in behaviors(name)


@by_message
def test_every_field_that_holds_a_name_says_of_what(message: Descriptor) -> None:
    known = {resource.type for resource in resources().values()}
    for field in message.fields:
        if field.type != FieldDescriptor.TYPE_STRING or "IDENTIFIER" in behaviors(field):
            continue
        patterns = set(PATTERN.findall(comment(field)))
        assert patterns <= {*resources(), "conversations/{slug}"}, field.full_name
        named = patterns & resources().keys()
        referring = reference(field)
        assert referring in known or not (named or referring), (
            f"{field.full_name} needs (google.api.resource_reference)"
        )
        options = extension(field, resource_pb2.resource_reference)
        if named and options.type:
            assert options.type in {resources()[pattern].type for pattern in named}, field.full_name


# --- behaviour of fields (AIP-203) ------------------------------------------------------------------------------------


@by_message
def test_every_field_that_clients_send_says_whether_they_must(message: Descriptor) -> None:
    if message.full_name not in sent_by_clients() and resource_of(message) is None:
        return
    for field in message.fields:
        found = behaviors(field)
        assert len(found & {"REQUIRED", "OPTIONAL", "OUTPUT_ONLY", "IDENTIFIER"}) == 1, (
            f"{field.full_name} needs one (google.api.field_behavior) of REQUIRED, OPTIONAL, OUTPUT_ONLY, IDENTIFIER"
        )
        assert not ("OUTPUT_ONLY" in found and found & {"IMMUTABLE", "INPUT_ONLY"}), field.full_name


@by_message
def test_what_is_required_is_said_in_words_too(message: Descriptor) -> None:
    if message.name.endswith("Request"):
        for field in message.fields:
            said = re.search(r"\bRequired\b", comment(field)) is not None
            assert ("REQUIRED" in behaviors(field)) == said, f"{field.full_name}: {comment(field)}"


def test_requests_of_one_field_that_identifies_require_it() -> None:
    for method in METHODS:
        for field in method.input_type.fields:
            if field.name == "name":
                assert "REQUIRED" in behaviors(field), field.full_name


# --- standard methods (AIP-131 to 135, 155, 154, 158) -----------------------------------------------------------------


@by_method
def test_creating_and_updating_take_the_resource(method: MethodDescriptor) -> None:
    fields = method.input_type.fields_by_name
    for verb in ("Create", "Update"):
        kind = method.name.removeprefix(verb)
        if kind == method.name or kind not in {each.message for each in resources().values()}:
            continue
        (resource,) = [field for field in fields.values() if field.message_type and field.message_type.name == kind]
        assert "REQUIRED" in behaviors(resource)
        assert ("update_mask" in fields) == (verb == "Update")
        assert ("request_id" in fields) == (verb == "Create")


def test_request_ids_are_uuids() -> None:
    for method in METHODS:
        if (field := method.input_type.fields_by_name.get("request_id")) is not None:
            found = extension(field, field_info_pb2.field_info).format
            assert found == field_info_pb2.FieldInfo.UUID4, field.full_name


# --- paths (AIP-127, 131 to 136) --------------------------------------------------------------------------------------


TEMPLATE = re.compile(r"/v1/(?:\w+|\{(?P<field>[\w.]+)=(?P<name>[\w*]+(?:/[\w*]+)*)\}(?:/\w+)?)(?::(?P<verb>\w+))?")
STANDARD = {"Get": "GET", "List": "GET", "Create": "POST", "Update": "PATCH", "Delete": "DELETE"}


def bindings(method: MethodDescriptor) -> list[tuple[str, str, str]]:
    """How a call is made over HTTP, in each way: method, path, and the field of the request that is the body."""
    rule = extension(method, annotations_pb2.http)
    each = (rule, *rule.additional_bindings)
    assert all(one.WhichOneof("pattern") for one in each), f"{method.name} needs (google.api.http)"
    return [(one.WhichOneof("pattern").upper(), getattr(one, one.WhichOneof("pattern")), one.body) for one in each]


def field_at(message: Descriptor, path: str) -> FieldDescriptor:
    *outer, last = path.split(".")
    for name in outer:
        inner = message.fields_by_name[name].message_type
        assert inner is not None
        message = inner
    return message.fields_by_name[last]


@by_method
def test_every_call_has_a_path_whose_variable_is_the_name_of_a_resource(method: MethodDescriptor) -> None:
    for _, path, _ in bindings(method):
        found = TEMPLATE.fullmatch(path)
        assert found, path
        if not found["field"]:
            continue
        field = field_at(method.input_type, found["field"])
        assert field.type == FieldDescriptor.TYPE_STRING
        assert not field.is_repeated
        assert rules_of(method.input_type).fields[found["field"].partition(".")[0]].judges, f"{path}: no pattern"
        named = re.sub(r"\{\w+\}", "*", found["name"].replace("**", "*"))
        known = {re.sub(r"\{\w+\}", "*", pattern) for pattern in resources()}
        assert named in known, f"{path} names no resource"


@by_method
def test_the_http_method_and_the_body_are_those_of_the_standard(method: MethodDescriptor) -> None:
    for verb, path, body in bindings(method):
        standard = next((name for name in STANDARD if method.name.startswith(name)), None)
        if standard is not None:
            assert verb == STANDARD[standard]
            assert ":" not in path
        else:
            assert ":" in path, f"{method.name} is no standard method, so its path has a verb"
            assert verb == ("GET" if method.name.startswith(READS) else "POST")
        if verb in {"GET", "DELETE"}:
            assert body == ""
        elif standard is not None:
            kind = method.input_type.fields_by_name[body].message_type
            assert kind is not None
            assert kind.name == method.name.removeprefix(standard)
        else:
            assert body == "*"


def test_no_two_calls_have_the_same_path() -> None:
    shapes = Counter(
        (verb, re.sub(r"\{[\w.]+=|\}", "", path).replace("**", "*"))
        for method in METHODS
        for verb, path, _ in bindings(method)
    )
    assert [shape for shape, count in shapes.items() if count > 1] == []


# --- names (AIP-140, 141, 142, 191) -----------------------------------------------------------------------------------


@by_message
def test_times_and_lengths_of_time_are_named_so(message: Descriptor) -> None:
    for field in message.fields:
        if field.message_type is not None and field.message_type.full_name == "google.protobuf.Timestamp":
            assert field.name.endswith("_time") or field.name in ("time", "deadline"), field.full_name
        else:
            assert not field.name.endswith("_time"), f"{field.full_name} is no Timestamp"


def test_generated_code_has_packages_that_can_be_imported() -> None:
    for file in FILES:
        options = file.GetOptions()
        path, _, package = options.go_package.partition(";")
        assert "." in path.partition("/")[0]
        assert package == "bedrockv1"
        assert options.java_package == "dev.bedrock.v1"
        assert options.java_multiple_files
        assert options.java_outer_classname.endswith("Proto")
        assert options.ruby_package == "Bedrock::V1"
        assert options.csharp_namespace == "Bedrock.V1"


# --- what every kind of resource has (AIP-131, 132, 154, 158) ---------------------------------------------------------


WITHOUT_GET = {"ToolCall"}
"""A call is a part of its message. Its name only serves to answer it."""


@pytest.mark.parametrize("resource", resources().values(), ids=lambda resource: resource.type)
def test_every_resource_that_has_a_name_has_a_get(resource: Resource) -> None:
    kind = resource.type.removeprefix(f"{DOMAIN}/")
    if kind in WITHOUT_GET:
        return
    assert resource.message, f"{kind} is shown by no message"
    methods = {method.name: method for method in METHODS}
    assert f"Get{kind}" in methods, f"there is no Get{kind}"
    method = methods[f"Get{kind}"]
    name = method.input_type.fields_by_name["name"]
    assert reference(name) == resource.type
    assert [field.message_type.name for field in method.output_type.fields if field.message_type] == [resource.message]


@by_method
def test_every_list_has_pages(method: MethodDescriptor) -> None:
    shown = [field for field in method.output_type.fields if field.is_repeated and field.message_type is not None]
    if not method.name.startswith(("List", "Browse")):
        return
    assert len(shown) == 1, "a list shows one kind of thing"
    request, response = method.input_type.fields_by_name, method.output_type.fields_by_name
    assert {"page_size", "page_token"} <= set(request)
    assert "next_page_token" in response
    assert {"OPTIONAL"} == behaviors(request["page_size"]) == behaviors(request["page_token"])
    assert re.search(r"\d+ if zero; \d+ at most", comment(request["page_size"]))


def test_what_can_be_updated_and_deleted_takes_the_etag() -> None:
    mutable = {method.name.removeprefix("Update") for method in METHODS if method.name.startswith("Update")}
    assert mutable == {"Conversation"}
    methods = {method.name: method.input_type for method in METHODS}
    for kind in mutable:
        (resource,) = [message for message in all_messages() if message.name == kind]
        assert "etag" in resource.fields_by_name
        assert "etag" in methods[f"Delete{kind}"].fields_by_name
