"""What becomes of a call whose method fails."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio
import pytest
from bedrock import v1

from actors.ports.telemetry import Rpc, Telemetry
from actors.runtime.services import unlimited
from server.auth.authentication import OWN_USER, Authentication, caller
from server.auth.authorization import LiveCalls
from server.services.interceptors import GuardedMethod, address_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors.ports.records import CommandOrigin


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


def test_a_fault_is_logged_and_reported_as_a_number(caplog: pytest.LogCaptureFixture) -> None:
    assert ended_with(RuntimeError("secret")) is grpc.StatusCode.INTERNAL
    (record,) = caplog.records
    assert record.levelname == "ERROR"


class Ends(Telemetry):
    """Keeps what it is told of calls."""

    on = True

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []

    def rpc_ended(self, rpc: Rpc) -> None:
        self.calls.append((rpc.method, rpc.stream))


@pytest.mark.parametrize(("method", "lasts"), [("WaitRequestCycle", True), ("GetRequestCycle", False)])
def test_a_call_that_waits_is_observed_as_a_stream(method: str, lasts: bool) -> None:
    """Its ten minutes would be the worst latency of all calls."""

    async def call() -> None:
        caller.set(OWN_USER)
        request = v1.GetRequestCycleRequest(name="conversations/c/requestCycles/c:1").SerializeToString()
        await guarded.stream_unary(None, SimpleNamespace(peer=lambda: "", read=reading(request)))

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
    asyncio.run(call())
    assert ends.calls == [(method, lasts)]
