"""The provider of the servers here: the test kit's, with a strict eye on requests and plays of its own.

Every conversation of a test has a part here, named in the conversation's first message. The part holds the plays that
answer its requests, one after the other. Whatever a server sends must be what the provider's own checks let pass:
`assert_content` says if it was not.
"""

import itertools
import ssl
from collections.abc import Sequence

from bedrock.testing.anthropic_stream import delta, ending, named
from bedrock.testing.exchange import Exchange, Play
from bedrock.testing.http_server import chunked
from bedrock.testing.model_server import ModelServer
from bedrock.testing.plays import calls, echoes, refuses, says
from bedrock.testing.script import Script, ScriptedModel

from tests.support.patience import PATIENCE
from tests.support.strict_checker import check_anthropic

__all__ = ["Exchange", "FakeProvider", "Part", "Play", "begins", "calls", "dribbles", "echoes", "finishes", "floods"]
__all__ += ["hangs", "held", "refuses", "says", "stalls", "streams"]

_numbers = itertools.count(1)


class Part(Script):
    """The provider's part in one conversation."""

    @property
    def key(self) -> str:
        """To be in the first message of the conversation."""
        return self.text

    @property
    def exchanges(self) -> list[Exchange]:
        return self.requests

    def next_reached(self, play: Play | None = None) -> Exchange:
        """The next request, or the next one that `play` answers, once that has come to where the test should act."""
        exchange = self.next()
        while play is not None and exchange.play is not play:
            exchange = self.next()
        assert exchange.reached.wait(PATIENCE), "the play went nowhere"
        return exchange


class FakeModel(ScriptedModel):
    """A model whose conversations may name their parts anywhere; the first one named counts."""

    def subject(self, exchange: Exchange) -> str:
        return "\n".join(exchange.texts)


class FakeProvider(ModelServer):
    """The provider: a server on 127.0.0.1 for as long as the context is open."""

    def __init__(self, tls: ssl.SSLContext | None = None, models: Sequence[str] = ()) -> None:
        """`models`: what it lists; without any it has no list."""
        super().__init__(FakeModel(otherwise=says("Who are you?")), tls=tls, models=models, check=check_anthropic)

    def part(self, *plays: Play, otherwise: Play | None = None) -> Part:
        """A part for a new conversation. When its plays have been played it says "Done.", or plays `otherwise`."""
        part = Part(f"#part-{next(_numbers)}", *plays, otherwise=otherwise or says("Done."))
        self.model.add(part)
        return part

    def assert_content(self) -> None:
        """Fail if any request was one that the provider would have refused."""
        assert not self.faults, self.faults
        problems = [problem for script in self.model.scripts for problem in script.problems]
        assert not problems, problems


# --- plays --------------------------------------------------------------------------------------------------------


def dribbles(*pieces: str, seconds: float = 0.003) -> Play:
    """The same with a pause after each piece."""

    def play(exchange: Exchange) -> None:
        exchange.begin("")
        for piece in pieces:
            exchange.send([delta(piece)])
            exchange.go.wait(seconds)
        exchange.end(ending("end_turn"))

    return play


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
    return lambda exchange: exchange.end([delta(text), *ending("end_turn")])


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
        exchange.send([delta("word ")])


def floods(exchange: Exchange) -> None:
    """Begins an answer that goes on as fast as the server takes it, until it hangs up."""
    exchange.begin("word ")
    exchange.reached.set()
    flood = b"".join(map(chunked, named(delta("word ")))) * 1000
    while True:
        exchange.send_raw(flood)
