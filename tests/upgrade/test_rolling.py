"""Nodes of an older version are replaced one by one by those of today, and nobody who calls them notices.

The archive has client and server as the wheels of commit b1f62ef2 hold them, without stubs: its database ends with the
migration 0003_documents. It was made as the one of 0.2.0 (test_with_0_2_0.py), without the client for asyncio.
"""

from __future__ import annotations

import re
import tarfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest
from bedrock import Client, Conversation, Unavailable

from actors.adapters.store.migrations import statements_of
from actors.adapters.store.postgres.engine import MIGRATIONS
from tests.support.nodes import Nodes
from tests.support.patience import PATIENCE, eventually
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess

OLD = Path(__file__).with_name("nodes.tar.xz")
OLD_MIGRATIONS = {"0001_initial", "0002_nodes", "0003_documents"}
NEWER = sorted({file.stem for file in MIGRATIONS.glob("0*")} - OLD_MIGRATIONS)
TALKS, ROUNDS = 2, 2
"""Conversations begun with the older nodes and with both, and how often each is gone on with before the next change."""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH of the older version."""
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(OLD) as archive:
        archive.extractall(folder, filter="data")
    names = {file.stem for file in (folder / "server/actors/adapters/store/postgres/schema/migrations").glob("0*.py")}
    assert names == OLD_MIGRATIONS
    return f"{folder / 'server'}:{folder / 'client'}"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with closing(Nodes(tmp_path, env={"BEDROCK_DRAIN_SECONDS": "60"})) as made:
        yield made


class Talk(threading.Thread):
    """Goes on with a conversation all the time, each time on a new connection."""

    def __init__(self, callers: Callers, folder: Path) -> None:
        super().__init__(daemon=True)
        self._callers = callers
        with callers.client() as client:
            self.conversation = client.create(folder).name
        self.said: list[str] = []
        self.errors: list[BaseException] = []
        self.start()

    def run(self) -> None:
        try:
            while not self._callers.ended.is_set():
                text = f"think {len(self.said)}"
                with self._callers.client() as client:
                    answer = client.conversation(self.conversation).ask(text, timeout=PATIENCE)
                assert answer.startswith("That was reasoning"), answer
                self.said.append(text)
        except BaseException as error:  # noqa: BLE001 -- told by the test
            self.errors.append(error)


class Callers:
    """Whoever calls the nodes through a proxy, which takes any of those that listen."""

    def __init__(self, proxy: Proxy, token: str) -> None:
        self._proxy, self._token = proxy, token
        self.ended = threading.Event()
        self.talks: list[Talk] = []

    def client(self) -> Client:
        return Client(self._proxy.address, token=self._token, timeout=PATIENCE)

    def begin(self, folder: Path) -> None:
        """Begin conversations."""
        self.talks += [Talk(self, folder) for _ in range(TALKS)]

    def go_on(self) -> None:
        """Wait until each conversation has gone on for a while. Fails if a call has."""
        before = [len(talk.said) for talk in self.talks]

        def gone_on() -> bool:
            assert not self.errors(), self.errors()
            return all(len(talk.said) >= then + ROUNDS for talk, then in zip(self.talks, before, strict=True))

        eventually(gone_on, "all conversations go on")

    def errors(self) -> list[BaseException]:
        return [error for talk in self.talks for error in talk.errors]

    def close(self) -> None:
        self.ended.set()
        for talk in self.talks:
            talk.join(2 * PATIENCE)


def is_seen(at: Client, elsewhere: Conversation, title: str) -> bool:
    """Whether who watches the list at a node sees that a conversation gets a title at another."""
    with suppress(Unavailable), at.watch_conversations(changes_only=True) as changes:
        assert next(changes).kind == "caught_up"
        elsewhere.update(title=title)
        infos = (each.conversation_changed for each in changes if each.conversation_changed is not None)
        return next(info.title for info in infos if info.name == elsewhere.name) == title
    return False


def check_both_ways(servers: Iterable[ServerProcess], folder: Path) -> None:
    """What passes between nodes: messages and what is told of them, cancels, and the changes of the list."""
    with ExitStack() as opened:
        one, two = (opened.enter_context(server.client()) for server in servers)
        for owner, other in ((one, two), (two, one)):
            own = owner.create(folder)
            assert other.conversation(own.name).ask("think", timeout=PATIENCE).startswith("That was reasoning")
            own.send("count")
            receipt = other.conversation(own.name).cancel()
            assert (receipt.state.kind, receipt.no_op) == ("idle", False)
            eventually(partial(is_seen, other, own, "seen elsewhere"), "the list of one node is followed by the other")


def test_nodes_are_replaced_one_by_one_while_conversations_go_on(old: str, nodes: Nodes, tmp_path: Path) -> None:
    running = {name: nodes.start(name, PYTHONPATH=old) for name in ("one", "two")}
    with Proxy(*(server.address for server in running.values())) as proxy:
        callers = Callers(proxy, nodes.clients_token)
        with closing(callers):
            callers.begin(tmp_path)
            callers.go_on()

            assert running["one"].stop() == 0
            callers.go_on()
            running["one"] = nodes.start("one")
            with psycopg.connect(nodes.env["BEDROCK_DATABASE"]) as database:
                applied = {name for (name,) in database.execute("SELECT name FROM schema_migration").fetchall()}
            assert applied == {file.stem for file in MIGRATIONS.glob("0*")} > OLD_MIGRATIONS
            callers.begin(tmp_path)
            callers.go_on()
            check_both_ways(running.values(), tmp_path)

            assert running["two"].stop() == 0
            with pytest.raises(AssertionError, match="was written by a newer version: it has 0004"):
                nodes.start("two", PYTHONPATH=old)
            callers.go_on()
            running["two"] = nodes.start("two")
            callers.go_on()
        assert not callers.errors()
    with running["one"].client() as client:
        for talk in callers.talks:
            conversation = client.conversation(talk.conversation)
            assert conversation.verify() == []
            assert [each.text for each in conversation.messages() if each.role == "user"] == talk.said
            assert {each.stop_reason for each in conversation.cycles()} == {"completed"}


ADDITIONS = re.compile(
    r"CREATE (TABLE|INDEX|SEQUENCE|FUNCTION) |"
    r"ALTER TABLE \w+ ADD COLUMN \w+ (?!.*NOT NULL(?!.* DEFAULT))|COMMENT ON "
)


@pytest.mark.parametrize("file", [MIGRATIONS / f"{name}.sql" for name in NEWER], ids=NEWER)
def test_a_migration_of_nodes_only_adds(file: Path) -> None:
    """The nodes of the version before go on while the first of the next one migrates; see docs/upgrading.md."""
    assert not file.with_suffix(".py").exists(), "what a module says is not looked at here"
    said = [" ".join(re.sub("--.*", "", statement).split()) for statement in statements_of(file)]
    assert said
    for statement in said:
        assert ADDITIONS.match(statement), f"nodes of the version before may not be able to go on: {statement}"


@pytest.mark.parametrize(
    ("statement", "adds"),
    [
        ("CREATE INDEX a ON b (c)", True),
        ("CREATE UNIQUE INDEX a ON b (c)", False),
        ("ALTER TABLE a ADD COLUMN b text", True),
        ("ALTER TABLE a ADD COLUMN b text NOT NULL DEFAULT ''", True),
        ("ALTER TABLE a ADD COLUMN b text NOT NULL", False),
        ("ALTER TABLE a DROP COLUMN b", False),
        ("ALTER TABLE a RENAME TO b", False),
        ("DROP INDEX a", False),
        ("UPDATE a SET b = 1", False),
    ],
)
def test_what_only_adds(statement: str, adds: bool) -> None:
    assert bool(ADDITIONS.match(statement)) is adds
