"""Make `0.1.0.db.xz` again: a database as the server of version 0.1.0 left it when it was killed at work.

It needs that version, beside this checkout, in an environment of its own::

    git worktree add /tmp/bedrock-0.1.0 7b7a22a
    python3 -m venv /tmp/bedrock-0.1.0/.venv
    /tmp/bedrock-0.1.0/.venv/bin/pip install -e /tmp/bedrock-0.1.0 hatchling
    /tmp/bedrock-0.1.0/.venv/bin/python tests/upgrade/make_database.py tests/upgrade/0.1.0.db.xz
    cd /tmp/bedrock-0.1.0/clients && ../.venv/bin/python -m hatchling build -t wheel -d .../tests/upgrade

The demo model answers, so neither a key nor a network is needed. Ids and times are others each time; what the tests
look for is the same: the slugs below, and how each conversation was left.
"""

from __future__ import annotations

import importlib
import lzma
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HOME = Path("/tmp/bedrock-upgrade")
"""It is in the database, so it is the same on every machine."""
PROJECT = HOME / "project"
DATA = HOME / "data"

bedrock: Any = importlib.import_module("bedrock")
"""The client of version 0.1.0, whose types are not those of this checkout."""


def picture() -> bytes:
    """A PNG of one red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(b"\0\xff\0\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")


def until(conversation: Any, seen: Callable[[Any], bool]) -> None:
    """Wait for an event, counted from the first one."""
    with conversation.events(after_revision=0) as events:
        assert any(map(seen, events))


def streams(event: Any) -> bool:
    return bool(event.kind == "text_delta")


def asks(event: Any) -> bool:
    return event.approval is not None


def runs_a_tool(event: Any) -> bool:
    return event.state is not None and event.state.kind == bedrock.v1.STATE_KIND_TOOL_EXECUTING


def answers(run: Any, decide: Any) -> None:
    """Follow a run to its end and answer what it asks."""
    for event in run:
        if asks(event):
            decide(event)
    assert run.stop is not None


def at_rest(client: Any) -> None:
    """Conversations of which nothing is under way any more."""

    def new(slug: str, **settings: Any) -> Any:
        return client.create(PROJECT, slug=slug, **settings)

    finished = new("finished", title="Turns that have ended", labels={"team": "docs", "kind": "old"})
    for text in ("Hello.", "read notes.txt", "search bedrock upgrade", "retry", "think", "help"):
        finished.send(text).wait()

    approved = new("approved", approval_policy="ask_all")
    run = approved.send("run echo approved")
    answers(run, lambda event: approved.approve(event.approval, note="go on"))
    run = approved.send("run echo denied")
    answers(run, lambda event: approved.deny(event.approval, "not this one"))

    always = new("always-approved", approval_policy="ask_all")
    run = always.send("run echo always")
    answers(run, lambda event: always.approve(event.approval, always=True))
    always.send("run echo not asked any more").wait()

    upgraded = new("upgraded", mode="restricted")
    run = upgraded.send("upgrade")
    answers(run, lambda event: upgraded.approve(event.approval))

    cancelled = new("cancelled")
    run = cancelled.send("count")
    until(cancelled, streams)
    cancelled.cancel(reason="enough")
    run.wait()
    run = cancelled.send("sleep 100")
    until(cancelled, runs_a_tool)
    cancelled.cancel()
    run.wait()

    queued = new("queued")
    run = queued.send("sleep 3")
    steer = queued.send("A steer.", delivery="steer")
    follow_up = queued.send("A follow-up.", delivery="follow_up")
    withdrawn = queued.send("Withdrawn.", delivery="follow_up")
    queued.withdraw(withdrawn.message)
    run.wait()
    steer.wait()
    follow_up.wait()

    new("family").send("agents").wait()
    new("picture").send("What is this?", images=[picture()]).wait()

    archived = new("archived")
    archived.send("Hello.").wait()
    archived.archive()

    for slug in ("continued", "exhausted"):
        full = new(slug)
        full.send("help").wait()
        full.trigger_continuation()
        with full.events(until_settled=True) as events:
            list(events)
        if slug == "continued":
            successor = full.continue_()
            successor.update(slug="successor")
            successor.send("help").wait()

    new("out-of-budget", budget=bedrock.v1.Budget(run_tokens=1)).send("Hello.").wait()
    new("empty")


def at_work(client: Any) -> None:
    """Conversations that are in the middle of something, and stay so."""
    streaming = client.create(PROJECT, slug="streaming")
    streaming.send("count")
    streaming.send("Waits for its turn.", delivery="follow_up")
    until(streaming, streams)
    asking = client.create(PROJECT, slug="asking", approval_policy="ask_all")
    asking.send("run echo asked")
    until(asking, asks)
    working = client.create(PROJECT, slug="working")
    working.send("sleep 100")
    until(working, runs_a_tool)


def main(target: Path) -> None:
    shutil.rmtree(HOME, ignore_errors=True)
    PROJECT.mkdir(parents=True, mode=0o700)
    (PROJECT / "notes.txt").write_text("Bedrock: an upgrade keeps what is stored.\n", encoding="utf-8")
    (PROJECT / "README.md").write_text("A project to look at.\n", encoding="utf-8")
    environment = {"PATH": os.environ["PATH"], "HOME": str(HOME), "BEDROCK_DATA_DIR": str(DATA)}
    command = [sys.executable, "-m", "server", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=HOME, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert "ready on" in server.stdout.readline()
            address = (DATA / "address").read_text(encoding="utf-8").strip()
            with bedrock.Client(address, token=(DATA / "token").read_text(encoding="utf-8").strip()) as client:
                at_rest(client)
                at_work(client)
        finally:
            server.kill()
    database = sqlite3.connect(DATA / "bedrock.db")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    target.write_bytes(lzma.compress((DATA / "bedrock.db").read_bytes(), preset=9 | lzma.PRESET_EXTREME))
    shutil.rmtree(HOME)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
