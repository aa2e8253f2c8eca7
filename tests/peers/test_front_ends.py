"""Programs for Node that know HTTP and nothing of this project: AG-UI's client, EventSource, and tools for OpenAPI.

AG-UI's client is the judge: it ends a run whose events break the order, or have a field that its schema has not.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.documents.pages import ROOT, fenced
from tests.e2e.test_http import CUTS, client_of, created, durable
from tests.peers import installed
from tests.peers.conftest import Node
from tests.support.fake_provider import FakeProvider, calls, dribbles, says, stalls
from tests.support.patience import PATIENCE, only
from tests.support.server_process import ServerProcess, Servers, http_url, provider

Run = Callable[..., Any]
HEAD = """
import { HttpAgent } from '@ag-ui/client';
const { URL: url, TOKEN: token, THREAD: threadId } = process.env;
const headers = { Authorization: `Bearer ${token}` };
const made = () => new HttpAgent({ url: `${url}/ag-ui/v1/run`, threadId, headers });
const agent = made();
const say = (content, more = {}) => agent.addMessage({ id: crypto.randomUUID(), role: 'user', content, ...more });
const tools = [{ name: 'find_order', description: 'Finds an order.', parameters: { type: 'object' } }];
const told = [];
const run = async (parameters = {}, on = {}) => {
  let pending = [];
  const onRunFinishedEvent = ({ event, pendingToolCallIds }) => {
    told.push(event.outcome.type);
    pending = pendingToolCallIds ?? [];
  };
  const onCustomEvent = ({ event }) => told.push(event.value);
  await agent.runAgent({ tools, ...parameters }, { onRunFinishedEvent, onCustomEvent, ...on });
  return pending;
};
const entry = (payload) => ({ id }) => ({ interruptId: id, status: 'resolved', payload });
const answered = (payload) => agent.pendingInterrupts.map(entry(payload));
const texts = (of = agent) => of.messages.map(({ role, content }) => [role, content]);
"""
TAIL = "\nconsole.log(JSON.stringify({ told, texts: texts(), ...globalThis.more }));\n"


@pytest.fixture(scope="module")
def front(fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    servers, folder = Servers(), tmp_path_factory.mktemp("server")
    (folder / "settings.toml").write_text(
        f'[http.new_thread]\nworking_directory = "{folder}"\nmode = "unrestricted"\napproval_policy = "ask_writes"\n'
    )
    yield servers(
        folder, "--http", "127.0.0.1:0", "--config", str(folder / "settings.toml"), **provider(fake_provider.url)
    )
    servers.close()


@pytest.fixture
def program(node: Node, front: ServerProcess, tmp_path: Path) -> Run:
    """Runs a module with the packages of the peers, and reads what it prints as JSON."""
    (tmp_path / "node_modules").symlink_to(installed.NODE_PACKAGES / "node_modules")

    def run(source: str, **environment: str) -> Any:
        script = tmp_path / "script.mjs"
        script.write_text(source)
        known = {"URL": http_url(front), "TOKEN": front.token, "THREAD": tmp_path.name.replace("_", "-")[:40]}
        done = node.run(script, folder=tmp_path, env=known | environment, seconds=PATIENCE + CUTS)
        assert (done.returncode, "[ag-ui]" in done.stderr) == (0, False), done.stderr
        return json.loads(done.stdout.strip("\n").split("\n")[-1])

    return run


def ag_ui(program: Run, source: str, **environment: str) -> Any:
    return program(HEAD + source + TAIL, **environment)


def test_it_chats_with_streaming(program: Run, fake_provider: FakeProvider) -> None:
    part = fake_provider.part(dribbles("Hello, ", "wörld ", "🌍\u2028"), says("Again."))
    found = ag_ui(
        program,
        """
        const pieces = [];
        say(process.env.SAID);
        await run({}, { onTextMessageContentEvent: ({ event }) => pieces.push(event.delta) });
        say('And?');
        await run();
        globalThis.more = { pieces: pieces.length, mode: agent.state.bedrock.mode };
        """,
        SAID=part.key,
    )
    answer = "Hello, wörld 🌍\u2028"
    assert found["texts"] == [["user", part.key], ["assistant", answer], ["user", "And?"], ["assistant", "Again."]]
    assert (found["told"], found["mode"]) == (["success", "success"], "MODE_UNRESTRICTED")
    assert found["pieces"] >= 1


def test_a_tool_of_the_front_end_answers_and_an_approval_is_resumed(program: Run, fake_provider: FakeProvider) -> None:
    tool = calls(("find_order", {"id": 1}), ("find_order", {"id": 2}))
    part = fake_provider.part(calls(("bash", {"command": "echo hi"}), text="See. "), tool, says("Shipped."))
    found = ag_ui(
        program,
        """
        say(process.env.SAID);
        await run();
        let pending = await run({ resume: answered({ approved: true }) });
        while (agent.pendingInterrupts.length || pending.length) {
          for (const toolCallId of pending) say('42', { role: 'tool', toolCallId });
          const resume = agent.pendingInterrupts.length ? answered(true) : undefined;
          pending = await run({ resume });
        }
        """,
        SAID=part.key,
    )
    assert found["told"][0] == "interrupt"
    assert found["told"][-1] == "success"
    roles = [role for role, _ in found["texts"]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "tool", "assistant"]
    assert found["texts"][-1] == ["assistant", "Shipped."]


def test_it_leaves_and_comes_back_and_a_cancel_is_no_failure(program: Run, fake_provider: FakeProvider) -> None:
    part = fake_provider.part(stalls)
    found = ag_ui(
        program,
        """
        say(process.env.SAID);
        await run({}, { onTextMessageContentEvent: () => agent.abortRun() });
        const again = made();
        const states = [];
        await again.runAgent({}, {
          onTextMessageContentEvent: async () => {
            const cancel = `${url}/v1/conversations/${threadId}:cancel`;
            states.push((await fetch(cancel, { method: 'POST', headers })).status);
          },
          onRunFinishedEvent: ({ event }) => told.push(event.outcome.type),
        });
        globalThis.more = { states, again: texts(again) };
        """,
        SAID=part.key,
    )
    assert (found["told"], found["states"]) == (["cancelled"], [200])
    assert found["again"] == [["user", part.key]]
    assert len(part.exchanges) == 1


def test_the_page_s_code_for_ag_ui_runs(program: Run) -> None:
    code = fenced((ROOT / "docs" / "api" / "ag-ui.md").read_text(), "ag-ui")
    head = "const { URL: url, TOKEN: token } = process.env;\n"
    found = program(f"{head}{code}\nconsole.log(JSON.stringify(newMessages));")
    assert [each["role"] for each in found] == ["user", "assistant"]


@pytest.fixture
def talked(front: ServerProcess, fake_provider: FakeProvider, tmp_path: Path) -> str:
    """A conversation with some hundred events."""
    part = fake_provider.part(*(calls(("bash", {"command": f"echo {n}"})) for n in range(8)), says("Done."))
    with client_of(front) as http:
        name = created(http, tmp_path)
        run = http.post(f"/v1/{name}:send", json={"text": part.key}).json()["run"]
        assert http.get(f"/v1/{run}:wait").status_code == 200
    return name


def test_event_source_resumes_by_itself(program: Run, front: ServerProcess, talked: str) -> None:
    """Each of the sources is cut off at ten random bytes; the gateway is killed after each hundred cuts."""
    source = """
    import { EventSource } from 'eventsource';
    import { execSync } from 'node:child_process';
    const { URL: url, TOKEN: token, NAME: name, SERVER: server } = process.env;
    const authorized = (address, init) => fetch(address, {
      ...init, headers: { ...init.headers, Authorization: `Bearer ${token}` },
    });
    let cuts = 0;
    let killed = 0;
    const cut = async (seen) => {
      seen.cuts++;
      if (++cuts % 100 === 50) {
        killed++;
        execSync(`pkill -KILL -P ${server} -f server.gateway`);
      }
    };
    const followed = () => new Promise((done) => {
      const seen = { cuts: 0, events: [] };
      const source = new EventSource(`${url}/v1/${name}:subscribe?afterRevision=0&untilSettled=true`, {
        fetch: async (address, init) => {
          const response = await authorized(address, init);
          if (seen.cuts >= 10 || !response.ok) return response;
          const short = response.body.getReader();
          const body = new ReadableStream({
            async pull(controller) {
              const { done, value } = await short.read();
              if (!done) controller.enqueue(value.slice(0, 200 + Math.random() * 4000));
              await short.cancel();
              await cut(seen);
              controller.close();
            },
          });
          return new Response(body, { headers: response.headers });
        },
      });
      for (const kind of JSON.parse(process.env.KINDS)) {
        source.addEventListener(kind, (event) => {
          const { revision } = JSON.parse(event.data);
          if (revision) seen.events.push([Number(revision), kind]);
        });
      }
      source.addEventListener('end', () => {
        source.close();
        done(seen);
      });
    });
    const found = await Promise.all(Array.from({ length: Number(process.env.SOURCES) }, followed));
    console.log(JSON.stringify({ events: found.map(({ events }) => events), cuts, killed }));
    """
    wanted, sources = durable(front, talked), max(1, CUTS // 10)
    kinds = json.dumps(sorted({kind for _, kind in wanted}))
    found = program(source, NAME=talked, KINDS=kinds, SERVER=str(front.pid), SOURCES=str(sources))
    assert [[tuple(each) for each in events] for events in found["events"]] == [wanted] * sources
    assert found["cuts"] == 10 * sources
    assert found["killed"] == (found["cuts"] + 50) // 100


def test_the_page_s_code_for_browsers_resumes(program: Run, front: ServerProcess, talked: str, tmp_path: Path) -> None:
    code = fenced((ROOT / "docs" / "api" / "browsers.md").read_text(), "browser")
    assert len(code.splitlines()) <= 40
    source = """
    const { URL: url, TOKEN: token, NAME: name } = process.env;
    const seen = [];
    const real = fetch;
    let opened = 0;
    globalThis.fetch = async (address, init) => {
      const response = await real(address, init);
      if (opened++ > 4) return response;
      const reader = response.body.getReader();
      const body = new ReadableStream({
        async pull(controller) {
          const { value } = await reader.read();
          controller.enqueue(value.slice(0, 4000 + 500 * opened));
          await reader.cancel();
          controller.error(new TypeError('terminated'));
        },
      });
      return new Response(body, { headers: response.headers });
    };
    for await (const event of follow(url, token, name)) {
      if (event.revision) seen.push(Number(event.revision));
      if (event.caughtUp) break;
    }
    let refused = '';
    try {
      for await (const event of follow(url, 'wrong', name)) break;
    } catch (error) {
      refused = error.message;
    }
    console.log(JSON.stringify({ seen, opened, refused }));
    """
    found = program(code + source, NAME=talked)
    assert found["seen"] == [revision for revision, _ in durable(front, talked)]
    assert found["opened"] > 3
    assert "UNAUTHENTICATED" in found["refused"]


def test_tools_for_openapi_accept_the_description(node: Node, tmp_path: Path) -> None:
    described = ROOT / "docs" / "api" / "openapi.json"
    programs = installed.NODE_PACKAGES / "node_modules" / ".bin"

    def run(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        done = node.run(
            (programs / name).resolve(), *arguments, folder=tmp_path, env={"REDOCLY_TELEMETRY": "off", "CI": "1"}
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    told = run("redocly", "lint", described, "--format=json")
    faults = [each for each in json.loads(told.stdout)["problems"] if each["severity"] == "error"]
    assert faults == []
    run("openapi-typescript", described, "-o", tmp_path / "api.ts")
    use = "import type { paths } from './api';\nexport type Sent = paths['/v1/{name}:send'];\n"
    paths = re.findall(r'^    "(/v1/[^"]+:send)": \{', (tmp_path / "api.ts").read_text(), re.MULTILINE)
    (tmp_path / "use.ts").write_text(use.replace("/v1/{name}:send", only(paths)))
    run("tsc", "--strict", "--noEmit", "--target", "es2022", "--moduleResolution", "bundler", "--module", "esnext",
        tmp_path / "use.ts")  # fmt: skip
