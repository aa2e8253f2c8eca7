"""The audit trail over the wire: every refused call of every method is in it, with who called and why."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from bedrock import v1
from google.protobuf.timestamp_pb2 import Timestamp

from actors.core.errors import Reason, Rejected
from actors.ports.records import AuditEntry, AuditFilter, AuditPlace, CommandOrigin, Outcome
from server.contract.pagination import token_of
from server.queries.audit import audit_filter
from tests.integration.server.grpc_harness import AUTHORIZED, GrpcHarness, refused
from tests.integration.server.test_calls import METHODS, NAME, ask
from tests.integration.server.watch_harness import Author
from tests.support.patience import eventually


def entries(harness: GrpcHarness, **wanted: Any) -> Iterator[v1.AuditEntry]:
    """The entries of all pages."""
    request = v1.ListAuditEntriesRequest(**wanted)
    while True:
        page = ask(harness, "ListAuditEntries", request)
        yield from page.entries
        request.page_token = page.next_page_token
        if not request.page_token:
            return


def test_every_refused_call_of_every_method_is_in_the_trail(harness: GrpcHarness) -> None:
    for service, method, _ in METHODS:
        call: Any = harness.channel.unary_stream(f"/bedrock.v1.{service}/{method}")
        for _ in range(2):
            assert refused(partial(call, b"", timeout=60)).code == "UNAUTHENTICATED"
        assert refused(partial(call, b"\xff", metadata=AUTHORIZED, timeout=60)).code == "INVALID_ARGUMENT"
    names = [method for _, method, _ in METHODS]
    every = {("UNAUTHENTICATED", "", name) for name in names} | {("INVALID_ARGUMENT", "local", name) for name in names}
    eventually(
        lambda: {(e.reason, e.principal, e.method) for e in entries(harness, page_size=7)} == every,
        "every refusal is there",
    )
    assert {entry.peer for entry in entries(harness)} == {"ipv4:127.0.0.1"}
    assert {entry.outcome for entry in entries(harness)} == {v1.AuditEntry.OUTCOME_REFUSED}
    harness.stop()
    counted = harness.services.store.audit(AuditFilter(), limit=999)[len(every) :]
    assert {(entry.origin.method, entry.count) for entry in counted} == {(name, 1) for name in names}


def test_a_refused_command_names_its_conversation_reason_and_request(harness: GrpcHarness) -> None:
    Author(harness.services.store, harness.hub, "c1", slug="calm-cove")
    harness.conversations.will(Rejected(Reason.AGENT_BUSY))
    request_id = "123e4567-e89b-42d3-a456-426614174000"
    asked = v1.SendMessageRequest(name="conversations/calm-cove", text="secret", request_id=request_id)
    assert refused(lambda: ask(harness, "SendMessage", asked)).reason == "AGENT_BUSY"
    eventually(lambda: len(list(entries(harness))) == 1, "the refusal is there")
    (entry,) = entries(harness, conversation=NAME, principal="local", outcome=v1.AuditEntry.OUTCOME_REFUSED)
    assert (entry.reason, entry.method, entry.role, entry.request_id) == (
        "AGENT_BUSY", "SendMessage", "operator", request_id,
    )  # fmt: skip
    assert b"secret" not in entry.SerializeToString()
    assert not list(entries(harness, principal="ann"))
    assert not list(entries(harness, outcome=v1.AuditEntry.OUTCOME_ACCEPTED))
    assert not list(entries(harness, end_time=entry.time))


def test_a_time_may_have_more_nanoseconds_than_a_second() -> None:
    assert audit_filter(v1.ListAuditEntriesRequest(start_time=Timestamp(seconds=1, nanos=1_500_000_000))).since == 2_500


def test_a_forged_token_is_refused(harness: GrpcHarness) -> None:
    wanted = v1.ListAuditEntriesRequest()
    wanted.page_token = token_of(AuditPlace(1 << 70, 1, "", 1), "audit", audit_filter(wanted))
    assert refused(lambda: ask(harness, "ListAuditEntries", wanted)).fields == ["page_token"]


def test_a_token_belongs_to_its_filter(harness: GrpcHarness) -> None:
    harness.services.store.put_audit([AuditEntry(1, Outcome.REFUSED, CommandOrigin("ann"), "X")] * 3)
    page = ask(harness, "ListAuditEntries", v1.ListAuditEntriesRequest(page_size=2))
    other = v1.ListAuditEntriesRequest(principal="bob", page_token=page.next_page_token)
    assert refused(lambda: ask(harness, "ListAuditEntries", other)).fields == ["page_token"]
