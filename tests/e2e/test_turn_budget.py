"""The cost of a turn, counted and never timed: two model requests, each answered in one piece, two tools, a watcher."""

import asyncio
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from bedrock import v1

from tests.bench.provider import Provider
from tests.e2e.counting_server import SOCKET
from tests.support.nodes import Nodes
from tests.support.patience import PATIENCE, eventually
from tests.support.processes import asleep
from tests.support.published_counts import read_counts
from tests.support.server_process import ServerProcess, Servers, provider
from tests.support.watcher import Watcher

pytestmark = pytest.mark.one_server("it counts what one server does")

WARM_UP = 10
ROUNDS, TURNS = 5, 10
"""The least of five rounds counts: what a busy machine adds to one of them is not the server's."""

EXACT = {
    "model requests": 2,
    "events": 17,
    "rows": 15,
    "reads": 0,
    "messages read": 0,
    "blocks encoded": 14,
    "log lines": 7,
}
"""A turn costs exactly this, in each round, however long the history is by then."""

MOST = {"commits": 5, "threads started": 0, "mailbox deliveries": 16, "stream messages": 8, "voluntary switches": 105}
"""A turn costs no more than this, in the best round. The last three depend on which thread runs first: there is
room above what a quiet machine counts."""

ON_POSTGRES = {"execute": 21, "bind": 21, "parse": 0, "statement": 0}
"""What PostgreSQL does for a turn, by its log, in the best round: its transactions, each of which begins, looks at its
conversation, writes to two to four tables, and commits. All statements are prepared."""

LOGGED = re.compile(rf"^bedrock\|LOG:  duration: [\d.]+ ms  ({'|'.join(ON_POSTGRES)})\b", re.MULTILINE)
"""A step of the store's connections; the lease has its own, which another name tells apart."""

TABLES = ("conversations", "messages", "log", "runs", "fates", "commands")

Counts = dict[str, float]


class Turns:
    """A conversation whose turns follow one another, and what they cost."""

    def __init__(self, server: ServerProcess, asked: Provider, socket_path: Path) -> None:
        self._server, self._asked, self._socket = server, asked, socket_path
        self._channel = server.channel()
        self._stub = v1.ConversationServiceStub(self._channel)
        request = v1.CreateConversationRequest(
            conversation=v1.Conversation(working_directory="/tmp", mode=v1.MODE_UNRESTRICTED)
        )
        made = self._stub.CreateConversation(request, metadata=server.metadata, timeout=PATIENCE)
        self._name = made.conversation.name
        self._watcher = Watcher(server, self._name)
        self._watcher.until("caught_up")

    def close(self) -> None:
        self._watcher.close()
        self._channel.close()

    def take(self, turns: int) -> None:
        """Take so many turns, each after the end of the one before."""
        for _ in range(turns):
            before = self._watcher.revisions[-1] if self._watcher.revisions else 0
            request = v1.SendMessageRequest(name=self._name, text="go on")
            self._stub.SendMessage(request, metadata=self._server.metadata, timeout=PATIENCE)
            self._watcher.until("run_stopped", after=before)

    def cost(self, turns: int) -> Counts:
        """Return what each of so many turns costs."""
        before = self._counts()
        self.take(turns)
        after = self._counts()
        return {name: (after[name] - before[name]) / turns for name in before}

    def _counts(self) -> Counts:
        eventually(lambda: asleep(self._server.process.pid), "what follows the last event of a turn is done")
        return {
            **read_counts(str(self._socket)),
            "model requests": self._asked.asked,
            "events": self._watcher.revisions[-1] if self._watcher.revisions else 0,
            "stream messages": len(self._watcher.responses),
            "rows": self._rows(),
        }

    def _rows(self) -> int:
        (file,) = self._server.data.glob("*.db")
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            return sum(int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in TABLES)


@contextmanager
def served() -> Iterator[tuple[Provider, str]]:
    """A provider whose answers come in one piece, on a thread of this process; and its base URL."""
    made, loop = Provider(whole=True), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(made.answer, "127.0.0.1", 0), loop).result()
    try:
        yield made, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(_closed(listening), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _closed(listening: asyncio.Server) -> None:
    listening.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def over_budget(rounds: Sequence[Counts]) -> list[str]:
    """Say which counts of a turn are not what they are to be."""
    found = [
        f"{name} changed from {right} to {counted[name]:g}"
        for counted in rounds
        for name, right in EXACT.items()
        if counted[name] != right
    ]
    least = {name: min(counted[name] for counted in rounds) for name in MOST}
    return found + [f"{name} rose from {most} to {least[name]:g}" for name, most in MOST.items() if least[name] > most]


@pytest.fixture
def turns(start_server: Servers, tmp_path: Path) -> Iterator[Turns]:
    with served() as (asked, url):
        path = tmp_path / "counts"
        settings = provider(url) | {SOCKET: str(path), "BEDROCK_TITLES": "false"}
        made = Turns(start_server(tmp_path, program="tests.e2e.counting_server", **settings), asked, path)
        yield made
        made.close()


def test_a_turn_stays_within_its_budget(turns: Turns) -> None:
    turns.take(WARM_UP)
    assert over_budget([turns.cost(TURNS) for _ in range(ROUNDS)]) == []


@pytest.fixture
def logging_nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path, env={"BEDROCK_TITLES": "false"})
    try:
        nodes.database.execute("ALTER SYSTEM SET log_min_duration_statement = 0")
        nodes.database.execute("ALTER SYSTEM SET log_line_prefix = '%a|'")
        nodes.database.execute("SELECT pg_reload_conf()")
        yield nodes
    finally:
        nodes.close()


def test_a_turn_on_postgresql_is_few_prepared_statements(logging_nodes: Nodes, tmp_path: Path) -> None:
    log, rounds = logging_nodes.database.log_file, []
    with served() as (asked, url):
        turns = Turns(logging_nodes.start_alone("alone", **provider(url)), asked, tmp_path / "no counts")
        turns.take(WARM_UP)
        for _ in range(ROUNDS):
            before = log.stat().st_size
            turns.take(TURNS)
            steps = LOGGED.findall(log.read_bytes()[before:].decode(errors="replace"))
            rounds.append({step: steps.count(step) / TURNS for step in ON_POSTGRES})
        turns.close()
    assert {step: min(each[step] for each in rounds) for step in ON_POSTGRES} == ON_POSTGRES


def test_the_count_that_rose_is_named() -> None:
    within: Counts = {**EXACT, **MOST}
    assert over_budget([within, within]) == []
    assert over_budget([within, within | {"events": 18}]) == ["events changed from 17 to 18"]
    assert over_budget([within | {"threads started": 1}, within | {"threads started": 1.5}]) == [
        f"threads started rose from {MOST['threads started']} to 1"
    ]
