"""Settled turns are encoded once, and what is kept of them is bounded."""

import tracemalloc
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from actors.adapters.llm.catalog import Catalog
from actors.adapters.llm.http_model import HttpModel
from actors.adapters.llm.protocols.answer_builder import PreparedRequest
from actors.adapters.llm.protocols.encoding import PrefixCache, comma
from actors.core.content import Content, Message, MessageType, Text, ToolSuccess, ToolUse
from actors.core.history import GrowingView, ProviderView, Turn
from tests.support.model_requests import assistant, provider, request, user

NAMES = {"anthropic": "claude-sonnet-4-5", "openai-chat": "gpt-4o", "openai-responses": "gpt-5.2"}


class Encoder:
    """Encodes every turn as so many bytes, and remembers the turns."""

    def __init__(self, size: int = 4_000) -> None:
        self.size = size
        self.encoded: list[Turn] = []

    def __call__(self, turn: Turn) -> bytes:
        self.encoded.append(turn)
        return b"x" * self.size

    def request(
        self, cache: PrefixCache, conversation: str, turns: Sequence[Turn], *, form: int = 0, lineage: object = None
    ) -> list[Turn]:
        """Encode settled turns with what the cache keeps; return the turns that had to be encoded."""
        self.encoded = []
        view = ProviderView(tuple(turns), len(turns), lineage)
        prefix = cache.pop(conversation, form, comma, view)
        prefix.grow(view, self)
        cache.put(conversation, prefix)
        assert prefix.encoded.data == b",".join([b"x" * self.size] * len(turns))
        return self.encoded


TURNS = (user("a"), assistant("b"), user("c"))


def test_settled_turns_are_encoded_once() -> None:
    cache, encoder = PrefixCache(), Encoder()
    assert encoder.request(cache, "one", TURNS[:1]) == [TURNS[0]]
    assert encoder.request(cache, "one", TURNS) == [*TURNS[1:]]
    assert encoder.request(cache, "one", TURNS) == []
    assert encoder.request(cache, "two", TURNS) == [*TURNS]


def test_another_form_or_lineage_is_encoded_from_the_start() -> None:
    cache, encoder = PrefixCache(), Encoder()
    encoder.request(cache, "one", TURNS)
    assert encoder.request(cache, "one", TURNS, form=1) == [*TURNS]
    assert encoder.request(cache, "one", TURNS, form=1, lineage=object()) == [*TURNS]
    assert encoder.request(cache, "one", TURNS[:2], form=1) == [*TURNS[:2]], "what is shorter was another view"


def test_beyond_the_limit_the_least_recently_used_are_dropped() -> None:
    cache, encoder = PrefixCache(max_bytes=10_000), Encoder()
    encoder.request(cache, "one", TURNS)  # 12,000 bytes are too many
    assert cache.held == 0
    encoder.request(cache, "one", TURNS[:1])
    encoder.request(cache, "two", TURNS[:1])
    encoder.request(cache, "three", TURNS[:1])
    assert encoder.request(cache, "two", TURNS[:1]) == []
    assert encoder.request(cache, "one", TURNS[:1]) == [TURNS[0]]
    assert 0 < cache.held <= 10_000


def test_what_is_kept_is_counted_and_given_back() -> None:
    cache, encoder = PrefixCache(), Encoder(100_000)
    tracemalloc.start()
    try:
        for number in range(10):
            for length in range(4):
                encoder.request(cache, f"c{number}", TURNS[:length])
        really = tracemalloc.get_traced_memory()[0]
        assert 0.9 * really < cache.held < 1.1 * really
        for number in range(10):
            cache.forget(f"c{number}")
        cache.forget("unknown")
        assert cache.held == 0
        assert tracemalloc.get_traced_memory()[0] < 0.01 * really
    finally:
        tracemalloc.stop()


def test_a_failed_encoding_keeps_nothing_half_done() -> None:
    def fail(_turn: Turn) -> bytes:
        raise OSError("no image")

    cache, encoder = PrefixCache(), Encoder()
    encoder.request(cache, "one", TURNS[:1])
    prefix = cache.pop("one", 0, comma, view := ProviderView(TURNS, 3))
    with pytest.raises(OSError, match="no image"):
        prefix.grow(view, fail)
    assert cache.held == 0
    assert encoder.request(cache, "one", TURNS) == [*TURNS]


@pytest.mark.parametrize("protocol", NAMES)
def test_a_request_encodes_as_many_turns_however_long_the_history_is(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer before, which is settled now, its results, the last answer and what followed it."""
    found = Catalog((provider(protocol, "http://127.0.0.1:9"),)).get(NAMES[protocol])
    assert isinstance(found, HttpModel)
    protocol_of_model, encoded = found._protocol, list[Turn]()

    def turn_of(turn: Turn, prepared: PreparedRequest) -> bytes:
        encoded.append(turn)
        return protocol_of_model.turn_of(turn, prepared)

    monkeypatch.setattr(found, "_protocol", replace(protocol_of_model, turn_of=turn_of))
    growing, counts = GrowingView(), []
    for number in range(1, 1_200, 4):
        call = ToolUse(f"t{number}", "bash", "{}")
        said: tuple[tuple[MessageType, Content], ...] = (
            (MessageType.USER, Text("hi")),
            (MessageType.AGENT, call),
            (MessageType.TOOL, ToolSuccess(call.id, "out")),
            (MessageType.AGENT, Text("ok")),
        )
        for offset, (kind, block) in enumerate(said):
            sequence = number + offset
            through = sequence - 1 if kind is MessageType.AGENT else 0
            growing.add(Message(f"m{sequence}", sequence, kind, (block,), 0, through_sequence=through))
        encoded.clear()
        found.body_of(replace(request(), view=growing.view()))
        counts.append(len(encoded))
    assert counts[0] == 5
    assert set(counts[1:]) == {6}
