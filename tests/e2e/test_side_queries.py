"""A small model beside conversations: it gives titles and sifts searches, is stopped by a cancel, and is paid for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.chat import Chat
from tests.e2e.fake_provider import FakeProvider, Part, Play, calls, says
from tests.e2e.patience import eventually, within
from tests.e2e.server_process import API_KEY, ServerProcess, Servers, provider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bedrock import Client

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
    config = folder / "config.toml"
    config.write_text(
        f'small_model = "{SMALL}"\n[providers.small]\nprotocol = "anthropic"\nbase_url = "{small_provider.url}"\n'
        f'api_key = "{API_KEY}"\nmodels = ["{SMALL}"]\ndiscover = "never"\n'
    )
    servers = Servers()
    yield servers(folder, "--config", str(config), **provider(fake_provider.url))
    servers.close()


@pytest.fixture
def sifting(
    client: Client, fake_provider: FakeProvider, small_provider: FakeProvider, tmp_path: Path
) -> Callable[[Play], tuple[Chat, Part]]:
    """Creates conversations with a title whose model searches much; the small model plays what it is given."""

    def create(play: Play) -> tuple[Chat, Part]:
        (tmp_path / "much").write_text("a needle here\n" * 400)
        small = small_provider.part(play)
        search = {"query": f"Where is it? {small.key}", "search_terms": ["needle"]}
        return Chat(client, fake_provider.part(calls(("keyword_search", search))), tmp_path, title="Mine"), small

    return create


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


def test_a_search_is_sifted(sifting: Callable[[Play], tuple[Chat, Part]]) -> None:
    chat, small = sifting(says("much:7:a needle here", input_tokens=900))
    assert chat.ask("Look.") == "Done."
    (result,) = chat.part.exchanges[1].results
    assert "much:7:a needle here\n[picked by a small model from " in str(result["content"])
    assert "much:400:a needle here" in small.exchanges[0].question
    assert chat.conversation.get().aside_usage.input_tokens == 900
    assert len(chat.part.exchanges) == 2, "the small request is no turn of the conversation"
