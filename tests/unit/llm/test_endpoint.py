"""Where a URL is served, and the head of a request to it."""

from __future__ import annotations

import pytest

from actors.adapters.llm.transport.connections import TransportError
from actors.adapters.llm.transport.endpoint import Endpoint, encode_head, endpoint_of, proxy_of


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://a.b", Endpoint(False, "a.b", 80, "a.b", "/")),
        ("https://A.b/v1/x?limit=1%20", Endpoint(True, "a.b", 443, "a.b", "/v1/x?limit=1%20")),
        ("http://a:8080/models/ü x", Endpoint(False, "a", 8080, "a:8080", "/models/%C3%BC%20x")),
        ("http://[::1]:80/", Endpoint(False, "::1", 80, "[::1]:80", "/")),
        ("https://münchen.example", Endpoint(True, "xn--mnchen-3ya.example", 443, "xn--mnchen-3ya.example", "/")),
    ],
)
def test_where_a_url_is_served(url: str, endpoint: Endpoint) -> None:
    assert endpoint_of(url) == endpoint


@pytest.mark.parametrize("url", ["http://a b/", "http://a:99999/", "http:///x", "http://[::1/"])
def test_a_url_that_cannot_be_sent(url: str) -> None:
    with pytest.raises(TransportError, match="characters that cannot be sent"):
        endpoint_of(url)


def test_a_proxy_with_and_without_credentials() -> None:
    assert proxy_of("") is None
    plain, secret = proxy_of("http://p:3128"), proxy_of("http://me:p%40w@p")
    assert plain is not None
    assert secret is not None
    assert (plain.host, plain.port, plain.authorization) == ("p", 3128, "")
    assert (secret.host, secret.port, secret.authorization) == ("p", 80, "Basic bWU6cEB3")


def test_a_head_has_a_length_and_a_host_of_its_own() -> None:
    headers = {"x-key": "k", "content-length": "9", "transfer-encoding": "chunked", "accept-encoding": "br"}
    assert encode_head("POST", "/x", "a:1", headers, 2) == (
        b"POST /x HTTP/1.1\r\nhost: a:1\r\nx-key: k\r\naccept-encoding: identity\r\ncontent-length: 2\r\n\r\n"
    )
    assert encode_head("GET", "/", "a", {"host": "b"}, None) == (
        b"GET / HTTP/1.1\r\nhost: b\r\naccept-encoding: identity\r\n\r\n"
    )


@pytest.mark.parametrize("name", ["x y", "x:", "", "x\r\n", "ü"])
def test_a_header_whose_name_cannot_be_sent(name: str) -> None:
    with pytest.raises(TransportError):
        encode_head("GET", "/", "a", {name: "v"}, None)


@pytest.mark.parametrize("value", ["v\r\nx: 1", "v\n", "\0", "☃"])
def test_a_header_whose_value_cannot_be_sent(value: str) -> None:
    with pytest.raises(TransportError):
        encode_head("GET", "/", "a", {"x": value}, None)
