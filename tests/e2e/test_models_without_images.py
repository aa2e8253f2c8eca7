"""Models that take no images, or may not: nothing that was sent or read is left out without a word."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from bedrock.errors import ImageInvalid

from tests.support import pictures
from tests.support.fake_provider import Exchange, FakeProvider, calls, says
from tests.support.patience import within
from tests.support.server_process import API_KEY, ServerProcess, Servers, clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bedrock import Client

    from tests.support.chat import Chat

INSTEAD = "[an image, image/png 30x20, that could not be sent to you]"


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


def seen(exchange: Exchange) -> tuple[int, int]:
    """How many images the model was sent, and how many texts in place of one."""
    body = json.dumps(exchange.body)
    return body.count('"type": "base64"'), body.count(INSTEAD)


def notices(chat: Chat) -> list[str]:
    return [message.text for message in chat.conversation.messages() if message.role == "system"]


def test_a_model_that_takes_no_images_gets_no_message_with_one(open_chat: Callable[..., Chat], client: Client) -> None:
    chat = open_chat(model="blind")
    before = chat.conversation.get()
    with pytest.raises(ImageInvalid, match="the model blind takes no images") as refused:
        chat.send("What is it?", images=[pictures.png()])
    assert (refused.value.code, *refused.value.fields) == ("INVALID_ARGUMENT", "images")
    assert 'set images = true in [models."blind"]' in refused.value.message
    assert (chat.conversation.get(), chat.messages()) == (before, [])
    assert (client.model("blind").images, client.model("blind").images_assumed) == (False, False)


def ask(server: ServerProcess, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bedrock.cli", "--address", server.address, "ask", *arguments],
        check=False,
        cwd=folder,
        env=clean_environment(folder, BEDROCK_TOKEN=server.token),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command_line_says_why_and_leaves_no_conversation(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(pictures.png())
    there = [each.name for each in client.conversations()]
    asked = ask(server, tmp_path, "--image", "a.png", "Look.")
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "the model blind takes no images" in asked.stderr
    assert [each.name for each in client.conversations()] == there


def test_the_command_line_shows_the_notice(server: ServerProcess, fake_provider: FakeProvider, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(pictures.png())
    part = fake_provider.part(calls(("read_image", {"path": "a.png"})), says("I see nothing."))
    asked = ask(server, tmp_path, f"Look. {part.key}")
    assert (asked.returncode, asked.stdout) == (0, "I see nothing.\n")
    assert "· The model blind takes no images" in asked.stderr


def test_what_a_tool_shows_becomes_a_text_and_a_notice(open_chat: Callable[..., Chat], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(pictures.png())
    look = calls(("read_image", {"path": "a.png"}))
    chat = open_chat(look, look, says("I see nothing."), model="blind")
    assert chat.ask("Look.") == "I see nothing."
    chat.part.next()
    assert [seen(chat.part.next()), seen(chat.part.next())] == [(0, 1), (0, 2)]
    first, second = notices(chat)
    assert first == second
    assert "The model blind takes no images" in first


def test_images_of_the_history_are_announced_when_the_model_changes(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat(*[says("Yes.")] * 5, model="sees")
    within(chat.send("See?", images=[pictures.png()]).answer)
    for model in ("blind", "blind", "sees", "blind"):
        chat.conversation.update(model=model)
        chat.ask("And now?")
    assert [seen(chat.part.next()) for _ in range(5)] == [(1, 0), (0, 1), (0, 1), (1, 0), (0, 1)]
    assert len(notices(chat)) == 2
    with chat.conversation.replay() as steps:
        assert not [step.difference for step in steps if step.difference]
