"""A fake model provider: real HTTP on a real port, answers as each test wants them, a strict eye on requests.

Every conversation of a test has a part here, named in the conversation's first message. The part holds the plays that
answer its requests, one after the other. Whatever a server sends must be what the provider's own checks let pass:
`assert_content` says if it was not.
"""

from __future__ import annotations

import itertools
import json
import queue
import re
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from tests.e2e.patience import PATIENCE
from tests.unit.llm.scripted_server import STREAM_HEAD, Connection, Received, ScriptedServer, chunked, named, whole
from tests.unit.llm.strict_checker import check_anthropic

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Sequence

KEY = re.compile(r"#part-\d+")
_numbers = itertools.count(1)


Play: TypeAlias = "Callable[[Exchange], None]"
"""Answers one request."""


class Exchange:
    """One request of the server, and the connection that waits for its answer."""

    def __init__(self, connection: Connection, received: Received) -> None:
        self._connection = connection
        self.received = received
        self.body: dict[str, Any] = received.json
        self.play: Play | None = None
        """What answers it."""
        self.reached = threading.Event()
        """The play has come to where the test should act."""
        self.go = threading.Event()
        """A play that is held goes on."""
        self.closed = threading.Event()
        """The server has hung up."""

    @property
    def texts(self) -> list[str]:
        """All text of the request in order, tool results included."""
        return [text for message in self.body["messages"] for block in message["content"] for text in _texts(block)]

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
        self.send(_opening(*pieces) if pieces else ())

    def send(self, events: Iterable[dict[str, Any]]) -> None:
        self._connection.send(b"".join(map(chunked, named(*events))))

    def send_raw(self, data: bytes) -> None:
        self._connection.send(data)

    def end(self, events: Iterable[dict[str, Any]]) -> None:
        """Send the last events of a stream."""
        self.send(events)
        self._connection.send(b"0\r\n\r\n")

    def stream(self, events: Iterable[dict[str, Any]]) -> None:
        """Send a whole stream."""
        self.begin()
        self.end(events)

    def wait_for_close(self) -> None:
        """Let the test act, and block until the server hangs up."""
        self.reached.set()
        self._connection.wait_for_close()
        self.closed.set()

    def wait_for_go(self) -> None:
        """Let the test act, and block until it lets the play go on."""
        self.reached.set()
        assert self.go.wait(PATIENCE), "the test never let this play go on"


class Part:
    """The provider's part in one conversation."""

    def __init__(self, key: str, plays: Iterable[Play], otherwise: Play) -> None:
        self.key = key
        """To be in the first message of the conversation."""
        self.exchanges: list[Exchange] = []
        self._plays = deque(plays)
        self._otherwise = otherwise
        self._new: queue.Queue[Exchange] = queue.Queue()

    def then(self, *plays: Play) -> None:
        """Answer further requests with these."""
        self._plays.extend(plays)

    def next(self) -> Exchange:
        """The next request that has come, or comes, and was not asked for yet."""
        try:
            return self._new.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"the server did not ask for {self.key}") from None

    def next_reached(self, play: Play | None = None) -> Exchange:
        """The next request, or the next one that `play` answers, once that has come to where the test should act."""
        exchange = self.next()
        while play is not None and exchange.play is not play:
            exchange = self.next()
        assert exchange.reached.wait(PATIENCE), "the play went nowhere"
        return exchange

    def take(self, exchange: Exchange) -> Play:
        """Take a request note of, and find the play that answers it."""
        self.exchanges.append(exchange)
        exchange.play = self._plays.popleft() if self._plays else self._otherwise
        self._new.put(exchange)
        return exchange.play


class FakeProvider:
    """The provider: a server on 127.0.0.1 for as long as the context is open."""

    def __init__(self, tls: ssl.SSLContext | None = None, models: Sequence[str] = ()) -> None:
        """`models`: what it lists; without any it has no list."""
        self.models = tuple(models)
        self._server = ScriptedServer(self._serve, tls=tls)
        self._parts: dict[str, Part] = {}
        self._faults: list[str] = []
        self.strangers: list[Exchange] = []
        """Requests of conversations without a part."""

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def asked(self) -> int:
        """Return how many requests for an answer have come; those for the list of models do not count."""
        return sum(not _is_listing(received) for received in self._server.received)

    @property
    def received(self) -> list[Received]:
        return self._server.received

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for part in self._parts.values():
            for exchange in part.exchanges:
                exchange.go.set()
        self._server.__exit__()

    def part(self, *plays: Play, otherwise: Play | None = None) -> Part:
        """A part for a new conversation. When its plays have been played it says "Done.", or plays `otherwise`."""
        part = Part(f"#part-{next(_numbers)}", plays, otherwise or says("Done."))
        self._parts[part.key] = part
        return part

    def assert_content(self) -> None:
        """Fail if any request was one that the provider would have refused."""
        assert not self._faults, self._faults

    def _serve(self, connection: Connection) -> None:
        received = connection.read_request()
        if _is_listing(received):
            connection.send(self._listing())
            return
        try:
            check_anthropic(received.body)
        except Exception as fault:  # noqa: BLE001 -- whatever a request provokes counts against it
            self._faults.append(f"{received.path}: {fault}")
        exchange = Exchange(connection, received)
        part = self._part_of(exchange)
        if part is None:
            self.strangers.append(exchange)
        play = part.take(exchange) if part else says("Who are you?")
        try:
            play(exchange)
        except OSError:
            exchange.closed.set()

    def _listing(self) -> bytes:
        body = json.dumps({"data": [{"id": name, "object": "model"} for name in self.models]}).encode()
        return whole(200 if self.models else 404, body)

    def _part_of(self, exchange: Exchange) -> Part | None:
        keys = KEY.findall("\n".join(exchange.texts))
        return next((self._parts[key] for key in keys if key in self._parts), None)


def _texts(block: dict[str, Any]) -> list[str]:
    if block["type"] == "text":
        return [block["text"]]
    content = block.get("content", "")
    return [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]


# --- plays --------------------------------------------------------------------------------------------------------


def says(*pieces: str, input_tokens: int = 10) -> Play:
    """A whole answer, streamed in these pieces."""
    events = [*_opening(*pieces, input_tokens=input_tokens), *_ending("end_turn")]
    return lambda exchange: exchange.stream(events)


def dribbles(*pieces: str, seconds: float = 0.003) -> Play:
    """The same with a pause after each piece."""

    def play(exchange: Exchange) -> None:
        exchange.begin("")
        for piece in pieces:
            exchange.send([_delta(piece)])
            exchange.go.wait(seconds)
        exchange.end(_ending("end_turn"))

    return play


def echoes(exchange: Exchange) -> None:
    """Answers "re: " and what was said last."""
    says("re: ", exchange.question)(exchange)


def calls(*wanted: tuple[str, dict[str, Any]], text: str = "") -> Play:
    """An answer that calls tools: names and inputs."""

    def play(exchange: Exchange) -> None:
        events = _opening(text) if text else _opening()
        for index, (name, arguments) in enumerate(wanted, start=1):
            block = {"type": "tool_use", "id": f"toolu_{next(_numbers)}", "name": name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
            events += [
                {"type": "content_block_start", "index": index, "content_block": block},
                {"type": "content_block_delta", "index": index, "delta": delta},
                {"type": "content_block_stop", "index": index},
            ]
        exchange.stream([*events, *_ending("tool_use")])

    return play


def refuses(status: int, kind: str, message: str = "not now", retry_after: float | None = None) -> Play:
    """An error answer."""
    body = json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
    headers = {} if retry_after is None else {"retry_after": str(retry_after)}
    return lambda exchange: exchange.send_raw(whole(status, body, **headers))


def held(then: Play) -> Play:
    """Says nothing before the test lets it go on; hangs up if the server does."""

    def play(exchange: Exchange) -> None:
        exchange.wait_for_go()
        then(exchange)

    return play


def begins(text: str, then: Play) -> Play:
    """Streams some text; goes on as `then` does when the test lets it."""

    def play(exchange: Exchange) -> None:
        exchange.begin(text)
        exchange.wait_for_go()
        then(exchange)

    return play


def finishes(text: str) -> Play:
    """The rest of an answer that has begun."""
    return lambda exchange: exchange.end([_delta(text), *_ending("end_turn")])


def hangs(exchange: Exchange) -> None:
    """Takes the request and never answers."""
    exchange.wait_for_close()


def stalls(exchange: Exchange) -> None:
    """Begins an answer and falls silent."""
    exchange.begin("word ")
    exchange.wait_for_close()


def streams(exchange: Exchange) -> None:
    """Begins an answer that goes on, word by word, until the server hangs up."""
    exchange.begin("word ")
    exchange.reached.set()
    while not exchange.go.wait(0.005):
        exchange.send([_delta("word ")])


def floods(exchange: Exchange) -> None:
    """Begins an answer that goes on as fast as the server takes it, until it hangs up."""
    exchange.begin("word ")
    exchange.reached.set()
    flood = b"".join(map(chunked, named(_delta("word ")))) * 1000
    while True:
        exchange.send_raw(flood)


def _opening(*pieces: str, input_tokens: int = 10) -> list[dict[str, Any]]:
    usage = {"input_tokens": input_tokens, "output_tokens": 1}
    message = {"id": "msg", "type": "message", "role": "assistant", "content": [], "usage": usage}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    if pieces:
        block = {"type": "text", "text": ""}
        events += [{"type": "content_block_start", "index": 0, "content_block": block}, *map(_delta, pieces)]
    return events


def _delta(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


def _ending(reason: str) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]


def _is_listing(received: Received) -> bool:
    return received.path.partition("?")[0].endswith("/models")
