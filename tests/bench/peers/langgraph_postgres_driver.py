"""The turns as a LangGraph, with checkpoints in PostgreSQL, over a pool of connections."""

from __future__ import annotations

import asyncio

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from tests.bench.driver import Driver
from tests.bench.peers.langgraph_turns import take_turns

CONNECTIONS = 16
OPTIONS = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
"""Those that its documentation asks for."""


async def main() -> None:
    driver = Driver()
    async with AsyncConnectionPool(driver.database, max_size=CONNECTIONS, kwargs=OPTIONS, open=False) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        await take_turns(driver, saver)


if __name__ == "__main__":
    asyncio.run(main())
