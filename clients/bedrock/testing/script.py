"""The script of a model in a test: a list of answers that the model gives, one for each request."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from bedrock.testing.exchange import Exchange, Gate, Play
from bedrock.testing.plays import breaks_off, calls, refuses, says, words_of
from bedrock.testing.waiting import PATIENCE

_UNEXPECTED = "the script of the test has no answer for this request"


class Script:
    """The answers, in order, to model requests from conversations with a certain text, or to all other requests."""

    def __init__(self, text: str = "", *plays: Play, otherwise: Play | None = None) -> None:
        """Start with `plays`, which answer one request each. `otherwise` answers the rest; if None, they fail the test.

        The script is for conversations whose first message contains `text`.
        """
        self.text = text
        self.requests: list[Exchange] = []
        self.problems: list[str] = []
        """Mistakes of the test: requests that the script has no answer for, and answering functions that raised."""
        self._plays = deque(plays)
        self._otherwise = otherwise
        self._new: queue.SimpleQueue[Exchange] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._gate: Gate | None = None
        self._gates: list[Gate] = []

    def answers(self, *pieces: str | Gate, input_tokens: int = 10, stop: str = "end_turn") -> None:
        """Answer the next request with a text, streamed in these pieces; a `Gate` among them waits for the test.

        `input_tokens` is the request's reported size: large values fill the context. `stop` is "end_turn", "max_tokens"
        or "refusal".
        """
        self._gates += [piece for piece in pieces if isinstance(piece, Gate)]
        self.then(says(*pieces, input_tokens=input_tokens, stop=stop))

    def calls(self, tool: str, /, **given: Any) -> None:
        """Answer the next request with one tool call.

        For several, or a text before them: ``then(plays.calls(("bash", {…}), …, text="…"))``.
        """
        self.then(calls((tool, given)))

    def fails(self, status: int = 500, message: str = "not now", *, times: int = 1, retry_after: float = 0) -> None:
        """Answer the next `times` requests with an HTTP error.

        The server makes three attempts in all, `retry_after` seconds apart, unless the status says that another attempt
        would fail.
        """
        self.then(*[refuses(status, message=message, retry_after=retry_after)] * times)

    def breaks_off(self, *pieces: str) -> None:
        """Break the connection of the next request, after sending `pieces` of a text."""
        self.then(breaks_off(*pieces))

    def then(self, *plays: Play) -> None:
        """Answer the next requests with plays: those of `bedrock.testing.plays`, or functions that take an Exchange."""
        with self._lock:
            self._plays.extend(plays)

    def otherwise(self, play: Play) -> None:
        """Set the function that answers all requests after the end of the script. By default, these fail the test."""
        self._otherwise = play

    @contextmanager
    def held(self) -> Generator[Gate]:
        """Hold back all answers until the block ends or the gate opens; `Gate.wait` waits for a request."""
        gate = Gate()
        self._gates.append(gate)
        self._gate = gate
        try:
            with gate:
                yield gate
        finally:
            self._gate = None

    def next(self, timeout: float = PATIENCE) -> Exchange:
        """Wait for the next request and return it. Each request is returned once.

        Raises AssertionError after `timeout`.
        """
        try:
            return self._new.get(timeout=timeout)
        except queue.Empty:
            said = f" of the conversation that says {self.text!r}" if self.text else ""
            raise AssertionError(f"the model got no request{said} within {timeout:g} s") from None

    @property
    def unplayed(self) -> list[str]:
        """Descriptions of the answers that were not requested."""
        with self._lock:
            return [words_of(play) for play in self._plays]

    def serve(self, exchange: Exchange) -> None:
        """Answer a request with the next play, on the request's thread."""
        with self._lock:
            play = self._plays.popleft() if self._plays else self._otherwise or self._unexpected
            exchange.play = play
            self.requests.append(exchange)
        self._new.put(exchange)
        try:
            if (gate := self._gate) is not None:
                gate.hold(exchange)
            play(exchange)
        except OSError:
            exchange.closed.set()
        except Exception as error:  # noqa: BLE001 -- a fault of the answering function, which `problems` reports
            self.problems.append(f"the play {words_of(play)} raised {error!r}")
            refuses(400, message=f"the test's script raised {error!r}")(exchange)

    def release(self) -> None:
        """Open all gates of this script, and set `go` of all its requests, so that no answer is held back."""
        for gate in self._gates:
            gate.open()
        for exchange in list(self.requests):
            exchange.go.set()

    def _unexpected(self, exchange: Exchange) -> None:
        said = exchange.question
        self.problems.append(f"{_UNEXPECTED}, which said last: {said[:200]!r}")
        refuses(400, message=_UNEXPECTED)(exchange)


class ScriptedModel(Script):
    """A server's model: one script for all conversations, and others for conversations that begin with a given text."""

    def __init__(self, *, otherwise: Play | None = None) -> None:
        super().__init__(otherwise=otherwise)
        self._scripts: list[Script] = []

    def when(self, text: str) -> Script:
        """A new script for conversations whose first message (for sub-agents, the task) contains `text`."""
        return self.add(Script(text))

    def add(self, script: Script) -> Script:
        """Use a script for conversations whose first message contains the script's text."""
        self._scripts.append(script)
        return script

    def subject(self, exchange: Exchange) -> str:
        """The text of a conversation's first message, by which `script_for` chooses a script."""
        return "\n".join(exchange.said(exchange.messages[0]))

    def script_for(self, exchange: Exchange) -> Script:
        """The script whose text occurs earliest in a request's first message; this object if there is none."""
        said = self.subject(exchange)
        found = [
            (place, -len(script.text), script) for script in self._scripts if (place := said.find(script.text)) >= 0
        ]
        return min(found, key=lambda each: each[:2])[2] if found else self

    @property
    def scripts(self) -> list[Script]:
        return [self, *self._scripts]
