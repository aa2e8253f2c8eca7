"""A database that an earlier version has written: it opens, its logs are what they were, and its conversations go on.

`earlier_version.sql` is the dump of a database of the first release candidate, after a server was killed that had
scripted models and tools: runs cancelled at several steps, a question, failed attempts, one over its budget, a context
that is full, and a tool under way.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.store.rows import CHANGING, FIXED, digest_of
from actors.adapters.store.sqlite.store import open_store
from actors.core.content import Text
from actors.core.context import Action, ApprovalRule
from actors.core.states import Idle
from actors.maintenance.verify import findings
from actors.messages import ContinueConversationCommand
from actors.ports import Store
from tests.integration.actors.conftest import Talk
from tests.support.replaying import differences

DUMP = Path(__file__).with_name("earlier_version.sql")
SLUGS = ("cancelled", "asked", "spent", "full", "killed")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    with closing(sqlite3.connect(directory / "bedrock.db")) as database:
        database.executescript(DUMP.read_text(encoding="utf-8"))
    (directory / "bedrock.db").chmod(0o600)
    with closing(open_store(directory)) as opened:
        yield opened


@pytest.fixture
def earlier(make_world: Callable[..., Any], store: Store) -> Callable[[str], Talk]:
    """The conversations of the dump, in a world that has just started."""
    world = make_world(store)
    world.supervisor.start()

    def find(slug: str) -> Talk:
        conversation_id = store.find_slug("tester", slug)
        assert conversation_id is not None
        return Talk(world, conversation_id)

    return find


@pytest.mark.parametrize("slug", SLUGS)
def test_a_log_of_an_earlier_version_verifies_and_replays(earlier: Callable[[str], Talk], slug: str) -> None:
    talk = earlier(slug)

    assert findings(talk.world.truth, talk.record) == ()
    assert differences(talk.world.truth, talk.record) == []


@pytest.mark.parametrize("slug", ["cancelled", "asked", "spent", "killed"])
def test_a_conversation_of_an_earlier_version_goes_on_by_the_rules_of_this_one(
    earlier: Callable[[str], Talk], slug: str
) -> None:
    talk = earlier(slug)
    talk.asks("one more")
    talk.cancel()
    exchange = talk.asks("and another")
    asked = [block.text for block in exchange.request.turns[-1].content if isinstance(block, Text)]
    assert "The user interrupted the run before you answered" in asked[-2]
    exchange.say("done")
    talk.rest(Idle)

    assert findings(talk.world.truth, talk.record) == ()
    assert differences(talk.world.truth, talk.record) == []


def test_a_command_that_an_earlier_version_has_accepted_is_still_known(earlier: Callable[[str], Talk]) -> None:
    talk = earlier("cancelled")
    assert talk.send("third", request_id="r-1", body_hash="h").duplicate
    full = earlier("full")
    successor = full.ask(ContinueConversationCommand(include_summary=True, request_id="next", body_hash="n"))
    assert successor.id == full.record.continued_by


def test_tools_that_asked_no_more_have_rules_and_what_was_intact_still_is(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    with closing(sqlite3.connect(directory / "bedrock.db", isolation_level=None)) as database:
        database.executescript(DUMP.read_text(encoding="utf-8"))
        names = [name for _, name, *_ in database.execute("PRAGMA table_info(conversations)")]
        its_name = {"approval_rules": "always_approved", "revision": "last_seq"}
        covered = [its_name.get(name, name) for name in (*FIXED, *CHANGING[:-1], "slug")]
        assert set(covered) == set(names) - {"digest", "log_hash"}
        for slug, tools in (("asked", '["bash","patch"]'), ("full", '["bash"]'), ("spent", "[")):
            database.execute("UPDATE conversations SET always_approved = ? WHERE slug = ?", (tools, slug))
            query = f"SELECT {', '.join(covered)} FROM conversations WHERE slug = ?"
            if slug != "full":  # whose digest is wrong now
                values = ["" if value is None else value for value in database.execute(query, (slug,)).fetchone()]
                database.execute("UPDATE conversations SET digest = ? WHERE slug = ?", (digest_of(values), slug))
    (directory / "bedrock.db").chmod(0o600)

    with closing(open_store(directory)) as store:
        found = {slug: store.load(store.find_slug("tester", slug) or "") for slug in ("asked", "full", "cancelled")}
        rules = {slug: record.approval_rules for slug, record in found.items() if record is not None}
        assert rules == {
            "asked": (
                ApprovalRule("tool-1", Action.ALLOW, tool="bash"),
                ApprovalRule("tool-2", Action.ALLOW, tool="patch"),
            ),
            "full": (ApprovalRule("tool-1", Action.ALLOW, tool="bash"),),
            "cancelled": (),
        }
        said = {slug: [str(each) for each in findings(store, record)] for slug, record in found.items() if record}
        assert said["asked"] == said["cancelled"] == []
        assert said["full"]
