"""Cancel: idle at once, whatever the model or the tool does; nothing of it left; the next message works."""

import random
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bedrock import Client, v1

from tests.support import processes
from tests.support.certificates import make_self_signed
from tests.support.chat import Chat
from tests.support.fake_provider import (
    Exchange,
    FakeProvider,
    Play,
    begins,
    calls,
    echoes,
    finishes,
    floods,
    hangs,
    says,
    stalls,
    streams,
)
from tests.support.patience import PATIENCE, eventually, within
from tests.support.server_process import API_KEY, ServerProcess, Servers, provider
from tests.support.watcher import Watcher, checked_slots


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1 with its key."""
    return make_self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure_provider(certificate: Path) -> Iterator[FakeProvider]:
    """The same over TLS."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with FakeProvider(tls) as made:
        yield made
    made.assert_content()


@pytest.fixture(scope="module")
def server(
    fake_provider: FakeProvider,
    secure_provider: FakeProvider,
    certificate: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServerProcess]:
    """A server with two providers: one over TLS."""
    folder = tmp_path_factory.mktemp("server")
    config = folder / "config.toml"
    config.write_text(
        f'[providers.secure]\nprotocol = "anthropic"\nbase_url = "{secure_provider.url}"\napi_key = "{API_KEY}"\n'
        f'models = ["secure-model"]\ndiscover = "never"\nca_bundle = "{certificate}"\n'
    )
    servers = Servers()
    yield servers(folder, "--config", str(config), **provider(fake_provider.url))
    servers.close()


@pytest.fixture(params=["plain", "tls"])
def chat_with(
    request: pytest.FixtureRequest,
    client: Client,
    fake_provider: FakeProvider,
    secure_provider: FakeProvider,
    tmp_path: Path,
) -> Callable[..., Chat]:
    """Creates conversations with a model behind plain HTTP, or behind TLS."""
    secure = request.param == "tls"

    def create(*plays: Play) -> Chat:
        part = (secure_provider if secure else fake_provider).part(*plays)
        return Chat(client, part, tmp_path, model="secure-model" if secure else None)

    return create


@pytest.mark.parametrize("phase", [hangs, streams, floods, stalls])
def test_a_cancel_ends_a_request_in_every_phase(
    phase: Play, chat_with: Callable[..., Chat], watch: Callable[..., Watcher]
) -> None:
    chat = chat_with(phase, begins("And now ", finishes("for something else.")))
    watcher = watch(chat.name)
    run = chat.send("Go on.")
    exchange = chat.part.next_reached()
    if phase is not hangs:
        watcher.until("text_delta")

    receipt = chat.conversation.cancel(reason="e2e")

    assert not receipt.no_op
    assert receipt.state.kind == "idle"
    assert receipt.run == run.name
    assert receipt.llm_request_id
    assert chat.state.kind == "idle"
    assert exchange.closed.wait(PATIENCE), "the connection to the provider is still open"
    assert [role for role, _ in chat.said()] == ["user"], "partial text was kept"
    nothing = chat.conversation.cancel()
    assert nothing.no_op
    assert nothing.state.enter_time == receipt.state.enter_time == chat.state.enter_time

    run = chat.send("Something else, please.")
    watcher.until(lambda event: event.text_delta.text == "And now ")
    chat.part.next_reached().go.set()
    assert within(run.answer) == "And now for something else."
    chat.assert_valid()
    (asked,) = chat.part.exchanges[-1].body["messages"]
    first, notice, second = (block["text"] for block in asked["content"])
    assert first.startswith("Go on.")
    assert second.startswith("Something else, please.")
    step = "before you answered" if phase is hangs else "while you were answering"
    assert f"The user interrupted the run {step}" in notice
    stop = watcher.until("run_stopped").run_stopped
    assert (stop.reason, stop.detail) == (v1.STOP_REASON_INTERRUPTED, "")
    slots = checked_slots(watcher.events)
    assert phase is hangs or slots[receipt.llm_request_id, 1].startswith("word ")
    discarded = [(each.llm_request_id, each.attempt) for each in watcher.of("stream_discarded")]
    assert discarded == ([] if phase is hangs else [(receipt.llm_request_id, 1)])


STUBBORN = "echo up; bash -c 'trap \"\" TERM INT; sleep {0} & setsid sleep {0} & sleep {0}'; true"
"""Processes that close their ears, one of them in a session of its own."""


def test_a_cancel_ends_a_tool_and_all_that_it_started(
    open_chat: Callable[..., Chat], watch: Callable[..., Watcher], server: ServerProcess
) -> None:
    forever = processes.forever()
    stubborn = ("bash", {"cmd": STUBBORN.format(forever)})
    chat = open_chat(
        calls(stubborn, ("think", {"thoughts": "later"})), calls(("bash", {"cmd": "echo again"})), says("Right.")
    )
    watcher = watch(chat.name)
    chat.send("Wait for me.")
    watcher.until("tool_output_delta")
    eventually(lambda: len(processes.sleepers(forever)) == 3, "the tool's processes run")

    receipt = chat.conversation.cancel()

    assert receipt.state.kind == "idle"
    assert chat.state.kind == "idle"
    first, second = (block.tool_call.tool_use_id for block in chat.messages()[1].content if block.HasField("tool_call"))
    assert list(receipt.tool_use_ids) == [first, second]
    results = [message.content[0].tool_result for message in chat.messages()[2:]]
    assert [(each.tool_use_id, each.outcome, each.output) for each in results] == [
        (first, v1.TOOL_OUTCOME_CANCELLED, "Cancelled by user"),
        (second, v1.TOOL_OUTCOME_SKIPPED, "Skipped due to cancellation"),
    ]

    run = chat.send("Try that again.")  # at once: it must not meet the processes of the call before
    reaped = watcher.until("tool_tree_reaped")
    assert processes.running(forever) == []
    assert reaped.tool_tree_reaped.tool_use_id == first
    assert len(reaped.tool_tree_reaped.pids) >= 3
    assert not reaped.tool_tree_reaped.leaked
    assert reaped.tool_tree_reaped.duration.ToMilliseconds() < 2_000

    again = watcher.until(
        lambda event: any("again\n" in block.tool_result.output for block in event.message_added.content)
    )
    assert again.revision > reaped.revision, "the next tool did not wait for the death of the one before"
    watcher.until(lambda event: event.run_stopped.request_cycle == run.name)
    assert chat.said()[-1] == ("agent", "Right.")
    chat.assert_valid()
    eventually(lambda: server.running() == [server.pid], "nothing but the server runs")


ROUNDS = 50
CONVERSATIONS = 4


def test_the_answer_to_a_cancelled_question_never_reaches_the_next_one(
    open_chat: Callable[..., Chat], watch: Callable[..., Watcher]
) -> None:
    """200 times: the answer and the cancel meet at some moment, and the next question follows at once."""
    chats = [open_chat() for _ in range(CONVERSATIONS)]
    watchers = [watch(chat.name) for chat in chats]
    with ThreadPoolExecutor(CONVERSATIONS) as pool:
        cancelled = list(pool.map(_race, chats, range(CONVERSATIONS), timeout=PATIENCE))
    assert sum(cancelled) > ROUNDS, "the cancels were all too late to mean anything"
    assert sum(cancelled) < ROUNDS * CONVERSATIONS, "the cancels were all too early to mean anything"
    for chat, watcher in zip(chats, watchers, strict=True):
        _assert_answers_belong(chat, watcher)


def _assert_answers_belong(chat: Chat, watcher: Watcher) -> None:
    """Whatever was stored or streamed for a run answers the question of that run."""
    chat.settle()
    chat.assert_valid()
    asked = {message.request_cycle: _text(message) for message in chat.messages() if message.role == v1.ROLE_USER}
    assert len(asked) == len(chat.part.exchanges) == ROUNDS
    for message in chat.messages():
        if message.role == v1.ROLE_AGENT:
            assert _text(message) == f"re: {asked[message.request_cycle]}"
    *_, last = asked
    watcher.until(lambda event: event.run_stopped.request_cycle == last)
    assert watcher.revisions == list(range(1, len(watcher.revisions) + 1))
    assert watcher.of("retrying") == [], "the end of one request was taken for the end of another"
    runs = {each.state.llm_requesting.llm_request_id: each.state.run for each in watcher.of("state_changed")}
    for (request_id, _), text in checked_slots(watcher.events).items():
        assert f"re: {asked[runs[request_id]]}".startswith(text)


def _race(chat: Chat, seed: int) -> int:
    """Ask and cancel; returns how many questions a cancel hit."""
    moments = random.Random(seed)
    hits = 0
    for number in range(ROUNDS):
        go_first = moments.random() < 0.7
        chat.part.then(_held_echo if number < ROUNDS - 1 else echoes)
        run = chat.send(f"Question {number}?")
        exchange = chat.part.next()
        if number == ROUNDS - 1:
            break
        if go_first:
            exchange.go.set()
            exchange.closed.wait(moments.random() * 0.02)
        receipt = chat.conversation.cancel(run=run.name)
        exchange.go.set()
        assert receipt.state.kind == "idle"
        hits += not receipt.no_op
    return hits


def _held_echo(exchange: Exchange) -> None:
    exchange.wait_for_go()
    echoes(exchange)


def _text(message: v1.Message) -> str:
    return "".join(block.text for block in message.content)
