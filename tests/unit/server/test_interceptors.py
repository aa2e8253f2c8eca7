"""What becomes of a call whose method fails."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc
import grpc.aio
import pytest
from bedrock import v1

from actors.ports.telemetry import Telemetry
from server.services.interceptors import _guard


class Ended(Exception):
    """The call was ended with a status."""


def ended_with(error: Exception) -> grpc.StatusCode:
    """The code that a Subscribe ends with whose method raises this."""

    async def subscribe(_request: v1.SubscribeRequest, _context: Any) -> NoReturn:
        raise error

    async def abort_with_status(status: Any) -> NoReturn:
        codes.append(status.code)
        raise Ended

    codes: list[grpc.StatusCode] = []
    handler = grpc.unary_stream_rpc_method_handler(subscribe, v1.SubscribeRequest.FromString, bytes)
    guarded: Any = _guard("/bedrock.v1.ConversationService/Subscribe", handler, Telemetry())
    request = v1.SubscribeRequest(name="conversations/c").SerializeToString()
    with pytest.raises(Ended):
        asyncio.run(guarded.unary_stream(request, SimpleNamespace(abort_with_status=abort_with_status)))
    return codes[0]


def test_a_reader_who_leaves_during_a_write_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert ended_with(grpc.aio.InternalError()) is grpc.StatusCode.UNAVAILABLE
    assert not caplog.records


def test_a_fault_is_logged_and_reported_as_a_number(caplog: pytest.LogCaptureFixture) -> None:
    assert ended_with(RuntimeError("secret")) is grpc.StatusCode.INTERNAL
    (record,) = caplog.records
    assert record.levelname == "ERROR"
