"""One request of the server to the model, and the connection that waits for its answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from bedrock.testing.anthropic_stream import named, opening
from bedrock.testing.http_server import STREAM_HEAD, chunked
from bedrock.testing.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bedrock.testing.http_server import Received, ServedConnection


class Exchange:
    """One request to the model: what it says, and ways to answer it for a play of your own."""

    def __init__(self, connection: ServedConnection, received: Received) -> None:
        self._connection = connection
        self.received = received
        """The request as it came: headers and bytes."""
        self.body: dict[str, Any] = received.json
        """The request in the JSON of the protocol `anthropic`."""
        self.play: Play | None = None
        """What answers it."""
        self.reached = threading.Event()
        """The play has come to where the test should act."""
        self.go = threading.Event()
        """A play that waits for it goes on."""
        self.closed = threading.Event()
        """The server has hung up."""

    @property
    def model(self) -> str:
        """The model that is asked, by the provider's name for it."""
        return str(self.body["model"])

    @property
    def system(self) -> str:
        """The system prompt."""
        system = self.body.get("system", "")
        return system if isinstance(system, str) else "".join(block["text"] for block in system)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation so far, as the model gets it."""
        return list(self.body["messages"])

    @property
    def texts(self) -> list[str]:
        """All text of the conversation in order, tool results included."""
        return [text for message in self.body["messages"] for text in self.said(message)]

    @staticmethod
    def said(message: dict[str, Any]) -> list[str]:
        """Return the text of one message, tool results included."""
        return [text for block in message["content"] for text in _texts(block)]

    @property
    def question(self) -> str:
        """What was said last."""
        return self.texts[-1]

    @property
    def tools(self) -> list[str]:
        """Names of the tools that are offered."""
        return [tool["name"] for tool in self.body.get("tools", ())]

    @property
    def results(self) -> list[dict[str, Any]]:
        """The tool results in the last turn."""
        return [block for block in self.body["messages"][-1]["content"] if block["type"] == "tool_result"]

    def begin(self, *pieces: str) -> None:
        """Send the headers of a stream, and the beginning of a text if there are pieces of one."""
        self._connection.send(STREAM_HEAD)
        self.send(opening(*pieces) if pieces else ())

    def send(self, events: Iterable[dict[str, Any]]) -> None:
        """Send events of a stream that has begun."""
        self._connection.send(b"".join(map(chunked, named(*events))))

    def send_raw(self, data: bytes) -> None:
        """Send these bytes."""
        self._connection.send(data)

    def end(self, events: Iterable[dict[str, Any]]) -> None:
        """Send the last events of a stream."""
        self.send(events)
        self._connection.send(b"0\r\n\r\n")

    def stream(self, events: Iterable[dict[str, Any]]) -> None:
        """Send a whole stream."""
        self.begin()
        self.end(events)

    def reset(self) -> None:
        """Break the connection off."""
        self._connection.reset()

    def wait_for_close(self) -> None:
        """Let the test act, and block until the server hangs up."""
        self.reached.set()
        self._connection.wait_for_close()
        self.closed.set()

    def wait_for_go(self) -> None:
        """Let the test act, and block until it lets the play go on. Raises AssertionError if it never does."""
        self.reached.set()
        if not self.go.wait(PATIENCE):
            raise AssertionError("the test never let this play go on")


Play: TypeAlias = Callable[[Exchange], None]
"""Answers one request, on a thread of its own. An OSError in it means that the server has hung up."""


class Gate:
    """A point at which answers of the model wait until the test opens it; the end of a ``with`` block opens it, too."""

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
        """Wait until the next answer has come to the gate; return its request. The gate stays closed.

        Raises:
            AssertionError: None has come within `timeout` seconds.
        """
        try:
            return self._arrived.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"no answer of the model has come to the gate within {timeout:g} s") from None

    def open(self) -> None:
        """Let all answers through, also those that come later."""
        self._opened.set()

    def hold(self, exchange: Exchange) -> None:
        """Block an answer, on its thread, until the gate is open."""
        self._arrived.put(exchange)
        self._opened.wait()


def _texts(block: dict[str, Any]) -> list[str]:
    if block["type"] == "text":
        return [block["text"]]
    content = block.get("content", "")
    return [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]
