"""SIGTERM at work: streams end as the contract says, nothing runs on, nothing is lost; and no secret ever gets out."""

import time
from pathlib import Path

import pytest
from bedrock import v1

from tests.support import processes
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, calls, refuses, says, streams
from tests.support.patience import eventually
from tests.support.server_process import API_KEY, Servers, provider
from tests.support.watcher import Watcher

pytestmark = pytest.mark.one_server("the server is stopped")

FOREVER = processes.forever()
BOUND = 25.0
"""Seconds: the drain time of these servers and what stopping may take beyond it, on a busy machine."""


def test_a_server_that_is_asked_to_stop_ends_every_run(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    server = start_server(tmp_path, **provider(fake_provider.url))
    with server.client() as client:
        tooling = Chat(
            client, fake_provider.part(calls(("bash", {"cmd": f"echo up; trap '' TERM; sleep {FOREVER}"}))), tmp_path
        )
        streaming = Chat(client, fake_provider.part(streams), tmp_path)
        watchers = [Watcher(server, chat.name) for chat in (tooling, streaming, tooling, streaming)]
        runs = [tooling.send("Run something long."), streaming.send("Talk for ever.")]
        watchers[0].until("tool_output_delta")
        eventually(lambda: len(processes.sleepers(FOREVER)) == 1, "the tool runs")
        exchange = streaming.part.next_reached()
        watchers[1].until("text_delta")

        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < BOUND

        assert [watcher.end() for watcher in watchers] == ["UNAVAILABLE"] * 4
        assert all("shutting down" in watcher.details for watcher in watchers)
        assert exchange.closed.wait(30)
        assert processes.running(FOREVER) == []
        assert server.running() == []
        assert not (server.data / "address").exists()
        for watcher, run in zip(watchers, runs * 2, strict=True):
            stop = watcher.of("run_stopped")[-1]
            assert (stop.request_cycle, stop.reason, stop.detail) == (run.name, v1.STOP_REASON_INTERRUPTED, "restart")
        heads = [watcher.revisions[-1] for watcher in watchers[:2]]
        for watcher in watchers:
            watcher.close()

    asked = fake_provider.asked
    again = start_server(tmp_path, **provider(fake_provider.url))
    with again.client() as client:
        for chat, head in zip((tooling, streaming), heads, strict=True):
            conversation = client.conversation(chat.name)
            found = conversation.get()
            assert found.state.kind == "idle"
            assert found.revision == head, "the next start had to bring something to rest"
            chat.client, chat.conversation = client, conversation
            chat.assert_valid()
        assert fake_provider.asked == asked
        streaming.part.then(says("Good morning."))
        assert streaming.ask("Awake?") == "Good morning."


SECRET_TEXT = "the quick brown fox jumps over the lazy dog"


def test_no_secret_gets_out(start_server: Servers, fake_provider: FakeProvider, tmp_path: Path) -> None:
    server = start_server(tmp_path, "--log-level", "debug", **provider(fake_provider.url))
    with server.client() as client:
        environment = {"cmd": "env; tr '\\0' '\\n' < /proc/$PPID/environ; tr '\\0' '\\n' < /proc/$PPID/cmdline"}
        part = fake_provider.part(
            calls(("bash", environment)),
            says("Seen."),
            refuses(401, "authentication_error", f"your key {API_KEY} is wrong, {API_KEY[:20]}… is not known"),
        )
        chat = Chat(client, part, tmp_path)
        watcher = Watcher(server, chat.name, after_revision=0)
        assert chat.ask(f"Look: {SECRET_TEXT}.") == "Seen."
        chat.send("Fail.").wait()
        watcher.until(lambda event: event.run_stopped.reason == v1.STOP_REASON_ERROR)
        seen = "\n".join(str(event) for event in watcher.events) + str(list(chat.conversation.cycles(view="full")))
        watcher.close()
    assert part.exchanges[0].received.headers["x-api-key"] == API_KEY, "the provider was not told the key"
    assert "PATH=" in seen, "the tool saw no environment"
    assert server.stop() == 0
    stored = b"".join(file.read_bytes() for file in server.data.iterdir() if file.name != "token" and file.is_file())
    assert SECRET_TEXT.encode() in stored, "the search would find nothing"
    for secret in (API_KEY, API_KEY[:20]):
        assert secret not in seen
        assert secret.encode() not in stored
    assert server.token not in seen
    assert server.token.encode() not in stored
    log = server.log_text()
    assert "SendMessage" in log, "the log holds nothing"
    for secret in (API_KEY, API_KEY[:20], server.token, SECRET_TEXT, "Seen."):
        assert secret not in log
