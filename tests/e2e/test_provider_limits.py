"""What a provider's slowness and size lead to: told as what they are, and retried only where that can help."""

from collections.abc import Callable, Iterator

import pytest
from bedrock import Client, RunError

from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, dribbles, says, stalls
from tests.support.patience import within
from tests.support.server_process import API_KEY, ServerProcess, Servers


@pytest.fixture(scope="module")
def server(fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that has little patience with its provider."""
    folder = tmp_path_factory.mktemp("server")
    config = folder / "config.toml"
    config.write_text(
        f'[providers.anthropic]\npreset = "anthropic"\nbase_url = "{fake_provider.url}"\napi_key = "{API_KEY}"\n'
        "timeouts = { idle = 1.5, total = 2 }\n"
    )
    servers = Servers()
    yield servers(folder, "--config", str(config))
    servers.close()


def _failure(chat: Chat) -> RunError:
    within(chat.settle)
    return chat.error


def test_time_limits_are_reported_as_network_errors_and_by_their_names(open_chat: Callable[..., Chat]) -> None:
    silent = open_chat(otherwise=stalls)
    slow = open_chat(otherwise=dribbles(*["word "] * 400, seconds=0.1))
    for chat in (silent, slow):
        chat.send("Go on")
    for chat, text in ((silent, "nothing arrived for 1.5 s"), (slow, "within its total time limit of 2 s")):
        error = _failure(chat)
        assert error.kind == "network"
        assert text in error.message
        assert len(chat.part.exchanges) == 3


def test_an_answer_that_is_too_large_fails_at_once_and_is_paid_for_once(
    client: Client, open_chat: Callable[..., Chat]
) -> None:
    chat = open_chat(says(*["x" * (1 << 18)] * 5))
    chat.send("Write it all")
    error = _failure(chat)
    assert error.kind == "response_too_large"
    assert "limit of 1 MiB" in error.message
    assert "several parts" in error.message
    assert len(chat.part.exchanges) == 1
    assert client.server_info().limits.max_model_response_bytes == 1 << 20
    assert chat.ask("Then the first part") == "Done."
    chat.assert_valid()
