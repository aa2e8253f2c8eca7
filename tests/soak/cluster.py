"""`make cluster`: nodes on one PostgreSQL are killed, stopped and paused while clients call any of them.

Every message that was acknowledged is there exactly once, and every watcher has every event once and in order, at
whichever node it resumes. Prints what happens to the nodes, and the figures; ends with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from bedrock import v1

from tests.e2e.nodes import LEASE_SECONDS, Nodes
from tests.e2e.patience import PATIENCE, eventually
from tests.e2e.server_process import provider
from tests.e2e.test_turn_budget import served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.server_process import ServerProcess

NAMES = ("ada", "ben", "cyd")
CONVERSATIONS, CLIENTS, WATCHERS = 8, 5, 4
CALL_SECONDS = 15.0
PAUSE_SECONDS = 1.6 * LEASE_SECONDS
EVERY_SECONDS = 5.0
TO_REPEAT = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN", "INTERNAL")
LOST = "declared dead by another one"


class Cluster:
    """The nodes that run now. Any thread."""

    def __init__(self, nodes: Nodes, seed: int) -> None:
        self._nodes, self._random = nodes, random.Random(seed)
        self._lock = threading.Lock()
        self._running: dict[str, tuple[ServerProcess, v1.ConversationServiceStub]] = {}
        for name in NAMES:
            self._start(name)

    def any(self) -> tuple[ServerProcess, v1.ConversationServiceStub]:
        """Return some node, which may be dead by now."""
        with self._lock:
            return self._random.choice(list(self._running.values()))

    def trouble(self) -> str:
        """Do something to a node, and start it again; return what."""
        with self._lock:
            name = self._random.choice(NAMES)
            how = self._random.choice(("killed", "stopped", "paused"))
            server, _ = self._running[name]
        match how:
            case "killed":
                server.kill()
            case "stopped":
                with self._lock:
                    del self._running[name]
                assert server.stop() == 0, server.log_text()
            case _:
                server.process.send_signal(signal.SIGSTOP)
                time.sleep(PAUSE_SECONDS)
                server.process.send_signal(signal.SIGCONT)
                server.process.wait(PATIENCE)
                server.foreseen = LOST
        server.dispose()
        self._start(name)
        return f"{name} was {how}"

    def _start(self, name: str) -> None:
        server = self._nodes.start(name)
        stub = v1.ConversationServiceStub(server.channel())
        with self._lock:
            self._running[name] = server, stub


class Journal:
    """What the clients were told. Any thread."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, list[str]] = {}
        """The texts of the messages that were accepted, by conversation."""
        self.waits: list[float] = []
        """How long each message took, its repetitions included."""
        self.wrong: list[str] = []


def create(cluster: Cluster, folder: Path) -> str:
    server, stub = cluster.any()
    made = v1.CreateConversationRequest(conversation=v1.Conversation(working_directory=str(folder)))
    return stub.CreateConversation(made, metadata=server.metadata, timeout=CALL_SECONDS).conversation.name


def send(cluster: Cluster, journal: Journal, seed: int, stop: threading.Event) -> None:
    """Send messages to any conversation at any node, each until it is accepted."""
    chance = random.Random(seed)
    while not stop.is_set():
        name, key = chance.choice(list(journal.acknowledged)), str(uuid.UUID(int=chance.getrandbits(128), version=4))
        request = v1.SendMessageRequest(
            name=name, text=f"message {key}", request_id=key, delivery=v1.DELIVERY_FOLLOW_UP
        )
        began = time.monotonic()
        while (code := _sent(cluster, request)) in TO_REPEAT:
            time.sleep(0.1)
        if code == "OK":
            journal.acknowledged[name].append(request.text)
            journal.waits.append(time.monotonic() - began)
        elif code != "RESOURCE_EXHAUSTED":  # its queue is full
            journal.wrong.append(f"{name}: a message was refused with {code}")
        stop.wait(chance.random() * 0.3)


def _sent(cluster: Cluster, request: v1.SendMessageRequest) -> str:
    server, stub = cluster.any()
    try:
        stub.SendMessage(request, metadata=server.metadata, timeout=CALL_SECONDS)
    except grpc.RpcError as failed:
        error: Any = failed
        return str(error.code().name)
    return "OK"


def watch(cluster: Cluster, journal: Journal, name: str, stop: threading.Event) -> None:
    """Follow a conversation, resumed at any node."""
    last = 0
    while not stop.is_set():
        server, stub = cluster.any()
        request = v1.SubscribeRequest(name=name, after_revision=last)
        try:
            for revision in _revisions(stub.Subscribe(request, metadata=server.metadata, timeout=CALL_SECONDS)):
                if revision != last + 1:
                    journal.wrong.append(f"{name}: revision {revision} came after {last}")
                last = revision
                if stop.is_set():
                    return
        except grpc.RpcError:
            stop.wait(0.1)


def _revisions(responses: Any) -> Iterator[int]:
    for response in responses:
        yield from (event.revision for event in response.events if event.revision and not event.HasField("snapshot"))


def check(cluster: Cluster, journal: Journal) -> None:
    """Look for each message, once everybody is at rest."""
    for name, texts in journal.acknowledged.items():
        eventually(partial(_at_rest, cluster, name), f"{name} comes to rest", seconds=4 * PATIENCE)
        found = _messages(cluster, name)
        journal.wrong += [
            f"{name}: {text!r} is there {found.count(text)} times" for text in texts if found.count(text) != 1
        ]


def _at_rest(cluster: Cluster, name: str) -> bool:
    server, stub = cluster.any()
    request = v1.GetConversationRequest(name=name)
    try:
        found = stub.GetConversation(request, metadata=server.metadata, timeout=CALL_SECONDS).conversation
        waiting = stub.ListQueue(v1.ListQueueRequest(parent=name), metadata=server.metadata, timeout=CALL_SECONDS)
    except grpc.RpcError:
        return False
    return found.state.kind in (v1.STATE_KIND_IDLE, v1.STATE_KIND_ERROR) and not waiting.messages


def _messages(cluster: Cluster, name: str) -> list[str]:
    server, stub = cluster.any()
    request = v1.ListMessagesRequest(parent=name, page_size=1_000)
    found: list[str] = []
    while True:
        page = stub.ListMessages(request, metadata=server.metadata, timeout=PATIENCE)
        found += [block.text for message in page.messages for block in message.content]
        request.page_token = page.next_page_token
        if not request.page_token:
            return found


def work(cluster: Cluster, folder: Path, seconds: float, seed: int) -> Journal:
    """Let clients work for so many seconds while nodes have trouble, and look at what they leave."""
    journal, stop = Journal(), threading.Event()
    journal.acknowledged = {create(cluster, folder): [] for _ in range(CONVERSATIONS)}
    jobs: list[Callable[[], None]] = [
        *(partial(send, cluster, journal, seed + number, stop) for number in range(CLIENTS)),
        *(partial(watch, cluster, journal, name, stop) for name in list(journal.acknowledged)[:WATCHERS]),
    ]
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(EVERY_SECONDS)
        print(f"cluster: {cluster.trouble()}; {sum(map(len, journal.acknowledged.values()))} accepted", flush=True)
    stop.set()
    for thread in threads:
        thread.join(2 * CALL_SECONDS)
    check(cluster, journal)
    return journal


def main() -> int:
    parser = argparse.ArgumentParser(prog="make cluster")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"cluster: seed {options.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="bedrock-cluster-"))
    with served() as (_, url):
        nodes = Nodes(folder, env=provider(url))
        try:
            journal = work(Cluster(nodes, options.seed), folder, options.seconds, options.seed)
        finally:
            nodes.close()
            shutil.rmtree(folder)
    waits = sorted(journal.waits)
    print(
        f"cluster: {len(waits)} messages accepted, {len(journal.wrong)} things wrong; "
        f"waited {waits[len(waits) // 2]:.3f} s in the median, {waits[-1]:.1f} s at most"
    )
    for text in journal.wrong[:50]:
        print(f"  {text}")
    return 1 if journal.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
