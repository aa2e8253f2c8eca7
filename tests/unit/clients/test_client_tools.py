"""Functions as tools, and attachments that are downloaded."""

import enum
import functools
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from bedrock import Client, ClientTool, ToolAnswer, ToolCall, v1
from bedrock._shared.function_tools import answer_of, failure_of, tool_function
from bedrock.cli import exit_codes as exits
from bedrock.cli.app import bedrock
from click.testing import CliRunner, Result

from tests.support.fake_server import NAME, SLUG, FakeBedrock, stored


class Colour(enum.Enum):
    RED = "red"


class Size(TypedDict):
    height: float


@dataclass
class Item:
    name: str
    count: int = 1


def order(
    items: list[Item],
    colour: Colour,
    size: Size,
    *,
    due: date | None = None,
    speed: Literal["slow", "fast"] = "slow",
    tags: Sequence[str] = (),
    most: Annotated[int, msgspec.Meta(ge=1, description="How many at most.")] = 3,
) -> dict[str, Any]:
    """Order things.

    They come by post.
    """
    return {"items": items, "colour": colour, "size": size, "due": due, "speed": speed, "tags": tags, "most": most}


def call(raw: str = "", /, **given: Any) -> ToolCall:
    message = v1.ToolCall(tool_use_id="t1", tool="order", raw_input=raw)
    if not raw:
        message.input.update(given)
    return ToolCall.from_proto(message)


def test_the_schema_says_what_the_types_and_the_docstring_say() -> None:
    made = tool_function(order).declaration
    schema = made.input_schema
    assert (made.name, made.description) == ("order", "Order things.\n\nThey come by post.")
    assert (made.group, made.timeout, made.read_only, made.requires_approval) == (
        "other",
        timedelta(minutes=5),
        False,
        False,
    )
    assert (schema["type"], schema["required"], schema["additionalProperties"]) == (
        "object",
        ["items", "colour", "size"],
        False,
    )
    assert schema["properties"]["items"] == {"type": "array", "items": {"$ref": "#/$defs/Item"}}
    assert schema["properties"]["most"] == {"type": "integer", "minimum": 1, "description": "How many at most."}
    assert set(schema["$defs"]) == {"Item", "Colour", "Size"}
    assert schema["$defs"]["Item"]["required"] == ["name"]


def test_arguments_have_the_types_of_the_parameters_and_defaults_are_the_function_s() -> None:
    made = tool_function(order)
    given = {"items": [{"name": "pen"}], "colour": "red", "size": {"height": 2}}
    arguments = made.arguments(call(**given, due="2026-11-23"))
    assert arguments == {
        "items": [Item("pen")],
        "colour": Colour.RED,
        "size": {"height": 2.0},
        "due": date(2026, 11, 23),
    }
    assert made.function(**arguments)["most"] == 3
    assert made.arguments(call(msgspec.json.encode(given).decode()))["items"] == [Item("pen")]


@pytest.mark.parametrize("given", [{}, {"items": [], "colour": "blue", "size": {"height": 1}}, {"other": 1}])
def test_a_call_that_does_not_fit_is_an_error_that_the_model_can_read(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"`\$|missing required field|unknown field"):
        tool_function(order).arguments(call(**given))


def test_what_a_function_returns_and_raises_becomes_text() -> None:
    values = ("text", None, Item("pen"), [1, None], ToolAnswer({"a": 1}, [b"x"]))
    answers = [answer_of(value) for value in values]
    assert [answer.value for answer in answers] == ["text", "", '{"name":"pen","count":1}', "[1,null]", '{"a":1}']
    assert answers[-1].images == [b"x"]
    assert (failure_of(KeyError("id")), failure_of(TimeoutError())) == ("KeyError: 'id'", "TimeoutError")
    with pytest.raises(TypeError):
        answer_of(object())


def untyped(x): ...  # type: ignore[no-untyped-def]
def many(*values: int) -> None: ...
def mapped(**values: int) -> None: ...
def strange(of: "threading_lock") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def custom(of: functools.partial[int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (untyped, "parameter x needs a type annotation"),
        (many, r"\*values: int cannot be passed by name"),
        (mapped, r"\*\*values: int cannot be passed by name"),
        (strange, "threading_lock"),
        (custom, "no JSON equivalent"),
        (7, "must be a list of functions"),
    ],
)
def test_what_no_model_could_call_is_refused_where_it_is_defined(function: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        tool_function(function)


def test_an_asynchronous_function_is_for_an_event_loop(client: Client) -> None:
    async def later() -> None: ...

    with pytest.raises(TypeError, match="later is a coroutine function"):
        client.create(client_tools=[later])
    with pytest.raises(TypeError, match="client_tools: must be a list"):
        client.create(client_tools="order")  # type: ignore[arg-type]
    assert client.create(client_tools=[ClientTool("find")]).name


def test_a_timeout_that_is_no_timedelta_is_told_by_its_name() -> None:
    with pytest.raises(TypeError, match="timeout: must be a timedelta, not 6"):
        ClientTool("find", timeout=6)  # type: ignore[arg-type]


FIRST, SECOND = "a" * 64, "b" * 64


def image(identity: str) -> v1.Image:
    return v1.Image(media_type="image/png", width=30, height=20, attachment=f"{NAME}/attachments/sha256-{identity}")


@pytest.fixture
def album(fake: FakeBedrock) -> FakeBedrock:
    """A conversation with an image of a person, and one that a tool read."""
    fake.happen(
        stored("user", v1.ContentBlock(text="Look."), v1.ContentBlock(image=image(FIRST))),
        stored("tool", v1.ContentBlock(tool_result=v1.ToolResult(tool_use_id="t1", images=[image(SECOND)]))),
    )
    fake.settle()
    return fake


def run(address: str, *arguments: str) -> Result:
    return CliRunner(env={"BEDROCK_ADDRESS": address, "BEDROCK_TOKEN": "secret"}).invoke(bedrock, arguments)


def test_a_message_names_its_images_and_those_of_its_results(album: FakeBedrock, client: Client) -> None:
    found = [[image.proto for image in message.images] for message in client.conversation(SLUG).messages()]
    assert found == [[image(FIRST)], [image(SECOND)]]


def test_all_images_are_saved_and_no_other_file_is_overwritten(
    album: FakeBedrock, address: str, tmp_path: Path
) -> None:
    other, saved = tmp_path / f"{FIRST[:12]}.png", tmp_path / f"{SECOND[:12]}.png"
    other.write_text("mine")
    for _ in range(2):  # what is saved already stays
        result = run(address, "download", SLUG, "-o", str(tmp_path))
        assert (result.exit_code, result.stdout) == (exits.USAGE, f"{saved}\n")
        assert f"{other}: a different file is already there\nRemove it" in result.stderr
        assert (other.read_text(), saved.read_bytes()) == ("mine", b"\x89PNG")
    assert sorted(tmp_path.iterdir()) == sorted([other, saved])


def test_a_disk_that_is_full_leaves_no_part_of_an_image(album: FakeBedrock, address: str, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, before[1]))
    try:
        result = run(address, "download", SLUG, "-o", str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (result.exit_code, result.stderr[:7], list(tmp_path.iterdir())) == (exits.FAILED, "error: ", [])


def test_a_link_is_not_written_through(album: FakeBedrock, address: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for identity in (FIRST, SECOND):
        (tmp_path / f"{identity[:12]}.png").symlink_to(elsewhere)
    assert run(address, "download", SLUG, "-o", str(tmp_path)).exit_code == exits.USAGE
    assert not elsewhere.exists()
    assert (tmp_path / f"{FIRST[:12]}.png").is_symlink()


def test_one_image_is_saved_by_its_name(album: FakeBedrock, address: str, tmp_path: Path) -> None:
    assert run(address, "download", SLUG, FIRST[:12], "-o", str(tmp_path)).exit_code == 0
    assert [file.name for file in tmp_path.iterdir()] == [f"{FIRST[:12]}.png"]


def test_an_image_that_is_not_there_is_refused_with_those_that_are(
    album: FakeBedrock, address: str, tmp_path: Path
) -> None:
    result = run(address, "download", SLUG, "cccccccccccc", "-o", str(tmp_path))
    assert result.exit_code == exits.FAILED
    assert f"Its images: {FIRST[:12]}, {SECOND[:12]}" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_conversation_without_images_says_so(fake: FakeBedrock, address: str, tmp_path: Path) -> None:
    result = run(address, "download", SLUG, "-o", str(tmp_path))
    assert result.exit_code == exits.FAILED
    assert "no images" in result.stderr
