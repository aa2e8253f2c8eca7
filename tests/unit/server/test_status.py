"""What goes wrong reaches clients as google.rpc.Status, and the audit trail as a refusal."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc
import grpc.aio
import pytest
from bedrock import v1
from google.rpc import error_details_pb2 as details
from google.rpc.status_pb2 import Status

from actors import messages, ports
from actors.core.errors import REFUSAL_TEXTS, QuotaExceededError, Reason, Rejected
from actors.ports.records import AuditEntry, AuditFilter, CommandOrigin
from actors.ports.telemetry import Rpc, Telemetry
from actors.runtime.services import unlimited
from server.auth import authorization
from server.auth.authentication import OWN_USER, Authentication, caller
from server.auth.authorization import LiveCalls, Refusals
from server.contract import errors
from server.services.interceptors import GuardedMethod, address_of
from tests.support.stores import StoreProxy

# What goes wrong reaches clients as google.rpc.Status, and nothing from inside does.


def unpack(status: Status) -> dict[str, Any]:
    kinds = (details.ErrorInfo, details.BadRequest, details.RetryInfo, details.ResourceInfo, details.QuotaFailure)
    found: dict[str, Any] = {}
    for packed in status.details:
        for kind in kinds:
            if packed.Is(kind.DESCRIPTOR):
                found[kind.__name__] = message = kind()
                packed.Unpack(message)
    assert len(found) == len(status.details)
    return found


def told(error: BaseException) -> tuple[str, str, dict[str, Any]]:
    status = errors.status_of(error)
    found = unpack(status)
    info = found["ErrorInfo"]
    assert info.domain == errors.DOMAIN
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    return code.name, info.reason, found


def fields(found: dict[str, Any]) -> list[str]:
    bad = found["BadRequest"]
    return [violation.field for violation in bad.field_violations]


def test_the_text_of_a_refusal_is_for_people() -> None:
    assert errors.status_of(Rejected(Reason.AGENT_BUSY)).message == REFUSAL_TEXTS[Reason.AGENT_BUSY]
    assert errors.status_of(Rejected(Reason.AGENT_BUSY, "another text")).message == "another text"


@pytest.mark.parametrize(
    "reason", [reason for reason in Reason if errors.CODES[reason] is grpc.StatusCode.INVALID_ARGUMENT]
)
def test_a_refusal_of_a_field_names_it(reason: Reason) -> None:
    assert fields(told(Rejected(reason))[2]) == [errors.FIELDS[reason]]


def test_a_refusal_because_of_a_run_names_it() -> None:
    busy, missing = Rejected(Reason.AGENT_BUSY), Rejected(Reason.ARCHIVED)
    busy.run = missing.run = ("c", "c:3")
    info = told(busy)[2]["ErrorInfo"]
    assert dict(info.metadata) == {"run": "conversations/c/requestCycles/c:3"}
    for other in (missing, Rejected(Reason.AGENT_BUSY)):
        info = told(other)[2]["ErrorInfo"]
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
    assert dict(info.metadata) == {
        "quota": "cost_per_day", "limit": "2500000", "used": "2600000", "principal": principal,
    }  # fmt: skip
    (violation,) = failure.violations
    assert violation.subject == subject
    assert violation.description == f"the quota cost_per_day of {principal or 'this server'} is used up: $2.60 of $2.50"
    assert retry.retry_delay.ToMilliseconds() == 90_250


def test_a_store_that_cannot_take_a_change_says_when_to_try_again() -> None:
    for error in (ports.StoreUnavailableError("disk full"), ports.FencedError("epoch 3")):
        code, reason, found = told(error)
        assert (code, reason) == ("UNAVAILABLE", "STORE_UNAVAILABLE")
        retry = found["RetryInfo"]
        assert retry.retry_delay.seconds == 1
        assert "disk" not in str(errors.status_of(error))


def test_a_read_without_the_store_is_told_that_and_nothing_of_changes(caplog: pytest.LogCaptureFixture) -> None:
    for error in (ports.DatabaseAwayError("host db.example"), Rejected(Reason.STORE_UNAVAILABLE)):
        assert (
            errors.status_of(error).message == "the store cannot confirm the change now: retry with the same request_id"
        )
        assert errors.status_of(error, reading=True).message == "the store cannot be read; retry"
    own = errors.status_of(Rejected(Reason.STORE_UNAVAILABLE, "out of touch"), reading=True)
    assert own.message == "out of touch"
    assert not caplog.records, "the store has logged it, once"


@pytest.mark.parametrize(
    "error", [ports.StoreDamagedError("row 7 of /srv/x"), ports.StoreUnusableError("/srv/x is not a database")]
)
def test_damage_in_the_store_is_not_worth_a_retry(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    code, reason, found = told(error)
    assert (code, reason, set(found)) == ("DATA_LOSS", "DATA_LOSS", {"ErrorInfo"})
    assert "restore it from a backup" in errors.status_of(error).message
    assert "srv" not in str(errors.status_of(error))
    assert caplog.records[0].exc_info is not None


PLAIN = [
    (errors.UnauthenticatedError(), "UNAUTHENTICATED"),
    (errors.SlowReaderError(), "ABORTED"),
    (messages.EtagMismatchError(), "ABORTED"),
    (messages.DeadlineExceededError(), "DEADLINE_EXCEEDED"),
    (errors.AnswerTimeoutError(), "DEADLINE_EXCEEDED"),
]


@pytest.mark.parametrize(("error", "code"), PLAIN, ids=lambda value: type(value).__name__)
def test_errors_that_are_no_refusals_have_their_code_as_the_reason(error: Exception, code: str) -> None:
    assert told(error)[:2] == (code, code)
    assert len(errors.status_of(error).message) > 10


def test_bad_fields_are_all_named() -> None:
    code, reason, found = told(errors.MalformedRequestError(("title", "is too long"), ("slug", "is odd")))
    assert (code, reason, fields(found)) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT", ["title", "slug"])
    assert fields(told(messages.InvalidFieldError("budget", "is negative"))[2]) == ["budget"]


def test_fields_within_a_field_are_named_by_their_path() -> None:
    assert fields(told(errors.NestedFieldError("conversation", Rejected(Reason.MODEL_UNAVAILABLE)))[2]) == [
        "conversation.model"
    ]
    assert fields(told(errors.NestedFieldError("conversation", messages.InvalidFieldError("budget", "no")))[2]) == [
        "conversation.budget"
    ]
    assert told(errors.NestedFieldError("conversation", Rejected(Reason.AGENT_BUSY)))[:2] == (
        "FAILED_PRECONDITION",
        "AGENT_BUSY",
    )


def test_what_does_not_exist_is_named() -> None:
    code, reason, found = told(errors.ConversationNotFoundError("conversations/x"))
    resource = found["ResourceInfo"]
    assert (code, reason, resource.resource_name) == ("NOT_FOUND", "NOT_FOUND", "conversations/x")
    kinds = {"conversations/x": "Conversation", "models/m": "Model", "conversations/x/approvalRules/r": "ApprovalRule"}
    for name, kind in kinds.items():
        found = told(errors.ConversationNotFoundError(name))[2]
        assert found["ResourceInfo"].resource_type == f"bedrock.v1.{kind}"
    assert told(messages.UnknownConversationError("gone"))[0] == "NOT_FOUND"


def test_pruned_events_name_the_oldest_revision() -> None:
    code, reason, found = told(ports.RevisionTooOldError("pruned", oldest=17))
    info = found["ErrorInfo"]
    assert (code, reason, info.metadata["oldest_revision"]) == ("OUT_OF_RANGE", "REVISION_TOO_OLD", "17")


@pytest.mark.parametrize("error", [KeyError("secret"), RuntimeError("/srv/app/x.py"), asyncio.QueueEmpty("secret")])
def test_a_fault_tells_the_client_a_number_and_the_log_the_rest(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "server.contract.errors"):
        status = errors.status_of(error)
    assert status.code == grpc.StatusCode.INTERNAL.value[0]
    wire = status.SerializeToString()
    assert b"secret" not in wire
    assert b"/srv" not in wire
    (entry,) = caplog.records
    info = unpack(status)["ErrorInfo"]
    assert info.metadata["id"] in entry.getMessage()
    assert entry.exc_info is not None


def test_a_status_always_fits_into_trailers() -> None:
    many = errors.MalformedRequestError(*((f"field{n}", "x" * 5_000) for n in range(100)))
    status = errors.status_of(many)
    assert len(fields(unpack(status))) == errors.MAX_VIOLATIONS
    assert status.ByteSize() < 8_000
    assert status.message.endswith("x…")
    assert unpack(status)["BadRequest"].field_violations[0].description.endswith("x…")


# Refused calls on their way into the audit trail: together, counted, and cut off in a flood.


ANN = CommandOrigin("ann", "reader", "t1", "unix:", "SendMessage", "first")
NOBODY = CommandOrigin("", peer="ipv4:192.0.2.1", method="SendMessage")


class Store(StoreProxy):
    """Counts the writes, and refuses as many as the test wants."""

    def __init__(
        self, failing: int = 0, error: type[ports.StoreUnavailableError] = ports.StoreUnavailableError
    ) -> None:
        super().__init__()
        self.error = error
        self.writes = 0
        self.failing = failing

    def put_audit(self, entries: Sequence[AuditEntry]) -> None:
        self.writes += 1
        if self.writes <= self.failing:
            raise self.error("full")
        self.inner.put_audit(entries)


def noting_in(store: Store) -> Refusals:
    async def put(entries: Sequence[AuditEntry]) -> None:
        store.put_audit(entries)

    return Refusals(put, lambda: 5)


def kept(store: Store) -> list[tuple[str, str, str, int]]:
    found = store.audit(AuditFilter(), limit=9_999)
    return [(entry.origin.principal, entry.origin.method, entry.reason, entry.count) for entry in found]


async def test_repetitions_are_counted_and_the_first_is_kept_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "FLUSH_SECONDS", 0)
    store = Store()

    noting = noting_in(store)
    noting.note(ANN, "c1", "PERMISSION_DENIED")
    noting.note(NOBODY, "", "UNAUTHENTICATED")
    while store.writes == 0:
        await asyncio.sleep(0)
    assert kept(store) == [
        ("ann", "SendMessage", "PERMISSION_DENIED", 1), ("", "SendMessage", "UNAUTHENTICATED", 1),
    ]  # fmt: skip
    for _ in range(3):
        noting.note(CommandOrigin(*["ann", "reader", "t1", "unix:", "SendMessage", "later"]), "c1", "PERMISSION_DENIED")
    await noting.close()
    noting.note(ANN, "c1", "ARCHIVED")
    assert kept(store)[2:] == [("ann", "SendMessage", "PERMISSION_DENIED", 3)]
    assert [entry.origin.request_id for entry in store.audit(AuditFilter(), limit=9)] == ["first", "", ""]


async def test_a_flood_fills_no_disk_and_pushes_nobody_out() -> None:
    store = Store()

    noting = noting_in(store)
    for number in range(10_000):
        noting.note(CommandOrigin("", peer=f"ipv4:{number}", method="SetMode"), "", "UNAUTHENTICATED")
    noting.note(ANN, "c1", "PERMISSION_DENIED")
    await noting.close()
    found = kept(store)
    assert len(found) == authorization.MOST_OF_ONE + 2
    assert ("ann", "SendMessage", "PERMISSION_DENIED", 1) in found
    assert ("", "", "", 10_000 - authorization.MOST_OF_ONE) in found
    assert store.writes == 1


@pytest.mark.parametrize(("error", "lines"), [(ports.StoreUnavailableError, 2), (ports.DatabaseAwayError, 0)])
async def test_a_window_ends_and_what_the_store_could_not_take_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[ports.StoreUnavailableError],
    lines: int,
) -> None:
    """It is in the log, unless the store itself logs the outage."""
    for name in ("FLUSH_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(authorization, name, 0)
    monkeypatch.setattr(authorization, "WINDOW_SECONDS", 0.01)
    store = Store(failing=2, error=error)

    noting = noting_in(store)
    for _ in range(3):
        noting.note(ANN, "c1", "PERMISSION_DENIED")
    while len(kept(store)) < 2:
        await asyncio.sleep(0.001)
    await noting.close()
    assert [count for *_, count in kept(store)] == [1, 2]
    assert len(caplog.records) == lines


# What becomes of a call whose method fails.


class Ended(Exception):
    """The call was ended with a status."""


def reading(request: bytes) -> Callable[[], Awaitable[bytes]]:
    """What reads this request of a call."""

    async def read() -> bytes:
        return request

    return read


def not_noted(origin: CommandOrigin, conversation: str, reason: str) -> None:
    """A call that fails is no refusal: it is in no audit trail."""
    raise AssertionError(f"{origin} was noted as refused: {conversation}, {reason}")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:50000", "ipv4:192.0.2.1"),
        ("ipv6:%5B::1%5D:50000", "ipv6:%5B::1%5D"),
        ("ipv6:%5Bfe80::1%25eth0%5D:50000", "ipv6:%5Bfe80::1%25eth0%5D"),
        ("ipv4:192.0.2.1", "ipv4:192.0.2.1"),
        ("ipv6:2001:db8::1", "ipv6:2001:db8::1"),
        ("unix:", "unix:"),
        ("unix:/run/bedrock/socket", "unix:"),
    ],
)
def test_an_address_has_no_port(peer: str, address: str) -> None:
    assert address_of(peer) == address


def ended_with(error: Exception) -> grpc.StatusCode:
    """The code that a Subscribe ends with whose method raises this."""

    async def subscribe(_request: v1.SubscribeRequest, _context: Any) -> NoReturn:
        raise error

    async def abort_with_status(status: Any) -> NoReturn:
        codes.append(status.code)
        raise Ended

    codes: list[grpc.StatusCode] = []
    caller.set(OWN_USER)
    handler = grpc.unary_stream_rpc_method_handler(subscribe, v1.SubscribeRequest.FromString, bytes)
    live = LiveCalls(Authentication("t" * 43))
    guarded: Any = GuardedMethod(
        "/bedrock.v1.ConversationService/Subscribe", handler, live, Telemetry(), unlimited(), note=not_noted
    ).handler()
    request = v1.SubscribeRequest(name="conversations/c").SerializeToString()
    context = SimpleNamespace(abort_with_status=abort_with_status, read=reading(request))
    with pytest.raises(Ended):
        asyncio.run(guarded.stream_stream(None, context))
    return codes[0]


def test_a_reader_who_leaves_during_a_write_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert ended_with(grpc.aio.InternalError()) is grpc.StatusCode.UNAVAILABLE
    assert not caplog.records


class Ends(Telemetry):
    """Keeps what it is told of calls."""

    on = True

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []

    def rpc_ended(self, rpc: Rpc) -> None:
        self.calls.append((rpc.method, rpc.stream))


@pytest.mark.parametrize(("method", "lasts"), [("WaitRequestCycle", True), ("GetRequestCycle", False)])
async def test_a_call_that_waits_is_observed_as_a_stream(method: str, lasts: bool) -> None:
    """Its ten minutes would be the worst latency of all calls."""

    async def answer(_request: v1.GetRequestCycleRequest, _context: Any) -> v1.GetRequestCycleResponse:
        return v1.GetRequestCycleResponse()

    ends = Ends()
    handler = grpc.unary_unary_rpc_method_handler(answer, v1.GetRequestCycleRequest.FromString, bytes)
    guarded: Any = GuardedMethod(
        f"/bedrock.v1.ConversationService/{method}",
        handler,
        LiveCalls(Authentication("t" * 43)),
        ends,
        unlimited(),
        note=not_noted,
    ).handler()
    caller.set(OWN_USER)
    request = v1.GetRequestCycleRequest(name="conversations/c/requestCycles/c:1").SerializeToString()
    await guarded.stream_unary(None, SimpleNamespace(peer=lambda: "", read=reading(request)))
    assert ends.calls == [(method, lasts)]
