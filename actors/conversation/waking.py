"""Wakes conversations that this server took over from another server, so that their interrupted runs are ended.

To wake a conversation means to load it in its actor, which recovers it and becomes idle. Only the actor may do that: if
another thread wrote to the store while an actor runs, the actor's own commits would fail.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import Counter
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

from actors.core.errors import Reason, Rejected
from actors.messages.refusals import UnknownConversationError
from actors.ports import NotOwnerError
from actors.ports.machine.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.runtime.services import Services

log = logging.getLogger(__name__)

AT_ONCE = 32
"""How many conversations are woken at a time: each needs a thread, and their commits share transactions."""
PAUSE_MS = 1_000
"""How long to wait before waking is tried again, in milliseconds, after the store or a thread was unavailable."""


class Waking:
    """Wakes conversations on a separate thread. Safe to call from any thread; `wake` does not block.

    Args:
        services: Provides the thread, and the timer for another attempt.
        wake_one: Sends a Wake message to a conversation.
    """

    def __init__(self, services: Services, wake_one: Callable[[str], Future[None]]) -> None:
        self._services = services
        self._wake_one = wake_one
        self._changed = threading.Condition()
        self._left: Counter[str] = Counter()

    def wake(self, ids: tuple[str, ...]) -> None:
        """Wake conversations; retry until each is recovered, deleted, or owned by another server."""
        with self._changed:
            self._left.update(ids)
        self._begin(ids)

    def wait(self, seconds: float) -> bool:
        """Wait until no conversation is left to wake, but for at most `seconds`; return whether none is left."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._left, seconds)

    def _begin(self, ids: tuple[str, ...]) -> None:
        if not ids:
            return
        try:
            run_in_thread(functools.partial(self._work, ids), "bedrock-wake")
        except RuntimeError:  # the system cannot start another thread
            self._later(ids)

    def _work(self, ids: tuple[str, ...]) -> None:
        """Wake the conversations, `AT_ONCE` at a time; those that fail are tried again later.

        Runs on its own thread.
        """
        left: list[str] = []
        for first in range(0, len(ids), AT_ONCE):
            asked = {id_: self._wake_one(id_) for id_ in ids[first : first + AT_ONCE]}
            wait(asked.values())
            again = [id_ for id_, answer in asked.items() if _to_try_again(id_, answer)]
            left += again
            with self._changed:
                self._left -= Counter(asked.keys() - again)
                self._changed.notify_all()
        if left:
            self._later(tuple(left))

    def _later(self, ids: tuple[str, ...]) -> None:
        self._services.timers.after(PAUSE_MS, functools.partial(self._begin, ids))


def _to_try_again(conversation_id: str, answer: Future[None]) -> bool:
    match answer.exception():
        case None | NotOwnerError() | UnknownConversationError() | Rejected(reason=Reason.SHUTTING_DOWN):
            return False
        case Rejected(reason=Reason.STORE_UNAVAILABLE) | RuntimeError():
            return True
        case error:  # damaged data or a bug of the server; the next message to the conversation tries again
            log.error(
                "it was taken over and could not be recovered", exc_info=error, extra={"conversation": conversation_id}
            )
            return False
