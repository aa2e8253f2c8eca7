"""`bedrock download` and `bedrock export`: what becomes a file, and no file is overwritten unless that is wanted."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from bedrock import Client, Conversation, Unavailable, v1
from bedrock.cli import exit_codes as exits
from bedrock.cli.app import bedrock
from click.testing import CliRunner, Result

from tests.support.fake_server import NAME, SLUG, FakeBedrock, stored

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


def test_all_images_are_saved_and_no_other_file_is_overwritten_unless_forced(
    album: FakeBedrock, address: str, tmp_path: Path
) -> None:
    other, saved = tmp_path / f"{FIRST[:12]}.png", tmp_path / f"{SECOND[:12]}.png"
    other.write_text("mine")
    for _ in range(2):  # what is saved already stays
        result = run(address, "download", SLUG, "-o", str(tmp_path))
        assert (result.exit_code, result.stdout) == (exits.USAGE, f"{saved}\n")
        assert f"{other}: there is another file already\n--force overwrites." in result.stderr
        assert (other.read_text(), saved.read_bytes()) == ("mine", b"\x89PNG")
    assert run(address, "download", SLUG, "--force", "-o", str(tmp_path)).exit_code == 0
    assert other.read_bytes() == b"\x89PNG"
    assert sorted(tmp_path.iterdir()) == sorted([other, saved])


@pytest.mark.parametrize("force", [False, True])
def test_a_link_is_not_written_through(album: FakeBedrock, address: str, tmp_path: Path, force: bool) -> None:
    elsewhere = tmp_path / "elsewhere"
    for identity in (FIRST, SECOND):
        (tmp_path / f"{identity[:12]}.png").symlink_to(elsewhere)
    result = run(address, "download", SLUG, "-o", str(tmp_path), *["--force"] * force)
    assert result.exit_code == (0 if force else exits.USAGE)
    assert not elsewhere.exists()
    assert (tmp_path / f"{FIRST[:12]}.png").is_symlink() is not force


def test_one_image_is_saved_by_its_name(album: FakeBedrock, address: str, tmp_path: Path) -> None:
    assert run(address, "download", SLUG, FIRST[:12], "-o", str(tmp_path)).exit_code == 0
    assert [file.name for file in tmp_path.iterdir()] == [f"{FIRST[:12]}.png"]


def test_an_image_that_is_not_there_is_refused_with_those_that_are(
    album: FakeBedrock, address: str, tmp_path: Path
) -> None:
    result = run(address, "download", SLUG, "cccccccccccc", "-o", str(tmp_path))
    assert result.exit_code == exits.FAILED
    assert f"There are: {FIRST[:12]}, {SECOND[:12]}" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_conversation_without_images_says_so(fake: FakeBedrock, address: str, tmp_path: Path) -> None:
    result = run(address, "download", SLUG, "-o", str(tmp_path))
    assert result.exit_code == exits.FAILED
    assert "no images" in result.stderr


# --- export -----------------------------------------------------------------------------------------------------------

LINE = '{"kind": "conversation"}\n'


def test_an_export_overwrites_a_file_only_if_forced(fake: FakeBedrock, address: str, tmp_path: Path) -> None:
    file, link = tmp_path / "out.jsonl", tmp_path / "link"
    file.write_text("mine")
    link.symlink_to(file)
    for path in (file, link):
        result = run(address, "export", SLUG, "-o", str(path))
        assert (result.exit_code, file.read_text()) == (exits.USAGE, "mine")
        assert f"{path} exists already\n--force overwrites it.\n" in result.stderr
    assert run(address, "export", SLUG, "-f", "-o", str(link)).exit_code == 0
    assert (file.read_text(), link.is_symlink()) == (LINE, True)
    assert sorted(tmp_path.iterdir()) == [link, file]


def test_a_failed_export_leaves_what_was_there(
    fake: FakeBedrock, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> Iterator[str]:
        yield "{}"
        raise Unavailable("gone")

    monkeypatch.setattr(Conversation, "export", breaks)
    file = tmp_path / "out.jsonl"
    for before in ([], [file]):
        result = run(address, "export", SLUG, "-f", "-o", str(file))
        assert result.exit_code == exits.UNREACHABLE
        assert list(tmp_path.iterdir()) == before
        file.write_text("mine")
    assert file.read_text() == "mine"


def test_what_is_no_file_is_written_to(address: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run(address, "export", SLUG, "-o", str(pipe)).exit_code == 0
        assert os.read(reader, 100).decode() == LINE
    finally:
        os.close(reader)
