"""A small model beside conversations: it gives titles and sifts searches, is stopped by a cancel, and is paid for."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bedrock import Client, v1

from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, Part, Play, calls, hangs, says
from tests.support.patience import PATIENCE, eventually, within
from tests.support.server_process import API_KEY, ServerProcess, Servers, provider
from tests.support.watcher import Watcher

SMALL = "claude-haiku-4-5"


@pytest.fixture(scope="module")
def small_provider() -> Iterator[FakeProvider]:
    """The provider of the small model."""
    with FakeProvider() as made:
        yield made
    made.assert_content()


@pytest.fixture(scope="module")
def server(
    fake_provider: FakeProvider, small_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server whose small model has another provider, so that requests to it can be told apart."""
    folder = tmp_path_factory.mktemp("server")
    servers = Servers()
    yield servers(folder, *small_model(folder, small_provider), **provider(fake_provider.url))
    servers.close()


def small_model(folder: Path, small_provider: FakeProvider) -> tuple[str, str]:
    """The arguments of a server whose small model is that of this provider."""
    config = folder / "config.toml"
    config.write_text(
        f'small_model = "{SMALL}"\n[providers.small]\nprotocol = "anthropic"\nbase_url = "{small_provider.url}"\n'
        f'api_key = "{API_KEY}"\nmodels = ["{SMALL}"]\ndiscover = "never"\n'
    )
    return "--config", str(config)


def search(folder: Path, small: Part) -> Play:
    """A call of a search that finds so much that the small model of this part is asked."""
    (folder / "much").write_text("a needle here\n" * 400)
    return calls(("keyword_search", {"query": f"Where is it? {small.key}", "search_terms": ["needle"]}))


def test_a_conversation_gets_its_title_and_pays_for_it(
    client: Client, fake_provider: FakeProvider, small_provider: FakeProvider, tmp_path: Path
) -> None:
    small = small_provider.part(says('"Needles, mostly"', input_tokens=70))
    chat = Chat(client, fake_provider.part(), tmp_path)
    assert within(chat.conversation.send(f"Find {small.key} {chat.part.key}\nplease").answer) == "Done."
    eventually(lambda: chat.conversation.get().title == "Needles, mostly", "the title")
    now = chat.conversation.get()
    assert now.aside_usage.input_tokens == 70
    assert now.aside_usage.cost_micros > 0
    assert (now.total_usage.input_tokens, len(chat.part.exchanges), len(small.exchanges)) == (10, 1, 1)
    assert "tools" not in small.exchanges[0].body
    chat.assert_valid()


def test_a_search_is_sifted(
    client: Client, fake_provider: FakeProvider, small_provider: FakeProvider, tmp_path: Path
) -> None:
    small = small_provider.part(says("much:7:a needle here", input_tokens=900))
    chat = Chat(client, fake_provider.part(search(tmp_path, small)), tmp_path, title="Mine")
    assert chat.ask("Look.") == "Done."
    (result,) = chat.part.exchanges[1].results
    assert "much:7:a needle here\n[picked by a small model from " in str(result["content"])
    assert "much:400:a needle here" in small.exchanges[0].question
    assert chat.conversation.get().aside_usage.input_tokens == 900
    assert len(chat.part.exchanges) == 2, "the small request is no turn of the conversation"


@pytest.mark.one_server("the server is killed and restarted")
def test_a_server_killed_during_side_queries_comes_back_idle(
    start_server: Servers, fake_provider: FakeProvider, small_provider: FakeProvider, tmp_path: Path
) -> None:
    """The run that waited for one is interrupted, the other leaves no trace, and neither is asked again."""
    arguments = small_model(tmp_path, small_provider)
    server = start_server(tmp_path, *arguments, **provider(fake_provider.url))
    sifting, titling = small_provider.part(hangs), small_provider.part(hangs)
    with server.client() as client, ExitStack() as opened:
        chat = Chat(client, fake_provider.part(search(tmp_path, sifting)), tmp_path, title="Mine")
        untitled = Chat(client, fake_provider.part(), tmp_path)
        watcher = Watcher(server, chat.name, after_revision=0)
        opened.callback(watcher.close)
        run = chat.send("Look.")
        assert within(untitled.conversation.send(f"Find {titling.key} {untitled.part.key}").answer) == "Done."
        asked = [sifting.next_reached(), titling.next_reached()]
        watcher.state(v1.STATE_KIND_TOOL_EXECUTING)
        server.kill()
        assert watcher.end() == "UNAVAILABLE"
        for exchange in asked:
            assert exchange.closed.wait(PATIENCE), "the request outlived its server"

        start_server(tmp_path, *arguments, listen=server.address, **provider(fake_provider.url))
        stop = within(run.wait)
        assert stop is not None
        assert (stop.reason, stop.detail) == ("interrupted", "restart")
        assert chat.said()[2:] == [("tool", "Interrupted by server restart")]
        assert untitled.conversation.get().title.startswith("Find #part"), "the first line, until a model has a title"
        for each in (chat, untitled):
            now = each.conversation.get()
            assert (now.state.kind, now.aside_usage.input_tokens) == ("idle", 0)
            each.assert_valid()
        assert [len(sifting.exchanges), len(titling.exchanges)] == [1, 1], "the start asked a small model"

        chat.part.then(search(tmp_path, sifting), says("There."))
        sifting.then(says("much:7:a needle here", input_tokens=900))
        assert chat.ask("Look again.") == "There."
        assert chat.conversation.get().aside_usage.input_tokens == 900
        assert untitled.ask("And now?") == "Done."
