"""Write the OpenAPI description of the API over HTTP: `python -m tests.generate.openapi`, or `make api-docs`.

It is made of the contract's descriptors: its paths, messages, comments, and the rules that a schema can express.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bedrock import v1
from google.api import field_behavior_pb2, resource_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldOptions

from server.contract import validate_pb2
from server.gateway.event_streams import EVENTS, LINES, MAX_FOLLOWED, PATH, is_bytes
from server.gateway.json_responses import JSON
from server.gateway.routes import ALL, Route, contract
from tests.generate.contract import PACKAGE, Message, read_contract

TARGET = Path(__file__).parents[2] / "server" / "gateway" / "openapi.json"
_RULES: Any = validate_pb2.field
_BEHAVIOR: Any = field_behavior_pb2.field_behavior
_RESOURCE: Any = resource_pb2.resource
KNOWN: dict[str, dict[str, Any]] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]{1,9})?s$"},
    "google.protobuf.FieldMask": {"type": "string"},
    "google.protobuf.Struct": {"type": "object"},
    "google.protobuf.Value": {},
}
SCALARS: dict[int, dict[str, Any]] = {
    FieldDescriptor.CPPTYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number"},
    FieldDescriptor.CPPTYPE_FLOAT: {"type": "number"},
    FieldDescriptor.CPPTYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.CPPTYPE_UINT32: {"type": "integer", "format": "int64"},
    FieldDescriptor.CPPTYPE_INT64: {"type": "string", "format": "int64", "pattern": "^-?[0-9]+$"},
    FieldDescriptor.CPPTYPE_UINT64: {"type": "string", "format": "uint64", "pattern": "^[0-9]+$"},
    FieldDescriptor.CPPTYPE_STRING: {"type": "string"},
}
LIMITS = {
    "min_len": "minLength", "max_len": "maxLength", "gte": "minimum", "lte": "maximum", "pattern": "pattern",
    "min_items": "minItems", "max_items": "maxItems", "max_pairs": "maxProperties",
}  # fmt: skip
"""The rules of the contract that a schema can express."""
STREAM = {
    EVENTS: {
        "schema": {
            "type": "object",
            "description": "One event of the stream.",
            "required": ["event", "data"],
            "properties": {name: {"type": "string"} for name in ("event", "data", "id")},
        }
    },
    LINES: {"schema": {"type": "object", "description": "One line of the stream."}},
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "status"],
            "properties": {
                "code": {"type": "integer", "description": "The HTTP status."},
                "message": {"type": "string", "description": "What is wrong, for people."},
                "status": {"type": "string", "description": "The name of the gRPC status."},
                "details": {
                    "type": "array",
                    "description": "The details, of which `google.rpc.ErrorInfo` has the reason to decide by.",
                    "items": {"type": "object", "required": ["@type"], "properties": {"@type": {"type": "string"}}},
                },
            },
        }
    },
}
HEADERS = {
    "IdempotencyKey": ("Idempotency-Key", "A UUID, the `request_id` of the call.", {"format": "uuid"}),
    "ServerTimeout": ("X-Server-Timeout", "The deadline of the call in seconds.", {"pattern": "^[1-9][0-9]{0,4}$"}),
    "LastEventId": ("Last-Event-ID", "The id of the last event that was seen.", {"pattern": "^[0-9]{1,18}$"}),
}


def comments() -> dict[str, str]:
    """The comment of everything in the contract, by its name without the package."""
    found: dict[str, str] = {}

    def add(message: Message) -> None:
        found[message.name] = message.comment
        found.update({f"{message.name}.{field.name}": field.comment for field in message.fields})
        found.update({enum.name: enum.comment for enum in message.enums})
        for inner in message.messages:
            add(inner)

    for file in read_contract():
        for message in file.messages:
            add(message)
        found.update({enum.name: enum.comment for enum in file.enums})
        found.update({call.name: call.comment for service in file.services for call in service.calls})
    return {name: " ".join(text.split(" ")).strip() for name, text in found.items()}


def patterns() -> dict[str, str]:
    """The patterns of resources' names, by their collections: `conversations/*` to `conversations/{conversation}`."""
    kinds = [
        getattr(v1, name).DESCRIPTOR
        for name in dir(v1)
        if isinstance(getattr(getattr(v1, name), "DESCRIPTOR", None), Descriptor)
    ]
    each = [pattern for kind in kinds for pattern in kind.GetOptions().Extensions[_RESOURCE].pattern]
    each.append("conversations/{conversation}/toolCalls/{tool_call}")
    return {re.sub(r"\{\w+\}", "*", pattern): pattern for pattern in each}


class Description:
    """Collects the description; the schemas are those that the paths need."""

    def __init__(self) -> None:
        self._comments = comments()
        self._patterns = patterns()
        self._schemas: dict[str, Any] = {"Error": ERROR}

    def document(self) -> dict[str, Any]:
        paths: dict[str, dict[str, Any]] = {}
        seen: set[str] = set()
        for route in contract():
            path, parameters = self._path(route)
            operation = self._operation(route, parameters)
            if operation["operationId"] in seen:
                operation["operationId"] += "2"
            seen.add(operation["operationId"])
            paths.setdefault(path, {})[route.verb.lower()] = operation
        paths[PATH] = {"post": self._many_streams()}
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "Bedrock",
                "version": "v1",
                "description": "Conversations with LLM agents, as JSON over HTTP: the mapping of the gRPC API.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": "/"}],
            "security": [{"token": []}],
            "paths": dict(sorted(paths.items())),
            "components": {
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
                "parameters": {
                    key: {"name": name, "in": "header", "description": text, "schema": {"type": "string", **schema}}
                    for key, (name, text, schema) in HEADERS.items()
                },
                "responses": {
                    "Error": {"description": "The call was refused, or has failed.", "content": _content(JSON, "Error")}
                },
                "schemas": dict(sorted(self._schemas.items())),
            },
        }

    def _path(self, route: Route) -> tuple[str, list[dict[str, Any]]]:
        found = re.search(r"\{[\w.]+=([\w*/]+)\}", route.path)
        if found is None:
            return route.path, []
        named = self._patterns[found[1].replace("**", "*")]
        variables = re.findall(r"\{(\w+)\}", named)
        shapes = _shapes(route, len(variables))
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", **shape}}
            for name, shape in zip(variables, shapes, strict=True)
        ]
        return route.path.replace(found[0], named), parameters

    def _operation(self, route: Route, parameters: list[dict[str, Any]]) -> dict[str, Any]:
        text = self._comments[route.name]
        operation: dict[str, Any] = {
            "operationId": route.name,
            "tags": [route.method.containing_service.name],
            "summary": re.split(r"(?<=\.)\s", text)[0].replace("\n", " "),
            "description": text,
            "parameters": [*parameters, *self._query(route)],
            "responses": {"200": self._success(route), "default": {"$ref": "#/components/responses/Error"}},
        }
        if route.body:
            named = route.method.input_type.fields_by_name.get(route.body)
            kind = named.message_type if named else route.method.input_type
            assert kind is not None
            content = {JSON: {"schema": self._reference(kind, without=route.field)}}
            needed = any("REQUIRED" in _behaviors(each) and each.name != route.field for each in kind.fields)
            operation["requestBody"] = {"required": needed or route.body != ALL, "content": content}
        return operation

    def _many_streams(self) -> dict[str, Any]:
        """The only call that the contract does not have: several of its streams in one response."""
        subscriptions = {"type": "array", "maxItems": MAX_FOLLOWED} | {
            "items": self._reference(v1.SubscribeRequest.DESCRIPTOR)
        }
        watch = self._reference(v1.WatchConversationsRequest.DESCRIPTOR)
        body = {"type": "object", "properties": {"subscriptions": subscriptions, "watch": watch}}
        summary = "Follow several conversations, and their list, by one stream."
        return {
            "operationId": "SubscribeToMany",
            "tags": ["ConversationService"],
            "summary": summary,
            "description": f"{summary} One that ends or fails leaves the others.",
            "parameters": [{"$ref": "#/components/parameters/ServerTimeout"}],
            "responses": {
                "200": {"description": "The events, each with the name of its conversation.", "content": STREAM},
                "default": {"$ref": "#/components/responses/Error"},
            },
            "requestBody": {"required": True, "content": {JSON: {"schema": body}}},
        }

    def _query(self, route: Route) -> Iterator[dict[str, Any]]:
        fields = route.method.input_type.fields
        for field in fields if route.body != ALL else ():
            if field.name in {route.body, route.field.partition(".")[0]}:
                continue
            parameter = {"name": field.json_name, "in": "query", "description": self._comment(field)}
            yield parameter | {"schema": self._schema(field), "required": "REQUIRED" in _behaviors(field)}
        names = {field.name for field in fields}
        wanted = ["ServerTimeout"]
        wanted += ["IdempotencyKey"] if "request_id" in names else []
        wanted += ["LastEventId"] if "after_revision" in names else []
        yield from ({"$ref": f"#/components/parameters/{name}"} for name in wanted)

    def _success(self, route: Route) -> dict[str, Any]:
        answer = self._reference(route.method.output_type)
        content: dict[str, Any]
        if route.name == "DownloadAttachment":
            content = {"image/*": {"schema": {"type": "string", "contentMediaType": "image/*"}}}
        elif is_bytes(route):
            content = {LINES: {"schema": {"type": "string"}}}
        elif route.method.server_streaming:
            content = STREAM
        else:
            content = {JSON: {"schema": answer}}
            if route.name == "SendMessage":
                content |= STREAM
        return {"description": self._comments[route.method.output_type.name] or "The answer.", "content": content}

    def _reference(self, kind: Descriptor, *, without: str = "") -> dict[str, Any]:
        """A schema of a message: of one of ours a reference, after it was described."""
        if kind.full_name in KNOWN:
            return dict(KNOWN[kind.full_name])
        name = kind.full_name.removeprefix(f"{PACKAGE}.")
        if name not in self._schemas:
            self._schemas[name] = {}
            fields = [field for field in kind.fields if field.name != without]
            required = [field.json_name for field in fields if "REQUIRED" in _behaviors(field)]
            self._schemas[name] = {
                "type": "object",
                "description": self._comments.get(name, ""),
                "properties": {field.json_name: self._property(field) for field in fields},
            } | ({"required": required} if required and name.endswith("Request") else {})
        return {"$ref": f"#/components/schemas/{name}"}

    def _enum(self, kind: EnumDescriptor) -> dict[str, Any]:
        name = kind.full_name.removeprefix(f"{PACKAGE}.")
        values = [value.name for value in kind.values]
        self._schemas[name] = {"type": "string", "description": self._comments.get(name, ""), "enum": values}
        return {"$ref": f"#/components/schemas/{name}"}

    def _property(self, field: FieldDescriptor) -> dict[str, Any]:
        read_only = {"readOnly": True} if "OUTPUT_ONLY" in _behaviors(field) else {}
        return {"description": self._comment(field)} | self._schema(field) | read_only

    def _schema(self, field: FieldDescriptor) -> dict[str, Any]:
        limits = _limits(field)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            return {"type": "object", "additionalProperties": self._single(value)} | limits
        if field.is_repeated:
            return {"type": "array", "items": self._single(field)} | limits
        return self._single(field) | limits

    def _single(self, field: FieldDescriptor) -> dict[str, Any]:
        if field.message_type is not None:
            return self._reference(field.message_type)
        if field.enum_type is not None:
            return self._enum(field.enum_type)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return {"type": "string", "contentEncoding": "base64"}
        return dict(SCALARS[field.cpp_type])

    def _comment(self, field: FieldDescriptor) -> str:
        return self._comments[field.full_name.removeprefix(f"{PACKAGE}.")]


def _content(kind: str, name: str) -> dict[str, Any]:
    return {kind: {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _behaviors(field: FieldDescriptor) -> set[str]:
    return {field_behavior_pb2.FieldBehavior.Name(value) for value in field.GetOptions().Extensions[_BEHAVIOR]}


def _limits(field: FieldDescriptor) -> dict[str, Any]:
    rules = FieldOptions.FromString(field.GetOptions().SerializeToString()).Extensions[_RULES]
    chosen = rules.WhichOneof("type")
    found = getattr(rules, chosen).ListFields() if chosen else []
    limits = {
        LIMITS[option.name]: bound for option, bound in found if option.name in LIMITS and not hasattr(bound, "seconds")
    }
    if chosen in {"int64", "uint64"}:  # a string in JSON
        limits = {}
    return limits | ({"format": "uuid"} if chosen == "string" and rules.string.uuid else {})


def _shapes(route: Route, count: int) -> list[dict[str, Any]]:
    """What each variable in a path must match: a part of the pattern of the whole name."""
    *_, last = route.field.split(".")
    field = route.method.input_type.fields_by_name.get(last)
    pattern = _limits(field).get("pattern", "") if field is not None else ""
    parts = pattern.strip("^$").split("/")[1::2]
    return [{"pattern": f"^{part}$"} for part in parts] if len(parts) == count else [{}] * count


def render() -> str:
    """The file as the contract is now."""
    return json.dumps(Description().document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
