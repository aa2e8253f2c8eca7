"""Images in each protocol's words, and what stands in for those that are not shown."""

import base64
import json
from typing import Any

import pytest
from msgspec.structs import replace

from actors.adapters.llm.catalog import Catalog
from actors.adapters.llm.http_model import HttpModel
from actors.core.content import Content, Image, Text, ToolSuccess, ToolUse
from actors.core.errors import ErrorKind
from actors.core.history import ProviderView, Turn
from actors.ports import CancelToken, ImagesUnavailableError, ImageView, Model, ModelFailedError
from tests.support.model_requests import Sink, assistant, body_of, failure, model, provider, request, user
from tests.support.scripted_server import ScriptedServer, answer
from tests.support.strict_checker import CHECKS

SHOT = Image("hash", "image/gif", 640, 480)
LOST = Image("lost", "image/png", 7, 7)
VIEW = ImageView("image/png", b"\x00\xff view")
DATA = base64.b64encode(VIEW.data).decode()
URL = f"data:image/png;base64,{DATA}"
STAND_IN = "[an image, image/gif 640x480, that could not be sent to you]"
CALL = ToolUse("t1", "read_image", '{"path": "a.gif"}')
PROTOCOLS = ("anthropic", "openai-chat", "openai-responses")


def view_of(image: Image) -> ImageView | None:
    return VIEW if image == SHOT else None


def messages(protocol: str, *turns: Turn, name: str = "claude-sonnet-4-5", view: Any = view_of) -> list[Any]:
    """What is sent, checked as providers do."""
    raw = body_of(provider(protocol, "http://127.0.0.1:9"), replace(request(*turns), view_of=view), name)
    said = CHECKS[protocol](raw)["input" if protocol == "openai-responses" else "messages"]
    return [each for each in said if each.get("role") != "system"]


def rounds(*after: Content) -> tuple[Turn, ...]:
    return user("Look."), assistant(CALL), Turn("user", (ToolSuccess("t1", "a.gif", images=(SHOT,)), *after))


def test_an_image_of_a_user_comes_before_the_text() -> None:
    turn = user(SHOT, "What is it?")
    source = {"type": "base64", "media_type": "image/png", "data": DATA}
    (told,) = messages("anthropic", turn)
    assert told["content"] == [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    (told,) = messages("openai-chat", turn)
    assert told["content"] == [
        {"type": "image_url", "image_url": {"url": URL, "detail": "auto"}},
        {"type": "text", "text": "What is it?"},
    ]
    (told,) = messages("openai-responses", turn)
    assert told["content"] == [
        {"type": "input_image", "image_url": URL, "detail": "auto"},
        {"type": "input_text", "text": "What is it?"},
    ]


def test_the_image_of_a_tool_is_part_of_its_result_or_follows_it() -> None:
    *_, told = messages("anthropic", *rounds())
    (result,) = told["content"]
    assert [block["type"] for block in result["content"]] == ["text", "image"]
    assert result["content"][0]["text"] == "a.gif"
    *_, result, told = messages("openai-chat", *rounds(Text("And?")))
    assert (result["role"], result["content"]) == ("tool", "a.gif")
    assert [part["type"] for part in told["content"]] == ["text", "image_url", "text"]
    assert told["content"][0]["text"] == "Images from tool call t1:"
    *_, result, told = messages("openai-responses", *rounds())
    assert (result["type"], result["output"]) == ("function_call_output", "a.gif")
    assert [part["type"] for part in told["content"]] == ["input_text", "input_image"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_missing_image_is_replaced_by_text(protocol: str) -> None:
    turns = user(LOST, "See?"), assistant(CALL), user(ToolSuccess("t1", "", images=(LOST, SHOT)))
    text = json.dumps(messages(protocol, *turns))
    assert text.count("[an image, image/png 7x7, that could not be sent to you]") == 2
    assert text.count(DATA) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_model_that_takes_no_images_gets_text_instead(protocol: str) -> None:
    def none(image: Image) -> ImageView | None:
        raise AssertionError("nobody looks at it")

    turns = user(SHOT, "See?"), *rounds()[1:]
    text = json.dumps(messages(protocol, *turns, name="gpt-oss-20b", view=none))
    assert text.count(STAND_IN) == 2
    assert "base64" not in text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_bytes_of_a_turn_are_the_same_in_every_request(protocol: str) -> None:
    asked = replace(request(*rounds()), view_of=view_of)
    config = provider(protocol, "http://127.0.0.1:9")
    found = Catalog((config,)).get("claude-sonnet-4-5")
    assert isinstance(found, HttpModel)
    first = found.body_of(asked)
    longer = replace(asked, view=ProviderView((*asked.turns, assistant("A cat."), user("Sure?"))))
    second = found.body_of(longer)
    assert second.startswith(first[: first.rindex(b"]}")])
    assert second == body_of(config, longer)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_failure_to_prepare_an_image_leaves_as_it_is(protocol: str) -> None:
    def fails(image: Image) -> ImageView | None:
        raise ImagesUnavailableError("no")

    with pytest.raises(ImagesUnavailableError):
        messages(protocol, user(SHOT), view=fails)


def test_a_request_shows_nothing_without_a_renderer() -> None:
    assert STAND_IN in json.dumps(messages("anthropic", user(SHOT), view=request().view_of))


REFUSED = answer(400, b'{"error": {"message": "this model does not support image input"}}')


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_unknown_model_gets_images_until_its_provider_refuses_them(protocol: str) -> None:
    with ScriptedServer(REFUSED, REFUSED) as server:
        asked = model(protocol, server.url, "some-model")
        assert (asked.info.images, asked.info.images_assumed) == (True, True)
        text = _failure(asked)
        assert (asked.info.images, asked.info.images_assumed) == (False, False)
        _failure(asked)
    assert "does not support image input" in text
    assert 'images = false in [models."some-model"]' in text
    first, second = (each.body.decode() for each in server.received)
    assert (DATA in first, DATA in second, "could not be sent to you" in second) == (True, False, True)


def test_a_model_that_its_server_lists_without_images_is_not_sent_the_first_one_either() -> None:
    listed = {"data": [{"id": "some-model", "architecture": {"input_modalities": ["text"]}}]}
    with ScriptedServer(answer(200, json.dumps(listed).encode()), REFUSED) as server:
        asked = model("openai-chat", server.url, "some-model", discover="always")
        assert "does not accept images for some-model. Send a message to continue without them" in _failure(asked)
        assert [each.path for each in server.received] == ["/models"]
        _failure(asked)
    assert DATA not in server.received[-1].body.decode()


def test_a_refusal_for_another_reason_says_that_images_may_be_the_cause_of_it() -> None:
    odd = answer(422, b'{"error": {"message": "messages[1]: invalid type: sequence, expected a string"}}')
    with ScriptedServer(odd, odd, odd) as server:
        assert 'if it does not, set images = false in [models."some-model"]' in _failure(
            model("openai-chat", server.url, "some-model")
        )
        assert "images" not in _failure(model("openai-chat", server.url, "gpt-4o"))
        assert "images" not in failure(model("openai-chat", server.url, "some-model")).failure.message
    assert DATA in server.received[1].body.decode()


def _failure(asked: Model) -> str:
    with pytest.raises(ModelFailedError) as failed:
        asked.respond(replace(request(user(SHOT, "See?")), view_of=view_of), Sink(), CancelToken())
    assert failed.value.failure.kind is ErrorKind.INVALID_REQUEST
    return failed.value.failure.message
