"""Every view of the console: by axe-core, with hostile text in every field, and as pictures to look at."""

from __future__ import annotations

import gzip
import json
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bedrock import v1
from bedrock._shared.wrapper import enum_name
from bedrock.cli.display import labels

from tests.generate import console_machine
from tests.peers import installed
from tests.peers.browser import Page, call
from tests.support.patience import eventually
from tests.support.server_process import ServerProcess, Servers

if TYPE_CHECKING:
    from tests.peers.conftest import Node

SERVED = ("--http", "127.0.0.1:0")
CONSOLE = installed.ROOT / "clients" / "console"
PICTURES = installed.ROOT / "reports" / "console"
SIZES: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 800}},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "wide": {"viewport": {"width": 3840, "height": 2160}},
    "phone": {"viewport": {"width": 400, "height": 800}},
}
CONTENT = {"timeline": ".span", "machine": ".edge.lit", "log": "details", "usage": ".column", "agents": ".branches"}
VIEWS = ("", *CONTENT)
TEXTS = "all => all.map(one => one.textContent)"
MOST_BYTES = 200_000
SEEDS = json.loads((Path(__file__).parent / "hostile.json").read_text())
BEFORE, AFTER = ("", "> ", "- ", "# ", "**x** "), ("", "\n", " **", "\n\n| a |")
PAYLOADS = [f"{before}{seed}{after}" for seed in SEEDS for before in BEFORE for after in AFTER]
DRAW = (Path(__file__).parent / "hostile.js").read_text().partition("\n")[2]


@pytest.fixture(scope="module")
def shown(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A conversation with something in every view; its id."""
    with server.client() as client:
        conversation = client.create(str(tmp_path_factory.mktemp("work")))
        for text in ("agents", "retry", "run sleep 0.3; ls /usr"):
            conversation.ask(text)
        conversation.send("sleep")
        name = conversation.name
        eventually(lambda: "toolExecuting" in state(server, name), "a tool that runs")
        conversation.cancel()
        conversation.update(approval_policy="ask_all")
        conversation.send("run echo **what** waits for a person")
        eventually(lambda: "awaitingApproval" in state(server, name), "a question")
    return name.partition("/")[2]


def state(server: ServerProcess, name: str) -> Any:
    return call(server, "GET", f"/v1/{name}")["conversation"]["state"]


@pytest.mark.parametrize("size", SIZES)
def test_every_view_has_no_serious_finding_of_axe(browser: Any, server: ServerProcess, shown: str, size: str) -> None:
    axe = (installed.NODE_PACKAGES / "node_modules" / "axe-core" / "axe.min.js").read_text()
    page = Page(browser, server, **SIZES[size], reduced_motion="reduce")
    PICTURES.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for path in ("", *(f"c/{shown}/{view}" for view in VIEWS), "nodes", "audit"):
        page.go(path)
        page.page.reload()  # each is there by its address alone
        view = path.rpartition("/")[2] if path.startswith("c/") else ""
        content = f".inspector.{view} {CONTENT[view]}" if view else "main .view > *"
        page.page.wait_for_selector(content, state="attached")
        page.page.wait_for_timeout(700)
        name = path.replace(shown, "").strip("c/") or ("chat" if path else "home")
        page.page.screenshot(path=PICTURES / f"{size}-{name}.png")
        page.page.evaluate(axe)  # by the debugger, which the policy of the page does not bind
        result = page.page.evaluate("axe.run()")
        found[name] = [
            f"{each['id']}: {each['nodes'][0]['html'][:160]} {each['nodes'][0].get('failureSummary', '')[:200]}"
            for each in result["violations"]
            if each["impact"] in {"serious", "critical"}
        ]
    page.context.close()
    assert {name: each for name, each in found.items() if each} == {}
    assert page.faults == []


@pytest.mark.parametrize(
    ("status", "title"),
    [
        (404, "No such conversation"),
        (403, "You cannot read this conversation"),
        (503, "The server cannot show this conversation now"),
        (0, "The server cannot be reached"),
    ],
)
def test_a_failed_read_is_titled_by_what_happened(
    browser: Any, server: ServerProcess, shown: str, status: int, title: str
) -> None:
    page = Page(browser, server)
    place, again = f"**/v1/conversations/{shown}", status in {0, 503}
    page.page.route(place, lambda route: route.fulfill(status=status, body="") if status else route.abort())
    page.go(f"c/{shown}")
    page.page.wait_for_selector(f".blank h2 >> text={title}")
    assert page.page.is_visible(".blank >> text=Trying again") == again
    page.page.unroute(place)
    if again:
        page.page.wait_for_selector("textarea")
    page.close()


def test_the_log_shows_json_as_structure_also_within_its_strings(
    browser: Any, server: ServerProcess, shown: str
) -> None:
    page = Page(browser, server)
    page.go(f"c/{shown}/log")
    page.page.select_option(".inspector select", "llm_response")
    page.page.click(".log summary >> nth=0")
    page.page.wait_for_selector(".tree li >> text=echo **what** waits for a person")
    read = 'all => all.map(one => one.textContent).filter(text => /^\\s*[{[]\\s*["{[]/.test(text))'
    assert page.page.eval_on_selector_all(".tree .text", read) == []
    assert page.page.locator(".tree b >> text=cmd").count() > 0
    page.close()


def test_each_state_is_called_the_same_in_the_terminal(browser: Any, server: ServerProcess) -> None:
    kinds = [enum_name(v1.StateKind, kind) for kind in v1.StateKind.values() if kind]
    page = Page(browser, server)
    read = """async (kinds) => { const { stateWords } = await import('/console/format.js');
      return kinds.map((kind) => stateWords({ kind: `STATE_KIND_${kind.toUpperCase()}` }).text); }"""
    assert page.page.evaluate(read, kinds) == [labels.state_in_words(kind) for kind in kinds]
    assert all("_" not in labels.state_in_words(kind) for kind in kinds)
    page.close()


OVERLAPS = """() => {
  const found = [], box = (one) => one.getBoundingClientRect();
  const texts = [...document.querySelectorAll('.took, .receipt, .mark, .axis span, .fall-label')].filter((each) => each.textContent);
  const bars = [...document.querySelectorAll('.track .span')];
  const meet = (one, two) => one.left < two.right - 0.5 && two.left < one.right - 0.5 && one.top < two.bottom - 0.5 && two.top < one.bottom - 0.5;
  texts.forEach((text, index) => {
    for (const other of [...texts.slice(index + 1), ...bars]) if (meet(box(text), box(other))) found.push(`${text.textContent} / ${other.textContent || other.title}`);
    if (text.matches('.took, .axis span') && text.scrollWidth > text.clientWidth + 1) found.push(`${text.textContent} is cut off`);
  });
  return [texts.length, bars.length, found];
}"""  # noqa: E501 -- a program of the page


@pytest.mark.parametrize("width", [400, 820, 1280, 1600, 2560, 3840])
def test_no_label_of_the_timeline_lies_over_a_bar_or_another(
    browser: Any, server: ServerProcess, shown: str, width: int
) -> None:
    page = Page(browser, server, viewport={"width": width, "height": 1000}, reduced_motion="reduce")
    for run in range(1, 6):
        page.go(f"c/{shown}/timeline/{shown}:{run}")
        page.page.wait_for_selector(f".inspector.timeline >> text=run {run} of 5")
        texts, bars, found = page.page.evaluate(OVERLAPS)
        assert texts > 2
        assert bars > 0
        assert found == []
        assert not page.page.evaluate("document.querySelector('.waterfall-scroll').scrollWidth > innerWidth")
    page.close()


@pytest.mark.parametrize("width", [400, 3840])
def test_the_chart_of_tokens_has_axes(browser: Any, server: ServerProcess, shown: str, width: int) -> None:
    page = Page(browser, server, viewport={"width": width, "height": 1000})
    page.go(f"c/{shown}/usage")
    page.page.wait_for_selector(".columns .column")
    scale = page.page.eval_on_selector_all(".scale span", TEXTS)
    assert scale[0] == "0"
    assert len(scale) > 2
    assert page.page.inner_text(".chart .unit") == "tokens"
    # In one evaluation: the page may be drawn again between two, and what was found before has no place then.
    times, columns = page.page.evaluate("""['.times time', '.columns .column'].map(name =>
        [...document.querySelectorAll(name)].map(one => one.getBoundingClientRect())
            .map(box => [box.left, box.right]))""")
    assert times[0][0] == pytest.approx(columns[0][0], abs=1)
    assert all(one[1] <= two[0] for one, two in pairwise(times)), "times lie over one another"
    page.close()


def test_a_time_of_another_day_has_its_date(browser: Any, server: ServerProcess) -> None:
    page = Page(browser, server, locale="en-US", timezone_id="UTC")
    read = (
        """async ([time, today]) => (await import('/console/format.js')).clock(time, new Date(today).toDateString())"""
    )
    read_at = "2026-03-04T05:06:07Z"
    assert page.page.evaluate(read, [read_at, "2026-03-04T23:00:00Z"]).replace("\u202f", " ") == "05:06:07 AM"
    assert page.page.evaluate(read, [read_at, "2026-03-05T00:00:00Z"]).replace("\u202f", " ") == "Mar 4, 05:06 AM"
    page.close()


def test_a_run_has_its_last_state_and_sub_agents_side_by_side_count_once(
    browser: Any, server: ServerProcess, shown: str
) -> None:
    page = Page(browser, server)
    page.go(f"c/{shown}/machine/{shown}:1")
    page.page.wait_for_selector(".path-words .step")
    path = page.page.eval_on_selector_all(".path-words .step", TEXTS)
    assert (path[0], path[-1]) == ("idle", "idle")
    assert "waiting for sub-agents" in path
    count = """async () => {
      const { shares } = await import('/console/runs.js'), span = (kind, from, to) => ({ kind, from, to });
      const spans = [[span('agents', 0, 10)], [span('agents', 5, 15)], [span('agents', 2, 4)], [span('agents', 20, null)], [span('tool', 0, 4), span('kill', 3, 4)]];
      return shares({ rows: new Map(spans.map((each, at) => [at, { spans: each }])) }, 23);
    }"""  # noqa: E501 -- a program of the page
    assert page.page.evaluate(count) == {"agents": 18, "tool": 4}
    page.close()


def test_the_audit_says_who_did_what_and_what_was_decided(browser: Any, server: ServerProcess, shown: str) -> None:
    page = Page(browser, server)
    page.go("audit")
    row = f"tr:has(a[href='#/c/{shown}'])"
    page.page.wait_for_selector(f"{row} >> text=bash: asked")
    page.page.wait_for_selector(f"{row}:has-text('SendMessage'):has-text('accepted'):has-text('operator')")
    page.page.select_option("[aria-label=Outcome]", "OUTCOME_REFUSED")
    page.page.wait_for_selector("text=No entries match.")
    page.page.select_option("[aria-label=Outcome]", "")
    page.page.select_option("[aria-label=Since]", label="the last hour")
    page.page.wait_for_selector(f"{row} >> text=CancelConversation")
    page.page.fill("[aria-label=Principal]", "nobody")
    page.page.press("[aria-label=Principal]", "Enter")
    page.page.wait_for_selector("text=No entries match.")
    page.close()


CLEAR = """() => {
  const distance = (one, two) => Math.hypot(one.x - two.x, one.y - two.y), found = [];
  const lines = [...document.querySelectorAll('.edge')].map((edge) => {
    const line = edge.querySelector('.line'), long = line.getTotalLength();
    return { name: edge.querySelector('title').textContent, points: Array.from({ length: Math.ceil(long / 3) + 1 }, (_, at) => line.getPointAtLength(Math.min(long, 3 * at))) };
  });
  const boxes = [...document.querySelectorAll('.node')].map((node) => {
    const { e: x, f: y } = node.transform.baseVal[0].matrix, { width: { baseVal: { value: w } }, height: { baseVal: { value: h } } } = node.querySelector('rect');
    return { name: node.textContent, x, y, w, h };
  });
  lines.forEach((line, index) => {
    for (const { name, x, y, w, h } of boxes) if (line.points.some((each) => each.x > x + 1 && each.x < x + w - 1 && each.y > y + 1 && each.y < y + h - 1)) found.push(`${line.name} runs behind ${name}`);
    for (const other of lines.slice(index + 1)) if (line.points.filter((each) => other.points.some((point) => distance(each, point) < 4)).length > 8) found.push(`${line.name} lies on ${other.name}`);
  });
  return [lines.length, boxes.length, found];
}"""  # noqa: E501 -- a program of the page


def test_no_arrow_of_the_diagram_runs_behind_a_box_or_along_another(
    browser: Any, server: ServerProcess, shown: str
) -> None:
    page = Page(browser, server)
    for run in range(1, 6):
        page.go(f"c/{shown}/machine/{shown}:{run}")
        page.page.wait_for_selector(f"select[aria-label=Run] option:checked >> text=/^{run}: /", state="attached")
        page.page.wait_for_selector(".edge.lit")
        arrows, boxes, found = page.page.evaluate(CLEAR)
        assert arrows >= len(json.loads(console_machine.TARGET.read_text())["edges"])
        assert boxes == len(json.loads(console_machine.TARGET.read_text())["states"])
        assert found == []
    assert page.page.eval_on_selector_all("[aria-current].live", TEXTS) == ["waiting for approval AwaitingToolApproval"]
    page.close()


def test_hostile_text_in_every_field_runs_nothing_and_asks_nobody(browser: Any, server: ServerProcess) -> None:
    assert len(PAYLOADS) == 500
    page = Page(browser, server)
    result = page.page.evaluate(DRAW, [PAYLOADS])
    assert result.pop("drawn") >= 5 * len(PAYLOADS)
    assert result == {"hit": None, "violations": [], "odd": [], "links": [], "bidi": False}
    page.close()


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("> " * 4_000 + "the end", 40, "the end"),
        ("\n".join("  " * level + f"- {level}" for level in range(1_500)), 40, "1499"),
        ("| a |\n|---|\n" + "| **b** |\n" * 26_000, 5_000, "… 25000 more rows"),
        ("|" * 100_000 + "\n|---|\n", 300, ""),
        ("**a " * 20_000 + "the end", 10_000, "the end"),
        ("[" * 200_000 + "the end", 3, "the end"),
        ("|".join(map(str, range(300))) + "\n|---|\n", 300, "299"),
        ("\n\n".join(f"para{number}" for number in range(6_000)), 5_100, "para5999"),
        ("# a" + " " * 100_000 + "\rthe end", 10, "the end"),
        ("|\n" + " " * 100_000 + "-" + " " * 100_000 + "the end", 10, "the end"),
    ],
    ids=["quotes", "lists", "rows", "columns", "marks", "brackets", "cells", "blocks", "heading", "divider"],
)
def test_markdown_that_is_deep_long_or_wide_stays_a_page(
    browser: Any, server: ServerProcess, text: str, most: int, shown: str
) -> None:
    page = Page(browser, server)
    made, said = page.page.evaluate(
        """async (text) => {
          const element = (await import('/console/markdown.js')).markdown(text);
          return [element.querySelectorAll('*').length, element.textContent];
        }""",
        text,
    )
    assert made <= most
    assert shown in said
    page.close()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[https://good.example/?of=evil.example](https://evil.example/)", "(evil.example)"),
        ("https://good.example@evil.example/", "(evil.example)"),
        ("[evil.example](https://evil.example/)", "evil.example"),
        ("a\u00adb\u3164c\U000e0041", "a⟨00AD⟩b⟨3164⟩c⟨E0041⟩"),
    ],
)
def test_nothing_looks_like_what_it_is_not(browser: Any, server: ServerProcess, text: str, shown: str) -> None:
    page = Page(browser, server)
    draw = "async (text) => (await import('/console/markdown.js')).markdown(text).textContent"
    assert page.page.evaluate(draw, text).endswith(shown)
    page.close()


def test_a_server_that_is_killed_and_started_again_under_an_open_page(browser: Any, tmp_path: Path) -> None:
    servers = Servers()
    first = servers(tmp_path, "--http", "127.0.0.1:0")
    page = Page(browser, first)
    created = call(first, "POST", "/v1/conversations", {"workingDirectory": str(tmp_path)})["conversation"]["name"]
    page.go(f"c/{created.partition('/')[2]}")
    page.page.fill("textarea", "sleep")
    page.page.press("textarea", "Enter")
    page.page.wait_for_selector(".outcome >> text=running")
    page.page.click(".brand >> text=New")
    page.page.fill("#instructions", "a text that is not lost")
    first.kill()
    page.page.wait_for_selector("text=The server cannot be reached")
    second = servers(tmp_path, "--http", page.url.removeprefix("http://"))
    page.page.wait_for_selector("text=You have been signed out")
    page.page.fill("#token", second.token)
    page.page.press("#token", "Enter")
    page.page.wait_for_selector("dialog #instructions")
    assert page.page.input_value("#instructions") == "a text that is not lost"
    page.page.keyboard.press("Escape")
    page.page.wait_for_selector("text=interrupted by a server restart")
    assert page.page.locator("li.user").count() == 1
    page.context.close()
    servers.close()


def test_all_that_is_served_is_small(server: ServerProcess) -> None:
    files = [each for each in CONSOLE.iterdir() if each.suffix in {".js", ".css", ".html", ".svg", ".json"}]
    packed = sum(len(gzip.compress(each.read_bytes())) for each in files)
    assert packed < MOST_BYTES


def test_the_diagram_is_that_of_the_core() -> None:
    assert json.loads(console_machine.TARGET.read_text()) == json.loads(console_machine.render())


def test_the_types_in_the_comments_hold(node: Node) -> None:
    compiler = installed.NODE_PACKAGES / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run([node.program, compiler, "-p", CONSOLE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
