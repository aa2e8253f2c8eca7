"""`bedrock archive` and `bedrock rm`, and the end of what was archived long ago: nothing of it is left."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from actors.adapters.store.sqlite.engine import FILE, sqlite3
from tests.support import pictures
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, Play, calls, says
from tests.support.patience import eventually, within
from tests.support.server_process import ServerProcess, bedrock

TABLES = ("conversations", "prompts", "messages", "log", "runs", "fates", "prunings", "commands", "attachments")


class Cli:
    """The program, for one server."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """Exit code, and what was printed."""
        done = bedrock(self._server.folder, *arguments, **self._server.way)
        return done.returncode, done.stdout + done.stderr

    def listed(self, *options: str) -> list[str]:
        """Names of the conversations that it lists."""
        return [each["name"] for each in json.loads(self("list", "--output", "json", *options)[1])]


def rows_of(data: Path, conversation: str) -> dict[str, int]:
    """How many rows there are of a conversation and its sub-agents, by table; none that has none."""
    pattern = conversation.removeprefix("conversations/") + "%"
    counts: dict[str, int] = {}
    with closing(sqlite3.connect(f"file:{data / FILE}?mode=ro", uri=True)) as connection:
        for table in TABLES:
            column = "id" if table == "conversations" else "conversation_id"
            found = connection.execute(f"SELECT count(*) FROM {table} WHERE {column} LIKE ?", (pattern,))
            counts[table] = found.fetchone()[0]
    return {table: count for table, count in counts.items() if count}


def family(chat: Chat, fake_provider: FakeProvider) -> None:
    """A turn with an image and a sub-agent."""
    child = fake_provider.part(calls(("submit_result", {"result": "done"})))
    chat.part.then(spawns(child.key), says("All done."))
    assert within(chat.send("Look.", images=[pictures.png()]).answer) == "All done."


def spawns(key: str) -> Play:
    return calls(("spawn_sub_agent", {"tasks": [{"task": f"Do it. {key}"}]}))


@pytest.mark.one_server("it counts the rows of SQLite's file")
def test_the_program_archives_brings_back_and_deletes(
    server: ServerProcess, open_chat: Callable[..., Chat], fake_provider: FakeProvider
) -> None:
    cli, chat = Cli(server), open_chat()
    family(chat, fake_provider)
    slug = chat.conversation.get().slug
    assert cli("archive", slug) == (0, f"{slug} is archived\n")
    assert chat.name not in cli.listed()
    assert chat.name in cli.listed("--archived")
    code, said = cli("ask", "--resume", slug, "Still there?")
    assert (code != 0, "archived" in said) == (True, True)
    assert "All done." in cli("show", slug)[1]
    assert cli("archive", "--undo", slug) == (0, f"{slug} is active\n")
    assert chat.name in cli.listed()
    assert chat.ask("Back?") == "Done."
    before = rows_of(server.data, chat.name)
    assert {"conversations", "messages", "log", "attachments", "commands", "runs"} <= before.keys()
    assert before["conversations"] == 2
    assert cli("rm", "--yes", slug) == (0, f"deleted {slug}\n")
    eventually(lambda: rows_of(server.data, chat.name) == {}, "the last row is removed")
    code, said = cli("rm", "--yes", slug)
    assert (code, "Traceback" in said) == (1, False)
