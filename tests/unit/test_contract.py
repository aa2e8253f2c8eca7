"""The contract keeps its promises about shape, and `bedrock.v1` offers all of it.

`buf lint` checks names and that everything has a comment; here is what it cannot know.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bedrock import v1
from bedrock.v1 import (
    catalog_service_pb2,
    catalog_service_pb2_grpc,
    common_pb2,
    conversation_pb2,
    conversation_service_pb2,
    conversation_service_pb2_grpc,
    event_pb2,
)
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor, MethodDescriptor

from server.contract.errors import CODES

PROTOS = Path(__file__).parents[2] / "protos"

FILES: tuple[FileDescriptor, ...] = (
    catalog_service_pb2.DESCRIPTOR,
    common_pb2.DESCRIPTOR,
    conversation_pb2.DESCRIPTOR,
    conversation_service_pb2.DESCRIPTOR,
    event_pb2.DESCRIPTOR,
)

# Where a code is prescribed.
PRESCRIBED_CODES = {
    "AGENT_BUSY": "FAILED_PRECONDITION",
    "CANCELLING": "FAILED_PRECONDITION",
    "AWAITING_APPROVAL": "FAILED_PRECONDITION",
    "NOT_AWAITING_APPROVAL": "FAILED_PRECONDITION",
    "CONTINUATION_IN_PROGRESS": "FAILED_PRECONDITION",
    "CONTEXT_EXHAUSTED": "FAILED_PRECONDITION",
    "TERMINAL": "FAILED_PRECONDITION",
    "SUB_AGENT": "FAILED_PRECONDITION",
    "NOT_SUB_AGENT": "FAILED_PRECONDITION",
    "ALREADY_STARTED": "FAILED_PRECONDITION",
    "UNKNOWN_OR_DECIDED": "ABORTED",
    "RUN_OVER": "ABORTED",
    "QUEUE_FULL": "RESOURCE_EXHAUSTED",
    "REQUEST_ID_REUSED": "ALREADY_EXISTS",
    "REVISION_TOO_OLD": "OUT_OF_RANGE",
    "STORE_UNAVAILABLE": "UNAVAILABLE",
    "NOT_EXHAUSTED": "FAILED_PRECONDITION",
    "SERVER_EXHAUSTED": "RESOURCE_EXHAUSTED",
}


def all_messages() -> Iterator[Descriptor]:
    def nested(message: Descriptor) -> Iterator[Descriptor]:
        yield message
        for inner in message.nested_types:
            yield from nested(inner)

    for file in FILES:
        for message in file.message_types_by_name.values():
            yield from nested(message)


def all_enums() -> Iterator[EnumDescriptor]:
    for file in FILES:
        yield from file.enum_types_by_name.values()
    for message in all_messages():
        yield from message.enum_types


def all_methods() -> Iterator[MethodDescriptor]:
    for file in FILES:
        for service in file.services_by_name.values():
            yield from service.methods


def value_comments(file: str, prefix: str) -> dict[str, str]:
    """The comment of every enum value that begins with `prefix`, as written in the file."""
    found = re.findall(rf"((?:^ *//.*\n)+) *{prefix}(\w+) = \d+;", (PROTOS / file).read_text(), re.MULTILINE)
    return {name: re.sub(r"\s*//\s*", " ", comment).strip() for comment, name in found}


def test_every_refusal_reason_names_its_code() -> None:
    comments = value_comments("bedrock/v1/common.proto", "REFUSAL_REASON_")
    codes = {name: comment.split(".")[0] for name, comment in comments.items() if name != "UNSPECIFIED"}

    assert codes == {reason.value: code.name for reason, code in CODES.items()}
    assert codes.items() >= PRESCRIBED_CODES.items()


def test_no_refusal_is_sent_as_unavailable_unless_trying_again_is_right() -> None:
    comments = value_comments("bedrock/v1/common.proto", "REFUSAL_REASON_")

    unavailable = {name for name, comment in comments.items() if comment.startswith("UNAVAILABLE.")}

    assert unavailable == {"STORE_UNAVAILABLE", "SHUTTING_DOWN", "WORKSPACE_OFFLINE"}


@pytest.mark.parametrize("enum", tuple(all_enums()), ids=lambda enum: enum.full_name)
def test_the_zero_of_every_enum_means_unspecified(enum: EnumDescriptor) -> None:
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+", enum.name)
    prefix = "_".join(words).upper()

    assert enum.values_by_number[0].name == f"{prefix}_UNSPECIFIED"
    proto = descriptor_pb2.EnumDescriptorProto()
    enum.CopyToProto(proto)
    reserved = {number for each in proto.reserved_range for number in range(each.start, each.end + 1)}
    numbers = {value.number for value in enum.values} | reserved
    assert sorted(numbers) == list(range(len(numbers)))


@pytest.mark.parametrize("message", tuple(all_messages()), ids=lambda message: message.full_name)
def test_field_numbers_are_compact(message: Descriptor) -> None:
    proto = descriptor_pb2.DescriptorProto()
    message.CopyToProto(proto)
    reserved = [number for each in proto.reserved_range for number in range(each.start, each.end)]
    numbers = sorted({*reserved, *(field.number for field in message.fields)})
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("method", tuple(all_methods()), ids=lambda method: method.full_name)
def test_every_call_has_a_request_and_a_response_of_its_own_name(method: MethodDescriptor) -> None:
    assert method.input_type.name == f"{method.name}Request"
    assert method.output_type.name == f"{method.name}Response"


def test_every_event_says_whether_it_is_durable_or_passing() -> None:
    text = (PROTOS / "bedrock/v1/event.proto").read_text()
    oneof = text[text.index("  oneof event {") :]
    fields = re.findall(r"((?:^    //.*\n)+)    [\w.]+ (\w+) = \d+;", oneof[: oneof.index("\n  }")], re.MULTILINE)

    kinds = {name: comment.split()[1].rstrip(".") for comment, name in fields}

    assert set(kinds) == {field.name for field in v1.Event.DESCRIPTOR.oneofs_by_name["event"].fields}
    assert set(kinds.values()) == {"Durable", "Passing"}


def test_the_package_offers_what_the_generated_modules_define_and_nothing_else() -> None:
    modules = (catalog_service_pb2, common_pb2, conversation_pb2, conversation_service_pb2, event_pb2)
    defined = {
        name: getattr(module, name)
        for file, module in zip(FILES, modules, strict=True)
        for name in (
            *file.message_types_by_name,
            *file.enum_types_by_name,
            *(value.name for enum in file.enum_types_by_name.values() for value in enum.values),
        )
    }
    services = {
        name: getattr(module, name)
        for module in (catalog_service_pb2_grpc, conversation_service_pb2_grpc)
        for name in vars(module)
        if name.endswith(("Stub", "Servicer", "Servicer_to_server"))
    }
    offered = {
        name: value
        for name, value in vars(v1).items()
        if not name.startswith(("_", "@py")) and not name.endswith(("_pb2", "_pb2_grpc"))  # @py…: of pytest itself
    }
    offered.pop("TYPE_CHECKING", None)
    assert offered == defined | services
