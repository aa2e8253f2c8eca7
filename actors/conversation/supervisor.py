"""The supervisor: starts, finds, stops and recovers conversation actors. Only active conversations have an actor."""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pykka import ActorDeadError

from actors import messages, ports
from actors.common.machine import run_in_thread
from actors.conversation.conversation_actor import ConversationActor, SharedRunners, Shutdown
from actors.conversation.pipeline import LoadedConversation, recovering, taken_over
from actors.conversation.unit_of_work import UnitOfWork
from actors.core.errors import Reason, Rejected
from actors.runners.request_builder import learn_models
from actors.runners.side_queries import SideQueries, Titles
from actors.runners.sub_agents import SubAgentRunner, prepared
from actors.runtime.actor import Request, ask, failed, forward, tell
from actors.runtime.admission import Admission
from actors.runtime.services import Services

log = logging.getLogger(__name__)

# The seconds that conversations get at shutdown, after the drain time, to end their runs and stop.
SHUTDOWN_SECONDS = 5.0
# How many interrupted conversations are recovered in one transaction at startup.
RECOVERY_BATCH = 200


class Supervisor:
    """The directory of running conversation actors. Thread-safe; only start(), stop() and wait_until_woken() block."""

    def __init__(self, services: Services, load: Callable[[], None] | None = None) -> None:
        """`load` runs on its own thread once there is an actor; it imports modules that only actors need."""
        self._services = services
        self._load = load
        admission = Admission(services.max_llm_requests, services.files)
        self._shared = SharedRunners(
            admission,
            SubAgentRunner(services.clock, services.agents.at_once, self),
            Titles(services, SideQueries(services, admission), self.ask),
        )
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._live: dict[str, ConversationActor] = {}
        self._refusing = False
        self._stopped = False
        self._drain_skipped = False
        self._waking = Waking(services, self._wake_one)

    def start(self) -> tuple[str, ...]:
        """Recover every conversation whose run was interrupted by a restart; return their ids.

        Call this before any request. Many conversations are recovered in one transaction, and all become idle: no model
        is called, and no process is started. A damaged conversation is logged, and recovered at its next message if
        possible. In a cluster, conversations are woken instead, because they may already have actors. Raises
        StoreError.
        """
        ids = self._services.store.unsettled()
        if self._services.cluster.me.incarnation:
            self.wake(ids)
            return ids
        for first in range(0, len(ids), RECOVERY_BATCH):
            self._recover(ids[first : first + RECOVERY_BATCH])
        return ids

    def create(
        self, request: messages.CreatingCommand, *, deadline: float | None = None
    ) -> Future[ports.ConversationRecord]:
        """Create a conversation or a fork. The future gets the record of the new conversation."""
        return self._accept(self._services.ids.conversation(), Request(request, deadline=deadline))

    def ask(
        self, conversation_id: str, request: messages.ConversationCommand, *, deadline: float | None = None
    ) -> Future[Any]:
        """Send a command; the future may raise errors from actors.messages and core.errors.

        A mode change takes the urgent lane, so that no queued call starts in the old mode. So does a cancel. Once the
        cancel is in the mailbox, the work in flight is stopped at once, from here; its outcome cannot arrive before the
        cancel.
        """
        if not isinstance(request, messages.CancelConversationCommand):
            urgent = isinstance(request, messages.SetModeCommand)
            return self._accept(conversation_id, Request(request, deadline=deadline, urgent=urgent))
        with self._lock:
            actor = self._live.get(conversation_id)
        work = actor.in_flight(request.run_id) if actor else None
        answer = self._ask(conversation_id, Request(request, urgent=True, must_run=True))
        if actor is not None and work is not None:
            actor.cancel_now(work)
        return answer

    def wake(self, ids: tuple[str, ...]) -> None:
        """Recover conversations taken over from another server: their actors end the open runs. Returns at once."""
        self._waking.wake(ids)

    def wait_until_woken(self, seconds: float) -> bool:
        """Wait at most `seconds` for the conversations given to `wake`; return False if some have not been woken."""
        return self._waking.wait(seconds)

    def live_count(self) -> int:
        with self._lock:
            return len(self._live)

    def idle(self) -> bool:
        with self._lock:
            return all(actor.idle for actor in self._live.values())

    def stop(self, drain_seconds: float) -> None:
        """Refuse new work, let runs finish for `drain_seconds`, stop the rest, end all threads. Blocks; call once."""
        with self._lock:
            self._refusing = True
            live = tuple(self._live.values())
        asked: list[Future[object]] = []
        for actor in live:
            with suppress(ActorDeadError):
                asked.append(ask(actor.actor_ref, Request(messages.Wake())))
        for answer in asked:
            answer.add_done_callback(lambda _: self.on_idle())
        with self._changed:
            self._changed.wait_for(lambda: self._drained(asked), timeout=drain_seconds)
            self._stopped = True
            actors = tuple(self._live.values())
        self._shared.titles.close()
        endings: list[Future[None]] = []
        for actor in actors:
            done: Future[None] = Future()
            if tell(actor.actor_ref, Shutdown(done)):
                endings.append(done)
        late = wait(endings, timeout=SHUTDOWN_SECONDS).not_done
        if late:
            log.error("%d conversations did not stop in time; the next start will recover them", len(late))

    def skip_drain(self) -> None:
        """Make `stop` not wait for runs to finish, whether it waits now or is called later. Thread-safe."""
        with self._changed:
            self._drain_skipped = True
            self._changed.notify_all()

    # --- port ConversationDirectory ---------------------------------------------------------------------------

    def deliver(self, conversation_id: str, message: object) -> Future[Any] | None:
        """Put a message into the actor's mailbox, starting an actor if there is none.

        Returns None while the supervisor is stopping. Raises RuntimeError if no thread can be started.
        """
        while True:
            with self._lock:
                if self._stopped:
                    return None
                actor = self._live.get(conversation_id)
                if actor is None or actor.mailbox.closed:
                    ConversationActor.start(self._services, self, self._shared, conversation_id)
                    actor = self._live[conversation_id]
                    self._load_once()
            with suppress(ActorDeadError):  # it has stopped just now: start another one
                return ask(actor.actor_ref, message)

    def live(self, conversation_id: str) -> ports.LiveConversation | None:
        """The actor of the conversation if there is one that accepts messages, else None."""
        with self._lock:
            actor = self._live.get(conversation_id)
        return None if actor is None or actor.mailbox.closed else actor

    def on_started(self, conversation: ConversationActor) -> None:
        """Add an actor that `deliver` is starting; called with the lock held."""
        self._live[conversation.conversation_id] = conversation

    def on_stopped(self, conversation: ports.LiveConversation) -> None:
        """Remove an actor that has closed its mailbox; if the conversation already has a new actor, that one stays."""
        conversation_id = conversation.conversation_id
        with self._changed:
            was_the_last = self._live.get(conversation_id) is conversation
            if was_the_last:
                del self._live[conversation_id]
            self._changed.notify_all()
        if was_the_last:
            self._services.models.forget(conversation_id)
            self._shared.sub_agents.on_stopped(conversation_id)

    def on_idle(self) -> None:
        """Check again whether `stop` can proceed, because a conversation has become idle."""
        if self._refusing:
            with self._changed:
                self._changed.notify_all()

    # --- actors -----------------------------------------------------------------------------------------------

    def _wake_one(self, conversation_id: str) -> Future[None]:
        return self._ask(conversation_id, Request(messages.Wake(), urgent=True))

    def _ask(self, conversation_id: str, request: Request) -> Future[Any]:
        """Deliver a request. While the supervisor is stopping, only cancels are accepted."""
        if self._refusing and not isinstance(request.command, messages.CancelConversationCommand):
            return failed(Rejected(Reason.SHUTTING_DOWN))
        try:
            return self.deliver(conversation_id, request) or failed(Rejected(Reason.SHUTTING_DOWN))
        except RuntimeError as error:  # the system cannot start another thread
            return failed(error)

    def _accept(self, conversation_id: str, request: Request) -> Future[Any]:
        """Deliver a request; prepare it first if that requires reading files or asking model providers."""
        command = request.command
        with_files = isinstance(command, messages.SpawnSubAgentsCommand) and any(
            task.read_first for task in command.tasks
        )
        models = self._services.models
        if with_files or any(name and models.undecided(name) for name in _models_named(self._services, command)):
            return self._prepare(conversation_id, request, with_files=with_files)
        return self._ask(conversation_id, request)

    def _prepare(self, conversation_id: str, request: Request, *, with_files: bool) -> Future[Any]:
        """Look up models and read the files of sub-agents' tasks on a separate thread, then deliver the request."""
        cancel, answer = ports.CancelToken(), Future[Any]()
        if request.deadline is not None:
            left = max(0.0, request.deadline - self._services.clock.monotonic())
            self._services.timers.after(math.ceil(left * 1000), cancel.cancel)

        def prepared_request() -> Request:
            learn_models(self._services, _models_named(self._services, request.command), cancel)
            if not with_files:
                return request
            return replace(request, command=prepared(self._services, conversation_id, request.command, cancel))

        def prepare() -> None:
            try:
                asked = self._ask(conversation_id, prepared_request())
            except (Rejected, messages.InvalidFieldError, messages.UnknownConversationError) as refusal:
                asked = failed(messages.DeadlineExceededError() if cancel.cancelled else refusal)
            except ports.StoreError:
                asked = failed(Rejected(Reason.STORE_UNAVAILABLE))
            except BaseException as error:
                log.exception("internal error while preparing a request", extra={"conversation": conversation_id})
                asked = failed(error)
            forward(asked, answer)

        try:
            run_in_thread(prepare, "bedrock-prepare")
        except RuntimeError as error:  # the system cannot start another thread
            return failed(error)
        return answer

    def _load_once(self) -> None:
        load, self._load = self._load, None
        if load is not None:
            with suppress(RuntimeError):  # If no thread can be started, the first use of each module imports it.
                run_in_thread(load, "bedrock-load")

    def _drained(self, asked: Iterable[Future[object]]) -> bool:
        """Whether the drain is skipped, or all earlier commands are carried out and all actors settled.

        The requests in `asked` entered the mailboxes behind those commands, and are therefore answered after them.
        """
        accepted = all(answer.done() for answer in asked)
        return self._drain_skipped or (accepted and all(actor.settled for actor in self._live.values()))

    def _recover(self, ids: tuple[str, ...]) -> None:
        units = [unit for conversation_id in ids if (unit := self._recovering_unit(conversation_id)) is not None]
        if not units:
            return
        try:
            self._services.store.commit(*(unit.commit() for unit in units))
        except ports.StoreUnavailableError:
            raise
        except (ports.StoreError, ValueError):
            units = [unit for unit in units if self._recover_one(unit.commit())]
        for unit in units:
            calls = getattr(unit.before.state, "calls", ())
            self._services.telemetry.recovered(unit.record, ports.live_run(unit.before), calls, unit.notifications)

    def _recover_one(self, part: ports.Commit) -> bool:
        try:
            self._services.store.commit(part)
        except ports.StoreUnavailableError:
            raise
        except (ports.StoreError, ValueError):
            log.exception("the conversation could not be recovered", extra={"conversation": part.record.id})
            return False
        return True

    def _recovering_unit(self, conversation_id: str) -> UnitOfWork | None:
        """The unit of work that recovers a conversation; None if it needs no recovery or is damaged."""
        try:
            record = self._services.store.load(conversation_id)
            if record is None:
                return None
            loaded = LoadedConversation(self._services, taken_over(record, self._services.node))
            unit = recovering(loaded, self._services.clock.now_ms(), restarted=True)
        except ports.StoreUnavailableError:
            raise
        except Exception:
            log.exception("the conversation could not be recovered", extra={"conversation": conversation_id})
            return None
        return unit if unit and unit.entries else None


def _models_named(
    services: Services, request: messages.CreatingCommand | messages.ConversationCommand
) -> tuple[str, ...]:
    """The models that a command names; the server must know them before the command is delivered."""
    match request:
        case messages.CreateConversationCommand(model=model):
            return (model or services.models.default,)
        case messages.UpdateConversationCommand(model=str() as model):
            return (model,)
        case messages.SpawnSubAgentsCommand(tasks=tasks):
            return tuple(task.model for task in tasks)
        case _:
            return ()


# How many conversations are woken at a time: each needs a thread, and their commits share transactions.
AT_ONCE = 32
# How long to wait before waking is tried again, in milliseconds, after the store or a thread was unavailable.
PAUSE_MS = 1_000


class Waking:
    """Wakes conversations on a separate thread, with `wake_one`. Thread-safe; `wake` does not block."""

    def __init__(self, services: Services, wake_one: Callable[[str], Future[None]]) -> None:
        self._services = services
        self._wake_one = wake_one
        self._changed = threading.Condition()
        self._pending: Counter[str] = Counter()

    def wake(self, ids: tuple[str, ...]) -> None:
        """Wake conversations; retry until each is recovered, deleted, or owned by another server."""
        with self._changed:
            self._pending.update(ids)
        self._begin(ids)

    def wait(self, seconds: float) -> bool:
        """Wait until no conversation is left to wake, but for at most `seconds`; return whether none is left."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, seconds)

    def _begin(self, ids: tuple[str, ...]) -> None:
        if not ids:
            return
        try:
            run_in_thread(functools.partial(self._work, ids), "bedrock-wake")
        except RuntimeError:  # the system cannot start another thread
            self._later(ids)

    def _work(self, ids: tuple[str, ...]) -> None:
        """Wake the conversations, `AT_ONCE` at a time; retry those that fail later. Runs on its own thread."""
        left: list[str] = []
        for first in range(0, len(ids), AT_ONCE):
            asked = {id_: self._wake_one(id_) for id_ in ids[first : first + AT_ONCE]}
            wait(asked.values())
            again = [id_ for id_, answer in asked.items() if _to_try_again(id_, answer)]
            left += again
            with self._changed:
                self._pending -= Counter(asked.keys() - again)
                self._changed.notify_all()
        if left:
            self._later(tuple(left))

    def _later(self, ids: tuple[str, ...]) -> None:
        self._services.timers.after(PAUSE_MS, functools.partial(self._begin, ids))


def _to_try_again(conversation_id: str, answer: Future[None]) -> bool:
    match answer.exception():
        case None | ports.NotOwnerError() | messages.UnknownConversationError() | Rejected(reason=Reason.SHUTTING_DOWN):
            return False
        case Rejected(reason=Reason.STORE_UNAVAILABLE) | RuntimeError():
            return True
        case error:  # damaged data or a bug in the server; the next message to the conversation tries again
            log.error(
                "cannot recover a taken-over conversation", exc_info=error, extra={"conversation": conversation_id}
            )
            return False
