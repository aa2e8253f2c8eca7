"""A watcher over a stream of its own: everything it was sent, to look at and to wait for."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

import grpc
from bedrock import v1

from tests.support.patience import PATIENCE
from tests.support.server_process import ServerProcess

Found = Callable[[v1.Event], bool]


class Watcher:
    """Reads on a thread of its own until the stream ends."""

    def __init__(self, server: ServerProcess, name: str, **request: Any) -> None:
        self.events: list[v1.Event] = []
        self.responses: list[v1.SubscribeResponse] = []
        self.code: str | None = None
        """How the stream ended; None while it goes on."""
        self.details = ""
        self._changed = threading.Condition()
        self._channel = server.channel()
        asked = v1.SubscribeRequest(name=name, **request)
        self._call: Any = v1.ConversationServiceStub(self._channel).Subscribe(asked, metadata=server.metadata)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._call.cancel()
        self._thread.join(PATIENCE)
        self._channel.close()

    def until(self, found: Found | str, *, after: int = 0) -> v1.Event:
        """Wait for an event, by its kind or by what it holds; `after`: a revision that it must follow."""
        wanted = kind_is(found) if isinstance(found, str) else found
        with self._changed:
            hit = self._changed.wait_for(lambda: self._find(wanted, after) or self.code, PATIENCE)
            event = self._find(wanted, after)
        assert event is not None, f"{'stream ended with ' + str(self.code) if hit else 'not seen'}: {self.kinds}"
        return event

    def state(self, kind: int, *, after: int = 0) -> v1.Event:
        """Wait for a state."""
        return self.until(lambda event: event.state_changed.state.kind == kind, after=after)

    def end(self) -> str:
        """Wait for the end of the stream; returns its code."""
        with self._changed:
            self._changed.wait_for(lambda: self.code, PATIENCE)
        assert self.code is not None, f"the stream does not end: {self.kinds}"
        return self.code

    @property
    def kinds(self) -> list[str]:
        return [str(event.WhichOneof("event")) for event in self.events]

    @property
    def durable(self) -> list[v1.Event]:
        return [event for event in self.events if event.revision]

    @property
    def revisions(self) -> list[int]:
        return [event.revision for event in self.durable]

    def of(self, kind: str) -> list[Any]:
        """What the events of one kind hold."""
        return [getattr(event, kind) for event in self.events if event.HasField(kind)]  # type: ignore[arg-type]

    def _find(self, wanted: Found, after: int) -> v1.Event | None:
        return next((each for each in self.events if (not after or each.revision > after) and wanted(each)), None)

    def _read(self) -> None:
        code, details = "OK", ""
        try:
            for response in self._call:
                with self._changed:
                    self.responses.append(response)
                    self.events.extend(response.events)
                    self._changed.notify_all()
        except grpc.RpcError as error:
            code, details = self._call.code().name, str(error)
        with self._changed:
            self.code, self.details = code, details
            self._changed.notify_all()


def kind_is(kind: str) -> Found:
    return lambda event: event.WhichOneof("event") == kind


Slot = tuple[str, int]
"""Request id and attempt."""


def checked_slots(events: Iterable[v1.Event]) -> dict[Slot, str]:
    """The text of each slot of one stream.

    Fails unless pieces follow each other without a gap, no slot ends twice, no text comes after the end of its slot,
    and messages begin as they were streamed. `Snapshot.partial` is where a slot begins that was open already.
    """
    shown: dict[Slot, str] = {}
    thought: dict[Slot, str] = {}
    closed: set[Slot] = set()
    for event in events:
        match event.WhichOneof("event"):
            case "snapshot":
                for part in event.snapshot.partial:
                    assert part.offset == 0
                    shown[part.llm_request_id, part.attempt] = part.text
            case "text_delta":
                delta = event.text_delta
                slot = (delta.llm_request_id, delta.attempt)
                assert slot not in closed, "text after the end of its slot"
                kind = thought if delta.reasoning else shown
                assert delta.offset == len(kind.get(slot, "")), "text twice, or text missing"
                kind[slot] = kind.get(slot, "") + delta.text
            case "message_added" if event.message_added.role == v1.ROLE_AGENT:
                message = event.message_added
                slot = (message.llm_request_id, message.attempt)
                assert slot not in closed, "a slot ended twice"
                closed.add(slot)
                whole = "".join(block.text for block in message.content)
                assert whole.startswith(shown.get(slot, "")), "the message is not what was streamed"
            case "stream_discarded":
                slot = (event.stream_discarded.llm_request_id, event.stream_discarded.attempt)
                assert slot not in closed, "a slot ended twice"
                closed.add(slot)
            case _:
                pass
    return shown
