"""All protocols against llmock, a mock provider that injects faults and judges how its client took them.

The driver below follows Bedrock's rule (C9, C10: three attempts, base and twice the base in between, or
Retry-After) on top of `Model.respond`, with a base of 100 ms instead of 1 s.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from msgspec.structs import replace

from actors.adapters.llm.catalog import Catalog
from actors.adapters.llm.provider import provider_from_mapping
from actors.core.content import Text, ToolSuccess, ToolUse
from actors.core.context import ToolGroup, ToolTraits
from actors.core.errors import ErrorKind
from actors.core.history import ProviderView, Turn
from actors.ports import CancelToken, Model, ModelAnswer, ModelFailedError, ModelRequest, ToolSpec
from tests.support.strict_checker import CHECKS

ENDS = {"anthropic": "/messages", "openai-chat": "/chat/completions", "openai-responses": "/responses"}
BASE_SECONDS = 0.1
IDLE_SECONDS = 0.4
PATHS = {"anthropic": "/anthropic", "openai-chat": "/v1", "openai-responses": "/v1"}
MODELS = {"anthropic": "claude-sonnet-4-6", "openai-chat": "gpt-4o", "openai-responses": "gpt-5.2"}

WEATHER = ToolSpec(
    "Tells the weather in a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    ToolTraits("get_weather", ToolGroup.OTHER),
)


class Server:
    """A running `llmock serve`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/_llmock/{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def will(self, *behaviors: dict[str, Any]) -> None:
        self.call("POST", "scenario", {"behaviors": list(behaviors)})

    def attempts(self) -> int:
        return int(self.call("GET", "requests")["count"])

    def bodies(self) -> list[tuple[str, bytes]]:
        """What it was asked, oldest first: path and body."""
        requests = sorted(self.call("GET", "requests")["requests"], key=lambda each: each["seq"])
        return [(each["path"], json.dumps(each["body"]).encode()) for each in requests]

    def assert_resilient(self, *, warnings: tuple[str, ...] = ()) -> None:
        """llmock's verdict: no errors, and no warnings but these; and every body is as its provider wants it."""
        for path, body in self.bodies():
            CHECKS[next(name for name, end in ENDS.items() if path.endswith(end))](body)
        verdict = self.call("GET", "verdict")
        assert verdict["passed"], verdict
        assert verdict["errors"] == 0, verdict
        assert {finding["code"] for finding in verdict["findings"]} <= set(warnings), verdict


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`llmock serve` as a process of its own, on a port of the kernel's choice."""
    program = Path(sys.executable).with_name("llmock")
    command = [str(program), "serve", "-h", "127.0.0.1", "-p", "0", "--response-style", "varied"]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path_factory.mktemp("home")),
        "PYTHONIOENCODING": "utf-8",
    }
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    rest: list[str] = []
    drain = threading.Thread(target=rest.extend, args=(server.stdout,), daemon=True)
    try:
        url = _listening_url(server.stdout)
        drain.start()
        yield Server(url)
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(60)
        if drain.is_alive():
            drain.join(60)
        server.stdout.close()


def _listening_url(output: IO[str]) -> str:
    for line in output:
        if found := re.search(r"running on (http://127\.0\.0\.1:\d+)", line):
            return found[1]
    raise AssertionError("llmock did not start; is it installed? (make setup)")


@pytest.fixture
def llmock(process: Server) -> Server:
    process.call("POST", "reset")
    return process


@pytest.fixture(params=PATHS)
def model(request: pytest.FixtureRequest, process: Server) -> Model:
    settings = {
        "protocol": request.param,
        "base_url": process.url + PATHS[request.param],
        "api_key": "sk-test-0123456789",
        "timeouts": {"connect": 5, "first_byte": 5, "idle": IDLE_SECONDS},
    }
    found = Catalog((provider_from_mapping("llmock", settings),)).get(MODELS[request.param])
    assert found is not None
    return found


class Sink:
    def __init__(self) -> None:
        self.slots: list[list[str]] = []

    def started(self) -> None:
        self.slots.append([])

    def text(self, text: str, *, reasoning: bool = False) -> None:
        assert not reasoning
        self.slots[-1].append(text)

    def flush(self) -> None:
        assert self.slots


def drive(model: Model, *turns: Turn, tools: tuple[ToolSpec, ...] = (), sink: Sink | None = None) -> ModelAnswer:
    """Ask as the conversation machine does: up to three attempts."""
    asked = ModelRequest(
        "c1", f"c1:r{len(turns)}", 1, "Be brief.", tools, ProviderView(turns or (_user("Tell me about the sea."),))
    )
    pause = threading.Event()
    for attempt in (1, 2, 3):
        try:
            return model.respond(replace(asked, attempt=attempt), sink or Sink(), CancelToken())
        except ModelFailedError as failed:
            wait = max(BASE_SECONDS * 2 ** (attempt - 1), (failed.retry_after_ms or 0) / 1000)
            if attempt == 3 or not failed.failure.retryable or wait > 60:
                raise
        pause.wait(wait)
    raise AssertionError("unreachable")


def _user(*blocks: Text | ToolSuccess | str) -> Turn:
    return Turn("user", tuple(Text(block) if isinstance(block, str) else block for block in blocks))


def assert_answered(answer: ModelAnswer, sink: Sink) -> None:
    (block,) = answer.content
    assert isinstance(block, Text)
    assert block.text == "".join(sink.slots[-1])
    assert answer.end_turn
    assert answer.usage is not None
    assert answer.usage.output_tokens > 0


def test_an_answer(model: Model, llmock: Server) -> None:
    sink = Sink()
    assert_answered(drive(model, sink=sink), sink)
    assert llmock.attempts() == 1
    llmock.assert_resilient()


@pytest.mark.parametrize(
    "faults",
    [
        [{"type": "fail", "status": 529}],
        [{"type": "fail", "status": 500, "retry_after": 0.1, "times": 2}],
        [{"type": "fail", "status": 429, "retry_after": 0.5}],
        [{"type": "fail", "status": 429, "retry_after": 0.25, "times": 2}],
        [{"type": "fail", "status": 408, "retry_after": 0.1}, {"type": "fail", "status": 503, "retry_after": 0.3}],
        [{"type": "stream_fault", "kind": "truncate", "after_chunks": 3}],
        [{"type": "stream_fault", "kind": "disconnect", "after_chunks": 3}],
        [{"type": "stream_fault", "kind": "disconnect", "after_chunks": 0}],
        [{"type": "stream_fault", "kind": "stall", "after_chunks": 3, "stall_seconds": 1.0}],
        [{"type": "slow_first_token", "seconds": 0.8}],
        [
            {"type": "fail", "status": 529, "retry_after": 0.1},
            {"type": "stream_fault", "kind": "truncate", "after_chunks": 2},
        ],
    ],
    ids=lambda faults: "+".join(str(fault.get("kind") or fault.get("status") or fault["type"]) for fault in faults),
)
def test_faults_that_pass_are_outlived(faults: list[dict[str, Any]], model: Model, llmock: Server) -> None:
    llmock.will(*faults)
    sink = Sink()
    assert_answered(drive(model, sink=sink), sink)
    assert llmock.attempts() == 1 + sum(fault.get("times", 1) for fault in faults)
    llmock.assert_resilient()


def test_a_malformed_chunk_is_outlived(model: Model, llmock: Server) -> None:
    llmock.will({"type": "stream_fault", "kind": "malformed", "after_chunks": 3})
    sink = Sink()
    assert_answered(drive(model, sink=sink), sink)
    assert llmock.attempts() == 2
    # llmock may have sent all before the client hung up; then it cannot see that the next call is a retry.
    llmock.assert_resilient(warnings=("malformed_chunk_ignored",))


def test_an_outage_ends_after_three_attempts(model: Model, llmock: Server) -> None:
    llmock.will({"type": "fail", "status": 503, "retry_after": 0.1, "times": None})
    with pytest.raises(ModelFailedError) as raised:
        drive(model)
    assert raised.value.failure.kind is ErrorKind.SERVER_ERROR
    assert llmock.attempts() == 3
    llmock.assert_resilient()


def test_a_tool_round(model: Model, llmock: Server) -> None:
    question = _user("What is the weather in Paris?")
    first = drive(model, question, tools=(WEATHER,))
    (call,) = (block for block in first.content if isinstance(block, ToolUse))
    assert call.name == "get_weather"
    assert "city" in json.loads(call.input)
    assert not first.end_turn
    sink = Sink()
    turns = (question, Turn("assistant", first.content), _user(ToolSuccess(call.id, "Rain")))
    assert_answered(drive(model, *turns, tools=(WEATHER,), sink=sink), sink)
    llmock.assert_resilient()


def test_broken_arguments_are_kept_for_the_machine_to_answer(model: Model, llmock: Server) -> None:
    llmock.will({"type": "tool_fault", "kind": "malformed_arguments"})
    question = _user("What is the weather in Paris?")
    first = drive(model, question, tools=(WEATHER,))
    (call,) = (block for block in first.content if isinstance(block, ToolUse))
    with pytest.raises(ValueError, match=r"."):
        json.loads(call.input)
    turns = (question, Turn("assistant", first.content), _user(ToolSuccess(call.id, "Rain")))
    assert drive(model, *turns, tools=(WEATHER,)).end_turn
    llmock.assert_resilient()
