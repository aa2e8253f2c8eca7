"""Wake conversations that this server has taken over, so that the runs which their last owner left come to an end.

A conversation's actor recovers it when it loads it, and rests again at once. Nobody else may: what is written behind
the back of a living actor would make its own writes fail.
"""

from __future__ import annotations

import functools
import logging
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

from actors.core.errors import Reason, Rejected
from actors.messages.refusals import UnknownConversationError
from actors.ports import NotOwnerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.runtime.services import Services

log = logging.getLogger(__name__)

AT_ONCE = 32
"""Conversations that are woken concurrently: each needs a thread, and their commits share transactions."""
PAUSE_MS = 1_000
"""Milliseconds until those are woken again that could not be: the store or the system lacked something."""


class Waking:
    """Wakes conversations on a thread of its own. Any thread; nothing here blocks.

    Args:
        services: Provides the thread, and the pause before another attempt.
        wake_one: Sends a Wake to a conversation.
    """

    def __init__(self, services: Services, wake_one: Callable[[str], Future[None]]) -> None:
        self._services = services
        self._wake_one = wake_one

    def wake(self, ids: tuple[str, ...]) -> None:
        """Wake conversations, as often as it takes: until each is recovered, gone, or owned by another server."""
        if not ids:
            return
        try:
            self._services.threads.run(functools.partial(self._work, ids), "bedrock-wake")
        except RuntimeError:  # no thread can be started
            self._later(ids)

    def _work(self, ids: tuple[str, ...]) -> None:
        """Wake all of them, some at a time (waking thread)."""
        left: list[str] = []
        for first in range(0, len(ids), AT_ONCE):
            asked = {id_: self._wake_one(id_) for id_ in ids[first : first + AT_ONCE]}
            wait(asked.values())
            left += (id_ for id_, answer in asked.items() if _to_try_again(id_, answer))
        if left:
            self._later(tuple(left))

    def _later(self, ids: tuple[str, ...]) -> None:
        self._services.timers.after(PAUSE_MS, functools.partial(self.wake, ids))


def _to_try_again(conversation_id: str, answer: Future[None]) -> bool:
    match answer.exception():
        case None | NotOwnerError() | UnknownConversationError() | Rejected(reason=Reason.SHUTTING_DOWN):
            return False
        case Rejected(reason=Reason.STORE_UNAVAILABLE) | RuntimeError():
            return True
        case error:  # it is damaged, or the server has a bug: the next message to it tries again
            log.error(
                "it was taken over and could not be recovered", exc_info=error, extra={"conversation": conversation_id}
            )
            return False
