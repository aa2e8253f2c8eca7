"""The laws of a watch, held over streams of a real server: cut connections, kill -9, slow readers, a pruned log.

What streams bring is held against the database itself. BEDROCK_RESUMES says how many streams there are; `make fault
PARTS=watch` has many.
"""

import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from bedrock import BedrockError, Client, Event, v1
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from actors.adapters.store.rows import events_of
from actors.adapters.store.sqlite.engine import FILE, sqlite3
from tests.support.chat import Chat, assert_valid
from tests.support.fake_provider import Exchange, FakeProvider, calls, dribbles
from tests.support.patience import PATIENCE, eventually
from tests.support.proxy import Proxy
from tests.support.server_process import Servers, provider
from tests.support.watch_laws import Logged, Recorded, violations

RESUMES = int(os.environ.get("BEDROCK_RESUMES", "80"))
ROUND = 200
"""Streams of one conversation; in the middle of it its server is killed."""
LANES = 8
"""Streams at the same time."""
DEAD_SECONDS = 40.0
"""After which a client notices at the latest that its connection died in silence."""
KEPT_DAYS = 2 / 86_400
KEPT_EVENTS = 40
pytestmark = pytest.mark.one_server("the server is restarted, and streams are held against SQLite's file")

_ROWS = """
SELECT first_revision, at, notifications, step FROM log
WHERE conversation_id = ? AND step > ? AND count > 0 ORDER BY first_revision, step
"""
_PAUSE = 0.05
"""Between two looks, seconds; far below the shortest time that events are kept in a test."""


class LogTail:
    """The log of a conversation, read out of the database as it grows: what streams are held against.

    It is read on a thread of its own while the context is open. It only reads, and never checkpoints.
    """

    def __init__(self, data: Path, conversation: str) -> None:
        self._path = data / FILE
        self._id = conversation.removeprefix("conversations/")
        self._log: list[Logged] = []
        self._step = 0
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        if self._failure is not None:
            raise self._failure

    @property
    def head(self) -> int:
        """The newest revision there is."""
        return self._log[-1].event.revision if self._log else 0

    def up_to(self, revision: int) -> list[Logged]:
        """All there ever was, up to this revision at least."""
        eventually(lambda: self.head >= revision or not self._thread.is_alive(), f"revision {revision} in the database")
        return list(self._log)

    def _run(self) -> None:
        connection = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, check_same_thread=False)
        try:
            while not self._over.wait(_PAUSE):
                self._read(connection)
        except BaseException as failure:  # noqa: BLE001 -- raised where the context ends
            self._failure = failure
        finally:
            connection.close()

    def _read(self, connection: sqlite3.Connection) -> None:
        """Take the new rows; those of one transition count as a commit."""
        for first, at, notifications, step in connection.execute(_ROWS, (self._id, self._step)).fetchall():
            for event in events_of([(first, at, notifications)], 0):
                assert event.revision == self.head + 1, "events were pruned before they were read"
                self._log.append(Logged(event, step))
            self._step = step


class Place:
    """A server that is killed and started again at the same address, behind a proxy."""

    def __init__(self, start: Servers, fake_provider: FakeProvider, folder: Path) -> None:
        self._start, self._folder = start, folder
        self._settings = provider(fake_provider.url) | {
            "BEDROCK_RETENTION_EVENTS_DAYS": f"{KEPT_DAYS:.8f}",
            "BEDROCK_RETENTION_EVENTS_MIN": str(KEPT_EVENTS),
        }
        self.server = start(folder, **self._settings)
        self.address = self.server.address

    def crash(self) -> None:
        """kill -9, and a start over the same data."""
        self.server.kill()
        self.server = self._start(self._folder, listen=self.address, **self._settings)


@pytest.fixture
def place(start_server: Servers, fake_provider: FakeProvider, tmp_path: Path) -> Place:
    return Place(start_server, fake_provider, tmp_path)


@pytest.fixture
def proxy(place: Place) -> Iterator[Proxy]:
    with Proxy(place.address) as made:
        yield made


@pytest.fixture
def client(place: Place, proxy: Proxy) -> Iterator[Client]:
    """A client that comes through the proxy."""
    with Client(proxy.address, token=place.server.token, timeout=PATIENCE) as made:
        yield made


def lively(exchange: Exchange) -> None:
    """Every answer but the last of a run calls two tools; the last one comes word by word."""
    asks = calls(("bash", {"cmd": "echo a; echo b"}), ("think", {"thoughts": "x"}), text="Let me see.")
    talks = dribbles(*(f"wörd {number} " for number in range(15)))
    (talks if exchange.results else asks)(exchange)


class Driver:
    """Keeps a conversation going, whatever becomes of the server: run after run, of which some are cancelled."""

    def __init__(self, chat: Chat, chance: random.Random) -> None:
        self._chat, self._chance = chat, chance
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the conversation does not come to rest"

    def _run(self) -> None:
        while not self._over.is_set():
            with suppress(BedrockError):
                run = self._chat.send("Go on.")
                if self._chance.random() < 0.4:
                    self._over.wait(self._chance.random() * 0.15)
                    self._chat.conversation.cancel()
                run.wait()


class Lane:
    """Opens one stream after the other, at random revisions, and loses each in some way."""

    def __init__(self, place: Place, proxy: Proxy, tail: LogTail, name: str, seed: int) -> None:
        self._place, self._proxy, self._tail, self._name = place, proxy, tail, name
        self._chance = random.Random(seed)

    def read(self, number: int) -> Recorded:
        """One stream."""
        chance = self._chance
        head = self._tail.head
        back = chance.choice((0, chance.randrange(20), chance.randrange(100), chance.randrange(head + 1)))
        after = None if chance.random() < 0.15 else max(0, head - back)
        record = Recorded(f"{self._name} {number}", after)
        request = v1.SubscribeRequest(name=self._name)
        if after is not None:
            request.after_revision = after
        proxied = chance.random() < 0.5
        address = self._proxy.address if proxied else self._place.address
        with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = v1.ConversationServiceStub(channel)
            stream: Any = stub.Subscribe(request, metadata=self._place.server.metadata, timeout=PATIENCE)
            try:
                self._take(stream, record, proxied=proxied)
            except grpc.RpcError:
                note_end(record, stream, f"{address}, head {self._tail.head}")
        return record

    def _take(self, stream: Any, record: Recorded, *, proxied: bool) -> None:
        enough, slow = self._chance.randrange(1, 15), self._chance.random() < 0.2
        for response in stream:
            record.responses.append(response)
            if slow:
                threading.Event().wait(0.02)
            if len(record.responses) == enough:
                self._proxy.cut() if proxied else stream.cancel()


def note_end(record: Recorded, stream: Any, where: str) -> None:
    """How a stream ended that did not end well."""
    record.code = stream.code().name
    seen = [event.revision for response in record.responses for event in response.events if event.revision]
    what = f"{record.code} at {where}, after {seen[-1:]}: {stream.details()}"
    assert record.code in ("CANCELLED", "UNAVAILABLE", "OUT_OF_RANGE"), what
    if record.code == "OUT_OF_RANGE":
        info = error_details_pb2.ErrorInfo()
        assert rpc_status.from_call(stream).details[0].Unpack(info)
        assert info.reason == "REVISION_TOO_OLD"
        record.oldest = int(info.metadata["oldest_revision"])


class Follower:
    """The Python client, following one conversation through whatever happens."""

    def __init__(self, client: Client, name: str) -> None:
        self.record = Recorded("client", after=0, whole=False)
        self._events = client.conversation(name).events(after_revision=0)
        self.revision = 0
        """The last one that was shown, or that a snapshot was taken at."""
        self._thread = threading.Thread(target=self._read_all, daemon=True)

    def start(self) -> None:
        """Read on a thread of its own until the conversation is deleted."""
        self._thread.start()

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the client does not see that the conversation is deleted"

    def up_to(self, revision: int) -> Recorded:
        """What it has shown but for later events: that processes are dead may be told after everything has settled."""
        shown = [each for each in self.record.responses if each.events[0].revision <= revision]
        return replace(self.record, responses=shown)

    def _read_all(self) -> None:
        for event in self._events:
            self.take(event)

    def take(self, event: Event) -> None:
        self.record.responses.append(v1.SubscribeResponse(events=[event.proto]))
        self.revision = max(self.revision, event.revision, event.proto.snapshot.conversation.revision)


def play_round(place: Place, proxy: Proxy, fake_provider: FakeProvider, seed: int, count: int) -> dict[str, int]:
    """A conversation with so many streams; returns what was seen. Fails where a law is broken."""
    chance = random.Random(seed)
    with ExitStack() as opened:
        direct = opened.enter_context(Client(place.address, token=place.server.token, timeout=PATIENCE))
        through = opened.enter_context(Client(proxy.address, token=place.server.token, timeout=PATIENCE))
        chat = Chat(direct, fake_provider.part(otherwise=lively), place.server.folder)
        tail = opened.enter_context(LogTail(place.server.data, chat.name))
        follower = Follower(through, chat.name)
        follower.start()
        with ThreadPoolExecutor(LANES) as pool, Driver(chat, chance):
            lanes = [Lane(place, proxy, tail, chat.name, seed * LANES + n) for n in range(LANES)]
            first = list(pool.map(lambda n: lanes[n % LANES].read(n), range(count // 2)))
            place.crash()
            second = list(pool.map(lambda n: lanes[n % LANES].read(n), range(count // 2, count)))
        chat.settle()
        head = chat.conversation.get().revision
        log = tail.up_to(head)
        eventually(lambda: follower.revision >= head, "the client catches up", DEAD_SECONDS + PATIENCE)
        check_and_delete(chat)
        follower.join()
        streams = [*first, *second, follower.up_to(head)]
    assert violations(log, streams) == []
    return {
        "streams": len(streams),
        "revisions": head,
        "events": sum(len(response.events) for stream in streams for response in stream.responses),
        "too old": sum(stream.code == "OUT_OF_RANGE" for stream in streams),
    }


def check_and_delete(chat: Chat) -> None:
    """What is left of it is still proven. Then it goes: other checks want a whole log."""
    assert_valid(chat.messages())  # a replay would need the whole log
    assert chat.conversation.verify() == []
    chat.conversation.delete()


def test_streams_keep_the_laws_under_cuts_kills_slow_readers_and_pruning(
    place: Place, proxy: Proxy, fake_provider: FakeProvider
) -> None:
    seen: dict[str, int] = {}
    for seed in range(max(1, RESUMES // ROUND)):
        for what, number in play_round(place, proxy, fake_provider, seed, min(ROUND, RESUMES)).items():
            seen[what] = seen.get(what, 0) + number
    print(seen)
    assert seen["events"] > seen["streams"]
