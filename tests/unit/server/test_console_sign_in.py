"""Who the console signs in: a link is good once and for a minute, a cookie on pages of its own origin only."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from server.gateway.console import LINK_SECONDS, MAX_LINKS, MAX_SESSIONS, Console, Links

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Message, Receive, Scope, Send

HERE = {"host": "127.0.0.1:7422", "origin": "http://127.0.0.1:7422"}
TOKEN = "right"


class Browser:
    """Calls a console as a browser would; `passed` are the tokens with which calls reached the API."""

    def __init__(self, links: Links | None = None) -> None:
        self.passed: list[str] = []
        self.console = Console(self._api, self._known, links or Links())

    async def _api(self, scope: Scope, _receive: Receive, send: Send) -> None:
        self.passed.append(dict(scope["headers"]).get(b"authorization", b"").decode())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async def _known(self, http: Request) -> None:
        if http.headers.get("authorization") != f"Bearer {TOKEN}":
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAUTHENTICATED, nothing, nothing, "unknown token")

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str]]:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        given = [(name.replace("_", "-").encode(), each.encode()) for name, each in (HERE | headers).items() if each]
        scope = {"type": "http", "scheme": "http", "method": method, "path": path, "query_string": b"", "root_path": ""}
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        asyncio.run(self.console({**scope, "headers": given, "state": {}}, receive, send))
        return sent[0]["status"], {name.decode().lower(): each.decode() for name, each in sent[0]["headers"]}

    def sign_in(self, body: Any = None, **headers: str) -> tuple[int, str]:
        """The status, and the cookie with its attributes."""
        status, answered = self.call("POST", "/console/session", {"token": TOKEN} if body is None else body, **headers)
        return status, answered.get("set-cookie", "")

    def signed_in(self) -> str:
        return self.sign_in()[1].partition(";")[0]


def test_a_link_is_good_once_and_for_a_minute() -> None:
    now = 0.0
    links = Links(lambda: now)
    used, old, young = (links.make(TOKEN) for _ in range(3))
    assert (links.redeem(used), links.redeem(used), links.redeem("of nobody")) == (TOKEN, "", "")
    now = LINK_SECONDS - 0.01
    assert links.redeem(young) == TOKEN
    now = LINK_SECONDS
    assert links.redeem(old) == ""


def test_the_oldest_links_and_sessions_go_first() -> None:
    links = Links()
    foreign = links.make("other")
    first, *others = [links.make(TOKEN) for _ in range(MAX_LINKS)]
    assert links.redeem(foreign) == "other"
    assert links.redeem(first) == ""
    assert links.redeem(others[0]) == TOKEN
    browser = Browser()
    oldest, *_, youngest = [browser.signed_in() for _ in range(MAX_SESSIONS + 1)]
    for cookie in (oldest, youngest):
        browser.call("GET", "/v1/conversations", cookie=cookie)
    assert browser.passed == ["", f"Bearer {TOKEN}"]


@pytest.mark.parametrize(
    ("origin", "name", "secure"),
    [("http://127.0.0.1:7422", "bedrock-7422", False), ("https://127.0.0.1:7422", "__Host-bedrock-7422", True)],
)
def test_no_script_and_no_other_site_gets_the_cookie(origin: str, name: str, *, secure: bool) -> None:
    status, cookie = Browser().sign_in(origin=origin)
    value, *attributes = cookie.split("; ")
    assert (status, value.partition("=")[0]) == (204, name)
    assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict", *(["Secure"] if secure else [])]
    assert TOKEN not in cookie


@pytest.mark.parametrize("body", [{"token": "wrong"}, {"token": ""}, {"token": "r\x00ght"}, {"link": "used"}])
def test_a_wrong_token_or_link_gets_no_cookie(body: dict[str, str]) -> None:
    assert Browser().sign_in(body) == (401, "")


def test_a_link_is_made_by_who_has_a_token_only() -> None:
    browser = Browser()
    assert browser.call("POST", "/console/links")[0] == 401
    assert browser.call("POST", "/console/links", authorization="Bearer wrong")[0] == 401
    assert browser.call("POST", "/console/links", authorization=f"Bearer {TOKEN}")[0] == 200
    assert browser.call("POST", "/console/links", cookie=browser.signed_in())[0] == 401  # a page makes none


@pytest.mark.parametrize("body", [b'{"token":"\xff"}', b"[" * 5_000, b'{"token":"a","token":"right"}', b"[]", b""])
def test_a_body_that_is_none_signs_nobody_in(body: bytes) -> None:
    assert Browser().sign_in(body) == (400, "")


def test_signing_in_again_ends_the_session_before() -> None:
    browser = Browser()
    cookie = browser.signed_in()
    browser.sign_in(cookie=cookie)
    browser.call("GET", "/v1/conversations", cookie=cookie)
    assert browser.passed == [""]


@pytest.mark.parametrize(
    "origin", ["", "null", "http://evil.example", "http://127.0.0.1:7423", "http://localhost:7422"]
)
def test_another_origin_neither_signs_in_nor_changes_anything(origin: str) -> None:
    browser = Browser()
    assert browser.sign_in(origin=origin) == (403, "")
    cookie = browser.signed_in()
    for method in ("POST", "PATCH", "PUT", "DELETE"):
        assert browser.call(method, "/v1/conversations", cookie=cookie, origin=origin)[0] == 403
    assert browser.passed == []


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_does_not_even_read(site: str) -> None:
    browser = Browser()
    assert browser.call("GET", "/v1/conversations", cookie=browser.signed_in(), sec_fetch_site=site)[0] == 403


def test_the_cookie_becomes_the_token_until_the_browser_signs_out() -> None:
    browser = Browser()
    cookie = browser.signed_in()
    for method in ("GET", "POST"):
        assert browser.call(method, "/v1/conversations", cookie=cookie)[0] == 200
    browser.call("POST", "/v1/conversations", cookie=cookie, authorization="Bearer own", origin="http://other")
    assert browser.call("DELETE", "/console/session", cookie=cookie)[1]["set-cookie"].startswith(
        "bedrock-7422=; Max-Age=0"
    )
    browser.call("GET", "/v1/conversations", cookie=cookie)
    assert browser.passed == [f"Bearer {TOKEN}"] * 2 + ["Bearer own", ""]


@pytest.mark.parametrize("other", ['prefs={"a":1,"b":2}', "a=hello world", "a=\xe4", "nameless", "a[]=1", "=;;="])
def test_cookies_of_other_programs_on_this_machine_do_not_matter(other: str) -> None:
    browser = Browser()
    browser.call("GET", "/v1/conversations", cookie=f"{other}; {browser.signed_in()}")
    assert browser.passed == [f"Bearer {TOKEN}"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/console/nothing.js", 404),
        ("GET", "/console/../../pyproject.toml", 404),
        ("GET", "/console/a\0b", 404),
        ("GET", f"/console/{'a' * 5_000}", 404),
        ("POST", "/console/index.html", 405),
        ("PUT", "/console/session", 405),
        ("GET", "/console/session", 405),
        ("GET", "/console/links", 405),
    ],
)
def test_what_is_no_file_of_the_page_is_refused(method: str, path: str, status: int) -> None:
    assert Browser().call(method, path)[0] == status
