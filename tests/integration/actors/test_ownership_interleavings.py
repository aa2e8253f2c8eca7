"""Servers of one family that pause anywhere, die and are followed by others: nothing is lost, doubled or done twice."""

import random
import threading
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain
from typing import Any

import pytest

from actors.core.content import MessageType, Text
from actors.core.context import Limits
from actors.core.errors import Reason, Rejected
from actors.core.states import TERMINAL, Idle
from actors.messages import (
    CancelConversationCommand,
    CreateConversationCommand,
    SendMessageCommand,
    UpdateConversationCommand,
)
from actors.ports import ConversationRecord, NotOwnerError, Store, StoredEvent
from actors.publishing.hub import EventHub
from tests.integration.actors.conftest import Hold, Talk, World
from tests.integration.actors.family import FamilyBox, FamilyModel, tasks
from tests.integration.actors.nodes import FakeNode, all_gone
from tests.support.patience import PATIENCE, eventually
from tests.support.stores import SharedDatabase

STEPS = 40


class Said(EventHub):
    """An event hub that remembers what was published."""

    def __init__(self) -> None:
        super().__init__()
        self.published: list[tuple[str, StoredEvent]] = []

    def publish(
        self, conversation_id: str, events: tuple[StoredEvent, ...], record: ConversationRecord | None = None
    ) -> None:
        self.published += ((conversation_id, event) for event in events)
        super().publish(conversation_id, events, record)


class Server:
    """One server, from its start to its end, which may come long after it was declared dead."""

    def __init__(self, store: Store, incarnation: int) -> None:
        self.incarnation = incarnation
        self.cluster = FakeNode()
        self.hub = Said()
        self.model = FamilyModel()
        self.world: Any = World(
            store,
            model=self.model,
            box=FamilyBox(),
            hub=self.hub,
            cluster=self.cluster,
            node=f"node-{incarnation}",
            idle_seconds=0.0,
            limits=Limits(retry_base_ms=1),
        )
        self.cluster.on_taken = self.world.supervisor.wake
        self.holds: list[Hold] = []

    def pause(self, passes: int) -> None:
        """Stop whichever thread comes to the so-manieth point from now on."""
        self.holds.append(Hold())
        self.world.faults.arm_pass(len(self.world.faults.passed) + passes, self.holds[-1])

    def go_on(self) -> None:
        for hold in self.holds:
            hold.release()

    def close(self) -> None:
        self.go_on()
        self.world.close()


class Story:
    """What happens to one family, by a random choice at each step."""

    def __init__(self, seed: int, shared: SharedDatabase) -> None:
        self.random = random.Random(seed)
        self.shared, self.reader = shared, shared.reader
        self.servers: list[Server] = []
        self.dead: list[Server] = []
        self.living: list[Server] = []
        self.sent: dict[str, list[Future[Any]]] = {}
        """The answers to each message by its text, which is also its request id."""
        self.others: list[Future[Any]] = []
        self.work = threading.Event()
        """Never set: a wait for it only lets the servers work, more or less of it."""
        self.begin_server()
        self.begin_server()
        first = self.living[0].world.supervisor
        self.root = first.create(CreateConversationCommand("tester", "/tmp")).result(PATIENCE).id

    def begin_server(self) -> Server:
        incarnation = len(self.servers) + 1
        server = Server(self.shared.node(incarnation), incarnation)
        self.servers.append(server)
        self.living.append(server)
        return server

    def members(self) -> tuple[str, ...]:
        return (self.root, *self.reader.children(self.root))

    def ask(self, conversation_id: str, request: Any) -> Future[Any]:
        """Ask any server that lives: the wrong one says who has it."""
        answer: Future[Any] = self.random.choice(self.living).world.supervisor.ask(conversation_id, request)
        return answer

    # --- what can happen ------------------------------------------------------------------------------------------

    def say(self) -> None:
        text = f"message {len(self.sent)}"
        self.sent[text] = []
        self.repeat(text)

    def repeat(self, text: str = "") -> None:
        """Send a message, or send it again as a client does that has no answer."""
        if text := text or self.random.choice(list(self.sent) or [""]):
            command = SendMessageCommand(text, "follow_up", request_id=text, body_hash=text)
            self.sent[text].append(self.ask(self.root, command))

    def start_sub_agents(self) -> None:
        chosen = self.random.choices(("submit x", "wait gate", "hang", "error x"), k=self.random.randint(1, 3))
        self.others.append(self.ask(self.root, SendMessageCommand(tasks(*chosen))))

    def cancel(self) -> None:
        self.others.append(self.ask(self.random.choice(self.members()), CancelConversationCommand()))

    def change(self) -> None:
        title = str(self.random.random())
        self.others.append(self.ask(self.random.choice(self.members()), UpdateConversationCommand(title=title)))

    def pause(self) -> None:
        self.random.choice(self.living).pause(self.random.randint(0, 12))

    def go_on(self) -> None:
        self.random.choice(self.servers).go_on()

    def answer_models(self) -> None:
        self.random.choice(self.servers).model.gates["gate"].set()

    def die(self) -> None:
        """Declare a server dead, which goes on as if nothing were; what it had is swept, or claimed by a call."""
        server = self.random.choice(self.living)
        self.bury(server)
        if not self.living or self.random.random() < 0.7:
            self.begin_server()
        if self.random.random() < 0.5:
            self.sweep(self.random.choice(self.living))

    def bury(self, server: Server) -> None:
        server.cluster.lease.is_valid = False
        self.shared.kill(server.incarnation)
        self.living.remove(server)
        self.dead.append(server)

    def sweep(self, server: Server) -> None:
        with suppress(NotOwnerError):  # another one was first
            server.world.store.claim(self.root, server.cluster.on_taken)

    def run(self) -> None:
        happens = {
            self.say: 4, self.repeat: 3, self.start_sub_agents: 4, self.cancel: 1, self.change: 3,
            self.pause: 4, self.go_on: 2, self.answer_models: 2, self.die: 2,
        }  # fmt: skip
        for _ in range(STEPS):
            self.random.choices(list(happens), list(happens.values()))[0]()
            self.work.wait(self.random.choice((0, 0, 0.002, 0.01)))

    # --- the end --------------------------------------------------------------------------------------------------

    def end(self) -> Talk:
        """Let the last server take everything over, and tell all others what they have lost."""
        last = self.begin_server()
        for server in self.living[:-1]:
            self.bury(server)
        if self.random.random() < 0.3:
            self.sweep(last)
        else:  # a call for one of them claims all
            called = self.random.choice(self.members())
            last.world.supervisor.ask(called, UpdateConversationCommand(title="claimed")).exception(PATIENCE)
        for server in self.servers:
            server.model.gates["gate"].set()
            server.go_on()
        for server in self.dead:
            for id_ in self.members():
                error = server.world.supervisor.ask(id_, CancelConversationCommand()).exception(PATIENCE)
                assert error is None or isinstance(error, NotOwnerError), repr(error)
        for server in self.dead:
            all_gone(server.world)
            eventually(server.model.at_rest, "its requests have ended")
        talk = Talk(last.world, self.root)
        last.world.supervisor.ask(self.root, CancelConversationCommand(discard_queued=True)).result(PATIENCE)
        talk.rest(Idle)
        eventually(self.at_rest, "all sub-agents have ended")
        return talk

    def at_rest(self) -> bool:
        return all(
            isinstance(record.state, (Idle, *TERMINAL)) for id_ in self.members() if (record := self.reader.load(id_))
        )

    def check(self, talk: Talk) -> None:
        for id_ in self.members():
            Talk(talk.world, id_).check()
        history = self.reader.history(self.root, talk.record.state.ledger.seq)
        texts = [
            block.text
            for message in history
            if message.type is MessageType.USER
            for block in message.content
            if isinstance(block, Text)
        ]
        settled = self.reader.settled_inputs(self.root, limit=10_000)
        ended = [each.outcome.input.text for each in settled if not each.run]  # else it is in the history
        for text, answers in self.sent.items():
            errors = [answer.exception(PATIENCE) for answer in answers]
            there = texts.count(text) + ended.count(text)
            assert there == 1 if None in errors else there <= 1, (text, there, errors)
        for answer in (*self.others, *chain.from_iterable(self.sent.values())):
            error = answer.exception(PATIENCE)
            assert error is None or isinstance(error, NotOwnerError) or _refused(error), repr(error)
        for server in self.servers:
            for id_, event in server.hub.published:
                (stored,) = self.reader.events(id_, after=event.revision - 1, limit=1)
                assert stored == event, "nothing is published that was not committed"

    def close(self) -> None:
        for server in self.servers:
            server.model.gates["gate"].set()
            server.close()


def _refused(error: BaseException) -> bool:
    return isinstance(error, Rejected) and error.reason is not Reason.SHUTTING_DOWN


@pytest.mark.parametrize("seed", range(8))
def test_whoever_pauses_or_dies_wherever_nothing_is_lost_or_doubled(seed: int, shared_database: SharedDatabase) -> None:
    story = Story(seed, shared_database)
    try:
        story.run()
        story.check(story.end())
    finally:
        story.close()
