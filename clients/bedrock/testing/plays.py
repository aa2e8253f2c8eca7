"""Plays: what answers one request to the model. `Script.then` takes these, and any function of an `Exchange`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bedrock.testing.anthropic_stream import delta, ending, opening, tool_calls
from bedrock.testing.exchange import Exchange, Gate, Play
from bedrock.testing.http_server import whole

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class Told:
    """A play with the words in which a test told it."""

    words: str
    play: Callable[[Exchange], None]

    def __call__(self, exchange: Exchange) -> None:
        """Answer a request."""
        self.play(exchange)


def words_of(play: Play) -> str:
    """Return how to name a play in a message to the test's author."""
    return play.words if isinstance(play, Told) else getattr(play, "__qualname__", repr(play))


def says(*pieces: str | Gate, input_tokens: int = 10, stop: str = "end_turn") -> Play:
    """Return a text, streamed in these pieces; at a gate it waits until the test opens that.

    Args:
        pieces: The text.
        input_tokens: How many tokens the request had, as the model counts.
        stop: Why the answer ends: "end_turn", "max_tokens" or "refusal".
    """

    def play(exchange: Exchange) -> None:
        exchange.begin()
        events = opening(*([""] if pieces else []), input_tokens=input_tokens)
        for piece in pieces:
            if isinstance(piece, Gate):
                exchange.send(events)
                events = []
                piece.hold(exchange)
            else:
                events.append(delta(piece))
        exchange.end([*events, *ending(stop)])

    return Told(f"answers({', '.join(map(repr, pieces))})", play)


def calls(*wanted: tuple[str, dict[str, Any]], text: str = "") -> Play:
    """Return an answer that calls tools, names and inputs, behind a text if there is one."""

    def play(exchange: Exchange) -> None:
        exchange.stream([*(opening(text) if text else opening()), *tool_calls(wanted), *ending("tool_use")])

    return Told(f"calls({', '.join(f'{name}({json.dumps(given)})' for name, given in wanted)})", play)


def refuses(status: int, kind: str = "", message: str = "not now", retry_after: float | None = None) -> Play:
    """Return an HTTP error.

    Args:
        status: The HTTP status.
        kind: The provider's word for it; the usual one of the status if empty.
        message: What the provider says.
        retry_after: Seconds after which the server may try again; it waits as long as it sees fit if None.
    """
    error = {"type": kind or _KINDS.get(status, "api_error"), "message": message}
    body = json.dumps({"type": "error", "error": error}).encode()
    headers = {} if retry_after is None else {"retry_after": str(retry_after)}
    return Told(f"fails({status})", lambda exchange: exchange.send_raw(whole(status, body, **headers)))


def breaks_off(*pieces: str) -> Play:
    """Return the beginning of a text after which the connection is lost; without pieces nothing comes at all."""

    def play(exchange: Exchange) -> None:
        if pieces:
            exchange.begin(*pieces)
        exchange.reset()

    return Told(f"breaks_off({', '.join(map(repr, pieces))})", play)


def echoes(exchange: Exchange) -> None:
    """Answer "re: " and what was said last."""
    says("re: ", exchange.question)(exchange)
