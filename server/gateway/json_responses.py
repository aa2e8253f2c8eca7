"""Converts the contract's responses and errors to JSON; errors have the form of Google's AIP-193."""

from __future__ import annotations

import http
import re
from collections.abc import Mapping
from typing import Any, cast

import grpc
import msgspec
from bedrock import v1
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.rpc import error_details_pb2 as details
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status
from starlette.responses import Response

from server.contract.errors import make, status_of

JSON = "application/json"
# The HTTP status of a cancelled call, which no client sees any more.
CLIENT_CLOSED_REQUEST = 499
# The HTTP status of each gRPC status, as documented in google/rpc/code.proto.
HTTP_STATUS = {
    grpc.StatusCode.CANCELLED: CLIENT_CLOSED_REQUEST,
    grpc.StatusCode.UNKNOWN: 500,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DATA_LOSS: 500,
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}
# The JSON name of each field of the contract.
_NAMES = {
    field.name: field.json_name
    for kind in vars(v1).values()
    if isinstance(kind, type) and issubclass(kind, Message)
    for field in kind.DESCRIPTOR.fields
}
# Line breaks that JSON does not escape, at which some clients of event streams split lines.
_BREAKS = {"\u0085": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


class HttpError(Exception):
    """A refusal at the HTTP level: `status` is the HTTP status, and `code` the gRPC status."""

    def __init__(
        self,
        status: int,
        text: str,
        code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(text)
        self.status, self.code, self.headers = status, code, headers or {}


class StatusError(Exception):
    """A call that the server has refused, in terms of the HTTP request."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status


def as_json(message: Message) -> Any:
    """A message as protobuf's JSON: fields in camelCase, without those that are not set."""
    return MessageToDict(message)


def encoded(value: Any) -> bytes:
    """JSON as bytes on one line, by any definition of a line break."""
    return on_one_line(msgspec.json.encode(value))


def on_one_line(text: bytes) -> bytes:
    """JSON that has no line feeds, with all other line breaks escaped."""
    for found, escaped in _BREAKS.items():
        text = text.replace(found.encode(), escaped.encode())
    return text


_UNANSWERED = {
    grpc.StatusCode.UNAVAILABLE: "the server cannot be reached; try again later",
    grpc.StatusCode.DEADLINE_EXCEEDED: "the call's deadline has passed",
    grpc.StatusCode.UNIMPLEMENTED: "the server does not support this call",
}


def status_for(error: Exception) -> Status:
    """The status of an error, from the server or the gateway itself."""
    if isinstance(error, HttpError):
        return make(error.code, str(error), error.code.name)
    if isinstance(error, StatusError):
        return error.status
    if not isinstance(error, grpc.aio.AioRpcError):
        return status_of(error)
    if (told := rpc_status.from_call(cast("grpc.Call", error))) is not None:
        return _as_sent(told)
    code = error.code()
    # gRPC's own messages name addresses, sockets and headers.
    return make(code, _UNANSWERED.get(code, "the call failed before the server could answer"), code.name)


def _as_sent(status: Status) -> Status:
    """The server's status, with fields under their JSON names."""
    for detail in status.details:
        if detail.Unpack(wrong := details.BadRequest()):
            for each in wrong.field_violations:
                sent = _in_json(each.field)
                status.message = status.message.replace(f"{each.field}: ", f"{sent}: ")
                if each.field == "update_mask":  # this violation's text contains field names, too
                    status.message, each.description = _in_json(status.message), _in_json(each.description)
                each.field = sent
            detail.Pack(wrong)
    return status


def _in_json(text: str) -> str:
    return re.sub(r"\w+", lambda name: _NAMES.get(name[0], name[0]), text)


def as_error(error: Exception, status: Status | None = None) -> tuple[int, dict[str, Any]]:
    """The HTTP status of an error, and its JSON. `status` is the result of `status_for`, if known."""
    status = status or status_for(error)
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    number = error.status if isinstance(error, HttpError) else HTTP_STATUS[code]
    shown = as_json(status).get("details", [])
    return number, {"error": {"code": number, "message": status.message, "status": code.name, "details": shown}}


def error_response(error: Exception) -> Response:
    status = status_for(error)
    number, told = as_error(error, status)
    headers = dict(error.headers) if isinstance(error, HttpError) else {}
    if number == http.HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    retry = details.RetryInfo()
    if any(each.Unpack(retry) for each in status.details):
        headers["Retry-After"] = str(max(1, retry.retry_delay.seconds))
    return Response(encoded(told) + b"\n", number, headers, JSON)
