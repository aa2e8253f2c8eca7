"""A real model behind a whole server: llama.cpp speaks all three protocols. What it says is not looked at."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest
from bedrock import Client, ContextExhausted, Conversation, ConversationInfo, Event, Run, RunInterrupted, Stop, v1

from tests.peers.llama import CONTEXT, LlamaServer
from tests.peers.local_llm import provider
from tests.support.chat import assert_valid
from tests.support.patience import eventually, only, within
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess, Servers
from tests.support.watcher import Watcher, checked_slots

PROTOCOLS = ("openai-chat", "anthropic", "openai-responses")
SECONDS = 100.0
"""How long an answer may take: 64 tokens take one second on an idle core."""

WINDOW, ANSWER = 1024, 256
"""Tokens: a window that a few messages fill, and of an answer in it. Answers are much shorter; what they leave free has
room for the request of a summary."""
BRIEF = '{ temperature = 0.2, stop = ["."] }'
"""Makes an answer one sentence."""

Watch = Callable[..., Watcher]

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with LlamaServer(tmp_path_factory.mktemp("llama") / "log") as running:
        running.await_status(200)
        yield running


@pytest.fixture(scope="module")
def server(llama: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two providers per protocol: one whose answers are short, and one who never comes to an end."""
    folder = tmp_path_factory.mktemp("server")
    tables = [
        table
        for protocol in PROTOCOLS
        for table in (
            provider(llama, protocol, protocol, max_output="64"),
            provider(llama, f"{protocol}-endless", protocol, max_output="4096", extra_body="{ ignore_eos = true }"),
        )
    ]
    (folder / "config.toml").write_text("\n".join(tables))
    servers = Servers()
    yield servers(folder, "--config", str(folder / "config.toml"))
    servers.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_turns_are_streamed_and_counted(protocol: str, client: Client, watch: Watch, tmp_path: Path) -> None:
    conversation = client.create(tmp_path, model=protocol)
    watcher = watch(conversation.name)
    for question in ("Say hello to Ada.", "And to Grace?"):
        run = conversation.send(question)
        within(run.wait, SECONDS)
        assert run.stop is not None
        assert run.stop.reason == "completed", run.stop
    watcher.until(lambda event: event.run_stopped.request_cycle == run.name)
    checked_slots(watcher.events)
    assert len(watcher.of("text_delta")) > 2
    assert_valid(message.proto for message in conversation.messages())
    now = conversation.get()
    assert now.context_usage.used_tokens > now.total_usage.output_tokens > 0
    assert now.total_usage.cache_read_tokens > 0, "the second request did not begin with the bytes of the first"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_cancel_ends_the_generation(
    protocol: str, client: Client, watch: Watch, llama: LlamaServer, tmp_path: Path
) -> None:
    """Alone it would go on for 4,096 tokens."""
    conversation = client.create(tmp_path, model=f"{protocol}-endless")
    watcher = watch(conversation.name)
    cancelled = llama.log_text().count("cancel task")
    run = conversation.send("Tell me a story.")
    watcher.until("text_delta")
    assert only(llama.get("/slots")[1])["is_processing"]
    conversation.cancel()
    eventually(lambda: not only(llama.get("/slots")[1])["is_processing"], "llama.cpp stops")
    eventually(lambda: llama.log_text().count("cancel task") == cancelled + 1, "llama.cpp's log, written late, says so")
    with pytest.raises(RunInterrupted):
        within(run.answer)


def test_a_model_that_is_still_loading_is_asked_again(start_server: Servers, tmp_path: Path) -> None:
    """The request waits at a proxy until llama.cpp has begun to load, which takes most of a second."""
    llama = LlamaServer(tmp_path / "llama.log")
    config = tmp_path / "config.toml"
    with Proxy(llama.url.removeprefix("http://")) as way:
        way.freeze()
        told = {"base_url": f'"http://{way.address}/v1"', "discover": '"never"', "context_window": str(CONTEXT)}
        config.write_text(provider(llama, extra_body=BRIEF, **told))
        server = start_server(tmp_path, "--config", str(config))
        with server.client() as client:
            run = client.create(tmp_path).send("Hello.")
            eventually(lambda: way.accepted > 0, "the model is asked")
            with llama:
                os.setpriority(os.PRIO_PROCESS, llama.pid, 19)  # on a busy machine, it loads when nobody else can run
                llama.await_status(503)
                way.thaw()
                retries = within(partial(hurried_by_retries, run, llama.pid), SECONDS)
    assert retries
    assert retries[0].error.kind == v1.ERROR_KIND_SERVER_ERROR, retries
    assert run.stop is not None
    assert run.stop.reason == "completed", run.stop


def test_a_small_window_fills_up_and_its_summary_seeds_the_next(start_server: Servers, tmp_path: Path) -> None:
    """The window is what llama.cpp says of itself; at 90 % the model writes the summary."""
    config = tmp_path / "config.toml"
    with LlamaServer(tmp_path / "llama.log", context=WINDOW) as llama:
        config.write_text(provider(llama, max_output=str(ANSWER), extra_body=BRIEF))
        llama.await_status(200)
        server = start_server(tmp_path, "--config", str(config))
        with server.client() as client:
            conversation = client.create(tmp_path)
            kinds, stop = talk_until_exhausted(conversation)
            usable = conversation.get().context_usage.usable_window_tokens
            assert usable == WINDOW - ANSWER
            assert "context_warning" in kinds
            assert stop.detail == "context_exhausted"
            full = conversation.get()
            assert full.state.kind == "context_exhausted"
            assert full.continuation_summary.strip()
            kinds_told = [message.proto.system_kind for message in conversation.messages()]
            assert v1.SYSTEM_MESSAGE_KIND_SUMMARY in kinds_told, "the model wrote no summary"
            assert_valid(message.proto for message in conversation.messages())
            with pytest.raises(ContextExhausted):
                conversation.send("More?")
            successor = conversation.continue_()
            seed = only(list(successor.messages()))
            assert full.continuation_summary in seed.text
            answered = successor.send("Say hello.")
            within(answered.wait, SECONDS)
            assert answered.stop is not None
            assert answered.stop.reason == "completed", answered.stop
            assert client.conversation(conversation.name).get().continued_by == successor.name


TURNS = 300
NOISY = 3
"""One turn in so many prints too much."""
SHORT, ANSWERED = 1_000, 10
"""Of requests with fewer tokens than this, the model answers one in so many itself."""
CHAT = "/v1/chat/completions"
PRINTED = 40_000
"""Lines of the output of a tool: five times what the window has room for, in digits, each of them a token."""


class NoisyTools:
    """Stands before llama.cpp: makes it print too much, and 300 turns take minutes.

    So small a model calls no tools by itself: a message that says "print" is answered with calls. And it reads some
    hundred tokens per second: llama.cpp counts those of every request by the model's template and tokenizer, and what
    exceeds the window gets its error, but it answers only few of the short requests and, at the end, the longest.
    """

    def __init__(self, llama: LlamaServer) -> None:
        self._llama = llama
        self.refused: list[int] = []
        """The tokens of the requests that exceeded the window."""
        self.prompts: list[int] = []
        """The tokens of all others."""
        self.longest: dict[str, Any] = {}
        self.answered = 0
        """How many requests the model has answered itself."""
        noise = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(*llama.get(self.path))

            def do_POST(self) -> None:
                self._answer(*noise.answer(json.loads(self.rfile.read(int(self.headers["content-length"])))))

            def _answer(self, status: int, body: object) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- named by the base class
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, asked: dict[str, Any]) -> tuple[int, Any]:
        """Return status and body for a request of the server."""
        tokens = self._count(asked)
        if tokens >= CONTEXT:
            self.refused.append(tokens)
            return 400, {
                "error": {"type": "exceed_context_size_error", "message": "exceeds the available context size"}
            }
        if tokens > max(self.prompts, default=0):
            self.longest = asked
        self.prompts.append(tokens)
        last, calls = asked["messages"][-1], _CALLS[: 1 + len(self.prompts) % len(_CALLS)]
        if asked.get("tools") and last["role"] == "user" and "print" in str(last["content"]):
            functions = [{"name": name, "arguments": json.dumps(given)} for name, given in calls]
            said: dict[str, Any] = {
                "tool_calls": [
                    {"id": f"c{len(self.prompts)}-{n}", "type": "function", "function": each}
                    for n, each in enumerate(functions)
                ]
            }
        else:
            short = tokens < SHORT and not len(self.prompts) % ANSWERED
            said = {"content": (self.ask(asked) if short else "") or "Yes."}
        choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": "stop"}
        return 200, {"choices": [choice], "usage": {"prompt_tokens": tokens, "completion_tokens": 8}}

    def ask(self, asked: dict[str, Any]) -> str:
        """Have the model answer a request with a few words."""
        status, answer = self._llama.post(CHAT, asked | {"stream": False, "max_tokens": 8})
        assert status == 200, answer
        self.answered += 1
        return str(answer["choices"][0]["message"].get("content") or "")

    def _count(self, asked: dict[str, Any]) -> int:
        _, shown = self._llama.post(
            "/apply-template", {key: asked[key] for key in ("messages", "tools") if key in asked}
        )
        return len(self._llama.post("/tokenize", {"content": shown["prompt"]})[1]["tokens"])


_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bash", {"cmd": f"seq 1 {PRINTED}"}),
    ("read_file", {"path": "long"}),
    ("search", {"pattern": "1", "max_results": 1000}),
)


def settled(conversation: Conversation) -> ConversationInfo:
    """The conversation once its summary is written."""
    within(lambda: list(conversation.events(until_settled=True)), SECONDS)
    return conversation.get()


@pytest.mark.timeout(1_500)
def test_300_turns_with_tools_that_print_too_much_never_exceed_the_window(
    start_server: Servers, tmp_path: Path
) -> None:
    (tmp_path / "long").write_text("\n".join(map(str, range(PRINTED))))
    config = tmp_path / "config.toml"
    with LlamaServer(tmp_path / "llama.log") as llama, NoisyTools(llama) as tools:
        config.write_text(provider(llama, base_url=f'"{tools.url}/v1"', profile='"full"', max_output="256"))
        llama.await_status(200)
        with start_server(tmp_path, "--config", str(config)).client() as client:
            conversation = client.create(tmp_path, mode="unrestricted", auto_continue=True)
            names = {conversation.name}
            for turn in range(TURNS):
                noisy = turn % NOISY == 0
                run = conversation.send(f"{turn}: print much." if noisy else f"{turn}: Say one word.")
                to_the_end(run)
                assert run.stop is not None
                assert run.stop.reason != "error", run.stop
                now = conversation.get()
                if now.state.kind != "idle":
                    full = settled(conversation)
                    assert full.state.kind == "context_exhausted"
                    assert "no summary could be written" not in full.continuation_summary
                    conversation = client.conversation(full.continued_by)
                    names.add(conversation.name)
            assert conversation.get().context_usage.usable_window_tokens == CONTEXT - 256
        tools.ask(tools.longest)
    assert tools.refused == []
    assert max(tools.prompts) <= CONTEXT - 256
    assert tools.answered > 1
    assert len(tools.prompts) > TURNS
    assert len(names) > 2, "the window was never full"


def hurried_by_retries(run: Run, pid: int) -> list[Any]:
    """Read a run to its end, and let the model load at full speed from the first attempt that is made again."""
    retries = []
    for event in run:
        if event.kind == "retrying":
            retries.append(event.proto.retrying)
            with suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, pid, 0)
    return retries


def to_the_end(run: Run) -> list[Event]:
    """All events of a run."""
    return within(lambda: list(run), SECONDS)


def talk_until_exhausted(conversation: Conversation) -> tuple[list[str], Stop]:
    """Say something over and over, until the context is used up: the kinds of all events, and the last stop."""
    kinds: list[str] = []
    for turn in range(40):
        run = conversation.send(f"Say one word. {turn}: " + "The quick brown fox jumps over the lazy dog. " * 5)
        kinds += [event.kind for event in to_the_end(run)]
        assert run.stop is not None
        assert run.stop.reason != "error", run.stop
        if conversation.get().state.kind != "idle":
            within(lambda: list(conversation.events(until_settled=True)), SECONDS)
            return kinds, run.stop
    raise AssertionError("the context is never used up")
