"""What a server sends without reading what it gets: it is not kept without a limit."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from actors.adapters.mcp import bounded_messages
from actors.adapters.mcp.bounded_messages import (
    MAX_UNSENT,
    NOTIFICATIONS,
    NOTIFICATIONS_A_SECOND,
    Pace,
    bounded_transport,
)


def test_a_server_that_reads_no_answers_is_not_listened_to_until_it_does() -> None:
    asyncio.run(_asks_on_and_reads_later(questions=3 * MAX_UNSENT))


async def _asks_on_and_reads_later(questions: int) -> None:
    arriving, received = anyio.create_memory_object_stream[int](questions)
    sent, leaving = anyio.create_memory_object_stream[int](0)
    answered: list[int] = []

    @asynccontextmanager
    async def transport() -> AsyncGenerator[tuple[Any, Any]]:
        async with arriving, received, sent, leaving:
            yield received, sent

    for question in range(questions):
        arriving.send_nowait(question)
    arriving.close()
    async with bounded_transport(transport()) as (reads, writes), anyio.create_task_group() as tasks:

        async def read() -> None:
            async for question in reads:
                answered.append(question)
                tasks.start_soon(writes.send, question)  # as the protocol's library does

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        assert MAX_UNSENT <= len(answered) <= MAX_UNSENT + 2  # one is begun before its answer waits
        assert sorted([await leaving.receive() for _ in range(questions)]) == list(range(questions))


def test_notifications_beyond_what_may_come_at_once_are_read_so_many_a_second() -> None:
    pace = Pace()
    assert [pace.seconds_after_one(1_000.0) for _ in range(NOTIFICATIONS)] == [0.0] * NOTIFICATIONS
    assert pace.seconds_after_one(1_000.0) == 1 / NOTIFICATIONS_A_SECOND
    assert pace.seconds_after_one(1_000.0 + 1 / NOTIFICATIONS_A_SECOND) == pytest.approx(1 / NOTIFICATIONS_A_SECOND)
    assert pace.seconds_after_one(2_000.0) == 0.0


def test_only_notifications_are_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_messages, "NOTIFICATIONS", 2)
    monkeypatch.setattr(bounded_messages, "NOTIFICATIONS_A_SECOND", 0.001)
    asyncio.run(_tells_often())


async def _tells_often() -> None:
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCNotification, JSONRPCResponse

    told: list[Any] = [JSONRPCNotification(jsonrpc="2.0", method="notifications/message")] * 3
    answers: list[Any] = [JSONRPCResponse(jsonrpc="2.0", id=number, result={}) for number in range(100)]
    arriving, received = anyio.create_memory_object_stream[Any](200)
    sent, leaving = anyio.create_memory_object_stream[Any](0)

    @asynccontextmanager
    async def transport() -> AsyncGenerator[tuple[Any, Any]]:
        async with arriving, received, sent, leaving:
            yield received, sent

    for message in (*told[:2], *answers, *told[2:]):
        arriving.send_nowait(SessionMessage(message))
    async with bounded_transport(transport()) as (reads, _):
        for _each in range(2 + len(answers)):
            with anyio.fail_after(30):
                await reads.receive()
        reading = asyncio.ensure_future(reads.receive())
        await anyio.wait_all_tasks_blocked()
        assert not reading.done(), "it waits for its time"
        reading.cancel()
