"""Whatever a provider sends: exactly one outcome, told in the right order, and the same however it was cut."""

import itertools
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.adapters.llm.catalog import _WIRE_PROTOCOLS
from actors.adapters.llm.http_model import HttpModel
from actors.adapters.llm.provider_client import GatheredText, ProviderClient
from actors.core.content import Reasoning, Text, ToolUse
from actors.core.errors import ErrorKind
from actors.ports import CancelToken, ModelAbortedError, ModelAnswer, ModelFailedError
from tests.support.model_requests import model, provider, request
from tests.support.scripted_server import named, plain

Event = dict[str, Any]
PROTOCOLS = pytest.mark.parametrize("protocol", ["anthropic", "openai-chat", "openai-responses"])
NAMES = {"anthropic": "claude-sonnet-4-5", "openai-chat": "gpt-4o", "openai-responses": "gpt-5.2"}

TEXTS = st.sampled_from(["", "a", "Hello ✓", " ", '{"cmd":', '"ls"}', "\\u2028", "\u2028\u0085", "x" * 50])
INDEXES = st.sampled_from([0, 0, 1, 2, None, -1])
COUNTS: st.SearchStrategy[Any] = st.sampled_from([None, 0, 7, 100, "12", 3.0, 2.5, -1, 10**30, True, [], "x"])


def _event(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Event]:
    """An event that has each of its fields or not."""
    return st.fixed_dictionaries({"type": st.just(kind)}, optional=fields)


ERRORS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["overloaded_error", "invalid_request_error", "new_error"]),
        "code": st.sampled_from(["rate_limit_exceeded", "context_length_exceeded", 500, "invalid_prompt", None]),
        "message": st.one_of(TEXTS, st.none()),
    },
)
COUNTERS = "input_tokens output_tokens cache_read_input_tokens prompt_tokens completion_tokens prompt_tokens_details"
USAGE = st.dictionaries(
    st.sampled_from(COUNTERS.split()), st.one_of(COUNTS, st.fixed_dictionaries({"cached_tokens": COUNTS}))
)
BLOCKS = st.one_of(
    _event("text", text=TEXTS),
    _event("thinking", thinking=TEXTS, signature=TEXTS),
    _event("redacted_thinking", data=TEXTS),
    _event("tool_use", id=TEXTS, name=TEXTS, input=st.just({})),
)
DELTAS = st.dictionaries(st.sampled_from("text partial_json thinking signature".split()), TEXTS, max_size=2)
STOP_REASONS = st.sampled_from(["end_turn", "tool_use", "max_tokens", "refusal", "pause_turn", "new", None])
ANTHROPIC = st.one_of(
    _event("message_start", message=st.fixed_dictionaries({}, optional={"usage": USAGE})),
    _event("content_block_start", index=INDEXES, content_block=BLOCKS),
    _event("content_block_delta", index=INDEXES, delta=DELTAS),
    _event("content_block_stop", index=INDEXES),
    _event("message_delta", delta=st.fixed_dictionaries({"stop_reason": STOP_REASONS}), usage=USAGE),
    _event("message_stop"),
    _event("ping"),
    _event("error", error=ERRORS),
)
CALLS = st.fixed_dictionaries(
    {}, optional={"index": INDEXES, "id": TEXTS, "function": st.fixed_dictionaries({"name": TEXTS, "arguments": TEXTS})}
)
CHAT_DELTAS = st.fixed_dictionaries(
    {},
    optional={
        "content": st.one_of(TEXTS, st.none()),
        "refusal": TEXTS,
        "reasoning": TEXTS,
        "reasoning_content": TEXTS,
        "tool_calls": st.lists(CALLS, max_size=2),
    },
)
FINISHES = st.sampled_from([None, None, "stop", "length", "tool_calls", "content_filter", "error", "new"])
CHOICES = st.lists(st.fixed_dictionaries({"delta": CHAT_DELTAS, "finish_reason": FINISHES}), max_size=2)
CHAT = st.one_of(
    _event("", choices=CHOICES), _event("", choices=CHOICES, usage=USAGE), _event("", error=ERRORS), st.just("[DONE]")
)
PARTS = st.lists(
    st.fixed_dictionaries({"type": st.just("output_text")}, optional={"text": TEXTS, "refusal": TEXTS}), max_size=2
)
ITEMS = st.one_of(
    _event("message", id=TEXTS, content=PARTS, phase=TEXTS),
    _event("reasoning", id=TEXTS, summary=PARTS, content=PARTS, encrypted_content=TEXTS),
    _event("function_call", id=TEXTS, call_id=TEXTS, name=TEXTS, arguments=TEXTS),
    _event("hologram", id=TEXTS),
)
CUTS = st.sampled_from(["max_output_tokens", "content_filter", "x"])
RESPONSE = st.fixed_dictionaries(
    {},
    optional={
        "output": st.lists(ITEMS, max_size=2),
        "usage": USAGE,
        "error": st.one_of(st.none(), ERRORS),
        "incomplete_details": st.fixed_dictionaries({"reason": CUTS}),
    },
)  # fmt: skip
RESPONSES = st.one_of(
    *(_event(f"response.output_item.{step}", output_index=INDEXES, item=ITEMS) for step in ("added", "done")),
    *(
        _event(f"response.{kind}.delta", output_index=INDEXES, item_id=TEXTS, delta=TEXTS)
        for kind in ("output_text", "refusal", "reasoning_text", "reasoning_summary_text", "function_call_arguments")
    ),
    *(_event(f"response.{end}", response=RESPONSE) for end in ("created", "completed", "incomplete", "failed")),
    _event("response.reasoning_summary_part.added", output_index=INDEXES),
    _event("error", error=ERRORS),
    st.just("[DONE]"),
)
ALPHABETS: dict[str, st.SearchStrategy[Any]] = {
    "anthropic": ANTHROPIC,
    "openai-chat": CHAT,
    "openai-responses": RESPONSES,
}
NOISE = st.sampled_from([b": comment\n\n", b"event: ping\ndata: {}\n\n", b"\n\n", b"id: 1\n\n"])
JUNK = st.sampled_from([b"data: {\n\n", b"data: []\n\n", b"data: \xff\n\n", b'data: {"type": 7, "choices": 7}\n\n'])


class Said:
    """A sink that checks the order in which it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[bool, str]] = []
        self.begun = 0
        self.flushed: list[int] = []
        """How many texts had come by each flush."""

    def started(self) -> None:
        assert not self.told
        self.begun += 1
        assert self.begun == 1

    def text(self, text: str, *, reasoning: bool = False) -> None:
        assert text
        assert self.begun
        self.told.append((reasoning, text))

    def flush(self) -> None:
        assert self.begun
        self.flushed.append(len(self.told))

    @property
    def joined(self) -> list[tuple[bool, str]]:
        """What it was told, adjacent texts of a kind joined."""
        kinds = itertools.groupby(self.told, key=operator.itemgetter(0))
        return [(reasoning, "".join(text for _, text in parts)) for reasoning, parts in kinds]


class Reply:
    """An answer in memory, in the pieces that it arrives in."""

    status = 200
    headers: Mapping[str, str] = {"content-type": "text/event-stream"}
    idle = 1.0

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = iter(pieces)

    def read(self) -> bytes:
        return next((piece for piece in self._pieces if piece), b"")

    def read_all(self, _limit: int = 0) -> bytes:
        return b"".join(self._pieces)


class Transport:
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    @contextmanager
    def post(self, *_: object) -> Iterator[Reply]:
        yield Reply(self._pieces)


def ask_in_memory(protocol: str, pieces: list[bytes], said: Said, cancel: CancelToken) -> ModelAnswer:
    served = model(protocol, "http://127.0.0.1:9", NAMES[protocol])
    assert isinstance(served, HttpModel)
    client = ProviderClient(provider(protocol, "http://127.0.0.1:9"))
    client.__dict__["transport"] = Transport(pieces)
    return client.request(_WIRE_PROTOCOLS[protocol], served._prepare(request()), b"", said, cancel)


def outcome(protocol: str, pieces: list[bytes]) -> tuple[ModelAnswer | tuple[Any, ...], Said]:
    """How an answer in these pieces ends; only the two exceptions of the port may leave it."""
    said = Said()
    try:
        return ask_in_memory(protocol, pieces, said, CancelToken()), said
    except ModelFailedError as failed:
        return (failed.failure, failed.retry_after_ms, failed.usage), said
    except ModelAbortedError:
        raise AssertionError("nobody cancelled it") from None


def _ends(*endings: list[Any]) -> st.SearchStrategy[list[Any]]:
    return st.sampled_from([*endings, []])


ENDS = {
    "anthropic": _ends(
        *([{"type": "message_delta", "delta": {"stop_reason": reason}}, {"type": "message_stop"}]
          for reason in ("end_turn", "tool_use", "max_tokens", "refusal"))
    ),
    "openai-chat": _ends(
        *([{"choices": [{"delta": {}, "finish_reason": reason}]}, "[DONE]"]
          for reason in ("stop", "length", "tool_calls", "content_filter")),
        ["[DONE]"],
    ),
    "openai-responses": _ends(
        [{"type": "response.completed", "response": {}}],
        *([{"type": "response.incomplete", "response": {"incomplete_details": {"reason": reason}}}]
          for reason in ("max_output_tokens", "content_filter", "x")),
    ),
}  # fmt: skip


@st.composite
def streams(draw: st.DrawFn, protocol: str) -> list[bytes]:
    """Events of a protocol in any order, with noise among them, and at times something that is none of them."""
    pieces: list[bytes] = []
    kinds = [ALPHABETS[protocol]] * 4 + [NOISE] + ([JUNK] if draw(st.integers(0, 5)) == 0 else [])
    events = [*draw(st.lists(st.one_of(kinds), max_size=10)), *draw(ENDS[protocol])]
    for event in events:
        if isinstance(event, bytes):
            pieces.append(event)
        else:
            write = named if protocol == "anthropic" and draw(st.booleans()) else plain
            pieces += write(event) if isinstance(event, dict) else plain(event)
    return pieces


@PROTOCOLS
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_chunking_gives_the_same_answer_and_the_same_text(protocol: str, data: st.DataObject) -> None:
    whole = b"".join(data.draw(streams(protocol)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    result, said = outcome(protocol, pieces)
    expected, told = outcome(protocol, [whole])
    assert result == expected
    assert said.joined == told.told


@PROTOCOLS
def test_any_sequence_of_events_has_exactly_one_outcome_and_every_kind_occurs(protocol: str) -> None:
    seen: set[str] = set()

    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(streams(protocol))
    def look(pieces: list[bytes]) -> None:
        result, said = outcome(protocol, pieces)
        if not isinstance(result, ModelAnswer):
            failure = result[0]
            assert failure.kind is not ErrorKind.UNKNOWN, failure
            assert failure.message
            assert result[1] is None or failure.retryable
            seen.add(failure.kind.value)
            return
        ids = [block.id for block in result.content if isinstance(block, ToolUse)]
        assert len(set(ids)) == len(ids)
        assert all(isinstance(block, Text | Reasoning | ToolUse) for block in result.content)
        assert not (result.refusal and ids)
        assert said.begun
        seen.add("answer")
        seen.update(name for name in ("truncated", "refusal") if getattr(result, name))
        seen.update(type(block).__name__ for block in result.content)

    look()
    assert seen >= {"answer", "truncated", "server_error", "Text", "ToolUse"}, seen


def test_what_arrived_is_flushed_before_each_wait_for_more_and_not_at_the_end() -> None:
    start, first, second, end = (
        plain({"type": "message_start", "message": {}}),
        named({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "H"}}),
        named({"type": "content_block_delta", "index": 0, "delta": {"text": "i"}}),
        named({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}),
    )
    for pieces, told, flushed in (
        ([*start, *first, *second, *end[:1], *end[1:]], ["H", "i"], [0, 1, 2, 2]),
        ([b": comment\n\n", b"".join([*start, *first]), b"".join([*second, *end])], ["H", "i"], [1]),
        ([b"".join([*start, *first, *second, *end])], ["Hi"], []),
    ):
        _, said = outcome("anthropic", pieces)
        assert (said.told, said.flushed) == ([(False, text) for text in told], flushed)


def test_a_cancel_ends_the_processing_of_what_arrived_together(monkeypatch: pytest.MonkeyPatch) -> None:
    cancel, said = CancelToken(), Said()
    gather = GatheredText.text

    def gather_and_cancel(text: GatheredText, piece: str, *, reasoning: bool = False) -> None:
        gather(text, piece, reasoning=reasoning)
        cancel.cancel()

    monkeypatch.setattr(GatheredText, "text", gather_and_cancel)
    start = named({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    delta = named({"type": "content_block_delta", "index": 0, "delta": {"text": "a"}})
    with pytest.raises(ModelAbortedError):
        ask_in_memory("anthropic", [b"".join(start + delta * 500)], said, cancel)
    assert said.told == [(False, "a")]
