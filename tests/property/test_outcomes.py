"""What a store keeps of any life of a conversation: one fate for every accepted message, and every request cycle."""

from collections import Counter
from typing import Self

import pytest
from bedrock import v1
from hypothesis import given
from msgspec.structs import replace

from actors.conversation.unit_of_work import UnitOfWork
from actors.core.content import MessageType
from actors.core.context import ConvContext, Limits, ToolGroup
from actors.core.errors import Reason
from actors.core.events import Event, SpawnSubAgents, UserMessage
from actors.core.notifications import Fate, QueueChanged
from actors.core.request_cycles import CycleEvent, decode_lines, events_in, events_of, project
from actors.ports import Commit, LogEntry, Store
from server.queries.listings import list_queue
from server.queries.request_cycles import list_cycles
from server.wire.messages import FATE, ConversionContext
from tests.property.drive import a_context, walk
from tests.property.profiles import everything_was_seen, profile
from tests.property.tape import Tape, tapes
from tests.property.world import World
from tests.support.commit_builder import record_of
from tests.support.stores import new_store

WAITED = {Fate.DELIVERED, Fate.RETURNED, Fate.DISCARDED, Fate.WITHDRAWN}
EVERYTHING = 100_000


class StoredWorld(World):
    """A world that commits what happens in it; what would be is not committed."""

    def __init__(self, context: ConvContext, store: Store) -> None:
        super().__init__(context)
        self.stored = True
        self.store = store
        store.delete(context.conversation_id)
        self.accepted: dict[str, Event] = {}
        """Messages that were not refused."""
        self.record = record_of(context.conversation_id, step=1)
        self.store.commit(Commit(self.record, 0, log=(LogEntry(1, 1, b"{}", 1, ()),), create=True))

    def fork(self) -> Self:
        twin = super().fork()
        twin.stored = False
        return twin

    def apply(self, event: Event) -> bool | Reason:
        draft = UnitOfWork(self.record, self.context, None)
        verdict = super().apply(event)
        if verdict is True and self.stored:
            draft.run(event)
            if draft.entries:
                self.store.commit(draft.commit())
            self.record = draft.record
            if isinstance(event, UserMessage | SpawnSubAgents):
                self.accepted[event.message_id] = event
        return verdict


def test_every_accepted_message_has_exactly_one_fate() -> None:
    seen: Counter[str] = Counter()
    store = new_store()

    @profile(300)
    @given(tapes(60, 200))
    def live(tape: Tape) -> None:
        world = StoredWorld(a_context(tape), store)
        walk(world, tape)
        conversation_id = world.record.id
        history = world.store.history(conversation_id, EVERYTHING)
        said = {message.id: message for message in history if message.type is MessageType.USER and not message.meta}
        log = world.store.events(conversation_id, after=0, limit=EVERYTHING)
        changes = [event.notification for event in log if isinstance(event.notification, QueueChanged)]
        queued = {change.input.message_id for change in changes if change.fate is Fate.QUEUED}
        world.store.prune_log(conversation_id, EVERYTHING)

        settled = world.store.settled_inputs(conversation_id, limit=EVERYTHING)
        fates = {each.outcome.input.message_id: each.outcome.fate for each in settled}
        assert len(fates) == len(settled), "one fate each"
        ledger = world.record.state.ledger
        waiting = {each.message_id for each in (*ledger.steers, *ledger.follows)}
        assert not waiting & fates.keys()
        assert waiting | fates.keys() == queued
        assert queued | said.keys() == world.accepted.keys(), "nothing is lost, nothing is made up"
        in_history = {name for name, fate in fates.items() if fate in (Fate.DELIVERED, Fate.DISCARDED)}
        assert said.keys() == world.accepted.keys() - queued | in_history
        assert {each.outcome.input.message_id: each.run for each in settled} == {
            name: said[name].run if name in said else "" for name in fates
        }
        request = v1.ListQueueRequest(include_settled=True, page_size=1 + len(settled) % 5)
        listed: list[tuple[str, int]] = []
        while True:
            page = list_queue(world.store, request, conversation_id)
            listed += [(each.message.name.rpartition("/")[2], each.fate) for each in page.messages]
            request.page_token = page.next_page_token
            if not request.page_token:
                break
        assert dict(listed) == {name: FATE[fate] for name, fate in fates.items()} | dict.fromkeys(
            waiting, FATE[Fate.QUEUED]
        )
        assert len(listed) == len(queued)
        seen.update(fate.value for fate in fates.values())

    live()
    assert everything_was_seen({fate.value for fate in WAITED}, seen)


@pytest.mark.parametrize("sub_agent", [False, True], ids=["conversation", "sub-agent"])
def test_cycles_without_the_log_are_those_of_the_whole_log(sub_agent: bool) -> None:
    """The fold of all that watchers were told, and what is listed when none of it is left."""
    store = new_store()

    @profile(300)
    @given(tapes(60, 200))
    def live(tape: Tape) -> None:
        world = StoredWorld(a_context(tape, sub_agent=sub_agent), store)
        walk(world, tape)
        conversation_id = world.record.id
        groups = {tool.name: tool.group for tool in world.context.tools}
        log = world.store.events(conversation_id, after=0, limit=EVERYTHING)
        folded = project(events_of((each.notification for each in log), groups, (each.at for each in log)))
        world.store.prune_log(conversation_id, EVERYTHING)
        expected = [_shown(events_in(cycle)) for cycle in folded]
        for descending in (False, True):
            listed = _listed(world.store, conversation_id, groups, 1 + len(folded) % 4, descending=descending)
            assert listed == (expected[::-1] if descending else expected)

    live()


def _shown(events: tuple[CycleEvent, ...]) -> list[str]:
    """As lines; when a follow-up was accepted is not known any more, only when its turn came."""
    first, *rest = events
    return [repr(replace(first, at=0)), *map(repr, rest)]


def _listed(
    store: Store, conversation_id: str, groups: dict[str, ToolGroup], size: int, *, descending: bool
) -> list[list[str]]:
    facts = ConversionContext(groups, lambda model: 1_000, Limits())
    view = v1.ListRequestCyclesRequest.VIEW_EVENTS
    request = v1.ListRequestCyclesRequest(page_size=size, view=view, descending=descending)
    found: list[list[str]] = []
    while True:
        page = list_cycles(store, facts, request, conversation_id)
        found += [_shown(tuple(decode_lines(cycle.events))) for cycle in page.request_cycles]
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token
