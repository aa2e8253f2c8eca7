"""The turns as a LangGraph, with checkpoints in SQLite."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from tests.bench.driver import Driver
from tests.bench.peers.langgraph_turns import take_turns


async def main() -> None:
    driver = Driver()
    with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder:
        async with AsyncSqliteSaver.from_conn_string(str(Path(folder) / "graph.db")) as saver:
            await take_turns(driver, saver)


if __name__ == "__main__":
    asyncio.run(main())
