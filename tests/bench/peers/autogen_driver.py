"""The turns with autogen-core: agents for the model, the tools and a reader of the text. Nothing is stored."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from autogen_core import (
    AgentId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    TopicId,
    TypeSubscription,
    message_handler,
)

from tests.bench.driver import Driver, calls_in, question, result_of
from tests.bench.peers.async_requests import ask, client


@dataclass
class Turn:
    """A message of the user."""

    content: dict[str, Any]


@dataclass
class Call:
    """A call of a tool."""

    content: dict[str, Any]


@dataclass
class Result:
    """The result of a tool, or the last answer of a turn."""

    content: dict[str, Any]


@dataclass
class Piece:
    """A piece of text."""

    text: str


class Tools(RoutedAgent):
    """Answers calls."""

    @message_handler
    async def call(self, message: Call, ctx: MessageContext) -> Result:
        return Result(result_of(message.content))


class Watcher(RoutedAgent):
    """Reads the text of a conversation."""

    @message_handler
    async def piece(self, message: Piece, ctx: MessageContext) -> None:
        """Read it."""


class Model(RoutedAgent):
    """One conversation, by its key."""

    def __init__(self, using: Any, url: str) -> None:
        super().__init__("model")
        self._using, self._url = using, url
        self._messages: list[dict[str, Any]] = []

    @message_handler
    async def turn(self, message: Turn, ctx: MessageContext) -> Result:
        self._messages.append(message.content)
        while calls := calls_in(await self._answer()):
            sent = [self.send_message(Call(call), AgentId("tools", self.id.key)) for call in calls]
            results = [result.content for result in await asyncio.gather(*sent)]
            self._messages.append({"role": "user", "content": results})
        return Result(self._messages[-1])

    async def _answer(self) -> dict[str, Any]:
        publishing: list[asyncio.Task[None]] = []
        topic = TopicId("text", self.id.key)

        def publish(text: str) -> None:
            publishing.append(asyncio.create_task(self.publish_message(Piece(text), topic)))

        self._messages.append(await ask(self._using, self._url, self._messages, publish))
        await asyncio.gather(*publishing)
        return self._messages[-1]


async def main() -> None:
    driver = Driver()
    runtime = SingleThreadedAgentRuntime()
    async with client() as using:
        await Model.register(runtime, "model", lambda: Model(using, driver.messages_url))
        await Tools.register(runtime, "tools", lambda: Tools("tools"))
        await Watcher.register(runtime, "watcher", lambda: Watcher("watcher"))
        await runtime.add_subscription(TypeSubscription("text", "watcher"))
        runtime.start()

        async def conversation(number: int) -> None:
            for _ in range(driver.turns):
                with driver.timed():
                    await runtime.send_message(Turn(question()), AgentId("model", str(number)))

        await driver.on_tasks(conversation)
        await runtime.stop()


if __name__ == "__main__":
    asyncio.run(main())
