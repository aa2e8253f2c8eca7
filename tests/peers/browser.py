"""Debian's Chromium, driven by Playwright, at the console of a server."""

from __future__ import annotations

import http.client
import json
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.peers import installed
from tests.support.patience import PATIENCE
from tests.support.server_process import http_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

QUIET = ("background-networking", "component-update", "sync", "quic", "gpu")
ARGUMENTS = ("--no-first-run", *(f"--disable-{each}" for each in QUIET))


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser that runs, as Playwright has it."""
    program = installed.chromium()
    assert program, "there is no Chromium; `make test-peers` installs one"
    sys.path.append(str(installed.PLAYWRIGHT))
    try:
        from playwright.sync_api import sync_playwright

        root = ("--no-sandbox",) if os.geteuid() == 0 else ()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=[*ARGUMENTS, *root])
            yield browser
            browser.close()
    finally:
        sys.path.remove(str(installed.PLAYWRIGHT))


def call(server: ServerProcess, method: str, path: str, body: Any = None, token: str = "") -> Any:
    """Call the gateway of a server with a token."""
    url = urlsplit(http_url(server))
    assert url.hostname
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=PATIENCE)
    headers = {"Authorization": f"Bearer {token or server.token}", "Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.status == 200, content
    return json.loads(content)


def link(server: ServerProcess, token: str = "") -> str:
    """A link that signs in."""
    return f"{http_url(server)}/#link={call(server, 'POST', '/console/links', token=token)['link']}"


class Page:
    """A page of the console that is signed in; whatever goes wrong in it is in `faults`."""

    def __init__(self, browser: Any, server: ServerProcess, *, token: str = "", **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(PATIENCE * 1000)
        self.url = http_url(server)
        self.faults: list[str] = []
        self.requested: list[str] = []
        self.context.on("request", lambda request: self.requested.append(request.url))
        self.page = self.open()
        self.page.goto(link(server, token))
        self.page.wait_for_selector(".shell")

    def open(self) -> Any:
        """Another tab of the same browser."""
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._said)
        page.on("dialog", self._asked)
        return page

    def _asked(self, dialog: Any) -> None:
        self.faults.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _said(self, message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    def go(self, path: str) -> None:
        self.page.goto(f"{self.url}/#/{path}")

    def close(self) -> None:
        """Close it. Fails if anything went wrong in the page, or a request has left its origin."""
        self.context.close()
        assert not self.faults, self.faults
        away = [each for each in self.requested if not each.startswith((self.url, "blob:"))]
        assert not away, away
