"""A server whose every answer is an attack: each string of each message holds what a terminal would obey."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy as copy
from functools import cache
from typing import Any

import grpc
from bedrock import v1
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from tests.support.fake_server import Refusal, methods, serve

# One of each kind, in a text that has words for people to find.
HOSTILE = (
    "evil\x1b[2J\x1b[8mhidden\x1b[0m\x1b]0;title\x07\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\\x1b]52;c;ZXZpbA==\x07"
    "\x1bP+q544e\x1b\\\x9b31m\x9d0;c1\x9c\x90q\x85\u202etxt.\u2066isolate\u2069\u200f\u061c\u2028"
    "\x00\x7f\b\b\x0b\x0c\x0e\x1a\rover\x1b[1A\n\x1bc\t" + "Z" + "\u0301" * 30 + "\U000e0041\ufeff"
)
_STRUCT = "google.protobuf.Struct"
REFUSAL = Refusal(
    grpc.StatusCode.PERMISSION_DENIED,
    message=HOSTILE,
    details=[
        error_details_pb2.ErrorInfo(reason=HOSTILE, domain=HOSTILE, metadata={HOSTILE: HOSTILE}),
        error_details_pb2.BadRequest(
            field_violations=[error_details_pb2.BadRequest.FieldViolation(field=HOSTILE, description=HOSTILE + "!")]
        ),
        error_details_pb2.ResourceInfo(resource_type=HOSTILE, resource_name=f"conversations/{HOSTILE}"),
        error_details_pb2.LocalizedMessage(locale="en", message=HOSTILE),
        error_details_pb2.Help(links=[error_details_pb2.Help.Link(description=HOSTILE, url=HOSTILE)]),
    ],
)
_SKIPPED = {"next_page_token"}  # it would be asked for the next page for ever


def string_fields() -> set[str]:
    """The full names of all strings that a server can send."""
    found: set[str] = set()
    seen: set[str] = set()

    def walk(descriptor: Descriptor) -> None:
        if descriptor.full_name in seen or descriptor.full_name.startswith("google."):
            return
        seen.add(descriptor.full_name)
        for field in descriptor.fields:
            if field.type == FieldDescriptor.TYPE_STRING and field.name not in _SKIPPED:
                found.add(field.full_name)
            if field.message_type is not None:
                walk(field.message_type)

    for method in methods():
        walk(method.output_type)
    return found


def strings_in(message: Message) -> set[str]:
    """The full names of the strings that a message holds."""
    found: set[str] = set()
    if message.DESCRIPTOR.full_name.startswith("google."):
        return found
    for field, value in message.ListFields():
        for each in _each(field, value):
            if isinstance(each, Message):
                found |= strings_in(each)
            elif field.type == FieldDescriptor.TYPE_STRING:
                found.add(field.full_name)
    return found


def _each(field: FieldDescriptor, value: Any) -> Iterator[Any]:
    if not field.is_repeated:
        yield value
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = message_factory.GetMessageClass(field.message_type)
        yield from (entry(key=key, value=each) for key, each in value.items())
    else:
        yield from value


@cache
def hostile(descriptor: Descriptor) -> tuple[Message, ...]:
    """Messages of one kind that together have every field, every choice of a oneof, and every word of an enum."""
    kind = message_factory.GetMessageClass(descriptor)
    if descriptor.full_name == _STRUCT:
        return (_struct(kind()),)
    if descriptor.full_name == "google.protobuf.Timestamp":
        return (kind(seconds=1_750_000_000),)
    if descriptor.full_name.startswith("google."):
        return (kind(),)
    values = {field.name: _values(field) for field in descriptor.fields if field.name not in _SKIPPED}
    choices = [
        [(field.name, value) for field in oneof.fields for value in values[field.name]] for oneof in descriptor.oneofs
    ]
    plain = {
        field.name: values[field.name]
        for field in descriptor.fields
        if not field.containing_oneof and field.name in values
    }
    made = []
    for number in range(max([1, *map(len, choices), *map(len, plain.values())])):
        given = {name: of[number % len(of)] for name, of in plain.items()}
        given |= dict(alternatives[number % len(alternatives)] for alternatives in choices)
        made.append(kind(**given))
    return tuple(made)


def _values(field: FieldDescriptor) -> list[Any]:
    """What a field can have; all at once where it is repeated."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        return [{HOSTILE: each} for each in _values(value)]
    values: list[Any]
    if field.message_type is not None:
        values = list(hostile(field.message_type))
    elif field.enum_type is not None:
        values = [value.number for value in field.enum_type.values]
    else:
        scalars: dict[int, list[Any]] = {
            FieldDescriptor.CPPTYPE_STRING: [HOSTILE if field.type == FieldDescriptor.TYPE_STRING else b"\x1b[2J"],
            FieldDescriptor.CPPTYPE_BOOL: [False, True],
        }
        values = scalars.get(field.cpp_type, [1])
    return [[value] for value in values] if field.is_repeated else values


def _struct(struct: Any) -> Message:
    patch = {"operation": HOSTILE, "oldText": HOSTILE, "newText": HOSTILE}
    struct.update({"command": HOSTILE, HOSTILE: HOSTILE, "diff": f"--- a\n+++ b\n@@ {HOSTILE}\n+{HOSTILE}\n-{HOSTILE}"})
    struct.update({"patches": [patch], "for_agent": "", "reason": HOSTILE})
    return struct  # type: ignore[no-any-return]


class HostileServer:
    """Answers every method with `hostile`, the one whose turn it is, or with an error as hostile."""

    def __init__(self) -> None:
        self.turn = 0
        self.refuses = False
        self.sent: set[str] = set()
        """The full names of the strings that were sent."""
        self._server = grpc.server(ThreadPoolExecutor(32))
        for method in methods():
            serve(self._server, method, self._behaviour(method))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def _behaviour(self, method: MethodDescriptor) -> Callable[[Message, grpc.ServicerContext], Any]:
        answers = hostile(method.output_type)

        def one(_: Message, __: grpc.ServicerContext) -> Message:
            if self.refuses:
                raise REFUSAL
            return self._note(_all_at_once(answers, self.turn))

        def many(_: Message, __: grpc.ServicerContext) -> Iterator[Message]:
            if self.refuses:
                raise REFUSAL
            yield from map(self._note, _stream(method, answers))
            if method.name in ("Subscribe", "WatchConversations"):  # they would be opened again
                raise REFUSAL

        return many if method.server_streaming else one

    def _note(self, answer: Message) -> Message:
        self.sent |= strings_in(answer)
        return answer


def _all_at_once(answers: tuple[Message, ...], turn: int) -> Message:
    """The answer whose turn it is, with what the others have in their lists."""
    answer = copy(answers[turn % len(answers)])
    for field in answer.DESCRIPTOR.fields:
        if field.is_repeated and field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for other in answers[: len(hostile(field.message_type))]:
                getattr(answer, field.name).MergeFrom(getattr(other, field.name))
    return answer


def _stream(method: MethodDescriptor, answers: tuple[Message, ...]) -> Iterator[Message]:
    if method.name != "Subscribe":
        yield from answers
        return
    kinds = [event for response in answers for event in getattr(response, "events")]  # noqa: B009 -- of any message
    order = {"snapshot": 0, "caught_up": 1, "deleted": 3}
    for number, event in enumerate(sorted(kinds, key=lambda each: order.get(each.WhichOneof("event"), 2)), start=2):
        event.revision = number
        yield v1.SubscribeResponse(events=[event])
