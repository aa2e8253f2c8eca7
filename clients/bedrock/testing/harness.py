"""`Bedrock`, the object that tests use: a scripted model, clients of a private server, and waits with time limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

from bedrock import AsyncClient, Client
from bedrock.conversations import ConversationInfo
from bedrock.errors import DeadlineExceeded, NotFound
from bedrock.events import Event
from bedrock.states import ConversationState
from bedrock.testing import processes
from bedrock.testing.private_server import PrivateServer
from bedrock.testing.script import ScriptedModel
from bedrock.testing.waiting import PATIENCE, eventually
from bedrock.types import EventKind, StateKind

_SHOWN = 20


class Named(Protocol):
    """A conversation object of either client."""

    name: str


class Bedrock:
    """A server for one test, without conversations and with an empty script. All waits have a time limit."""

    def __init__(self, server: PrivateServer) -> None:
        self.model = ScriptedModel()
        """The scripted model: what it will answer, and the requests that it got."""
        self.server = server
        """The server process, with its address and token, and methods to stop and restart it."""
        self.client: Client = server.client()
        """A client that is connected to the server."""
        server.provider.model = self.model
        server.provider.received.clear()

    def async_client(self) -> AsyncClient:
        """A new client for asyncio: ``async with bedrock.async_client() as client``."""
        return self.server.async_client()

    def wait_for_event(
        self,
        conversation: Named | str,
        wanted: EventKind | Callable[[Event], bool],
        *,
        after_revision: int | None = None,
        timeout: float = PATIENCE,
    ) -> Event:
        """Wait for the first event that is wanted, and return it.

        Args:
            conversation: A conversation object of either client, or a conversation's name.
            wanted: A kind of event, or a function that gets an event and returns whether it is the wanted one.
            after_revision: Look at the stored events after this revision first; 0 for all of them. If None, the first
                event is a snapshot of the current state, and earlier events are not looked at.
            timeout: Maximum seconds to wait.

        Raises:
            AssertionError: The event did not come within `timeout` seconds, or before the conversation was deleted; the
                message lists the events that came instead.
        """
        name = conversation if isinstance(conversation, str) else conversation.name
        seen: deque[str] = deque(maxlen=_SHOWN)
        until = "before its events ended"
        try:
            with self.client.conversation(name).events(after_revision, timeout=timeout) as events:
                for event in events:
                    if wanted(event) if callable(wanted) else event.kind == wanted:
                        return event
                    if (words := _words(event)) not in list(seen)[-1:]:
                        seen.append(words)
        except DeadlineExceeded:
            until = f"within {timeout:g} s"
        what = "event that fits" if callable(wanted) else wanted
        raise AssertionError(f"no {what} in {name} {until}, but: {', '.join(seen) or 'nothing'}")

    def wait_for_state(
        self, conversation: Named | str, *kinds: StateKind, timeout: float = PATIENCE
    ) -> ConversationState:
        """Wait until a conversation is in one of these states, e.g. "idle".

        Raises AssertionError, which says what happened instead.
        """
        event = self.wait_for_event(
            conversation, lambda each: each.state is not None and each.state.kind in kinds, timeout=timeout
        )
        assert event.state is not None  # noqa: S101 -- the function above has checked it
        return event.state

    def close(self) -> list[str]:
        """Delete all conversations; return problems.

        Problems are a crash, work and processes left behind, mistakes in scripts, and unused answers.
        """
        problems: list[str] = []
        try:
            if self.server.crashed:
                problems.append(f"the server exited unexpectedly: {self.server.log()[-2000:]}")
            if self.server.pid is None:
                self.server.start()
            for name in [found.name for found in self.client.conversations(archived=None)]:
                problems += self._left_in(name)
                self._delete(name)
            problems += self._left_processes()
        finally:
            for script in self.model.scripts:
                script.release()
            self.client.close()
        for script in self.model.scripts:
            problems += script.problems
            problems += [f"the model never got a request for: {words}" for words in script.unplayed]
        return problems

    def _left_in(self, name: str) -> Iterator[str]:
        try:
            info = self.client.conversation(name).get()
            if info.state.kind == "cancelling":  # not reported as a problem: the cancelled run ends within seconds
                self.wait_for_event(name, lambda event: event.state is not None and event.state.kind != "cancelling")
                info = self.client.conversation(name).get()
        except NotFound:
            return
        if info.state.run:
            at = f"{info.state.run} ({info.state.kind})"
            yield f"a run is in progress in {_called(info)}: {at}; wait for it or cancel it"
        for job in info.background_jobs:
            yield f"job {job} is still running in {_called(info)}; end it with cancel(kill_jobs=True) or delete()"

    def _delete(self, name: str) -> None:
        with suppress(NotFound):
            self.client.conversation(name).delete(force=True)

    def _left_processes(self) -> list[str]:
        try:
            eventually(lambda: not self.server.tool_processes(), "the end of the tools' processes")
        except AssertionError:
            return [f"process {pid} is still running: {processes.command(pid)}" for pid in self.server.tool_processes()]
        return []


def _called(info: ConversationInfo) -> str:
    return f"{info.slug} ({info.title})" if info.title else info.slug


def _words(event: Event) -> str:
    if event.kind == "message_added":
        return f"{event.role} said {event.text[:80]!r}" if event.text else f"message_added of {event.role}"
    if event.kind in ("state_changed", "snapshot") and event.state is not None:
        return f"{event.kind} {event.state.kind}"
    return event.kind
