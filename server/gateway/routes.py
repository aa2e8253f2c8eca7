"""Finds the call of the contract for an HTTP request, using the `google.api.http` options.

Paths are matched as they were sent, before percent escapes are decoded, so that an escaped slash or colon is never
part of the syntax. The rules are those of google/api/http.proto.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from bedrock.v1 import catalog_service_pb2, conversation_service_pb2
from google.api import annotations_pb2
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from server.contract.errors import MalformedRequestError

_HTTP: Any = annotations_pb2.http
_PART = re.compile(r"\{(?P<field>[\w.]+)=(?P<name>[\w*/]+)\}|\*\*|\*|[^{*]+")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SLASH = re.compile(r"(%2[Ff])")
# The marker for a call whose body is the whole request, except for the path.
ALL = "*"


class NoRouteError(Exception):
    def __init__(self, allowed: Iterable[str] = (), text: str = "nothing is served at this path") -> None:
        super().__init__(text)
        self.allowed = sorted(allowed)


@dataclass(frozen=True)
class Route:
    method: MethodDescriptor
    verb: str
    path: str
    body: str

    @property
    def name(self) -> str:
        return self.method.name

    @cached_property
    def rpc(self) -> str:
        return f"/{self.method.containing_service.full_name}/{self.method.name}"

    @cached_property
    def request(self) -> type[Message]:
        return GetMessageClass(self.method.input_type)

    @cached_property
    def response(self) -> type[Message]:
        return GetMessageClass(self.method.output_type)

    @cached_property
    def field(self) -> str:
        return next((part["field"] for part in _PART.finditer(self.path) if part["field"]), "")

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches the path without the custom verb; a group is the field's value."""
        return re.compile("".join(_expressions(self.path.partition(":")[0])))


def _expressions(template: str) -> Iterator[str]:
    for part in _PART.finditer(template):
        match part[0]:
            case "**":
                yield ".+"
            case "*":
                yield "[^/]+"
            case text if part["field"] is None:
                yield re.escape(text)
            case _:
                yield f"({''.join(_expressions(part['name']))})"


class Routes:
    """All routes of the contract, by their custom verbs."""

    def __init__(self, methods: Iterable[MethodDescriptor]) -> None:
        self._by_verb: dict[str, list[Route]] = {}
        for method in methods:
            for route in _bindings(method):
                self._by_verb.setdefault(route.path.partition(":")[2], []).append(route)

    def __iter__(self) -> Iterator[Route]:
        return (route for routes in self._by_verb.values() for route in routes)

    def find(self, verb: str, path: str) -> tuple[Route, str]:
        """The route of a method and path, and the value of its field.

        A colon begins a custom verb if a known verb follows it, or if any letters follow it on a path that has verbs.
        Any other colon, including an escaped one, belongs to an id. Raises NoRouteError, or MalformedRequestError for
        invalid escapes.
        """
        before, _, custom = path.rpartition(":")
        if not before or custom not in self._by_verb:
            if custom.isascii() and custom.isalpha() and (verbs := self._verbs(before)):
                raise NoRouteError((), f"unknown verb {custom}; verbs of this path: {', '.join(verbs)}")
            before, custom = path, ""
        found = [(route, match) for route in self._by_verb[custom] if (match := route.pattern.fullmatch(before))]
        for route, match in found:
            if route.verb == verb:
                return route, _unescaped(match[1]) if route.field else ""
        raise NoRouteError({route.verb for route, _ in found})

    def _verbs(self, path: str) -> list[str]:
        return [
            verb for verb, routes in self._by_verb.items() if verb and any(r.pattern.fullmatch(path) for r in routes)
        ]


def contract() -> Routes:
    files = (conversation_service_pb2.DESCRIPTOR, catalog_service_pb2.DESCRIPTOR)
    return Routes(method for file in files for service in file.services_by_name.values() for method in service.methods)


def _bindings(method: MethodDescriptor) -> Iterator[Route]:
    rule = method.GetOptions().Extensions[_HTTP]
    for each in (rule, *rule.additional_bindings):
        verb = each.WhichOneof("pattern")
        yield Route(method, verb.upper(), getattr(each, verb), each.body)


def _unescaped(text: str) -> str:
    """Decode the escapes in the value of a field, except slashes, which would look like the slashes of a name."""
    if _BAD_ESCAPE.search(text):
        raise MalformedRequestError(("", "the path has an invalid percent escape"))
    try:
        return "".join(
            part if _SLASH.fullmatch(part) else unquote(part, errors="strict") for part in _SLASH.split(text)
        )
    except UnicodeDecodeError:
        raise MalformedRequestError(("", "the path is not UTF-8")) from None
