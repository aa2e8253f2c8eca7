"""What a person does with a conversation in a real browser: steers, forks, rewinds, shows images, answers forms."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.peers import installed
from tests.peers.browser import Page, call, chromium
from tests.support.fake_provider import FakeProvider, calls, says
from tests.support.patience import eventually
from tests.support.pictures import png
from tests.support.server_process import ServerProcess, Servers, provider

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MCP_PROGRAM = installed.ROOT / "tests" / "integration" / "mcp" / "program.py"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    servers = Servers()
    yield servers(tmp_path_factory.mktemp("server"), "--http", "127.0.0.1:0")
    servers.close()


@pytest.fixture
def page(browser: Any, server: ServerProcess, tmp_path: Path) -> Iterator[Page]:
    """A page with a new conversation."""
    found = Page(browser, server)
    found.go(created(server, tmp_path))
    found.page.wait_for_selector("textarea")
    yield found
    found.close()


def created(server: ServerProcess, folder: Path, **fields: str) -> str:
    made = call(server, "POST", "/v1/conversations", {"workingDirectory": str(folder), **fields})
    return f"c/{made['conversation']['name'].partition('/')[2]}"


def sent(page: Page, text: str) -> None:
    page.page.fill("textarea", text)
    page.page.press("textarea", "Enter")


def answered(page: Page, text: str) -> None:
    sent(page, text)
    page.page.wait_for_selector("li.agent")
    page.page.wait_for_selector(".conversation-head .state >> text=idle")


def test_a_steer_is_read_by_the_run_and_said_to_be_one(page: Page) -> None:
    sent(page, "run sleep 0.5")
    page.page.wait_for_selector("button.send >> text=Steer")
    sent(page, "And say why.")
    page.page.wait_for_selector("li.user:has-text('And say why.') .badge >> text=steer")


def test_a_fork_has_the_run_and_a_rewind_gives_its_text_back(page: Page) -> None:
    answered(page, "think")
    first = page.page.url
    page.page.hover("li.user")
    page.page.click("li.user >> text=Fork")
    page.page.wait_for_url(lambda url: url != first)
    page.page.wait_for_selector(".titles >> text=forked")
    assert page.page.inner_text("li.user .bubble").strip() == "think"
    fork = page.page.url
    page.page.hover("li.user")
    page.page.click("li.user >> text=Rewind")
    page.page.wait_for_url(lambda url: url != fork)
    eventually(lambda: page.page.locator("textarea").all() and page.page.input_value("textarea") == "think", "its text")
    assert page.page.locator("li.user").count() == 0


def test_images_are_shown_until_they_are_removed_and_come_back_from_a_refusal(page: Page) -> None:
    image = {"name": "one.png", "mimeType": "image/png", "buffer": png()}
    page.page.set_input_files("input[type=file]", [image, {**image, "name": "two.png"}])
    page.page.click(".previews figure:nth-child(2) >> text=✕")
    page.page.wait_for_selector(".previews figure:nth-child(2)", state="detached")
    sent(page, "What is it?")
    page.page.wait_for_selector(".toast >> text=image")  # the demo model takes none
    shown = page.page.locator(".previews figure img")
    assert shown.count() == 1
    assert shown.evaluate("(image) => image.naturalWidth > 0")
    assert page.page.input_value("textarea") == "What is it?"


def test_sub_agents_are_a_tree_that_leads_to_them(page: Page) -> None:
    answered(page, "agents")
    page.go(f"{page.page.url.partition('#/')[2]}/agents")
    page.page.wait_for_selector(".inspector a[href^='#/c/'] >> nth=2")
    parent = page.page.url
    page.page.click(".inspector a[href^='#/c/'] >> nth=2")
    page.page.wait_for_url(lambda url: url != parent)
    page.page.wait_for_selector(".titles >> text=of its parent")


def test_a_sub_agent_opens_in_the_waterfall_of_its_parent(page: Page) -> None:
    answered(page, "agents")
    page.go(f"{page.page.url.partition('#/')[2]}/timeline")
    page.page.press(".fall-row [aria-expanded=false] >> nth=0", "Enter")
    page.page.wait_for_selector(".fall-row.inner >> text=bash")
    page.page.press(".fall-row [aria-expanded=true]", "Enter")
    page.page.wait_for_selector(".fall-row.inner", state="detached")


def test_a_question_of_an_mcp_server_is_a_form(browser: Any, tmp_path: Path) -> None:
    servers = Servers()
    settings = tmp_path / "settings.toml"
    command = [sys.executable, "-I", "-S", str(MCP_PROGRAM)]
    settings.write_text(f'[[mcp_servers]]\nname = "t"\ncommand = {command!r}\n')
    settings.chmod(0o600)
    with FakeProvider() as model:
        ways = ("--http", "127.0.0.1:0", "--config", str(settings))
        server = servers(tmp_path, *ways, **provider(model.url))
        with server.client() as client:
            eventually(lambda: bool(client.server_info().mcp_servers[0].tools), "its tools")
        part = model.part(calls(("mcp__t__ask", {})), says("It is done."))
        page = Page(browser, server)
        page.go(created(server, tmp_path, mode="MODE_UNRESTRICTED"))
        sent(page, f"Ask me. {part.key}")
        page.page.wait_for_selector("section.ask >> text=t asks")
        page.page.fill("form.question input[type=text]", "main")
        page.page.check("form.question input[type=checkbox]")
        page.page.click("form.question >> text=Answer")
        page.page.wait_for_selector("li.agent >> text=It is done.")
        results = call(server, "GET", f"/v1/conversations/{page.page.url.partition('#/c/')[2]}/messages")["messages"]
        blocks = [block for each in results for block in each["content"]]
        (given,) = [block["toolResult"]["output"] for block in blocks if "toolResult" in block]
        assert '"branch": "main"' in given
        assert '"force": true' in given
        page.close()
    servers.close()
