"""The contract as its files have it, comments included: services, messages and enums, read with protoc."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.api import annotations_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

PROTOS = Path(__file__).parents[2] / "protos"
PACKAGE = "bedrock.v1"
SECONDS = 60
HTTP: Any = annotations_pb2.http

Place = tuple[int, ...]
"""Where something stands in a file: field numbers and indexes, as `SourceCodeInfo` has them."""


@dataclass(frozen=True)
class Value:
    """A value of an enum."""

    name: str
    comment: str


@dataclass(frozen=True)
class Enum:
    """An enum; its name is that within the package, `Event.Kind` for one inside of a message."""

    name: str
    comment: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Field:
    """A field of a message."""

    name: str
    type: str
    """A scalar, the name of one of our types, or the full name of one of others'."""
    repeated: bool
    key: str
    """The type of the keys if the field is a map, whose values have `type`; else empty."""
    choice: str
    """The oneof that it belongs to, or empty."""
    comment: str


@dataclass(frozen=True)
class Message:
    """A message, with what is defined inside of it."""

    name: str
    comment: str
    fields: tuple[Field, ...]
    messages: tuple[Message, ...]
    enums: tuple[Enum, ...]


@dataclass(frozen=True)
class Call:
    """A method of a service."""

    name: str
    comment: str
    request: str
    response: str
    streams: bool
    """Whether there may be many responses."""
    routes: tuple[str, ...]
    """How it is called over HTTP: the method and the path, `GET /v1/models`."""


@dataclass(frozen=True)
class Service:
    """A service."""

    name: str
    comment: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class File:
    """One file of the contract."""

    path: str
    services: tuple[Service, ...]
    messages: tuple[Message, ...]
    enums: tuple[Enum, ...]


def contract_files() -> list[str]:
    """The names of the contract's files, as protoc takes them, in order."""
    return sorted(str(path.relative_to(PROTOS)) for path in (PROTOS / "bedrock" / "v1").glob("*.proto"))


def read_contract() -> tuple[File, ...]:
    """The files of the contract, in the order of their names."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "contract"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", "--include_source_info"]
        subprocess.run([*command, f"--descriptor_set_out={target}", *contract_files()], check=True, timeout=SECONDS)
        files = FileDescriptorSet.FromString(target.read_bytes())
    return tuple(_Reader(file).file() for file in files.file)


class _Reader:
    """Reads one file."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        locations = file.source_code_info.location
        self._comments: dict[Place, str] = {tuple(each.path): each.leading_comments for each in locations}

    def file(self) -> File:
        file = self._file
        return File(
            path=file.name,
            services=tuple(self._services()),
            messages=tuple(self._message(each, "", (4, index)) for index, each in enumerate(file.message_type)),
            enums=tuple(self._enum(each, "", (5, index)) for index, each in enumerate(file.enum_type)),
        )

    def _services(self) -> Iterator[Service]:
        for index, service in enumerate(self._file.service):
            calls = tuple(
                Call(
                    method.name,
                    self._comment((6, index, 2, number)),
                    _type_name(method.input_type),
                    _type_name(method.output_type),
                    method.server_streaming,
                    tuple(_routes(method.options.Extensions[HTTP])),
                )
                for number, method in enumerate(service.method)
            )
            yield Service(service.name, self._comment((6, index)), calls)

    def _message(self, message: DescriptorProto, within: str, place: Place) -> Message:
        name = within + message.name
        maps = {each.name: each for each in message.nested_type if each.options.map_entry}
        return Message(
            name=name,
            comment=self._comment(place),
            fields=tuple(
                self._field(field, message, maps, (*place, 2, index)) for index, field in enumerate(message.field)
            ),
            messages=tuple(
                self._message(inner, f"{name}.", (*place, 3, index))
                for index, inner in enumerate(message.nested_type)
                if inner.name not in maps
            ),
            enums=tuple(
                self._enum(inner, f"{name}.", (*place, 4, index)) for index, inner in enumerate(message.enum_type)
            ),
        )

    def _field(
        self, field: FieldDescriptorProto, message: DescriptorProto, maps: dict[str, DescriptorProto], place: Place
    ) -> Field:
        entry = maps.get(field.type_name.rpartition(".")[2])
        return Field(
            name=field.name,
            type=_type(entry.field[1] if entry else field),
            repeated=field.label == FieldDescriptorProto.LABEL_REPEATED and entry is None,
            key=_type(entry.field[0]) if entry else "",
            choice=message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else "",
            comment=self._comment(place),
        )

    def _enum(self, enum: EnumDescriptorProto, within: str, place: Place) -> Enum:
        values = tuple(Value(value.name, self._comment((*place, 2, index))) for index, value in enumerate(enum.value))
        return Enum(within + enum.name, self._comment(place), values)

    def _comment(self, place: Place) -> str:
        """What is written above it, without the blanks that follow the slashes."""
        return "\n".join(line.removeprefix(" ").rstrip() for line in self._comments.get(place, "").splitlines())


def _routes(rule: Any) -> Iterator[str]:
    for each in (rule, *rule.additional_bindings):
        verb = each.WhichOneof("pattern")
        yield f"{verb.upper()} {getattr(each, verb)}"


def _type(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return _type_name(field.type_name)
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _type_name(full: str) -> str:
    return full.removeprefix(".").removeprefix(f"{PACKAGE}.")
