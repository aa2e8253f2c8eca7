"""What must be true of every conversation that the tests of this folder leave behind on a server.

Request cycles are what the events amount to, folded here from the rules alone; the list of events that the server gives
makes the same cycles again; and every message that was ever queued has exactly one fate, as in its events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from bedrock import Client, v1

from actors.core.request_cycles import Projector, decode_lines, encode_line, events_in
from tests.support.folding import fold, listed_rounds, listed_steps
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bedrock.request_cycles import RequestCycle

    from tests.support.server_process import ServerProcess

TRIES = 20
"""How often a conversation that goes on is looked at until it holds still for a moment."""


def audit(server: ServerProcess) -> int:
    """Look at every conversation and sub-agent on a server that runs; returns how many there were."""
    count = 0
    with server.client() as client, server.channel() as channel:
        for name in _everybody(client):
            count += 1
            _audit(client, channel, server, name)
    return count


def _everybody(client: Client) -> Iterator[str]:
    for archived in (False, True):
        for found in client.conversations(archived=archived):
            yield found.name
            for child in client.conversations(parent=found.name):
                yield child.name


def _audit(client: Client, channel: grpc.Channel, server: ServerProcess, name: str) -> None:
    conversation = client.conversation(name)
    for _ in range(TRIES):
        events = _durable(channel, server, name)
        cycles = [cycle.proto for cycle in conversation.cycles(view="full")]
        listed = list(conversation.cycles(view="events"))
        queue = [entry.proto for entry in conversation.queue(include_settled=True)]
        if events is None:
            assert_events(listed)
            return
        if conversation.get().revision == len(events):
            assert_cycles(cycles, events)
            assert_events(listed)
            assert_fates(queue, events)
            return
    raise AssertionError(f"{name} never held still")


def _durable(channel: grpc.Channel, server: ServerProcess, name: str) -> list[v1.Event] | None:
    """Every durable event from the first; None if the beginning was pruned."""
    request = v1.SubscribeRequest(name=name, after_revision=0, omit_deltas=True)
    stream = v1.ConversationServiceStub(channel).Subscribe(request, metadata=server.metadata, timeout=PATIENCE)
    found: list[v1.Event] = []
    try:
        for response in stream:
            for event in response.events:
                if event.HasField("caught_up"):
                    stream.cancel()
                    return found
                if event.revision:
                    found.append(event)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.OUT_OF_RANGE:
            return None
        raise
    raise AssertionError(f"the events of {name} have no end")


def assert_cycles(listed: list[v1.RequestCycle], events: list[v1.Event]) -> None:
    """ListRequestCycles, with both views, is what anybody can compute from the events."""
    expected = fold(events)
    assert [(each.name, each.stop_reason, each.stop_detail) for each in listed if each.stop_reason] == [
        (each.run, each.stop, each.detail) for each in expected if each.stop
    ]
    assert [each.root_delivery == v1.DELIVERY_FOLLOW_UP for each in listed] == [each.follow_up for each in expected]
    assert [listed_steps(each) for each in listed] == [each.steps() for each in expected]
    assert [listed_rounds(each) for each in listed] == [each.rounds() for each in expected]


def assert_events(cycles: list[RequestCycle]) -> None:
    """The lists of events, in one sequence, make the same cycles by the rules alone."""
    again = Projector(strict=True).project(decode_lines(event_list(cycles)))
    assert again.skipped == 0
    assert [tuple(map(encode_line, events_in(each))) for each in again.cycles] == [each.events for each in cycles]


def event_list(cycles: Iterable[RequestCycle]) -> Iterator[str]:
    """Yield the events of several cycles in one sequence, in the order in which they happened.

    A follow-up is accepted before the end of the run that it waits for, so its first event precedes that run's last
    one.
    """
    stop: str | None = None
    for cycle in cycles:
        if not cycle.events:
            continue
        root, *following = cycle.events
        if cycle.root_delivery == "follow_up" or stop is None:
            yield root
            if stop is not None:
                yield stop
        else:
            yield stop
            yield root
        stop = following.pop() if cycle.stop_reason and following else None
        yield from following
    if stop is not None:
        yield stop


def assert_fates(listed: list[v1.QueuedMessage], events: list[v1.Event]) -> None:
    """Every message that was queued is listed once, with the one fate that its events name, or as waiting."""
    fates: dict[str, int] = {}
    stored: dict[str, str] = {}
    for event in events:
        if event.HasField("queue_changed"):
            name, fate = event.queue_changed.message.name, event.queue_changed.fate
            before = fates.get(name, v1.QueuedMessage.FATE_UNSPECIFIED)
            begun = fate == v1.QueuedMessage.FATE_QUEUED
            assert before == (v1.QueuedMessage.FATE_UNSPECIFIED if begun else v1.QueuedMessage.FATE_QUEUED)
            fates[name] = fate
        elif event.HasField("message_added"):
            stored[event.message_added.name] = event.message_added.request_cycle
    assert len(listed) == len(fates)
    assert {each.message.name: each.fate for each in listed} == fates
    for each in listed:
        kept = each.fate in (v1.QueuedMessage.FATE_DELIVERED, v1.QueuedMessage.FATE_DISCARDED)
        assert (each.message.name in stored) is kept
        assert each.HasField("settle_time") is (each.fate != v1.QueuedMessage.FATE_QUEUED)
        if kept:
            assert each.message.request_cycle == stored[each.message.name]
