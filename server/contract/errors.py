"""Converts exceptions to google.rpc.Status, with code, reason and details. Internal details never reach clients."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from concurrent.futures import CancelledError

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2 as details
from google.rpc.status_pb2 import Status

from actors import messages, ports
from actors.common.machine import exhausted_resource
from actors.core.errors import REFUSAL_TEXTS, QuotaExceededError, Reason, Rejected
from server.contract import resource_names as names

log = logging.getLogger(__name__)

DOMAIN = "bedrock.dev"
# Maximum length of a status message. It is sent in trailers (final metadata), for which clients accept 8 KiB.
MAX_MESSAGE_CHARS = 500
MAX_VIOLATIONS = 8
MAX_VIOLATION_CHARS = 200
# The seconds after which a client may retry, by the reason for the refusal. Only refusals whose cause soon passes by
# itself are listed: how long a busy agent will work is unknown, and clients can follow a stream to wait for it.
RETRY_SECONDS: dict[str, int] = {
    Reason.CANCELLING.value: 2,
    Reason.CONTINUATION_IN_PROGRESS.value: 5,
    Reason.TOO_MANY_STREAMS.value: 5,
    Reason.STORE_UNAVAILABLE.value: 1,
    Reason.SERVER_EXHAUSTED.value: 1,
    Reason.SHUTTING_DOWN.value: 1,
}
# The error message for read-only calls while the store does not answer.
UNREAD = "the store cannot be read; retry"
OWNERLESS_SECONDS = 1

_Code = grpc.StatusCode

CODES: dict[Reason, grpc.StatusCode] = {
    Reason.AGENT_BUSY: _Code.FAILED_PRECONDITION,
    Reason.CANCELLING: _Code.FAILED_PRECONDITION,
    Reason.AWAITING_APPROVAL: _Code.FAILED_PRECONDITION,
    Reason.NOT_AWAITING_APPROVAL: _Code.FAILED_PRECONDITION,
    Reason.UNKNOWN_OR_DECIDED: _Code.ABORTED,
    Reason.CONTINUATION_IN_PROGRESS: _Code.FAILED_PRECONDITION,
    Reason.CONTEXT_EXHAUSTED: _Code.FAILED_PRECONDITION,
    Reason.TERMINAL: _Code.FAILED_PRECONDITION,
    Reason.SUB_AGENT: _Code.FAILED_PRECONDITION,
    Reason.NOT_SUB_AGENT: _Code.FAILED_PRECONDITION,
    Reason.ALREADY_STARTED: _Code.FAILED_PRECONDITION,
    Reason.ARCHIVED: _Code.FAILED_PRECONDITION,
    Reason.RUN_OVER: _Code.ABORTED,
    Reason.QUEUE_FULL: _Code.RESOURCE_EXHAUSTED,
    Reason.REQUEST_ID_REUSED: _Code.ALREADY_EXISTS,
    Reason.SLUG_TAKEN: _Code.ALREADY_EXISTS,
    Reason.MODEL_UNAVAILABLE: _Code.INVALID_ARGUMENT,
    Reason.MODE_UNAVAILABLE: _Code.FAILED_PRECONDITION,
    Reason.WORKING_DIRECTORY_INVALID: _Code.INVALID_ARGUMENT,
    Reason.IMAGE_INVALID: _Code.INVALID_ARGUMENT,
    Reason.REVISION_TOO_OLD: _Code.OUT_OF_RANGE,
    Reason.TOO_MANY_STREAMS: _Code.RESOURCE_EXHAUSTED,
    Reason.BUDGET_REACHED: _Code.FAILED_PRECONDITION,
    Reason.STORE_UNAVAILABLE: _Code.UNAVAILABLE,
    Reason.SHUTTING_DOWN: _Code.UNAVAILABLE,
    Reason.PERMISSION_DENIED: _Code.PERMISSION_DENIED,
    Reason.NOT_EXHAUSTED: _Code.FAILED_PRECONDITION,
    Reason.NOT_FORKABLE: _Code.FAILED_PRECONDITION,
    Reason.CYCLE_RUNNING: _Code.FAILED_PRECONDITION,
    Reason.GENERATION_UNSUPPORTED: _Code.INVALID_ARGUMENT,
    Reason.MCP_NOT_ALLOWED: _Code.PERMISSION_DENIED,
    Reason.SERVER_EXHAUSTED: _Code.RESOURCE_EXHAUSTED,
    Reason.QUOTA_EXCEEDED: _Code.RESOURCE_EXHAUSTED,
    Reason.WORKSPACE_OFFLINE: _Code.UNAVAILABLE,
    Reason.TOOL_NOT_OFFERED: _Code.FAILED_PRECONDITION,
}

# The field that each reason is about, for reasons with the code INVALID_ARGUMENT that concern a single field.
FIELDS = {
    Reason.MODEL_UNAVAILABLE: "model",
    Reason.WORKING_DIRECTORY_INVALID: "working_directory",
    Reason.IMAGE_INVALID: "images",
    Reason.GENERATION_UNSUPPORTED: "generation",
}


class MalformedRequestError(Exception):
    reason = "INVALID_ARGUMENT"

    def __init__(self, *violations: tuple[str, str]) -> None:
        super().__init__("; ".join(f"{field}: {text}" if field else text for field, text in violations))
        self.violations = violations


class ConversationNotFoundError(Exception):
    """The resource in a request does not exist, or the caller may not see it. `name` is the resource name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} does not exist")
        self.name = name


class NestedFieldError(Exception):
    def __init__(self, field: str, refusal: Rejected | messages.InvalidFieldError) -> None:
        super().__init__(str(refusal))
        self.field = field
        self.refusal = refusal


class ImageRefusedError(MalformedRequestError):
    """An image in a message cannot be used. `text` completes the sentence "the image …", and `index` counts from 0."""

    reason = Reason.IMAGE_INVALID.value

    def __init__(self, index: int, text: str) -> None:
        super().__init__((f"images[{index}]", f"the image {text}"))


class UnauthenticatedError(Exception):
    pass


class AuthorizerUnavailableError(Exception):
    """The operator's authorizer has failed, so it is unknown whether the call is allowed."""

    def __init__(self) -> None:
        super().__init__("this server's authorizer failed; try again later")


class RequestTimeoutError(Exception):
    """The request did not arrive completely before its deadline or the server's time limit (`seconds`, if not None)."""

    def __init__(self, seconds: float | None) -> None:
        within = "in time" if seconds is None else f"within {seconds:g} seconds"
        super().__init__(f"the request did not arrive {within}; nothing was changed")


class AnswerTimeoutError(Exception):
    """The conversation's actor did not answer a call within the time limit. The call may still take effect."""


class SlowReaderError(Exception):
    """A client did not read its stream for too long, so the server ended the stream."""

    def __init__(self, text: str = "the client read too slowly; resume after the last revision seen") -> None:
        super().__init__(text)


class OwnerLostError(Exception):
    """The connection to the node that owns the conversation was lost during a call that cannot safely be repeated."""


class ListInterruptedError(Exception):
    """Changes to the list of conversations may have been missed, because a node joined the cluster or was lost."""


class ClientDisconnectedError(Exception):
    """A response could not be sent, usually because the client has disconnected."""


def status_of(error: BaseException, *, reading: bool = False) -> Status:
    """The status for an error; logs the details that clients must not see. `reading` is set for read-only methods."""
    match error:
        case Rejected():
            return _rejected(error, reading=reading)
        case NestedFieldError(field=field, refusal=Rejected(reason=reason) as refusal):
            return _refusal(reason, str(error), f"{field}.", refusal.run)
        case NestedFieldError(field=field, refusal=messages.InvalidFieldError(field=inner)):
            place = f"{field}.{inner}" if inner else field
            return _malformed(((place, str(error)),), f"{place}: {error}")
        case MalformedRequestError(violations=violations, reason=reason):
            return _malformed(violations, str(error), reason)
        case messages.InvalidFieldError(field=field):
            return _malformed(((field, str(error)),), f"{field}: {error}")
        case ConversationNotFoundError(name=name):
            return _missing(name, str(error))
        case messages.UnknownConversationError():
            return _missing("", str(error) or "the conversation does not exist")
        case ports.RevisionTooOldError(oldest=oldest):
            lost = Reason.REVISION_TOO_OLD
            return make(CODES[lost], REFUSAL_TEXTS[lost], lost.value, {"oldest_revision": str(oldest)})
        case ports.StoreDamagedError() | ports.StoreUnusableError():
            log.error("stored data is damaged", exc_info=error)
            text = "the stored conversation is damaged; see the server log, and restore it from a backup"
            return make(_Code.DATA_LOSS, text, "DATA_LOSS")
        case ports.StoreError():
            return _store_failed(error, reading=reading)
        case _:
            return _plain(error)


_PLAIN: dict[type[BaseException], grpc.StatusCode] = {
    UnauthenticatedError: _Code.UNAUTHENTICATED,
    AuthorizerUnavailableError: _Code.UNAVAILABLE,
    SlowReaderError: _Code.ABORTED,
    ClientDisconnectedError: _Code.UNAVAILABLE,
    OwnerLostError: _Code.UNAVAILABLE,
    ListInterruptedError: _Code.UNAVAILABLE,
    messages.EtagMismatchError: _Code.ABORTED,
    messages.DeadlineExceededError: _Code.DEADLINE_EXCEEDED,
    RequestTimeoutError: _Code.DEADLINE_EXCEEDED,
    AnswerTimeoutError: _Code.DEADLINE_EXCEEDED,
    ports.ImagesUnavailableError: _Code.UNAVAILABLE,
    CancelledError: _Code.CANCELLED,
    asyncio.CancelledError: _Code.CANCELLED,
}

_TEXTS: dict[type[BaseException], str] = {
    messages.EtagMismatchError: "the conversation has changed since it was read; read it again",
    messages.DeadlineExceededError: "the deadline passed before the call was executed; nothing was changed",
    CancelledError: "cancelled",
    UnauthenticatedError: "a valid token is required; send it as 'authorization: Bearer <token>'",
    OwnerLostError: (
        "the connection to the conversation's server was lost, and the call may have taken effect; "
        "check whether it did, or retry with a request_id"
    ),
    AnswerTimeoutError: "no answer in time; the call may still take effect, so repeat it with the same request_id",
    ListInterruptedError: "the cluster has changed, and changes to the list may have been missed; watch the list again",
    ClientDisconnectedError: "the connection was lost; resume after the last revision seen",
}


def _plain(error: BaseException) -> Status:
    code = _PLAIN.get(type(error))
    if code is None:
        return _exhausted(lacked) if (lacked := exhausted_resource(error)) else _internal(error)
    return make(code, str(error) or _TEXTS.get(type(error), code.name), code.name)


def _ownerless() -> Status:
    """The status of a call whose conversation is owned by no node, or by a node that cannot be reached now."""
    retry = details.RetryInfo(retry_delay=Duration(seconds=OWNERLESS_SECONDS))
    text = "the server that owns the conversation cannot be reached; retry the call, or resume the stream"
    return make(_Code.UNAVAILABLE, text, _Code.UNAVAILABLE.name, None, retry)


def _store_failed(error: ports.StoreError, *, reading: bool) -> Status:
    if isinstance(error, ports.NotOwnerError):
        return _ownerless()
    if lacked := exhausted_resource(error):
        return _exhausted(lacked)
    if not isinstance(error, ports.DatabaseAwayError):
        log.error("the store failed: %s", type(error).__name__, exc_info=error)
    return _refusal(Reason.STORE_UNAVAILABLE, UNREAD if reading else "")


def _exhausted(text: str) -> Status:
    log.warning("a call was refused: %s", text)
    return _refusal(Reason.SERVER_EXHAUSTED, f"{text}; try again later")


def _internal(error: BaseException) -> Status:
    """The status for an internal error, with a random number that identifies the details in the log."""
    number = secrets.token_hex(4)
    log.error("fault %s", number, exc_info=error)
    return make(_Code.INTERNAL, f"internal error {number}; see the server log", "INTERNAL", {"id": number})


# The reasons for refusals whose status names the active run.
RUN_NAMED = {Reason.AGENT_BUSY, Reason.AWAITING_APPROVAL, Reason.CANCELLING, Reason.RUN_OVER}


def _refusal(
    reason: Reason, text: str, prefix: str = "", run: tuple[str, str] | None = None, cause: str = ""
) -> Status:
    text = text or str(Rejected(reason))
    more = [_bad_request(((prefix + FIELDS[reason], text),))] if reason in FIELDS else []
    metadata = {"cause": cause} if cause else {}
    if run and reason in RUN_NAMED:
        metadata["run"] = names.cycle(*run)
    return make(CODES[reason], text, reason.value, metadata, *more)


def _rejected(error: Rejected, *, reading: bool) -> Status:
    if isinstance(error, QuotaExceededError):
        return _quota_exceeded(error)
    away = error.reason is Reason.STORE_UNAVAILABLE and str(error) == REFUSAL_TEXTS[error.reason]
    text = UNREAD if reading and away else str(error)
    return _refusal(error.reason, text, run=error.run, cause=error.cause)


def _quota_exceeded(error: QuotaExceededError) -> Status:
    metadata = {"quota": error.quota, "limit": str(error.limit), "used": str(error.used), "principal": error.principal}
    subject = f"principal:{error.principal}" if error.principal else "server"
    violation = details.QuotaFailure.Violation(subject=subject, description=_cut(str(error), MAX_VIOLATION_CHARS))
    failure = details.QuotaFailure(violations=[violation])
    seconds, milliseconds = divmod(error.retry_ms, 1_000)
    retry = details.RetryInfo(retry_delay=Duration(seconds=seconds, nanos=milliseconds * 1_000_000))
    return make(CODES[error.reason], str(error), error.reason.value, metadata, retry, failure)


def _malformed(violations: Sequence[tuple[str, str]], text: str, reason: str = MalformedRequestError.reason) -> Status:
    return make(_Code.INVALID_ARGUMENT, text, reason, None, _bad_request(violations))


def _missing(name: str, text: str) -> Status:
    kind = name.rpartition("/")[0].rpartition("/")[2].removesuffix("s") or "conversation"
    resource = details.ResourceInfo(resource_type=f"bedrock.v1.{kind[0].upper()}{kind[1:]}", resource_name=name)
    return make(_Code.NOT_FOUND, text, "NOT_FOUND", None, resource)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _bad_request(violations: Sequence[tuple[str, str]]) -> details.BadRequest:
    kind, found = details.BadRequest.FieldViolation, violations[:MAX_VIOLATIONS]
    described = [kind(field=field, description=_cut(text, MAX_VIOLATION_CHARS)) for field, text in found]
    return details.BadRequest(field_violations=described)


def make(
    code: grpc.StatusCode, text: str, reason: str, metadata: dict[str, str] | None = None, *more: Message
) -> Status:
    status = Status(code=code.value[0], message=_cut(text, MAX_MESSAGE_CHARS))
    info: list[Message] = [details.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata or {})]
    if seconds := RETRY_SECONDS.get(reason):
        info.append(details.RetryInfo(retry_delay=Duration(seconds=seconds)))
    for detail in (*info, *more):
        status.details.add().Pack(detail)
    return status
