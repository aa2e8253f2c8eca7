"""The script of a model: what it answers, one request after the other, as the test tells it."""

from __future__ import annotations

import queue
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bedrock.testing.exchange import Exchange, Gate
from bedrock.testing.plays import breaks_off, calls, refuses, says, words_of
from bedrock.testing.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Generator

    from bedrock.testing.exchange import Play

_UNEXPECTED = "the script of the test has no answer for this request"


class Script:
    """The model's answers in one conversation, or in all that have no script of their own, in the order of requests."""

    def __init__(self, text: str = "", *plays: Play, otherwise: Play | None = None) -> None:
        """`text`: what a conversation says in the beginning that this is the script of; any if empty."""
        self.text = text
        self.requests: list[Exchange] = []
        """Every request so far."""
        self.problems: list[str] = []
        """What the test did not tell: requests without an answer in the script, and plays that raised something."""
        self._plays = deque(plays)
        self._otherwise = otherwise
        self._new: queue.SimpleQueue[Exchange] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._gate: Gate | None = None
        self._gates: list[Gate] = []

    def answers(self, *pieces: str | Gate, input_tokens: int = 10, stop: str = "end_turn") -> None:
        """Answer the next request with a text, streamed in these pieces.

        Args:
            pieces: The text. At a `Gate` among them it waits until the test opens that.
            input_tokens: How many tokens the request had, as the model counts: it fills the context.
            stop: Why the answer ends: "end_turn", "max_tokens" or "refusal".
        """
        self._gates += [piece for piece in pieces if isinstance(piece, Gate)]
        self.then(says(*pieces, input_tokens=input_tokens, stop=stop))

    def calls(self, tool: str, /, **given: Any) -> None:
        """Answer the next request with a call of a tool and this input.

        For several calls in one answer, or a text before them: ``then(plays.calls(("bash", {…}), …, text="…"))``.
        """
        self.then(calls((tool, given)))

    def fails(self, status: int = 500, message: str = "not now", *, times: int = 1, retry_after: float = 0) -> None:
        """Answer the next request, or as many as `times`, with an HTTP error.

        The server makes an attempt again, unless the status says that it would fail again, and gives up after the
        third. It would wait for seconds before, had the provider not said how long: `retry_after`, in seconds.
        """
        self.then(*[refuses(status, message=message, retry_after=retry_after)] * times)

    def breaks_off(self, *pieces: str) -> None:
        """Lose the connection of the next request, after these pieces of a text if there are any."""
        self.then(breaks_off(*pieces))

    def then(self, *plays: Play) -> None:
        """Answer the next requests with these plays: those of `bedrock.testing.plays`, or functions of an Exchange."""
        with self._lock:
            self._plays.extend(plays)

    def otherwise(self, play: Play) -> None:
        """Answer whatever the script does not tell with this play; without one, such a request fails the test."""
        self._otherwise = play

    @contextmanager
    def held(self) -> Generator[Gate]:
        """Hold all answers until the end of the ``with`` block; the gate's `wait` waits for a request."""
        gate = Gate()
        self._gates.append(gate)
        self._gate = gate
        try:
            with gate:
                yield gate
        finally:
            self._gate = None

    def next(self, timeout: float = PATIENCE) -> Exchange:
        """Return the next request that has come, or comes, and was not asked for yet.

        Raises:
            AssertionError: None has come within `timeout` seconds.
        """
        try:
            return self._new.get(timeout=timeout)
        except queue.Empty:
            said = f" of the conversation that says {self.text!r}" if self.text else ""
            raise AssertionError(f"the model got no request{said} within {timeout:g} s") from None

    @property
    def unplayed(self) -> list[str]:
        """What the model was not asked for, in the words of the test."""
        with self._lock:
            return [words_of(play) for play in self._plays]

    def serve(self, exchange: Exchange) -> None:
        """Answer a request, on its thread."""
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
        except Exception as error:  # noqa: BLE001 -- it is the test's, which is told
            self.problems.append(f"the play {words_of(play)} raised {error!r}")
            refuses(400, message=f"the test's play raised {error!r}")(exchange)

    def release(self) -> None:
        """Open all gates, and let every play go on that waits."""
        for gate in self._gates:
            gate.open()
        for exchange in list(self.requests):
            exchange.go.set()

    def _unexpected(self, exchange: Exchange) -> None:
        said = exchange.question
        self.problems.append(f"{_UNEXPECTED}, which said last: {said[:200]!r}")
        refuses(400, message=_UNEXPECTED)(exchange)


class ScriptedModel(Script):
    """The model of a server: a script for all conversations, and more for those that begin with a certain text."""

    def __init__(self, *, otherwise: Play | None = None) -> None:
        super().__init__(otherwise=otherwise)
        self._scripts: list[Script] = []

    def when(self, text: str) -> Script:
        """Return a new script, of the conversations whose first message says this: a user's, or a sub-agent's task."""
        return self.add(Script(text))

    def add(self, script: Script) -> Script:
        """Use a script for the conversations that say its text."""
        self._scripts.append(script)
        return script

    def subject(self, exchange: Exchange) -> str:
        """Return what tells a conversation from others: the text of its first message."""
        return "\n".join(exchange.said(exchange.messages[0]))

    def script_for(self, exchange: Exchange) -> Script:
        """Return the script that answers a request."""
        said = self.subject(exchange)
        found = [
            (place, -len(script.text), script) for script in self._scripts if (place := said.find(script.text)) >= 0
        ]
        return min(found, key=lambda each: each[:2])[2] if found else self

    @property
    def scripts(self) -> list[Script]:
        """This script and those of single conversations."""
        return [self, *self._scripts]
