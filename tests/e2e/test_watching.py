"""Watchers: nothing lost and nothing twice, wherever a stream breaks; and a slow one is nobody's business."""

from __future__ import annotations

import random
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from bedrock import Event, v1

from tests.support import processes
from tests.support.fake_provider import Exchange, calls, dribbles, says
from tests.support.patience import PATIENCE, within
from tests.support.proxy import Proxy
from tests.support.watcher import Watcher, checked_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.chat import Chat
    from tests.support.server_process import ServerProcess

RECONNECTS = 100
CUTS = 25


def _busy(exchange: Exchange) -> None:
    """Every answer but the last of a run calls two tools; the last one comes word by word."""
    listing = ("bash", {"cmd": "for i in 1 2 3 4 5; do echo $i; done"})
    asks = calls(listing, ("think", {"thoughts": "x"}), text="Let me see.")
    talks = dribbles(*(f"word {number} " for number in range(25)))
    (talks if exchange.results else asks)(exchange)


@contextmanager
def kept_busy(chat: Chat) -> Iterator[None]:
    """One run after the other for as long as the context is open; at rest after it."""
    stop = threading.Event()

    def drive() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            chat.send(f"Number {number}.").wait()

    driver = threading.Thread(target=drive)
    driver.start()
    try:
        yield
    finally:
        stop.set()
        driver.join(PATIENCE)
    assert not driver.is_alive(), "the conversation does not come to rest"


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    with Proxy(server.address) as made:
        yield made


class Resumer:
    """Reads one conversation over many streams, each of which ends badly, and keeps what they held together."""

    def __init__(self, server: ServerProcess, proxy: Proxy, name: str, seed: int) -> None:
        self._server, self._proxy, self._name = server, proxy, name
        self._chance = random.Random(seed)
        self.seen: list[v1.Event] = []
        """Durable events, as they came."""

    @property
    def revision(self) -> int:
        return self.seen[-1].revision if self.seen else 0

    def read_a_while(self) -> None:
        """Open a stream behind what was seen, read some of it, and lose it."""
        dropped = self._chance.random() < 0.5
        address = self._proxy.address if dropped else self._server.address
        enough = self._chance.randrange(1, 12)
        events: list[v1.Event] = []
        with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            request = v1.SubscribeRequest(name=self._name, after_revision=self.revision)
            stream: Any = v1.ConversationServiceStub(channel).Subscribe(
                request, metadata=self._server.metadata, timeout=PATIENCE
            )
            try:
                for response in stream:
                    events.extend(response.events)
                    if len(events) >= enough:
                        self._proxy.cut() if dropped else stream.cancel()
                        enough = 1_000_000
            except grpc.RpcError:
                assert stream.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
        self._take(events)

    def _take(self, events: list[v1.Event]) -> None:
        checked_slots(events)
        for event in events:
            if event.revision:
                assert event.revision == self.revision + 1, "a gap, or an event twice"
                self.seen.append(event)


def test_streams_that_break_at_any_moment_add_up(
    open_chat: Callable[..., Chat], watch: Callable[..., Watcher], server: ServerProcess, proxy: Proxy
) -> None:
    chat = open_chat(otherwise=_busy)
    reference = watch(chat.name, after_revision=0)
    resumer = Resumer(server, proxy, chat.name, seed=7)
    with kept_busy(chat):
        for _ in range(RECONNECTS):
            resumer.read_a_while()
    last = watch(chat.name, after_revision=resumer.revision)
    union = resumer.seen + last.durable
    reference.until(lambda event: event.revision == union[-1].revision)
    assert [event.revision for event in union] == list(range(1, len(union) + 1))
    assert _unchanging(union) == _unchanging(reference.durable)
    assert len(union) > RECONNECTS, "the conversation was not busy"
    opened = checked_slots(reference.events)
    closed = [(each.llm_request_id, each.attempt) for each in _answers(union)]
    assert len(closed) == len(set(closed))
    assert opened.keys() <= set(closed)
    chat.assert_valid()


def test_the_client_bridges_cut_connections(
    open_chat: Callable[..., Chat], server: ServerProcess, proxy: Proxy
) -> None:
    """Answers take so long that the client is mostly back before they end, and has to know what it has shown."""
    chat = open_chat(otherwise=dribbles(*(f"word {number} " for number in range(100)), seconds=0.006))
    chance = random.Random(11)
    events: list[Event] = []
    with server.client(proxy.address) as client, kept_busy(chat):

        def read() -> None:
            cuts, next_cut = 0, chance.randrange(40)
            for event in client.conversation(chat.name).events(after_revision=0):
                events.append(event)
                if len(events) > next_cut:
                    if cuts == CUTS:
                        return
                    cuts, next_cut = cuts + 1, len(events) + chance.randrange(40)
                    proxy.cut()

        within(read)
    revisions = [event.revision for event in events if event.revision]
    assert revisions == list(range(1, len(revisions) + 1))
    assert [event.kind for event in events].count("caught_up") == 1
    checked_slots(event.proto for event in events)


def test_watchers_that_read_nothing_block_nothing(
    open_chat: Callable[..., Chat],
    watch: Callable[..., Watcher],
    server: ServerProcess,
    proxy: Proxy,
    tmp_path: Path,
) -> None:
    seen = tmp_path / "seen"
    flood = ("bash", {"cmd": f"head -c 40000000 /dev/zero | tr '\\0' x; until [ -e {seen} ]; do sleep 0.02; done"})
    chat = open_chat(calls(flood), says("That was much."), otherwise=says(*["much more "] * 500))
    with ExitStack() as opened:
        for _ in range(5):
            opened.enter_context(Stuck(server, chat.name, proxy.address))
        stuck = [opened.enter_context(Stuck(server, chat.name, server.address)) for _ in range(5)]
        proxy.freeze()
        reading = watch(chat.name)
        before = processes.resident_mib(server.pid)
        flooded = chat.send("Flood us.")
        reading.until(lambda _: sum(len(delta.text) for delta in reading.of("tool_output_delta")) > 100_000)
        seen.touch()
        assert within(flooded.answer) == "That was much."
        for number in range(30):
            assert chat.ask(f"Number {number}.").startswith("much more ")
        head = chat.conversation.get().revision
        reading.until(lambda event: event.revision == head)
        assert reading.revisions == list(range(1, len(reading.revisions) + 1))
        assert processes.resident_mib(server.pid, "VmHWM") < before + 150
        for each in stuck:
            assert each.read_up_to(reading.revisions[-1]) == reading.revisions


class Stuck:
    """A watcher that takes the first response of its stream and nothing more, until it is told to."""

    def __init__(self, server: ServerProcess, name: str, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        stub = v1.ConversationServiceStub(self._channel)
        self._call: Any = stub.Subscribe(v1.SubscribeRequest(name=name), metadata=server.metadata)

    def __enter__(self) -> Stuck:
        within(lambda: next(self._call))
        return self

    def __exit__(self, *_: object) -> None:
        self._call.cancel()
        self._channel.close()

    def read_up_to(self, revision: int) -> list[int]:
        """All revisions from here to this one."""

        def read() -> list[int]:
            revisions: list[int] = []
            for response in self._call:
                revisions += [event.revision for event in response.events if event.revision]
                if revision in revisions:
                    break
            return revisions

        return within(read)


def _unchanging(events: list[v1.Event]) -> list[v1.Event]:
    """Events without what is told as it is now, not as it was then."""
    return [event for event in events if not event.HasField("conversation_updated")]


def _answers(events: list[v1.Event]) -> list[v1.Message | v1.Event.StreamDiscarded]:
    """What closed a delta slot."""
    added = [event.message_added for event in events if event.message_added.llm_request_id]
    return [*added, *(event.stream_discarded for event in events if event.HasField("stream_discarded"))]
