"""A real model behind a whole server: llama.cpp speaks all three protocols. What it says is not looked at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from bedrock import Client, ContextExhausted, Conversation, Event, Run, RunInterrupted, Stop, v1

from tests.peers.llama import CONTEXT, LlamaServer
from tests.peers.local_llm import provider
from tests.support.chat import assert_valid
from tests.support.patience import eventually, only, within
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess, Servers
from tests.support.watcher import Watcher, checked_slots

if TYPE_CHECKING:
    from pathlib import Path

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
    assert llama.log_text().count("cancel task") == cancelled + 1
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
                events = to_the_end(run)
    retries = [event.proto.retrying for event in events if event.kind == "retrying"]
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
