"""The turns with nothing but asyncio and httpx: the floor of everything that is built on those."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.bench.driver import Driver, calls_in, question, result_of
from tests.bench.peers.async_requests import ask, client


async def main() -> None:
    driver = Driver()
    async with client() as using:

        async def conversation(_: int) -> None:
            messages: list[dict[str, Any]] = []
            shown: list[str] = []
            for _ in range(driver.turns):
                with driver.timed():
                    messages.append(question())
                    messages.append(await ask(using, driver.messages_url, messages, shown.append))
                    messages.append({"role": "user", "content": [result_of(call) for call in calls_in(messages[-1])]})
                    messages.append(await ask(using, driver.messages_url, messages, shown.append))

        await driver.on_tasks(conversation)


if __name__ == "__main__":
    asyncio.run(main())
