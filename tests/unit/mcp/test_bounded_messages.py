"""What a server sends without reading what it gets: it is not kept without a limit."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from actors.adapters.mcp.bounded_messages import MAX_UNSENT, bounded_transport

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


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
