"""The event-stream parser: any chunking gives the same events, and nothing unfinished is dispatched."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sseclient import SSEClient

from actors.adapters.llm.transport.sse import SseEvent, SseParser, SseTooLargeError


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
