"""The parser of HTTP responses: the same whatever the chunking, as http.client reads them, and bounded."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import weakref
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.adapters.llm.transport.response_parser import (
    MAX_OVERHEAD_BYTES,
    MalformedResponseError,
    ResponseParser,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMES = st.sampled_from(["x-a", "X-B", "Retry-After", "Content-Type"])
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=10)
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=4)
CONTENT = st.lists(st.binary(min_size=1, max_size=20), max_size=5)


def head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} Reason", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "\r\n"]).encode()


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """A response with its content in chunks, with a length, or up to the end of the connection."""
    status, headers, content = draw(st.sampled_from([200, 404, 529])), draw(HEADERS), draw(CONTENT)
    interim = draw(st.sampled_from([b"", head(100, [("x-a", "early")])]))
    match draw(st.sampled_from(["chunked", "length", "close"])):
        case "chunked":
            trailer = draw(st.sampled_from([b"", b"x-a: trailer\r\n"]))
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in content)
            return (
                interim
                + head(status, [*headers, ("Transfer-Encoding", "chunked")])
                + chunks
                + b"0\r\n"
                + trailer
                + b"\r\n"
            )
        case "length":
            body = b"".join(content)
            return interim + head(status, [*headers, ("Content-Length", str(len(body)))]) + body
        case _:
            return interim + head(status, headers) + b"".join(content)


def parsed(pieces: Iterable[bytes]) -> tuple[int, dict[str, str], bytes, bool, bool]:
    """What the parser makes of a connection that ends after `pieces`."""
    parser = ResponseParser()
    content = []
    for piece in pieces:
        parser.feed(piece)
        content.append(parser.take())
    keeps_alive = parser.complete and parser.keeps_alive
    parser.end()
    return parser.status, parser.headers, b"".join(content), parser.complete, keeps_alive


class Source:
    """A connection that http.client reads a response from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: Any) -> io.BytesIO:
        return io.BytesIO(self._data)


@given(responses(), st.lists(st.integers(0, 400), max_size=8))
def test_any_chunking_gives_what_http_client_reads(data: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    result = parsed([data[a:b] for a, b in itertools.pairwise(edges)])
    assert result == parsed([data])
    source: Any = Source(data)
    expected = HTTPResponse(source)
    expected.begin()
    status, headers, content, complete, keeps_alive = result
    assert (status, content, complete) == (expected.status, expected.read(), True)
    assert headers == {name.lower(): ", ".join(expected.headers.get_all(name, [])) for name in expected.headers}
    assert keeps_alive is not expected.will_close


@given(responses(), st.integers(0, 400))
def test_a_response_that_is_cut_is_never_complete(data: bytes, cut: int) -> None:
    parser = ResponseParser()
    if b"content-length" not in data.lower() and b"chunked" not in data:
        return
    parser.feed(data[: min(cut, len(data) - 1)])
    assert not parser.complete
    with pytest.raises(MalformedResponseError):
        parser.end()


@given(st.lists(st.binary(max_size=30), max_size=5))
def test_any_bytes_are_parsed_or_refused(pieces: list[bytes]) -> None:
    with contextlib.suppress(MalformedResponseError):
        status, *_ = parsed([b"HTTP/1.1 200 OK\r\n", *pieces])
        assert status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\ncontent-length: 3\n\nabc",
        b"HTTP/1.1 200 OK\r\nx: a\r\n b\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3  \r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nupgrade: h2c\r\ncontent-length: 3\r\n\r\nabc",
    ],
)
def test_what_other_clients_accept_is_accepted(data: bytes) -> None:
    status, _, content, _, keeps_alive = parsed([data])
    assert (status, content, keeps_alive) == (200, b"abc", True)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ],
)
def test_what_is_not_a_response_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedResponseError):
        parsed([data])


def test_interim_responses_are_skipped() -> None:
    early = head(103, [("link", "x")]) + head(100, [])
    assert parsed([early + head(204, [])])[:2] == (204, {})


def test_content_before_a_malformed_chunk_is_given_first() -> None:
    parser = ResponseParser()
    parser.feed(head(200, [("transfer-encoding", "chunked")]) + b"3\r\nabc\r\nzz\r\n")
    assert parser.take() == b"abc"
    assert not parser.keeps_alive
    with pytest.raises(MalformedResponseError):
        parser.take()


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * MAX_OVERHEAD_BYTES,
        head(100, []) * (MAX_OVERHEAD_BYTES // 20),
        head(200, [("transfer-encoding", "chunked")]) + b"0\r\nx: " + b"a" * MAX_OVERHEAD_BYTES,
        head(200, [("transfer-encoding", "chunked")]) + b"3;" + b"a" * MAX_OVERHEAD_BYTES,
    ],
)
def test_endless_heads_trailers_and_extensions_of_chunks_are_refused(data: bytes) -> None:
    parser = ResponseParser()

    def feed() -> None:
        for at in range(0, len(data), 65536):
            parser.feed(data[at : at + 65536])
            parser.take()

    with pytest.raises(MalformedResponseError):
        feed()


@pytest.mark.parametrize("surplus", [b"x", head(200, [("content-length", "4")]) + b"evil"])
def test_what_follows_a_response_is_not_part_of_it(surplus: bytes) -> None:
    data = head(200, [("content-length", "3")]) + b"abc"
    assert parsed([data]) == (200, {"content-length": "3"}, b"abc", True, True)
    for pieces in ([data + surplus], [data, surplus]):
        assert parsed(pieces) == (200, {"content-length": "3"}, b"abc", True, False)


def test_a_complete_response_is_freed_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        parser = ResponseParser()
        parser.feed(head(200, [("content-length", "0")]))
        kept = weakref.ref(parser)
        del parser
        assert kept() is None
    finally:
        gc.enable()
