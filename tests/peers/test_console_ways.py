"""What a person does with a conversation in a real browser: steers, forks, rewinds, shows images, answers forms."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.peers import installed
from tests.peers.browser import Page, call
from tests.support.fake_provider import FakeProvider, calls, held, says
from tests.support.patience import eventually
from tests.support.pictures import png
from tests.support.server_process import ServerProcess, Servers, provider

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVED = ("--http", "127.0.0.1:0")
MCP_PROGRAM = installed.ROOT / "tests" / "integration" / "mcp" / "program.py"


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


@contextmanager
def modelled(folder: Path, settings: str = "") -> Iterator[tuple[ServerProcess, FakeProvider]]:
    """A server with these settings, whose model the test plays."""
    file, servers = folder / "settings.toml", Servers()
    file.write_text(settings)
    file.chmod(0o600)
    with FakeProvider() as model:
        yield servers(folder, "--http", "127.0.0.1:0", "--config", str(file), **provider(model.url)), model
        servers.close()


def chosen(page: Page, item: str) -> None:
    """Choose from the menu of a conversation."""
    page.page.click(".menu summary")
    page.page.click(f".menu-items >> text=/^{item}/")


def sent(page: Page, text: str) -> None:
    page.page.fill("textarea", text)
    page.page.press("textarea", "Enter")


def answered(page: Page, text: str) -> None:
    sent(page, text)
    page.page.wait_for_selector("li.agent")
    page.page.wait_for_selector(".conversation-head .state >> text=idle")


def test_a_phone_shows_a_newcomer_what_to_try(browser: Any, tmp_path: Path) -> None:
    servers = Servers()
    page = Page(browser, servers(tmp_path, "--http", "127.0.0.1:0"), viewport={"width": 400, "height": 800})
    page.page.click(".card >> text=A long answer")
    page.page.wait_for_selector(".live-text >> text=5")
    page.page.click(".composer >> text=Cancel")
    page.page.wait_for_selector(".note.cancel")
    page.go("")
    page.page.wait_for_selector(".conversation-row")
    page.close()
    servers.close()


def test_what_asks_a_person_is_beside_its_timeline(page: Page) -> None:
    page.go("")
    page.page.click(".card >> text=A tool that runs")
    page.page.wait_for_selector(".fall-row >> text=approval")
    page.page.click("section.ask >> text=Approve")
    page.page.wait_for_selector(".fall-row >> text=bash")
    page.page.wait_for_selector("section.ask", state="detached")


def test_a_steer_is_read_by_the_run_and_said_to_be_one(page: Page, tmp_path: Path) -> None:
    sent(page, "run until [ -e go ]; do sleep 0.05; done")
    page.page.wait_for_selector("button.send >> text=Steer")
    sent(page, "And say why.")
    page.page.wait_for_selector(".queued >> text=And say why.")
    (tmp_path / "go").touch()
    page.page.wait_for_selector("li.user:has-text('And say why.') .badge >> text=steer")


def test_a_fork_has_the_run_and_a_rewind_gives_its_text_back(page: Page) -> None:
    answered(page, "think")
    first = page.page.url
    page.page.hover("li.user")
    page.page.click("li.user >> text=Fork")
    page.page.wait_for_url(lambda url: url != first)
    page.page.wait_for_selector(".titles >> text=fork of")
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


def test_an_image_that_the_model_takes_is_in_the_chat(browser: Any, tmp_path: Path) -> None:
    with modelled(tmp_path) as (server, model):
        page = Page(browser, server)
        page.go(created(server, tmp_path))
        page.page.set_input_files("input[type=file]", {"name": "one.png", "mimeType": "image/png", "buffer": png()})
        sent(page, f"What is it? {model.part(says('A red one.')).key}")
        page.page.wait_for_selector("li.agent >> text=A red one.")
        shown = page.page.locator("li.user .picture img")
        assert shown.count() == 1
        eventually(lambda: shown.evaluate("(image) => image.naturalWidth > 0"), "the image")
        page.close()


def test_a_cancel_shows_how_long_the_last_process_lived(page: Page) -> None:
    sent(page, "sleep")
    page.page.wait_for_selector(".outcome >> text=running")
    page.page.press("textarea", "Escape")
    page.page.wait_for_selector(r".outcome >> text=/cancelled · .*\d process(es)? ended in [\d.]+ m?s/")
    page.go(f"{page.page.url.partition('#/')[2]}/timeline")
    page.page.wait_for_selector(".fall-row:has-text('bash') .span.k-kill", state="attached")
    page.page.wait_for_selector(r".fall-row .receipt >> text=/process(es)? ended in \d+ ms/")


def test_the_wait_for_a_slot_is_a_bar_of_its_own(browser: Any, tmp_path: Path) -> None:
    with modelled(tmp_path, "[quotas]\nconcurrent_model_requests = 1\n") as (server, model):
        first, second = model.part(held(says("First."))), model.part(says("Second."))
        with server.client() as client:
            client.create(str(tmp_path)).send(first.key)
        holding = first.next_reached()
        page = Page(browser, server)
        page.go(f"{created(server, tmp_path)}/timeline")
        call(server, "POST", f"/v1/conversations/{page.page.url.split('/')[-2]}:send", {"text": second.key})
        page.page.wait_for_selector(r".took >> text=/[2-9]\d\d ms|\d s/")
        holding.go.set()
        page.page.wait_for_selector(".span.k-slot[title^='waiting for a free slot']", state="attached")
        page.page.wait_for_selector(".legend >> text=waiting for a slot")
        page.page.wait_for_selector(".legend >> text=time to first token")
        page.close()


def test_model_effort_and_mode_are_changed_where_a_person_writes(browser: Any, tmp_path: Path) -> None:
    with modelled(tmp_path) as (server, model):
        page = Page(browser, server)
        page.go(name := created(server, tmp_path, model="models/demo"))
        page.page.wait_for_selector("textarea")
        settled(page, "Model", str(call(server, "GET", "/v1/serverInfo")["defaultModel"]))
        settled(page, "Effort", "REASONING_EFFORT_LOW")
        settled(page, "Mode", "MODE_UNRESTRICTED")
        page.page.wait_for_selector("select.careful[aria-label=Mode]")
        part = model.part(says("One."), says("Two."))
        answered(page, part.key)
        page.page.wait_for_selector("li.agent >> text=One.")
        settled(page, "Effort", "")
        sent(page, "Again.")
        page.page.wait_for_selector("li.agent >> text=Two.")
        first, second = [each.body for each in part.exchanges]
        assert first["output_config"]["effort"] == "low"
        assert "effort" not in second.get("output_config", {})
        assert call(server, "GET", f"/v1/conversations/{name[2:]}")["conversation"]["mode"] == "MODE_UNRESTRICTED"
        page.close()


def settled(page: Page, label: str, value: str) -> None:
    """Choose a setting, and wait until the server says that it is so."""
    place = f"[aria-label={label}]"
    with page.page.expect_response(lambda answer: answer.request.method in {"PATCH", "POST"}) as answer:
        page.page.select_option(place, value)
    assert answer.value.ok
    eventually(lambda: page.page.input_value(place) == value, f"{label} {value}")


def test_a_rule_that_an_approval_makes_counts_until_it_is_deleted(
    page: Page, server: ServerProcess, tmp_path: Path
) -> None:
    page.go(created(server, tmp_path, approvalPolicy="APPROVAL_POLICY_ASK_ALL"))
    sent(page, "run echo one")
    page.page.check("section.ask label.rule:has-text('begin with “echo”') input")
    page.page.click("section.ask >> text=Approve")
    page.page.wait_for_selector("text=bash answered")
    sent(page, "run echo two")
    page.page.wait_for_selector(":nth-match(:text('bash answered'), 2)")
    chosen(page, "Approval rules")
    page.page.wait_for_selector("dialog >> text=allow commands that begin with “echo”")
    page.page.click("dialog >> text=/^Delete$/")
    page.page.wait_for_selector("dialog >> text=No rules yet")
    page.page.keyboard.press("Escape")
    page.page.wait_for_selector("dialog", state="detached")
    sent(page, "run echo three")
    page.page.wait_for_selector("section.ask >> text=May the agent run bash?")


def test_a_conversation_is_compacted_and_goes_on_in_another_one(page: Page) -> None:
    answered(page, "think")
    first = page.page.url
    chosen(page, "Compact")
    page.page.wait_for_selector(".conversation-head .state >> text=context used up")
    assert page.page.is_disabled("textarea")
    chosen(page, "Continue in a new conversation")
    page.page.wait_for_url(lambda url: url != first)
    page.page.wait_for_selector("li.note >> text=Summary of the conversation")
    answered(page, "think")
    page.page.goto(first)
    page.page.wait_for_selector(".titles >> text=continued")


def test_a_conversation_is_put_into_the_archive_taken_out_and_deleted(page: Page) -> None:
    row = f"a.conversation-row[href$='{page.page.url.rpartition('/')[2]}']"
    page.page.wait_for_selector(row)
    chosen(page, "Archive")
    page.page.wait_for_selector(".titles >> text=archived")
    page.page.wait_for_selector(row, state="detached")
    page.page.click(".chips >> text=Archived")
    page.page.wait_for_selector(row)
    chosen(page, "Unarchive")
    page.page.wait_for_selector(row, state="detached")
    page.page.click(".chips >> text=All")
    page.page.wait_for_selector(row)
    chosen(page, "Delete…")
    page.page.click("dialog >> text=Keep")
    page.page.wait_for_selector("dialog", state="detached")
    chosen(page, "Delete…")
    page.page.click("dialog button.danger")
    page.page.wait_for_selector(".home")
    page.page.wait_for_selector(row, state="detached")


def test_sub_agents_are_a_tree_that_leads_to_them(page: Page) -> None:
    answered(page, "agents")
    page.go(f"{page.page.url.partition('#/')[2]}/agents")
    page.page.wait_for_selector(".inspector a[href^='#/c/'] >> nth=2")
    parent = page.page.url
    page.page.click(".inspector a[href^='#/c/'] >> nth=2")
    page.page.wait_for_url(lambda url: url != parent)
    page.page.wait_for_selector(".titles >> text=sub-agent of")


def test_a_sub_agent_opens_in_the_waterfall_of_its_parent(page: Page) -> None:
    answered(page, "agents")
    page.go(f"{page.page.url.partition('#/')[2]}/timeline")
    page.page.press(".fall-row [aria-expanded=false] >> nth=0", "Enter")
    page.page.wait_for_selector(".fall-row.inner >> text=bash")
    page.page.press(".fall-row [aria-expanded=true]", "Enter")
    page.page.wait_for_selector(".fall-row.inner", state="detached")


def test_a_question_of_an_mcp_server_is_a_form(browser: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", str(MCP_PROGRAM)]
    with modelled(tmp_path, f'[[mcp_servers]]\nname = "t"\ncommand = {command!r}\n') as (server, model):
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
