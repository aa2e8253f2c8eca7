"""llmock, a provider by somebody else that injects faults and judges its clients, behind a whole server."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from bedrock import Client, Conversation, RunFailed

from tests.support.patience import PATIENCE, eventually, only, within
from tests.support.server_process import API_KEY, ServerProcess, Servers
from tests.support.strict_checker import CHECKS, check_growth
from tests.support.watcher import Watcher

IDLE_SECONDS = 0.5
"""How long the server lets a stream be silent."""

MODELS = {"anthropic": "claude-sonnet-4-6", "openai-chat": "gpt-4o", "openai-responses": "gpt-6.1-sol"}
ENDS = {"anthropic": "/messages", "openai-chat": "/chat/completions", "openai-responses": "/responses"}


class Llmock:
    """A running `llmock serve`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def reset(self) -> None:
        self._call("POST", "reset")

    def will(self, *behaviors: dict[str, Any]) -> None:
        self._call("POST", "scenario", {"behaviors": list(behaviors)})

    @property
    def asked(self) -> int:
        return int(self._call("GET", "requests")["count"])

    def assert_resilient(self, *, warnings: tuple[str, ...] = ()) -> None:
        """Its verdict on the client: no errors, no warnings but these; and every body is as its provider wants it."""
        former: dict[str, bytes] = {}
        for path, body in self._bodies():
            protocol = next(name for name, end in ENDS.items() if path.endswith(end))
            CHECKS[protocol](body)
            check_growth(protocol, former.get(protocol, body), body)
            former[protocol] = body
        verdict = self._call("GET", "verdict")
        assert verdict["passed"], verdict
        assert verdict["errors"] == 0, verdict
        assert {finding["code"] for finding in verdict["findings"]} <= set(warnings), verdict

    def _bodies(self) -> list[tuple[str, bytes]]:
        """What it was asked since its reset, oldest first: path and body."""
        requests = sorted(self._call("GET", "requests")["requests"], key=lambda each: each["seq"])
        return [(each["path"], json.dumps(each["body"], separators=(",", ":")).encode()) for each in requests]

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/_llmock/{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read())


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llmock]:
    """`llmock serve` as a process of its own, on a port of the kernel's choice."""
    folder = tmp_path_factory.mktemp("llmock")
    program = Path(sys.executable).with_name("llmock")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONIOENCODING": "utf-8"}
    with (folder / "log").open("wb") as log:
        served = subprocess.Popen(
            [str(program), "serve", "-h", "127.0.0.1", "-p", "0", "--response-style", "varied"],
            env=environment,
            stdout=log,
            stderr=log,
        )
        try:
            yield Llmock(_listening_url(served, folder / "log"))
        finally:
            served.terminate()
            served.wait(PATIENCE)


def _listening_url(served: subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens, as it says in its log."""

    def found() -> list[str]:
        return re.findall(r"running on (http://127\.0\.0\.1:\d+)", log.read_text())

    eventually(lambda: bool(found()) or served.poll() is not None, "llmock listens")
    return only(found())


@pytest.fixture(scope="module")
def server(process: Llmock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with one provider per protocol."""
    folder = tmp_path_factory.mktemp("server")
    config = folder / "config.toml"
    config.write_text(
        f'[providers.anthropic]\nprotocol = "anthropic"\nbase_url = "{process.url}/anthropic"\napi_key = "{API_KEY}"\n'
        f'models = ["claude-*"]\ntimeouts = {{ idle = {IDLE_SECONDS} }}\n'
        f'[providers.chat]\nprotocol = "openai-chat"\nbase_url = "{process.url}/v1"\napi_key = "{API_KEY}"\n'
        f'models = ["gpt-4*"]\ntimeouts = {{ idle = {IDLE_SECONDS} }}\n'
        f'[providers.openai]\npreset = "openai"\nbase_url = "{process.url}/v1"\n'
        f'api_key_command = ["echo", "{API_KEY}"]\ntimeouts = {{ idle = {IDLE_SECONDS} }}\n'
    )
    servers = Servers()
    yield servers(folder, "--config", str(config))
    servers.close()


@pytest.fixture(params=MODELS)
def conversation(request: pytest.FixtureRequest, client: Client, tmp_path: Path) -> Conversation:
    return client.create(tmp_path, model=MODELS[request.param])


@pytest.fixture
def llmock(process: Llmock) -> Llmock:
    process.reset()
    return process


def test_a_tool_round(conversation: Conversation, llmock: Llmock) -> None:
    """llmock calls an offered tool with arguments that fit its schema, and answers in words to the result."""
    assert within(conversation.send("Look around.").answer)
    messages = list(conversation.messages())
    call = only([call for message in messages for call in message.tool_calls])
    result = only([result for message in messages for result in message.tool_results])
    assert call.tool_use_id == result.tool_use_id
    used = conversation.get().total_usage
    assert used.input_tokens > 0
    assert used.cost_micros > 0
    llmock.assert_resilient()


FAULTS: tuple[dict[str, Any], ...] = (
    {"type": "fail", "status": 529},
    {"type": "fail", "status": 429, "retry_after": 1.3},
    {"type": "stream_fault", "kind": "truncate", "after_chunks": 3},
    {"type": "stream_fault", "kind": "malformed", "after_chunks": 3},
    {"type": "stream_fault", "kind": "disconnect", "after_chunks": 3},
    {"type": "stream_fault", "kind": "stall", "after_chunks": 3, "stall_seconds": 2.0},
)


@pytest.mark.parametrize(
    ("conversation", "fault"),
    list(zip(cycle(MODELS), FAULTS, strict=False)),
    indirect=["conversation"],
    ids=lambda value: value if isinstance(value, str) else str(value.get("kind") or value["status"]),
)
def test_what_passes_is_outlived(
    fault: dict[str, Any], conversation: Conversation, llmock: Llmock, watch: Callable[..., Watcher]
) -> None:
    """The fault meets the first request of a run with one tool round.

    Each with one protocol: unit/llm has what each reader makes of it, and the server tries again in one way.
    """
    llmock.will(fault)
    watcher = watch(conversation.name)
    assert within(conversation.send("Look around.").answer)
    watcher.until("run_stopped")
    retrying = only(watcher.of("retrying"))
    assert (retrying.attempt, retrying.max_attempts) == (2, 3)
    assert bool(watcher.of("stream_discarded")) == (fault["type"] == "stream_fault")
    assert llmock.asked == 3
    # When a malformed chunk is met, llmock may have sent all: then it takes the retry for another question.
    llmock.assert_resilient(warnings=("malformed_chunk_ignored",) if fault.get("kind") == "malformed" else ())


def test_a_wrong_key_is_not_tried_again(conversation: Conversation, llmock: Llmock) -> None:
    llmock.will({"type": "fail", "status": 401, "times": None})
    with pytest.raises(RunFailed) as failed:
        within(conversation.send("Tell me about the sea.").answer)
    assert failed.value.reason == "AUTH"
    assert conversation.get().state.kind == "error"
    assert llmock.asked == 1
    llmock.assert_resilient(warnings=("gave_up",))
    llmock.reset()
    assert within(conversation.send("And now?").answer)
