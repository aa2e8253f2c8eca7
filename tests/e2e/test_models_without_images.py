"""Models that take no images, or may not: nothing that was sent or read is left out without a word."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bedrock import Client
from bedrock.errors import ImageInvalid

from tests.support import pictures
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider
from tests.support.server_process import API_KEY, ServerProcess, Servers, bedrock


@pytest.fixture(scope="module")
def server(fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with one model that is said to take no images; nothing is known of any other."""
    folder = tmp_path_factory.mktemp("server")
    config = folder / "config.toml"
    config.write_text(
        f'[providers.mine]\nprotocol = "anthropic"\nbase_url = "{fake_provider.url}"\napi_key = "{API_KEY}"\n'
        'models = ["*"]\ndefault_model = "blind"\ndiscover = "never"\n[models.blind]\nimages = false\n'
    )
    servers = Servers()
    yield servers(folder, "--config", str(config), BEDROCK_TITLES="false")
    servers.close()


def test_a_model_that_takes_no_images_gets_no_message_with_one(open_chat: Callable[..., Chat], client: Client) -> None:
    chat = open_chat(model="blind")
    before = chat.conversation.get()
    with pytest.raises(ImageInvalid, match="model blind does not accept images") as refused:
        chat.send("What is it?", images=[pictures.png()])
    assert (refused.value.code, *refused.value.fields) == ("INVALID_ARGUMENT", "images")
    assert 'set images = true in [models."blind"]' in refused.value.message
    assert (chat.conversation.get(), chat.messages()) == (before, [])
    assert (client.model("blind").images, client.model("blind").images_assumed) == (False, False)


def ask(server: ServerProcess, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return bedrock(folder, "ask", *arguments, **server.way)


def test_the_command_line_says_why_and_leaves_no_conversation(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(pictures.png())
    there = [each.name for each in client.conversations()]
    asked = ask(server, tmp_path, "--image", "a.png", "Look.")
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "model blind does not accept images" in asked.stderr
    assert [each.name for each in client.conversations()] == there
