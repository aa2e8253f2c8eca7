"""Shared by all programs that run the turns: arguments, clock, result, and the messages of a turn.

Standard library only, since peers run it in environments of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


class Driver:
    """The turns of one run: those that are to be taken, and how long each took."""

    def __init__(self) -> None:
        arguments = argparse.ArgumentParser()
        arguments.add_argument("--url", required=True, help="the provider's, without a path")
        arguments.add_argument("--conversations", type=int, required=True)
        arguments.add_argument("--turns", type=int, required=True, help="of each conversation")
        arguments.add_argument("--database", default="", help="the URL of a PostgreSQL, if the program stores there")
        given = arguments.parse_args()
        self.database: str = given.database
        self.url: str = given.url
        self.messages_url = f"{given.url}/v1/messages"
        self.conversations: int = given.conversations
        self.turns: int = given.turns
        self._took: list[float] = []

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Note how long a turn takes. Any thread."""
        began = time.perf_counter()
        yield
        self._took.append((time.perf_counter() - began) * 1000)

    def on_threads(self, conversation: Callable[[int], None]) -> None:
        """Run each conversation on a thread of its own, and print what it took."""
        threads = [threading.Thread(target=conversation, args=(number,)) for number in range(self.conversations)]
        with self._measured():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    async def on_tasks(self, conversation: Callable[[int], Awaitable[None]]) -> None:
        """Run the conversations as tasks of the running loop, and print what they took."""
        with self._measured():
            await asyncio.gather(*(conversation(number) for number in range(self.conversations)))

    @contextmanager
    def _measured(self) -> Iterator[None]:
        began, cpu = time.perf_counter(), time.process_time()
        yield
        result: dict[str, Any] = {
            "seconds": time.perf_counter() - began,
            "cpu": time.process_time() - cpu,
            "took_ms": self._took,
            "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
        assert len(self._took) == self.conversations * self.turns, "a turn has failed"
        print(json.dumps(result))


class Answer:
    """An answer of the provider, put together from its events."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[str, Any]] = {}

    def add(self, event: dict[str, Any]) -> str:
        """Take an event; return the text that it brings."""
        if event["type"] == "content_block_start":
            self._blocks[event["index"]] = dict(event["content_block"])
        elif event["type"] == "content_block_delta" and "text" in event["delta"]:
            text: str = event["delta"]["text"]
            self._blocks[event["index"]]["text"] += text
            return text
        elif event["type"] == "content_block_delta":
            self._blocks[event["index"]]["input"] = json.loads(event["delta"]["partial_json"])
        return ""

    @property
    def message(self) -> dict[str, Any]:
        return {"role": "assistant", "content": list(self._blocks.values())}


def events_in(rest: bytes) -> tuple[list[dict[str, Any]], bytes]:
    """Return the whole server-sent events of some bytes, and what is left."""
    *whole, rest = rest.split(b"\n\n")
    return [json.loads(event.partition(b"data:")[2]) for event in whole], rest


def body_of(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is sent to ask for an answer."""
    return {"model": "bench", "max_tokens": 1000, "stream": True, "messages": messages}


def question() -> dict[str, Any]:
    """Return the message that begins a turn."""
    return {"role": "user", "content": [{"type": "text", "text": "go on"}]}


def calls_in(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the calls of tools in an answer."""
    return [block for block in answer["content"] if block["type"] == "tool_use"]


def result_of(call: dict[str, Any]) -> dict[str, Any]:
    """Return what `think` answers: the tool itself does nothing."""
    return {"type": "tool_result", "tool_use_id": call["id"], "content": "Thought noted."}
