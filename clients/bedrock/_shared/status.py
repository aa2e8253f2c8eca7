"""Converts gRPC errors into the exceptions of this package."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, TypeVar, cast

from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from bedrock import errors
from bedrock._shared.settings import no_listener_error, proxy_of

if TYPE_CHECKING:
    import grpc
    from google.protobuf.any_pb2 import Any

M = TypeVar("M", bound=Message)

DOMAIN = "bedrock.dev"

# Status codes with which gRPC itself ends a broken stream. The client may open such a stream again.
_BROKEN = frozenset({"CANCELLED", "UNKNOWN", "INTERNAL"})

# The beginning of gRPC's error text for a call that never got a connection.
_NO_CONNECTION = "failed to connect to all addresses"

# The system's error texts for connecting to a Unix socket that is missing, or that a killed server left behind.
_NO_LISTENER = frozenset({os.strerror(errno.ENOENT), os.strerror(errno.ECONNREFUSED)})


def from_rpc(error: grpc.RpcError, target: str, token_source: str = "") -> errors.BedrockError:
    """Make the exception for a failed gRPC call.

    Args:
        error: The error that gRPC raised, with code, details and trailing metadata.
        target: The address that was called, for the text of connection failures.
        token_source: Where the sent token came from; "" if none was sent.
    """
    code = error.code().name
    message = error.details() or code
    reason, resource, fields, metadata, retry_after = "", "", {}, {}, None
    for detail in _details(error):
        if (info := _unpack(detail, error_details_pb2.ErrorInfo())) and info.domain == DOMAIN:
            reason, metadata = info.reason, dict(info.metadata)
        elif request := _unpack(detail, error_details_pb2.BadRequest()):
            fields = {violation.field: violation.description for violation in request.field_violations}
        elif retry := _unpack(detail, error_details_pb2.RetryInfo()):
            retry_after = retry.retry_delay.ToTimedelta().total_seconds()
        elif named := _unpack(detail, error_details_pb2.ResourceInfo()):
            resource = named.resource_name
    if code == "UNAVAILABLE" and not reason:
        cause = cause_of(message)
        if target.startswith("unix:") and cause in _NO_LISTENER:
            return no_listener_error(target)
        variable = proxy_of(target)
        proxy = f" through the proxy {os.environ[variable].rpartition('@')[2]} of {variable}" if variable else ""
        message = f"no Bedrock server can be reached at {target}{proxy}: {cause}"
    if code == "UNAUTHENTICATED":
        sent = f"does not know the token from {token_source}" if token_source else "wants a token, and none was sent"
        message = f"the server at {target} {sent}"
    if code == "DEADLINE_EXCEEDED" and not reason:
        message = f"there was no answer from {target} in time"
    return errors.error_class(reason, code)(
        message,
        reason=reason,
        code=code,
        fields=fields,
        metadata=metadata,
        resource=resource,
        retry_after=retry_after,
    )


def nothing_was_sent(error: grpc.RpcError) -> bool:
    """Return whether no server can have executed a failed call, because no connection could be made.

    Returns False for a connection that was lost during the call, and for an error with metadata, because only a server
    can have sent that.
    """
    call = cast("grpc.Call", error)  # gRPC raises the call object itself as the error
    if error.code().name != "UNAVAILABLE" or not (error.details() or "").startswith(_NO_CONNECTION):
        return False
    return not call.initial_metadata() and not call.trailing_metadata()


def may_resume(error: errors.BedrockError) -> bool:
    """Return whether the client may resume a stream that ended with this error."""
    if isinstance(error, errors.Unavailable | errors.Aborted | errors.TooManyStreams | errors.QuotaExceeded):
        return True
    return not error.reason and error.code in _BROKEN


def is_gap(error: errors.BedrockError) -> bool:
    """Return whether the error means that the server cannot send the events after the requested revision."""
    if isinstance(error, errors.RevisionTooOld):
        return True
    return isinstance(error, errors.InvalidArgument) and "after_revision" in error.fields


def cause_of(details: str) -> str:
    """Return the last cause in gRPC's text of nested causes, which is the part that users can act on.

    For a failed TLS handshake, a text with advice is returned instead.
    """
    if "handshake failed" in details:
        return "the TLS handshake failed. Does it speak TLS, with a certificate that is trusted here?"
    return details.rpartition(": ")[2].rstrip("]")


def _details(error: grpc.RpcError) -> list[Any]:
    try:
        status = rpc_status.from_call(cast("grpc.Call", error))  # gRPC raises the call object itself as the error
    except ValueError:  # the details contradict the status, which happens when a proxy answered
        return []
    return [] if status is None else list(status.details)


def _unpack(detail: Any, message: M) -> M | None:
    return message if detail.Unpack(message) else None
