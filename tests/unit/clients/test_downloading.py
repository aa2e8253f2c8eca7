"""`bedrock download`: images become files, and no file is overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest
from bedrock import Client, v1
from bedrock.cli import exits
from bedrock.cli.app import bedrock
from click.testing import CliRunner, Result

from tests.unit.clients.fake_server import NAME, SLUG, FakeBedrock, stored

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
    found = [message.images for message in client.conversation(SLUG).messages()]
    assert found == [[image(FIRST)], [image(SECOND)]]


def test_all_images_are_saved_and_no_file_is_overwritten(album: FakeBedrock, address: str, tmp_path: Path) -> None:
    kept = tmp_path / f"{FIRST[:12]}.png"
    kept.write_text("mine")
    result = run(address, "download", SLUG, "-o", str(tmp_path))
    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path / SECOND[:12]}.png\n"
    assert "exists already" in result.stderr
    assert (tmp_path / f"{SECOND[:12]}.png").read_bytes() == b"\x89PNG"
    assert kept.read_text() == "mine"


def test_a_link_that_leads_nowhere_yet_is_not_written_through(album: FakeBedrock, address: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for identity in (FIRST, SECOND):
        (tmp_path / f"{identity[:12]}.png").symlink_to(elsewhere)
    result = run(address, "download", SLUG, "-o", str(tmp_path))
    assert (result.exit_code, result.stderr.count("exists already")) == (0, 2)
    assert not elsewhere.exists()


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
