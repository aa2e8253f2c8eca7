"""Starts, finds, parks and restores conversation actors: one per conversation, none for those that rest."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, wait
from typing import Any

from actors.actor import Asked, tell
from actors.conversation import ConversationActor, IdleCheck, Shutdown, needs_rest
from actors.core.errors import Reason, Rejected
from actors.core.events import Restart, SubAgentResult
from actors.core.states import AgentOutcome
from actors.effect_executor import Admission
from actors.llm_runner import Outcome
from actors.machine import Machine
from actors.ports import Commit, ConversationRecord
from actors.requests import Cancel, Create, Request
from actors.runtime import Runtime

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 5.0
"""What conversations that are still busy get to come to rest, once the drain time is over."""
RESTORE_BATCH = 200
"""Conversations brought to rest in one transaction at start."""


class Supervisor:
    """The directory of living conversation actors. Any thread; nothing here blocks but start() and stop()."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._admission = Admission(runtime.max_llm_requests)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._live: dict[str, ConversationActor] = {}
        self._stop = threading.Event()
        self._refusing = False
        self._hurried = False

    @property
    def closing(self) -> bool:
        """The server is going down: nobody should insist any more."""
        return self._stop.is_set()

    def start(self) -> tuple[str, ...]:
        """Bring every conversation that a crash left busy to rest; returns their ids. At boot, before any request.

        One transaction per batch; no model is asked, no process started (C35). Raises StoreError.
        """
        ids = self._runtime.store.unsettled()
        for first in range(0, len(ids), RESTORE_BATCH):
            self._restore(ids[first : first + RESTORE_BATCH])
        return ids

    def create(self, request: Create, *, deadline: float | None = None) -> Future[ConversationRecord]:
        """A new conversation."""
        return self._put(self._runtime.ids.conversation(), Asked(request, deadline=deadline))

    def ask(self, conversation_id: str, request: Request, *, deadline: float | None = None) -> Future[Any]:
        """Ask a conversation; the future fails with what actors.requests and core.errors name.

        A cancel goes into the urgent lane, and then what is under way is stopped without waiting for the mailbox:
        its outcome cannot overtake the cancel.
        """
        if not isinstance(request, Cancel):
            return self._put(conversation_id, Asked(request, deadline=deadline))
        with self._lock:
            actor = self._live.get(conversation_id)
        answer = self._put(conversation_id, Asked(request, urgent=True))
        if actor is not None:
            actor.pull(request.run_id)
        return answer

    def live(self) -> int:
        """How many conversations have a thread now."""
        with self._lock:
            return len(self._live)

    def stop(self, drain_seconds: float) -> None:
        """Refuse new work, wait for what is under way, bring the rest to rest, end every thread. Blocks; once."""
        with self._lock:
            self._refusing = True
        deadline = self._runtime.clock.monotonic() + drain_seconds
        with self._changed:
            self._changed.wait_for(
                lambda: self._hurried or self._all_quiet(),
                timeout=max(0.0, deadline - self._runtime.clock.monotonic()),
            )
            self._stop.set()
            actors = tuple(self._live.values())
        endings: list[Future[None]] = []
        for actor in actors:
            done: Future[None] = Future()
            if tell(actor.actor_ref, Shutdown(done)):
                endings.append(done)
        late = wait(endings, timeout=SHUTDOWN_SECONDS).not_done
        if late:
            log.error("%d conversations did not come to rest in time; the next start brings them there", len(late))

    def hurry(self) -> None:
        """Cut the drain of a `stop` short that is under way, or is yet to come. Any thread."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    # --- for the actors ---------------------------------------------------------------------------------------

    def released(self, actor: ConversationActor) -> None:
        """This actor has closed its mailbox and is leaving."""
        with self._changed:
            if self._live.get(actor.conversation_id) is actor:
                del self._live[actor.conversation_id]
            self._changed.notify_all()

    def rested(self) -> None:
        """Some conversation came to rest: a drain may be over."""
        if self._refusing:
            with self._changed:
                self._changed.notify_all()

    def forward(self, conversation_id: str, asked: Asked[Any]) -> None:
        """Give a request that a leaving actor did not get to, to its successor."""
        self._put(conversation_id, asked)

    def remind(self, actor: ConversationActor, check: IdleCheck) -> None:
        """Ask an actor whether it has been idle since (timer thread)."""
        tell(actor.actor_ref, check)

    def notify_parent(self, record: ConversationRecord, outcome: AgentOutcome) -> None:
        """Tell a sub-agent's parent how it ended."""
        if record.parent_conversation_id is not None:
            event = SubAgentResult(self._runtime.clock.now_ms(), record.id, outcome)
            self._deliver(record.parent_conversation_id, Outcome(event))

    def pause(self, seconds: float) -> None:
        """Wait between attempts to commit; ends early when the server goes down (actor's thread)."""
        self._stop.wait(seconds)

    # --- inside -----------------------------------------------------------------------------------------------

    def _put(self, conversation_id: str, asked: Asked[Any]) -> Future[Any]:
        if (self._refusing and not isinstance(asked.request, Cancel)) or not self._deliver(conversation_id, asked):
            asked.fail(Rejected(Reason.SHUTTING_DOWN))
        return asked.answer

    def _deliver(self, conversation_id: str, message: object) -> bool:
        """Into the mailbox of the conversation's actor, which is started if need be; False while stopping."""
        while (actor := self._find(conversation_id)) is not None:
            if tell(actor.actor_ref, message):
                return True
        return False

    def _find(self, conversation_id: str) -> ConversationActor | None:
        """The conversation's actor, started if need be; None while stopping."""
        with self._lock:
            if self._stop.is_set():
                return None
            actor = self._live.get(conversation_id)
            if actor is None or actor.actor_inbox.closed:
                actor = ConversationActor(self._runtime, self, self._admission, conversation_id)
                self._live[conversation_id] = actor
                actor.launch()
            return actor

    def _all_quiet(self) -> bool:
        return all(actor.quiet for actor in self._live.values())

    def _restore(self, ids: tuple[str, ...]) -> None:
        parts: list[Commit] = []
        for conversation_id in ids:
            record = self._runtime.store.load(conversation_id)
            if record is None or not needs_rest(record):
                continue
            machine = Machine(self._runtime, record)
            draft = machine.draft()
            draft.run(Restart(self._runtime.clock.now_ms()))
            if not draft.empty:
                parts.append(draft.commit(None))
        if parts:
            self._runtime.store.commit(*parts)
