"""What goes wrong reaches clients as google.rpc.Status, and nothing from inside does."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from google.rpc import error_details_pb2 as details

from actors.core.errors import REFUSAL_TEXTS, QuotaExceededError, Reason, Rejected
from actors.messages import (
    DeadlineExceededError,
    EtagMismatchError,
    InvalidFieldError,
    UnknownConversationError,
)
from actors.ports import (
    DatabaseAwayError,
    FencedError,
    RevisionTooOldError,
    SlugTakenError,
    StoreDamagedError,
    StoreUnavailableError,
    StoreUnusableError,
)
from server.contract.errors import (
    CODES,
    DOMAIN,
    FIELDS,
    MAX_VIOLATIONS,
    AnswerTimeoutError,
    ConversationNotFoundError,
    MalformedRequestError,
    NestedFieldError,
    SlowReaderError,
    UnauthenticatedError,
    status_of,
)

if TYPE_CHECKING:
    from google.rpc.status_pb2 import Status

COMMON = Path(__file__).parents[3] / "protos" / "bedrock" / "v1" / "common.proto"


def unpack(status: Status) -> dict[str, object]:
    kinds = (details.ErrorInfo, details.BadRequest, details.RetryInfo, details.ResourceInfo, details.QuotaFailure)
    found: dict[str, object] = {}
    for packed in status.details:
        for kind in kinds:
            if packed.Is(kind.DESCRIPTOR):
                found[kind.__name__] = message = kind()
                packed.Unpack(message)
    assert len(found) == len(status.details)
    return found


def told(error: BaseException) -> tuple[str, str, dict[str, object]]:
    status = status_of(error)
    found = unpack(status)
    info = found["ErrorInfo"]
    assert isinstance(info, details.ErrorInfo)
    assert info.domain == DOMAIN
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    return code.name, info.reason, found


def fields(found: dict[str, object]) -> list[str]:
    bad = found["BadRequest"]
    assert isinstance(bad, details.BadRequest)
    return [violation.field for violation in bad.field_violations]


def documented() -> dict[str, str]:
    """Reason and code as the contract documents them."""
    text = COMMON.read_text(encoding="utf-8")
    return {
        reason: code
        for code, reason in re.findall(r"// ([A-Z_]+)\. .*\n(?:  //.*\n)*  REFUSAL_REASON_([A-Z_]+) = [1-9]", text)
    }


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_the_code_that_the_contract_documents(reason: Reason) -> None:
    code, name, _ = told(Rejected(reason))
    assert (code, name) == (CODES[reason].name, reason.value)
    assert documented()[reason.value] == code


def test_the_text_of_a_refusal_is_for_people() -> None:
    assert status_of(Rejected(Reason.AGENT_BUSY)).message == REFUSAL_TEXTS[Reason.AGENT_BUSY]
    assert status_of(Rejected(Reason.AGENT_BUSY, "another text")).message == "another text"


@pytest.mark.parametrize("reason", [reason for reason in Reason if CODES[reason] is grpc.StatusCode.INVALID_ARGUMENT])
def test_a_refusal_of_a_field_names_it(reason: Reason) -> None:
    assert fields(told(Rejected(reason))[2]) == [FIELDS[reason]]


def test_a_refusal_because_of_a_run_names_it() -> None:
    busy, missing = Rejected(Reason.AGENT_BUSY), Rejected(Reason.ARCHIVED)
    busy.run = missing.run = ("c", "c:3")
    info = told(busy)[2]["ErrorInfo"]
    assert isinstance(info, details.ErrorInfo)
    assert dict(info.metadata) == {"run": "conversations/c/requestCycles/c:3"}
    for other in (missing, Rejected(Reason.AGENT_BUSY)):
        info = told(other)[2]["ErrorInfo"]
        assert isinstance(info, details.ErrorInfo)
        assert not info.metadata


@pytest.mark.parametrize("reason", Reason)
def test_waiting_is_advised_where_it_helps_and_never_for_a_busy_agent(reason: Reason) -> None:
    soon = {"CANCELLING", "CONTINUATION_IN_PROGRESS", "TOO_MANY_STREAMS", "STORE_UNAVAILABLE", "SERVER_EXHAUSTED"}
    assert ("RetryInfo" in told(Rejected(reason))[2]) == (reason.value in soon | {"SHUTTING_DOWN"})


@pytest.mark.parametrize(("principal", "subject"), [("ada", "principal:ada"), ("", "server")])
def test_a_quota_says_whose_it_is_what_is_used_and_when_it_is_free_again(principal: str, subject: str) -> None:
    code, reason, found = told(
        QuotaExceededError("cost_per_day", principal, limit=2_500_000, used=2_600_000, retry_ms=90_250, dollars=True)
    )
    assert (code, reason) == ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED")
    info, failure, retry = (found[kind] for kind in ("ErrorInfo", "QuotaFailure", "RetryInfo"))
    assert isinstance(info, details.ErrorInfo)
    assert isinstance(failure, details.QuotaFailure)
    assert isinstance(retry, details.RetryInfo)
    assert dict(info.metadata) == {
        "quota": "cost_per_day", "limit": "2500000", "used": "2600000", "principal": principal,
    }  # fmt: skip
    (violation,) = failure.violations
    assert violation.subject == subject
    assert violation.description == f"the quota cost_per_day of {principal or 'this server'} is used up: $2.60 of $2.50"
    assert retry.retry_delay.ToMilliseconds() == 90_250


def test_a_store_that_cannot_take_a_change_says_when_to_try_again() -> None:
    for error in (StoreUnavailableError("disk full"), FencedError("epoch 3")):
        code, reason, found = told(error)
        assert (code, reason) == ("UNAVAILABLE", "STORE_UNAVAILABLE")
        retry = found["RetryInfo"]
        assert isinstance(retry, details.RetryInfo)
        assert retry.retry_delay.seconds == 1
        assert "disk" not in str(status_of(error))


def test_a_read_without_the_store_is_told_that_and_nothing_of_changes(caplog: pytest.LogCaptureFixture) -> None:
    for error in (DatabaseAwayError("host db.example"), Rejected(Reason.STORE_UNAVAILABLE)):
        assert (
            status_of(error).message == "the store cannot confirm the change now: try again, with the same request_id"
        )
        assert status_of(error, reading=True).message == "the store cannot be read; retry"
    own = status_of(Rejected(Reason.STORE_UNAVAILABLE, "out of touch"), reading=True)
    assert own.message == "out of touch"
    assert not caplog.records, "the store has logged it, once"


@pytest.mark.parametrize(
    "error", [StoreDamagedError("row 7 of /srv/x"), StoreUnusableError("/srv/x is not a database")]
)
def test_damage_in_the_store_is_not_worth_a_retry(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    code, reason, found = told(error)
    assert (code, reason, set(found)) == ("DATA_LOSS", "DATA_LOSS", {"ErrorInfo"})
    assert "restore it from a backup" in status_of(error).message
    assert "srv" not in str(status_of(error))
    assert caplog.records[0].exc_info is not None


PLAIN = [
    (UnauthenticatedError(), "UNAUTHENTICATED"),
    (SlowReaderError(), "ABORTED"),
    (EtagMismatchError(), "ABORTED"),
    (DeadlineExceededError(), "DEADLINE_EXCEEDED"),
    (AnswerTimeoutError(), "DEADLINE_EXCEEDED"),
]


@pytest.mark.parametrize(("error", "code"), PLAIN, ids=lambda value: type(value).__name__)
def test_errors_that_are_no_refusals_have_their_code_as_the_reason(error: Exception, code: str) -> None:
    assert told(error)[:2] == (code, code)
    assert len(status_of(error).message) > 10


def test_bad_fields_are_all_named() -> None:
    code, reason, found = told(MalformedRequestError(("title", "is too long"), ("slug", "is odd")))
    assert (code, reason, fields(found)) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT", ["title", "slug"])
    assert fields(told(InvalidFieldError("budget", "is negative"))[2]) == ["budget"]


def test_fields_within_a_field_are_named_by_their_path() -> None:
    assert fields(told(NestedFieldError("conversation", Rejected(Reason.MODEL_UNAVAILABLE)))[2]) == [
        "conversation.model"
    ]
    assert fields(told(NestedFieldError("conversation", InvalidFieldError("budget", "no")))[2]) == [
        "conversation.budget"
    ]
    assert told(NestedFieldError("conversation", Rejected(Reason.AGENT_BUSY)))[:2] == (
        "FAILED_PRECONDITION",
        "AGENT_BUSY",
    )


def test_what_does_not_exist_is_named() -> None:
    code, reason, found = told(ConversationNotFoundError("conversations/x"))
    resource = found["ResourceInfo"]
    assert isinstance(resource, details.ResourceInfo)
    assert (code, reason, resource.resource_name) == ("NOT_FOUND", "NOT_FOUND", "conversations/x")
    assert told(UnknownConversationError("gone"))[0] == "NOT_FOUND"


def test_pruned_events_name_the_oldest_revision() -> None:
    code, reason, found = told(RevisionTooOldError("pruned", oldest=17))
    info = found["ErrorInfo"]
    assert isinstance(info, details.ErrorInfo)
    assert (code, reason, info.metadata["oldest_revision"]) == ("OUT_OF_RANGE", "REVISION_TOO_OLD", "17")


def test_a_slug_that_the_store_finds_taken_is_the_same_refusal() -> None:
    assert told(SlugTakenError())[:2] == ("ALREADY_EXISTS", "SLUG_TAKEN")


@pytest.mark.parametrize("error", [KeyError("secret"), RuntimeError("/srv/app/x.py"), asyncio.QueueEmpty("secret")])
def test_a_fault_tells_the_client_a_number_and_the_log_the_rest(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "server.contract.errors"):
        status = status_of(error)
    assert status.code == grpc.StatusCode.INTERNAL.value[0]
    wire = status.SerializeToString()
    assert b"secret" not in wire
    assert b"/srv" not in wire
    (entry,) = caplog.records
    info = unpack(status)["ErrorInfo"]
    assert isinstance(info, details.ErrorInfo)
    assert info.metadata["id"] in entry.getMessage()
    assert entry.exc_info is not None


def test_a_status_always_fits_into_trailers() -> None:
    many = MalformedRequestError(*((f"field{n}", "x" * 5_000) for n in range(100)))
    status = status_of(many)
    assert len(fields(unpack(status))) == MAX_VIOLATIONS
    assert status.ByteSize() < 8_000
