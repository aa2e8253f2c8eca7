"""Images from the client to the model and back, and refusals that change nothing."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bedrock import v1
from bedrock.errors import ImageInvalid, NotFound

from tests.support import pictures
from tests.support.chat import Chat
from tests.support.fake_provider import Exchange, FakeProvider, calls, says
from tests.support.patience import within
from tests.support.server_process import Servers, provider


def images_of(exchange: Exchange) -> list[bytes]:
    """What the provider was shown, in order, in tool results too."""
    blocks: list[dict[str, Any]] = []
    for message in exchange.body["messages"]:
        for block in message["content"]:
            inner = block.get("content") if block["type"] == "tool_result" else None
            blocks += [block, *(inner if isinstance(inner, list) else [])]
    return [base64.b64decode(block["source"]["data"]) for block in blocks if block["type"] == "image"]


def test_an_image_goes_to_the_model_and_its_original_comes_back(open_chat: Callable[..., Chat], tmp_path: Path) -> None:
    file = tmp_path / "wide.png"
    file.write_bytes(pictures.wide_png())
    chat = open_chat(says("A gradient."), says("Two."))
    assert within(chat.send("What is it?", images=[file, pictures.large_jpeg()]).answer) == "A gradient."
    first = images_of(chat.part.next())
    assert [max(pictures.opened(view).size) for view in first] == [1_568, 1_568]
    chat.ask("How many?")
    assert images_of(chat.part.next()) == first
    shown = [block.image for block in chat.messages()[0].content if block.WhichOneof("block") == "image"]
    assert [(each.media_type, each.width) for each in shown] == [("image/png", 12_000), ("image/jpeg", 3_000)]
    assert not any(each.data for each in shown)
    assert chat.conversation.attachment(shown[1].attachment) == pictures.large_jpeg()
    with pytest.raises(NotFound):
        chat.conversation.attachment(shown[0].attachment + ".view1")


def test_a_tool_shows_an_image(open_chat: Callable[..., Chat], tmp_path: Path) -> None:
    (tmp_path / "a.gif").write_bytes(pictures.animated_gif())
    (tmp_path / "bad.png").write_bytes(pictures.bomb())
    chat = open_chat(calls(("read_image", {"path": "a.gif"}), ("read_image", {"path": "bad.png"})), says("Red."))
    assert chat.ask("Look.") == "Red."
    chat.part.next()
    (view,) = images_of(chat.part.next())
    assert pictures.opened(view).convert("RGB").getpixel((1, 1)) == (255, 0, 0)
    results = [block.tool_result for message in chat.messages() for block in message.content
               if block.WhichOneof("block") == "tool_result"]  # fmt: skip
    assert results[0].images[0].media_type == "image/gif"
    assert "too many pixels" in results[1].output
    assert chat.conversation.attachment(results[0].images[0].attachment) == pictures.animated_gif()


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (v1.Image(media_type="image/png", data=pictures.png()[:50]), "corrupt"),
        (v1.Image(media_type="image/jpeg", data=pictures.png()), "is image/png, not image/jpeg"),
        (v1.Image(media_type="image/tiff", data=pictures.png()), "media types"),
        (v1.Image(media_type="image/png"), "no data"),
    ],
    ids=["truncated", "wrong type", "unknown type", "empty"],
)
def test_a_bad_image_is_named_and_the_conversation_untouched(
    open_chat: Callable[..., Chat], broken: v1.Image, words: str
) -> None:
    chat = open_chat()
    before = chat.conversation.get()
    with pytest.raises(ImageInvalid, match=words) as refused:
        chat.send("Look.", images=[pictures.png(), broken])
    assert (refused.value.code, refused.value.reason) == ("INVALID_ARGUMENT", "IMAGE_INVALID")
    assert "images[1]" in refused.value.message
    assert chat.conversation.get() == before
    assert chat.messages() == []


@pytest.mark.one_server("the server is restarted")
def test_the_model_is_shown_the_same_bytes_after_a_restart(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    part = fake_provider.part(says("Red."), says("Still."))
    shown: list[list[bytes]] = []
    name = ""
    for question in ("Look.", "Sure?"):
        server = start_server(tmp_path, **provider(fake_provider.url))
        with server.client() as client:
            chat = client.conversation(name) if name else client.create(tmp_path)
            name = chat.name
            images = [] if shown else [pictures.webp()]
            within(chat.send(f"{question} {part.key}", images=images).answer)
        shown.append(images_of(part.next()))
        server.stop()
    assert len(shown[0]) == 1
    assert shown[0] == shown[1]
