"""What version 0.1.0 has stored is kept, and goes on; its client works, or is told why it does not.

The database is one that a server of 0.1.0 left when it was killed at work.
"""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bedrock import Client, Conversation

from actors.adapters.store.sqlite.engine import sqlite3
from tests.support.patience import PATIENCE
from tests.support.server_process import ServerProcess, Servers, clean_environment

HERE = Path(__file__).parent
DATABASE = HERE / "0.1.0.db.xz"
WHEEL = HERE / "phoenix_bedrock_client-0.1.0-py3-none-any.whl"
ADDED = {
    "0002_deletions",
    "0003_conversations_of_directory",
    "0004_profiles",
    "0005_conversations_by_creation",
    "0006_approval_rules",
    "0007_slugs_of_principals",
    "0008_spendings",
    "0009_audit",
}
"""The migrations since. Those that come are added here."""

CUT = {"streaming", "asking", "working"}
"""What was under way when the server was killed."""
ACTIVE = {
    "always-approved", "approved", "cancelled", "continued", "empty", "exhausted", "family", "finished",
    "out-of-budget", "picture", "queued", "successor", "upgraded",
} | CUT  # fmt: skip
SUB_AGENTS = 3


class Upgraded(NamedTuple):
    """A server of today over the old database, in its second start, and what was stored before and after that."""

    server: ServerProcess
    before: dict[str, list[tuple[Any, ...]]]
    after: dict[str, list[tuple[Any, ...]]]


def stored(data: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of every table of a database."""
    with closing(sqlite3.connect(f"file:{data / 'bedrock.db'}?mode=ro", uri=True)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {table: sorted(database.execute(f'SELECT * FROM "{table}"').fetchall(), key=repr) for table in tables}


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgraded]:
    """At the end, all that is told of every conversation is held against its events."""
    folder = tmp_path_factory.mktemp("upgrade")
    data = folder / "data"
    data.mkdir(mode=0o700)
    (data / "bedrock.db").touch(mode=0o600)
    (data / "bedrock.db").write_bytes(lzma.decompress(DATABASE.read_bytes()))
    servers = Servers()
    try:
        assert servers(folder).stop() == 0
        before = stored(data)
        server = servers(folder)
        yield Upgraded(server, before, stored(data))
    finally:
        servers.close()


@pytest.fixture(scope="module")
def client(upgraded: Upgraded) -> Iterator[Client]:
    with upgraded.server.client() as made:
        yield made


def everybody(client: Client) -> dict[str, Conversation]:
    """Return every conversation by its slug, or its id if it is a sub-agent."""
    found = [*client.conversations(), *client.conversations(archived=True)]
    found += client.conversations(parent=client.conversation("family").get().name)
    return {info.slug or info.name: client.conversation(info.name) for info in found}


def test_the_first_start_migrates_and_a_second_one_changes_nothing(upgraded: Upgraded) -> None:
    migrated = {value for row in upgraded.before["schema_migration"] for value in row}
    assert migrated >= ADDED
    assert upgraded.after == upgraded.before


def test_a_backup_of_the_old_version_is_restored(tmp_path: Path) -> None:
    file = tmp_path / "backup.db"
    file.write_bytes(lzma.decompress(DATABASE.read_bytes()))
    done = subprocess.run(
        [Path(sys.executable).with_name("bedrock"), "restore", file, "--data-dir", tmp_path / "data"],
        env=clean_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    said = done.stdout + done.stderr
    assert (done.returncode, f"restored {len(ACTIVE) + 1 + SUB_AGENTS} conversations" in said) == (0, True), said


def test_every_conversation_is_there_and_as_it_was(client: Client) -> None:
    assert {info.slug for info in client.conversations()} == ACTIVE
    assert {info.slug for info in client.conversations(archived=True)} == {"archived"}
    finished = client.conversation("finished").get()
    assert (finished.title, finished.labels) == ("Turns that have ended", {"team": "docs", "kind": "old"})
    assert client.conversation("upgraded").get().mode == "unrestricted"
    assert client.conversation("exhausted").get().state.kind == "context_exhausted"
    successor = client.conversation("successor").get()
    assert client.conversation("continued").get().continued_by == successor.name
    results = [each for message in client.conversation("approved").messages() for each in message.tool_results]
    assert [(each.outcome, "approved" in each.output) for each in results] == [("ok", True), ("denied", False)]
    fates = [entry.fate for entry in client.conversation("queued").queue(include_settled=True)]
    assert sorted(fates) == ["delivered", "delivered", "withdrawn"]
    picture = client.conversation("picture")
    (image,) = [image for message in picture.messages() for image in message.images]
    assert picture.attachment(image.attachment).startswith(b"\x89PNG")
    sub_agents = list(client.conversation("family").sub_agents())
    assert [each.state.kind for each in sub_agents] == ["completed"] * SUB_AGENTS


def test_everything_is_verified_replayed_and_exported(client: Client) -> None:
    conversations = everybody(client)
    assert len(conversations) == len(ACTIVE) + 1 + SUB_AGENTS
    for slug, conversation in conversations.items():
        assert conversation.verify() == [], slug
        assert [step.difference for step in conversation.replay() if step.difference] == [], slug
        lines = [json.loads(line) for line in conversation.export()]
        texts = json.dumps(lines)
        assert all(json.dumps(message.text)[1:-1] in texts for message in conversation.messages()), slug


@pytest.mark.parametrize("slug", sorted(CUT))
def test_what_was_under_way_is_told_as_interrupted(client: Client, slug: str) -> None:
    conversation = client.conversation(slug)
    assert conversation.get().state.kind == "idle"
    ends = [(cycle.stop_reason, cycle.stop_detail) for cycle in conversation.cycles()]
    waited = [("interrupted", "not_run")] if slug == "streaming" else []
    assert ends == [("interrupted", "restart"), *waited]
    results = [(each.outcome, each.output) for message in conversation.messages() for each in message.tool_results]
    assert results == ([] if slug == "streaming" else [("cancelled", "Interrupted by server restart")])


def test_tools_that_asked_no_more_ask_no_more(client: Client) -> None:
    always, asked = client.conversation("always-approved"), client.conversation("approved")
    (rule,) = always.approval_rules()
    assert (rule.action, rule.tool, rule.origin) == ("allow", "tools/bash", "conversation")
    kinds = [event.kind for event in always.send("run echo again")]
    assert "approval_changed" not in kinds
    assert list(asked.approval_rules()) == []
    with asked.send("run echo again") as run:
        assert any(event.approval is not None for event in run)
    asked.cancel()


def test_old_conversations_go_on(client: Client) -> None:
    conversations = [client.conversation(slug) for slug in ("cancelled", "picture", "streaming")]
    before = [[message.name for message in conversation.messages()] for conversation in conversations]
    runs = [conversation.send("think") for conversation in conversations]
    for conversation, run, names in zip(conversations, runs, before, strict=True):
        assert run.answer(timeout=PATIENCE).startswith("That was reasoning")
        after = [message.name for message in conversation.messages()]
        assert (after[: len(names)], len(after) > len(names) + 1) == (names, True)
        assert conversation.verify() == []


def test_the_old_client_works_or_is_told_why_not(upgraded: Upgraded, tmp_path: Path) -> None:
    server = upgraded.server
    done = subprocess.run(
        [sys.executable, HERE / "old_client.py", server.address, server.token, tmp_path],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(WHEEL)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    told: dict[str, Any] = {line.pop("call"): line for line in map(json.loads, done.stdout.splitlines())}
    results = {what: came["result"] for what, came in told.items() if "result" in came}
    assert results.pop("ask").startswith("That was reasoning")
    assert results.pop("cycles") == 6
    assert results == {
        "list": sorted([*ACTIVE, "archived"]),  # it cannot leave out the archived ones any more
        "messages": "Hello.",
        "follow": "caught_up",
        "rename": "Renamed",
        "archive": True,
        "models": ["models/demo"],
        "verify": [],
        "queue": ["Waits."],
        "after that": [True, 0],
    }
    errors = {what: (came["error"], came["text"]) for what, came in told.items() if "error" in came}
    assert errors.keys() == {"create", "allow always", "follow a queue", "cancel with a queue"}
    kind, text = errors["create"]
    assert (kind, "the client may be a different version" in text) == ("InvalidArgument", True)
    kind, text = errors["allow always"]
    assert (kind, "'always_approved_tools' cannot be updated" in text) == ("InvalidArgument", True)
    assert {errors[what][0] for what in ("follow a queue", "cancel with a queue")} == {"Internal"}
