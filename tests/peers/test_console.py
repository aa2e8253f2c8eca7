"""The console in a real browser: sign in, chat, approve, cancel, steer, and what others do on the same conversation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.peers.browser import Page, call, link
from tests.support.patience import eventually
from tests.support.server_process import ServerProcess, Servers, clean_environment, http_url
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# The width of a button, and how far its words are from its centre.
PLACE = """button => {
  const words = document.createRange(), box = button.getBoundingClientRect();
  words.selectNodeContents(button.firstChild);
  const { x, width } = words.getBoundingClientRect();
  return [Math.round(box.width), x + width / 2 - box.x - box.width / 2];
}"""
FROM_END = "one => one.scrollHeight - one.scrollTop - one.clientHeight"
SERVED = ("--http", "127.0.0.1:0")
ORDER = "all => all.map(one => one.id)"
TEXTS = "all => all.map(one => one.innerText.trim())"


@pytest.fixture
def page(browser: Any, server: ServerProcess) -> Iterator[Page]:
    found = Page(browser, server)
    yield found
    found.close()


@pytest.fixture
def conversation(server: ServerProcess, tmp_path: Path) -> Callable[..., str]:
    """Create a conversation; returns its id."""

    def create(**fields: Any) -> str:
        made = call(server, "POST", "/v1/conversations", {"workingDirectory": str(tmp_path), **fields})
        return str(made["conversation"]["name"]).partition("/")[2]

    return create


def test_a_link_signs_in_once_and_the_token_is_nowhere_in_the_page(browser: Any, server: ServerProcess) -> None:
    used = link(server)
    context = browser.new_context()
    page = context.new_page()
    page.goto(used)
    page.wait_for_selector(".shell")
    assert page.url == http_url(server) + "/#/" or page.url == http_url(server) + "/"
    seen = page.evaluate("[document.cookie, document.documentElement.outerHTML, JSON.stringify(localStorage)].join()")
    assert server.token not in seen
    assert "bedrock-" not in seen, "a script can read the cookie"
    cookie = next(each for each in context.cookies() if each["name"].startswith("bedrock-"))
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    context.clear_cookies()
    page.goto("about:blank")
    page.goto(used)
    page.wait_for_selector(".said >> text=has been used or has expired")
    page.fill("#token", server.token)
    page.press("#token", "Enter")
    page.wait_for_selector(".shell")
    page.click("text=Sign out")
    page.wait_for_selector("#token")
    page.reload()
    page.wait_for_selector("#token")
    assert page.inner_text(".said") == "", "there was no session that could end"
    context.close()


def test_a_page_of_another_port_changes_nothing_with_the_session(browser: Any, server: ServerProcess) -> None:
    context, here = browser.new_context(), http_url(server)
    page = context.new_page()
    page.goto(link(server))
    page.wait_for_selector(".shell")
    for origin, status in ((here, 400), ("http://127.0.0.1:9", 403)):  # to a browser the same site
        answer = context.request.post(f"{here}/v1/conversations", data={}, headers={"Origin": origin})
        assert answer.status == status
    context.close()


def test_a_whole_conversation_by_keyboard_alone(page: Page, conversation: Callable[..., str], tmp_path: Path) -> None:
    page.go(f"c/{conversation(approvalPolicy='APPROVAL_POLICY_ASK_ALL')}")
    at = page.page
    at.wait_for_selector("textarea:focus")
    at.keyboard.type("run echo it works")
    at.keyboard.press("Enter")
    at.wait_for_selector("section.ask >> text=May the agent run bash?")
    at.keyboard.press("Escape")  # out of the field, as a question is open
    at.keyboard.press("Escape")
    at.wait_for_selector(".note.cancel")
    at.wait_for_selector("section.ask", state="detached")
    at.keyboard.press("c")
    at.keyboard.type("run echo it works")
    at.keyboard.press("Enter")
    at.wait_for_selector("section.ask:not(:has(kbd:visible))")  # asked, and a letter is typed as yet
    width, from_centre = at.eval_on_selector("[data-key=a]", PLACE)
    assert abs(from_centre) < 1
    at.keyboard.press("Escape")
    at.wait_for_selector("section.ask kbd")
    assert at.eval_on_selector("[data-key=a]", PLACE)[0] == width, "it moves under a pointer that takes the focus"
    at.keyboard.press("a")
    at.wait_for_selector("text=bash answered with 2 lines")
    at.keyboard.press("?")
    at.wait_for_selector("dialog >> text=approve the request")
    at.keyboard.press("Escape")
    at.wait_for_selector("dialog", state="detached")
    at.keyboard.press("c")
    at.keyboard.type("count")
    at.keyboard.press("Enter")
    at.wait_for_selector(".live-text >> text=/five|5/")
    at.keyboard.type("Only to ten.")
    at.keyboard.press("Tab")
    at.wait_for_selector(".queued >> text=Only to ten.")
    at.keyboard.press("Tab")  # out of the field, as it is empty
    at.keyboard.press("w")
    at.wait_for_selector(".queued", state="detached")
    at.keyboard.press("Escape")
    at.wait_for_selector(".note.cancel >> nth=1")


def test_the_end_stays_in_view_as_the_window_changes(page: Page, conversation: Callable[..., str]) -> None:
    at = page.page
    page.go(f"c/{conversation()}")
    at.fill("textarea", "a word or two " * 300)
    at.keyboard.press("Enter")
    at.wait_for_selector("li.agent >> text=Type help")
    for size in ({"width": 390, "height": 800}, {"width": 1200, "height": 400}):
        at.set_viewport_size(size)
        eventually(
            lambda: at.eval_on_selector(".transcript", FROM_END) < 2 or at.wait_for_timeout(10), f"the end, {size}"
        )


def test_a_field_takes_no_focus_from_a_person_who_moves_by_keys(page: Page, conversation: Callable[..., str]) -> None:
    at = page.page
    first, second = conversation(title="First"), conversation(title="Second")
    for title in ("First", "Second"):
        at.wait_for_selector(f".conversation-row >> text={title}")
    at.keyboard.press("j")
    moved(page, "Second", second)
    at.keyboard.press("j")
    moved(page, "First", first)
    at.keyboard.press("k")
    moved(page, "Second", second)
    held: list[Any] = []
    at.route(f"**/v1/conversations/{first}", lambda route: held.append(route))  # noqa: PLW0108 -- Playwright takes no built-in one
    at.keyboard.press("j")
    eventually(lambda: held or at.wait_for_timeout(10), "the page asks for the first")
    at.keyboard.press("n")
    at.wait_for_selector("dialog #directory:focus")
    at.keyboard.press("Escape")
    at.wait_for_selector("dialog", state="detached")
    held[0].continue_()
    moved(page, "First", first)
    at.keyboard.press("h")
    at.wait_for_selector(".home")


def moved(page: Page, title: str, name: str) -> None:
    page.page.wait_for_selector(f"h1 >> text={title}")
    page.page.wait_for_selector("textarea")
    assert page.page.url.endswith(f"#/c/{name}")


def test_two_browsers_and_a_terminal_see_the_same_order(
    browser: Any, page: Page, server: ServerProcess, conversation: Callable[..., str]
) -> None:
    name = conversation()
    other = Page(browser, server)
    environ = {"BEDROCK_ADDRESS": server.address, "BEDROCK_TOKEN": server.token}
    with Terminal("chat", "-r", f"conversations/{name}", environ=environ) as terminal:
        terminal.shows("idle · ")
        for each in (page, other):
            each.go(f"c/{name}")
            each.page.wait_for_selector("textarea")
        texts = ["run echo by the first", "run echo by the terminal", "run echo by the second"]
        said_by_browser(page, texts[0])
        everywhere(page, other, terminal, texts[:1])
        terminal.keys(f"{texts[1]}\r")
        everywhere(page, other, terminal, texts[:2])
        said_by_browser(other, texts[2])
        everywhere(page, other, terminal, texts)
        terminal.keys("\x04")
        assert terminal.ends() == 0
    shown = [each.page.eval_on_selector_all("ol.messages > li", ORDER) for each in (page, other)]
    asked = [each.page.eval_on_selector_all("li.user .bubble", TEXTS) for each in (page, other)]
    other.close()
    assert shown[0] == shown[1] == [f"m-{number}" for number in range(1, len(shown[0]) + 1)]
    assert asked == [texts, texts]


def said_by_browser(page: Page, text: str) -> None:
    page.page.fill("textarea", text)
    page.page.press("textarea", "Enter")


def everywhere(page: Page, other: Page, terminal: Terminal, texts: list[str]) -> None:
    """Wait until every reader has seen the end of these runs."""
    for each in (page, other):
        each.page.wait_for_selector(f":nth-match(:text('bash answered'), {len(texts)})")
        each.page.wait_for_selector(".conversation-head >> text=idle")
    terminal.until(lambda _: answers(terminal) == [text.removeprefix("run echo ") for text in texts])


def answers(terminal: Terminal) -> list[str]:
    """What the agent has answered, in the order of the screen."""
    return re.findall(r"^(by the \w+)$", "\n".join(row.strip() for row in terminal.rows), re.MULTILINE)


def test_ten_tabs_share_one_stream(page: Page, conversation: Callable[..., str]) -> None:
    tabs = [page.page, *(page.open() for _ in range(9))]
    for number, tab in enumerate(tabs):
        tab.goto(f"{page.url}/#/c/{conversation(title=f'Number {number}')}")
        tab.wait_for_selector("textarea")
    for tab in tabs:
        tab.fill("textarea", "think")
        tab.press("textarea", "Enter")
    for tab in tabs:
        tab.wait_for_selector("li.agent")


def test_what_a_person_has_open_stays_open_while_the_conversation_changes(
    page: Page, server: ServerProcess, conversation: Callable[..., str]
) -> None:
    one, tab = conversation(title="Before"), page.page
    page.go(f"c/{one}")
    tab.click("details.menu > summary")
    tab.focus(".menu-items >> text=Approval rules")
    settings = tab.query_selector(".settings")
    call(server, "PATCH", f"/v1/conversations/{one}?updateMask=title", {"title": "After"})
    tab.wait_for_selector("h1 >> text=After")
    assert tab.is_visible(".menu-items >> text=Approval rules")
    assert tab.evaluate("document.activeElement.textContent").startswith("Approval rules")
    assert settings.evaluate("(element) => element.isConnected"), "a list that is open would close"


def test_a_reader_sees_a_page_without_anything_that_changes(browser: Any, tmp_path: Path) -> None:
    servers = Servers()
    settings = tmp_path / "bedrock.toml"
    settings.write_text(f"[principals.ann]\nroots = [{json.dumps(str(tmp_path))}]\n")
    server = servers(tmp_path, "--http", "127.0.0.1:0", "--config", str(settings))
    reader = issued(server, tmp_path)
    page = Page(browser, server, token=reader)
    page.page.wait_for_selector("text=read-only")
    assert page.page.query_selector("text=New") is None
    other = page.open()
    other.goto(link(server))  # another person signs in in another tab of the same browser
    page.page.wait_for_selector(".brand >> text=New")
    call(server, "POST", "/v1/conversations", {"workingDirectory": str(tmp_path), "title": "Not Ann's"})
    page.page.wait_for_selector(".conversation-row >> text=Not Ann's")
    page.page.click(".brand >> text=New")
    page.page.fill("#directory", "/no/such/folder")
    page.page.press("#directory", "Enter")
    said = page.page.wait_for_selector("dialog #directory:focus + [role=alert]")
    assert "working_directory" not in said.inner_text()
    page.page.fill("#instructions", "for one person only")
    other.click("text=Sign out")
    page.page.wait_for_selector("#token")
    page.page.fill("#token", reader)
    page.page.press("#token", "Enter")
    page.page.wait_for_selector("text=read-only")
    assert page.page.query_selector("#instructions") is None, "what one has typed is not shown to the next"
    page.close()
    servers.close()


def issued(server: ServerProcess, folder: Path) -> str:
    """A token of a reader."""
    command = [sys.executable, "-m", "bedrock.cli", "token", "create", "ann", "--role", "reader"]
    places = ["--config", str(folder / "bedrock.toml"), "--data-dir", str(server.data)]
    environment = clean_environment(folder)
    made = subprocess.run([*command, *places], env=environment, capture_output=True, text=True, check=True)
    return made.stdout.split()[-1]
