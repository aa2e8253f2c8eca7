"""Conversations that work with the reference MCP servers: files, everything, git and time; and the example of them."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bedrock import Client
from bedrock.testing import Bedrock

from tests.peers import installed
from tests.peers.conftest import Node
from tests.support import processes
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, calls, says
from tests.support.patience import PATIENCE, eventually, within
from tests.support.server_process import Servers, clean_environment, provider

pytest_plugins = ["bedrock.testing.plugin"]

EXAMPLES = installed.ROOT / "clients" / "examples"
PACKAGES = installed.NODE_PACKAGES / "node_modules" / "@modelcontextprotocol"
MARK = processes.forever()


def program(node: Node, name: str) -> list[str]:
    """The command of a reference server that Node runs."""
    return [str(node.program), str(PACKAGES / name / "dist" / "index.js")]


@pytest.fixture(scope="module")
def reference(node: Node, fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a server with all four of them, once they have listed their tools."""
    folder = tmp_path_factory.mktemp("reference")
    python = str(installed.MCP_SERVERS / "bin" / "python")
    commands = {
        "files": [*program(node, "server-filesystem"), "."],
        "everything": program(node, "server-everything"),
        "git": [python, "-m", "mcp_server_git"],
        "time": [python, "-m", "mcp_server_time", "--local-timezone", "Europe/Berlin"],
    }
    tables = (
        f'[[mcp_servers]]\nname = "{name}"\ncommand = {command!r}\nenvironment = {{ MARK = "{MARK}" }}\n'
        for name, command in commands.items()
    )
    (folder / "settings.toml").write_text("\n".join(tables))
    servers = Servers()
    server = servers(folder, "--config", str(folder / "settings.toml"), **provider(fake_provider.url))
    with server.client() as client:
        eventually(lambda: all(each.tools or each.error for each in client.server_info().mcp_servers), "their tools")
        assert [each.error for each in client.server_info().mcp_servers] == [""] * 4
        yield client
    servers.close()
    assert [pid for pid in processes.running(MARK) if processes.alive(pid)] == []


def results(client: Client, provider: FakeProvider, folder: Path, *wanted: tuple[str, dict[str, Any]]) -> list[str]:
    """The results of calls of one answer, as the model gets them, in a conversation that is deleted afterwards."""
    part = provider.part(calls(*wanted), says("Done."))
    chat = Chat(client, part, folder, mode="unrestricted")
    assert chat.ask("Use them.") == "Done."
    chat.assert_valid()
    found = [str(each) for each in part.exchanges[1].results]
    chat.conversation.delete()
    return found


def test_files_are_read_and_written_in_the_working_directory_only(
    reference: Client, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "note.txt").write_text("read me")
    read, written, refused = results(
        reference,
        fake_provider,
        inside,
        ("mcp__files__read_text_file", {"path": "note.txt"}),
        ("mcp__files__write_file", {"path": "new.txt", "content": "written"}),
        ("mcp__files__write_file", {"path": str(outside / "new.txt"), "content": "written"}),
    )
    assert "read me" in read
    assert "new.txt" in written
    assert (inside / "new.txt").read_text() == "written"
    assert "Access denied" in refused
    assert list(outside.iterdir()) == []


def test_text_numbers_images_and_progress_of_everything(
    reference: Client, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    echo, total, image, structured, long = results(
        reference,
        fake_provider,
        tmp_path,
        ("mcp__everything__echo", {"message": "hello"}),
        ("mcp__everything__get-sum", {"a": 2, "b": 3}),
        ("mcp__everything__get-tiny-image", {}),
        ("mcp__everything__get-structured-content", {"location": "Chicago"}),
        ("mcp__everything__trigger-long-running-operation", {"duration": 0.2, "steps": 2}),
    )
    assert "hello" in echo
    assert "5" in total
    assert "'type': 'image'" in image
    assert "temperature" in structured
    assert "completed" in long


def test_everything_asks_a_person_with_all_that_a_form_can_have(
    reference: Client, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    part = fake_provider.part(calls(("mcp__everything__trigger-elicitation-request", {})), says("Done."))
    chat = Chat(reference, part, tmp_path, mode="unrestricted")
    run = chat.send("Ask me.")
    asked = within(lambda: next(event.question for event in run if event.question))
    assert asked.requested_schema is not None
    fields = asked.requested_schema["properties"].values()
    assert {field["type"] for field in fields} == {"string", "boolean", "integer", "number", "array"}
    chat.conversation.answer_question(asked, {"name": "Ann", "check": True, "integer": 7})
    assert within(run.answer) == "Done."
    assert "Ann" in str(part.exchanges[1].results)
    chat.assert_valid()
    chat.conversation.delete()


def test_the_state_of_a_repository(reference: Client, fake_provider: FakeProvider, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "-b", "trunk", str(tmp_path)], check=True)
    (tmp_path / "new.txt").write_text("new")
    (status,) = results(reference, fake_provider, tmp_path, ("mcp__git__git_status", {"repo_path": "."}))
    assert "trunk" in status
    assert "new.txt" in status


def test_the_time_somewhere_else(reference: Client, fake_provider: FakeProvider, tmp_path: Path) -> None:
    asked = {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    now, converted = results(
        reference,
        fake_provider,
        tmp_path,
        ("mcp__time__get_current_time", {"timezone": "Asia/Tokyo"}),
        ("mcp__time__convert_time", asked),
    )
    assert "+09:00" in now
    assert "Asia/Tokyo" in converted


def test_the_example_with_files_does_what_it_says(
    node: Node, start_bedrock: Callable[..., Bedrock], tmp_path: Path
) -> None:
    path = f"{installed.NODE_PACKAGES / 'node_modules' / '.bin'}:{installed.node_environment(node.program)['PATH']}"
    bedrock = start_bedrock("--config", str(EXAMPLES / "mcp_files.toml"), PATH=path)
    work = tmp_path / "work"
    work.mkdir()
    (work / "note.txt").write_text("the answer is 42")
    read = ("mcp__files__read_text_file", {"path": "note.txt"})
    bedrock.model.then(calls(read, ("mcp__files__write_file", {"path": "copy.txt", "content": "42"})))
    bedrock.model.answers("It is 42.")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "mcp_files.py"), str(work), "What does the note say?"],
        env=clean_environment(tmp_path, BEDROCK_DATA_DIR=str(bedrock.server.data)),
        input="y\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    asked, *said = done.stdout.splitlines()
    assert "mcp__files__write_file" in asked, "it asked about what changes something"
    assert "It is 42." in done.stdout
    assert said[-2:] == ["called mcp__files__read_text_file", "called mcp__files__write_file"]
    assert (work / "copy.txt").read_text() == "42"
