"""What is read of an answer: events, JSON that is not quite JSON, calls, counts, and large ones in bounded time."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sseclient import SSEClient

from actors.adapters.llm.protocols import answer_builder
from actors.adapters.llm.protocols.decoding import (
    MAX_EVENT_BYTES,
    SseEvent,
    SseParser,
    SseTooLargeError,
    replace_lone_surrogates,
)
from actors.core.content import (
    IMAGE_TOKENS,
    Content,
    Image,
    Reasoning,
    Text,
    ToolSuccess,
    ToolUse,
    Usage,
    call_id,
    distinct_calls,
    tool_uses,
)
from actors.core.errors import ErrorKind
from actors.core.history import Turn
from actors.ports import MAX_MODEL_RESPONSE_BYTES, CancelToken, ModelAbortedError
from tests.support.model_requests import Sink, ask, assistant, failure, model, request, user
from tests.support.scripted_server import ScriptedServer, ServedConnection, named, plain, stream
from tests.unit.llm.test_oddities import call, end, texts
from tests.unit.llm.test_outcomes import NAMES, PROTOCOLS, Said, ask_in_memory


def parsed(*chunks: bytes) -> list[tuple[str, bytes]]:
    parser = SseParser()
    return [(event.name, event.data) for chunk in chunks for event in parser.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [("", b"a")]),
        (b"data: a\r\rdata: b\r\r", [("", b"a"), ("", b"b")]),
        (b"event: x\r\ndata: a\r\n\r\n", [("x", b"a")]),
        (b"data: a\ndata:b\ndata:  c\n\n", [("", b"a\nb\n c")]),
        (b": note\n\ndata: a\n\n", [("", b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("", b"a")]),
        (b"data\n\n", [("", b"")]),
        (b"event: x\n\ndata: a\n\n", [("", b"a")]),
        (b"id: 1\nretry: 5\nnonsense\ndata: a\n\n", [("", b"a")]),
        (b"data: a\xe2\x80\xa8b\xc2\x85c\x0bd\n\n", [("", "a\u2028b\u0085c\x0bd".encode())]),
        (b"data: a\n\ndata: [DONE]", [("", b"a")]),
        (b"data: a\n\ndata: b\n", [("", b"a")]),
        (b"", []),
    ],
)
def test_events_of_a_stream(stream: bytes, events: list[tuple[str, bytes]]) -> None:
    assert parsed(stream) == events
    assert parsed(*(stream[i : i + 1] for i in range(len(stream)))) == events


def test_an_event_is_dispatched_as_soon_as_its_blank_line_is_there() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r\n\r") == [SseEvent("", b"a")]
    assert parser.feed(b"\ndata: b\r\n\r\n") == [SseEvent("", b"b")]


@pytest.mark.parametrize("event", [b"data: " + b"x" * 200, b"data: x\n" * 30, b": x\n" * 60])
def test_an_event_that_outgrows_the_cap_is_refused(event: bytes) -> None:
    parser = SseParser(max_event_bytes=100)
    pieces = [event[i : i + 7] for i in range(0, len(event), 7)]
    with pytest.raises(SseTooLargeError, match="100 bytes"):
        list(map(parser.feed, pieces))


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 999, 4096, 70_000, 10**6])
def test_long_events_among_short_ones(ending: bytes, size: int) -> None:
    """Longer than what is kept as it is, in pieces that end anywhere, also inside of a blank line."""
    lengths = [1, 65_530, 65_536, 3, 200_000, 0, 7] if size > 1 else [1, 300, 0, 7]
    wanted = [("delta", b"x" * length) for length in lengths]
    whole = b"".join(b"event: delta" + ending + b"data: " + data + ending * 2 for _, data in wanted)
    assert parsed(*(whole[i : i + size] for i in range(0, len(whole), size))) == wanted


def test_the_cap_is_per_event() -> None:
    parser = SseParser(max_event_bytes=100)
    assert sum(len(parser.feed(b"data: " + b"x" * 50 + b"\n\n")) for _ in range(50)) == 50


LINES = st.one_of(
    st.builds(
        lambda text: b"data: " + text.encode(),
        st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=8),
    ),
    st.builds(
        lambda text: b"data:" + text.encode(),
        st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=3),
    ),
    st.sampled_from([b"", b"", b"", b"event: named", b": comment", b"data", b"id: 7", b"unknown: x", b"retry: 1"]),
)


@st.composite
def cut_streams(draw: st.DrawFn, endings: st.SearchStrategy[bytes]) -> tuple[bytes, list[bytes]]:
    """A stream and the chunks it arrives in."""
    stream = b"".join(line + draw(endings) for line in draw(st.lists(LINES, max_size=20)))
    stream += draw(st.sampled_from([b"", b"data: tail", b"data: tail\n"]))
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return stream, [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


@settings(deadline=None)
@given(cut_streams(st.sampled_from([b"\n", b"\r", b"\r\n"])))
def test_any_chunking_gives_the_same_events(case: tuple[bytes, list[bytes]]) -> None:
    stream, chunks = case
    assert parsed(*chunks) == parsed(stream)


@settings(deadline=None)
@given(st.sampled_from([b"\n", b"\r\n"]).flatmap(lambda ending: cut_streams(st.just(ending))))
def test_an_independent_parser_agrees(case: tuple[bytes, list[bytes]]) -> None:
    """sseclient-py; it keeps a default event name, and dispatches a tail that no blank line has ended."""
    stream, chunks = case
    whole = stream[: max(stream.rfind(b"\n\n") + 2, stream.rfind(b"\r\n\r\n") + 4, 0)]
    if not whole.endswith((b"\n\n", b"\r\n\r\n")):
        whole = b""
    expected = [(event.event, event.data) for event in SSEClient(iter([whole])).events()]
    assert [(name or "message", data.decode()) for name, data in parsed(*chunks)] == expected


# --- Lone surrogates in what a provider sends: replaced, whatever the protocol, and never a failed attempt ---


@given(st.text(st.characters(codec=None, categories=None)))
@example("\ud800\ud800\udc00\udc00")
@example("\\ud800")
@example("\\\\\ud83d")
def test_text_decodes_with_a_replacement_for_each_lone_surrogate(text: str) -> None:
    written = json.dumps({"text": text})
    wanted = json.loads(written)["text"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert msgspec.json.decode(replace_lone_surrogates(written))["text"] == wanted
    assert replace_lone_surrogates(replace_lone_surrogates(written)) == replace_lone_surrogates(written)


# --- Ids that are unique and fit every provider; inputs that are JSON objects ---


IDS = st.one_of(st.sampled_from(["", "a", "b", "c1-r7-1", "x.y"]), st.text(max_size=50))


@settings(deadline=None)
@given(st.lists(IDS, max_size=6), st.lists(IDS, max_size=4))
def test_ids_end_up_unique_and_fit_every_provider(new: list[str], old: list[str]) -> None:
    asked = request(user("a"), assistant(*(ToolUse(identity, "bash", "{}") for identity in old)), user("b"))
    calls = tuple(ToolUse(identity, "bash", str(i)) for i, identity in enumerate(new))
    calls = tool_uses(answer_builder.accepted_calls((Text("first"), *calls), asked))
    assert distinct_calls(calls, asked.request_id) == calls, "the core has nothing to change"
    ids = [call.id for call in calls]
    assert len(set(ids) | set(old)) == len(ids) + len(set(old))
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,40}", identity) for identity in ids)
    assert [call.input for call in calls] == [str(i) for i in range(len(new))]


def test_a_good_id_stays() -> None:
    content: tuple[Content, ...] = (Text("a"), ToolUse("toolu_01", "bash", "{}"))
    assert answer_builder.accepted_calls(content, request()) == content


def test_made_ids_are_deterministic_and_short() -> None:
    assert call_id("c1:r7", 0) == "c1-r7-0"
    long = call_id("conversation-" * 10 + ":r7", 0)
    assert long == call_id("conversation-" * 10 + ":r7", 0)
    assert len(long) <= 40
    assert long != call_id("conversation-" * 10 + ":r7", 1)


@settings(deadline=None)
@given(st.one_of(st.text(max_size=30), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2).map(json.dumps)))
def test_arguments_are_always_an_object_and_verbatim_if_they_were(raw: str) -> None:
    arguments = answer_builder.call_arguments(ToolUse("t", "bash", raw))
    decoded = json.loads(arguments)
    assert isinstance(decoded, dict)
    assert arguments == raw.encode() or decoded in ({}, {"INVALID_JSON": raw})


def test_a_good_name_stays_and_a_made_up_one_becomes_one_that_providers_take() -> None:
    names = ["spawn_sub_agent", "functions.bash", "", "rm -rf /\n", "n" * 65]
    told = [answer_builder.call_name(ToolUse("t", name, "{}")) for name in names]
    assert told == ["spawn_sub_agent", "functions_bash", "unnamed", "rm_-rf___", "n" * 64]


# --- What a cancelled request has used: what its provider told, and an estimate of what it did not tell in time ---


SAID = "x" * 402


class Cancelling(Said):
    """Cancels as soon as a text arrives, or the stream begins."""

    def __init__(self, cancel: CancelToken, *, at_once: bool) -> None:
        super().__init__()
        self._cancel, self._at_once = cancel, at_once

    def started(self) -> None:
        super().started()
        if self._at_once:
            self._cancel.cancel()

    def text(self, text: str, *, reasoning: bool = False) -> None:
        super().text(text, reasoning=reasoning)
        self._cancel.cancel()


def began(protocol: str) -> list[bytes]:
    """The events with which a stream begins, usage included where the protocol has it there."""
    match protocol:
        case "anthropic":
            usage = {"input_tokens": 11, "cache_read_input_tokens": 5, "output_tokens": 1}
            return named({"type": "message_start", "message": {"usage": usage}})
        case "openai-chat":
            return plain({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        case _:
            return plain({"type": "response.created", "response": {}})


def cut_off(protocol: str, pieces: list[bytes], *, at_once: bool = False) -> Usage | None:
    cancel = CancelToken()
    with pytest.raises(ModelAbortedError) as aborted:
        ask_in_memory(protocol, pieces, Cancelling(cancel, at_once=at_once), cancel)
    usage: Usage | None = aborted.value.usage
    return usage


@PROTOCOLS
@pytest.mark.parametrize("kind", ["text", "reasoning"])
def test_the_prompt_and_what_has_arrived_count_although_the_provider_tells_it_at_the_end(
    protocol: str, kind: str
) -> None:
    usage = cut_off(protocol, [*began(protocol), *plain(*texts(protocol, SAID, kind=kind))])
    assert usage is not None
    prompt = answer_builder.prompt_tokens(request())
    assert prompt > 0
    told = (11, 5) if protocol == "anthropic" else (prompt, 0)
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (*told, 101)
    assert usage.cost_micros > 0


@PROTOCOLS
def test_nothing_counts_before_an_answer_has_begun(protocol: str) -> None:
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(ModelAbortedError) as aborted:
        ask_in_memory(protocol, began(protocol), Said(), cancel)
    assert aborted.value.usage is None


def test_what_the_provider_has_told_of_a_whole_answer_is_not_estimated_again() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    ended = plain(*end("openai-chat", usage), "[DONE]")
    cancel = CancelToken()

    class Late(Cancelling):
        def text(self, text: str, *, reasoning: bool = False) -> None:
            Said.text(self, text, reasoning=reasoning)

        def flush(self) -> None:
            cancel.cancel()

    pieces = [b"".join([*began("openai-chat"), *plain(*texts("openai-chat", SAID)), *ended[:1]]), *ended[1:]]
    with pytest.raises(ModelAbortedError) as aborted:
        ask_in_memory("openai-chat", pieces, Late(cancel, at_once=False), cancel)
    assert aborted.value.usage is not None
    assert (aborted.value.usage.input_tokens, aborted.value.usage.output_tokens) == (7, 3)


def test_a_prompt_counts_by_all_that_is_in_it_and_at_least_what_the_provider_counted_before() -> None:
    image = Image("a", "image/png", 10, 10)
    empty = answer_builder.prompt_tokens(request(user("")))
    calls = Turn("assistant", (Reasoning("t" * 40, raw="r" * 400), ToolUse("t1", "bash", "i" * 396), Text("a" * 400)))
    results: Any = Turn("user", (ToolSuccess("t1", "é" * 200, (image,)), Text("b" * 400), image))
    full = answer_builder.prompt_tokens(request(calls, results))
    assert full - empty == 500 + 2 * IMAGE_TOKENS
    assert answer_builder.prompt_tokens(replace(request(calls, results), counted_tokens=full + 9)) == full + 9


# --- Answers that are larger than a message may be: hung up on while they arrive, and never asked for again ---


BYTES = MAX_MODEL_RESPONSE_BYTES
PIECES = ["x" * (BYTES // 8)] * 9
CHARACTERS = ["€" * (BYTES // 24)] * 9
"""Nine eighths of the limit in bytes, three eighths in characters."""


OVERSIZED = [
    *((protocol, texts(protocol, *PIECES, kind=kind), "1 MiB") for protocol in NAMES for kind in ("text", "reasoning")),
    *((protocol, call(protocol, *PIECES), "1 MiB") for protocol in NAMES),
    ("anthropic", texts("anthropic", *CHARACTERS), "1 MiB"),
    (
        "openai-chat",
        [call("openai-chat", identity=f"t{index}", index=index)[0] for index in range(answer_builder.MAX_BLOCKS + 1)],
        "2,048 parts",
    ),
]


@pytest.mark.parametrize(("protocol", "events", "limit"), OVERSIZED)
def test_an_answer_is_hung_up_on_as_soon_as_it_is_too_large(
    protocol: str, events: list[dict[str, Any]], limit: str
) -> None:
    pieces, sink = [*began(protocol), *plain(*events)], Sink()
    with ScriptedServer(stream(pieces, then=lambda connection: connection.wait_for_close())) as server:
        failed = failure(model(protocol, server.url), sink=sink)
    assert sum(len(text.encode()) for text in sink.said + sink.thought) <= BYTES, "watchers can receive all of it"
    assert (failed.failure.kind, failed.failure.message) == (
        ErrorKind.RESPONSE_TOO_LARGE,
        f"fake: the answer exceeds the limit of {limit}. "
        "Ask for less in one answer: split a long text or file into several parts.",
    )
    assert not failed.failure.retryable
    assert (failed.usage is not None) == (protocol == "anthropic"), "what the provider counted by then is kept"


def test_a_json_body_is_hung_up_on_when_it_is_larger_than_an_event_may_be() -> None:
    def flood(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[")
        while True:
            connection.send(b"1," * 30_000)

    with ScriptedServer(flood) as server:
        failed = failure(model("anthropic", server.url)).failure
    assert failed.kind is ErrorKind.RESPONSE_TOO_LARGE
    assert f"a body of more than {MAX_EVENT_BYTES} bytes" in failed.message


EXACT = ["x" * (BYTES // 2), "é" * (BYTES // 4)]
"""Exactly the limit, in UTF-8."""


@PROTOCOLS
@pytest.mark.parametrize("kind", ["text", "reasoning"])
def test_an_answer_of_exactly_the_limit_is_accepted_and_one_byte_more_is_refused(protocol: str, kind: str) -> None:
    exact, more = (
        stream(plain(*texts(protocol, *pieces, kind=kind), *end(protocol))) for pieces in (EXACT, [*EXACT, "x"])
    )
    with ScriptedServer(exact, more) as up:
        given = ask(model(protocol, up.url))
        failed = failure(model(protocol, up.url))
    told = "".join(block.text for block in given.content if isinstance(block, Text | Reasoning))
    if kind == "text":
        assert told == "".join(EXACT)
    assert failed.failure.kind is ErrorKind.RESPONSE_TOO_LARGE


@pytest.mark.parametrize(
    "content",
    [
        (Text("x" * BYTES),),
        (Text("x" * (BYTES - 8)), ToolUse("c1", "bash", '{"a":1}'[:4])),
        (Reasoning("\x01" * BYTES, "p", "m", '{"reasoning":"' + "\\u0001" * BYTES + '"}'),),
        (Reasoning("", "p", "m", "x" * BYTES),),
        (Reasoning("x", "p", "m", "x" * (BYTES + 6)),),
        (Text(""),) * answer_builder.MAX_BLOCKS,
    ],
    ids=["text", "call", "escaped reasoning", "hidden reasoning", "signature", "blocks"],
)
def test_the_size_of_content_is_that_of_its_texts(content: tuple[Content, ...]) -> None:
    more: tuple[Content, ...] = (Text("x"),)
    assert answer_builder.ContentSize.of(content).excess == ""
    assert answer_builder.ContentSize.of(content + more).excess
