"""One model request that the server sent, the connection that waits for its answer, and gates that delay answers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeAlias

from bedrock.testing.anthropic_stream import named, opening
from bedrock.testing.http_server import STREAM_HEAD, Received, ServedConnection, chunked
from bedrock.testing.waiting import PATIENCE


class Exchange:
    """One request to the model: its content, and methods with which a function of your own (a play) answers it."""

    def __init__(self, connection: ServedConnection, received: Received) -> None:
        self._connection = connection
        self.received = received
        """The HTTP request: headers and bytes."""
        self.body: dict[str, Any] = received.json
        """The request's JSON body, in the format of Anthropic's Messages API."""
        self.play: Play | None = None
        """The function that answers the request; None before one was chosen."""
        self.reached = threading.Event()
        """Set when the function that answers the request has reached the point at which the test should act."""
        self.go = threading.Event()
        """The test sets this event to let the answering function, which is blocked in `wait_for_go`, continue."""
        self.closed = threading.Event()
        """Set when the server has closed the connection."""

    @property
    def model(self) -> str:
        """The requested model, by the provider's name for it."""
        return str(self.body["model"])

    @property
    def system(self) -> str:
        system = self.body.get("system", "")
        return system if isinstance(system, str) else "".join(block["text"] for block in system)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body["messages"])

    @property
    def texts(self) -> list[str]:
        """All text of the conversation in order, tool results included."""
        return [text for message in self.body["messages"] for text in self.said(message)]

    @staticmethod
    def said(message: dict[str, Any]) -> list[str]:
        """The texts of one message, tool results included."""
        return [text for block in message["content"] for text in _texts(block)]

    @property
    def question(self) -> str:
        return self.texts[-1]

    @property
    def tools(self) -> list[str]:
        """The names of the tools that the model is offered."""
        return [tool["name"] for tool in self.body.get("tools", ())]

    @property
    def results(self) -> list[dict[str, Any]]:
        """The tool results in the last message."""
        return [block for block in self.body["messages"][-1]["content"] if block["type"] == "tool_result"]

    def begin(self, *pieces: str) -> None:
        """Send the HTTP headers of a stream; with `pieces`, also the start of a text with these pieces."""
        self._connection.send(STREAM_HEAD)
        self.send(opening(*pieces) if pieces else ())

    def send(self, events: Iterable[dict[str, Any]]) -> None:
        """Send events of a stream that was begun with `begin`."""
        self._connection.send(b"".join(map(chunked, named(*events))))

    def send_raw(self, data: bytes) -> None:
        self._connection.send(data)

    def end(self, events: Iterable[dict[str, Any]]) -> None:
        self.send(events)
        self._connection.send(b"0\r\n\r\n")

    def stream(self, events: Iterable[dict[str, Any]]) -> None:
        self.begin()
        self.end(events)

    def reset(self) -> None:
        self._connection.reset()

    def wait_for_close(self) -> None:
        """Set `reached`, then block until the server closes the connection."""
        self.reached.set()
        self._connection.wait_for_close()
        self.closed.set()

    def wait_for_go(self) -> None:
        """Set `reached`, then block until the test sets `go`. Raises AssertionError after PATIENCE seconds."""
        self.reached.set()
        if not self.go.wait(PATIENCE):
            raise AssertionError("the test never released this script")


Play: TypeAlias = Callable[[Exchange], None]
"""Answers one request, on its own thread. An OSError is ignored: the server has closed the connection."""


class Gate:
    """Holds back answers of the scripted model until the test opens the gate, or leaves the gate's ``with`` block."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._arrived: queue.SimpleQueue[Exchange] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    def __repr__(self) -> str:
        return "a gate"

    def wait(self, timeout: float = PATIENCE) -> Exchange:
        """Wait for an answer that the gate holds back. Raises AssertionError after `timeout` seconds."""
        try:
            return self._arrived.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"no model answer reached the gate within {timeout:g} s") from None

    def open(self) -> None:
        """Let all waiting and all later answers through."""
        self._opened.set()

    def hold(self, exchange: Exchange) -> None:
        """Block the calling thread, which sends an answer, until the gate is open."""
        self._arrived.put(exchange)
        self._opened.wait()


def _texts(block: dict[str, Any]) -> list[str]:
    if block["type"] == "text":
        return [block["text"]]
    content = block.get("content", "")
    return [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]
