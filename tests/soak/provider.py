"""The model provider: does what the last message says, and looks at every request as a provider would.

A message is `#do WHAT TOKEN`. What a request holds must be a valid chain, and no token may be in it twice.
"""

import itertools
import re
import threading
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from tests.support import processes
from tests.support.fake_provider import Exchange, Play, calls, dribbles, refuses, says
from tests.support.scripted_server import ScriptedServer, ServedConnection
from tests.support.strict_checker import check_anthropic

WANTED = re.compile(r"#do (\w+) (t-[\w-]+)")
TOKEN = re.compile(r"t-[\w-]+")
NO_MODELS = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
WHATS = ("say", "say", "slow", "tools", "tools", "fork", "agents", "fail", "hang")
"""What a message may ask for."""


class Provider:
    """Serves as long as the context is open, over every death of its client."""

    def __init__(self, name: str, *, host: str = "127.0.0.1") -> None:
        """`name` is in the numbers of its tool calls, which no other has; `host` is where it listens."""
        self.requests = 0
        self.faults: list[str] = []
        """What a provider would have refused."""
        self.forever = processes.forever()
        """What forked processes sleep for: nobody else on this machine does."""
        self._name = name
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._server = ScriptedServer(self._serve, host=host)

    @property
    def url(self) -> str:
        return self._server.url

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.__exit__(kind, error, at)

    def _serve(self, connection: ServedConnection) -> None:
        received = connection.read_request()
        if not received.body:  # it is asked for its models
            connection.send(NO_MODELS)
            return
        with self._lock:
            self.requests += 1
            self._server.received.clear()
        exchange = Exchange(connection, received)
        try:
            check_anthropic(received.body)
            _check_tokens(exchange.body)
        except Exception as fault:  # noqa: BLE001 -- whatever a request provokes counts against it
            self.faults.append(f"{type(fault).__name__}: {str(fault)[:300]}")
        self._play_for(exchange)(exchange)

    def _play_for(self, exchange: Exchange) -> Play:
        found = WANTED.findall("\n".join(_said_last(exchange.body)))
        if exchange.results or not found:
            return says("ok ", " ".join(token for _, token in found))
        what, token = found[-1]
        number = f"{self._name}-{next(self._numbers)}"
        match what:
            case "slow":
                return dribbles(*(f"{n} " for n in range(30)), f"ok {token}", seconds=0.03)
            case "tools":
                return calls(("bash", {"cmd": f"echo {number} >> ledger; sleep 0.1"}), ("think", {"thoughts": token}))
            case "stay":
                return calls(("bash", {"cmd": f"setsid sleep {self.forever} & sleep {self.forever}"}))
            case "fork":
                sleep = f"sleep {self.forever}"
                return calls(("bash", {"cmd": f"setsid {sleep} & ({sleep} &) ; sleep 0.3; echo {number} >> ledger"}))
            case "agents" if "spawn_sub_agent" in exchange.tools:
                tasks = [{"task": f"#do submit {token}-{each}"} for each in range(2)]
                return calls(("spawn_sub_agent", {"tasks": tasks}))
            case "submit" if "submit_result" in exchange.tools:
                return calls(("submit_result", {"result": f"all is well {token}"}))
            case "fail":
                return refuses(400, "invalid_request_error", "no")
            case "hang":
                return Exchange.wait_for_close
            case _:
                return says(f"ok {token}")


def _said_last(body: dict[str, Any]) -> list[str]:
    return list(_texts(body["messages"][-1]))


def _check_tokens(body: dict[str, Any]) -> None:
    """No message of a person may be told twice."""
    said = (text for message in body["messages"] if message["role"] == "user" for text in _texts(message))
    counts = Counter(token for text in said for _, token in WANTED.findall(text))
    doubled = [token for token, count in counts.items() if count > 1]
    assert not doubled, f"told twice: {doubled}"


def _texts(message: dict[str, Any]) -> Iterator[str]:
    """What a message says, without results of tools."""
    content = message["content"]
    for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        if block["type"] == "text":
            yield block["text"]
