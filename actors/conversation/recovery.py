"""Repairs the copy of a conversation in memory after a bug, or after a commit with an unknown result."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from actors.conversation.retry_queue import (
    Prepared,
    ReloadFromStore,
    RetryQueue,
    Uncommitted,
    VerifyUncertainCommit,
    sharing_commit,
)
from actors.core.events import InternalFault, LlmAborted, LlmError, LlmResponse
from actors.core.tool_run import KillReceipt
from actors.messages.outcomes import EffectOutcome, TextDeltaReady
from actors.ports import NotOwnerError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.conversation.pipeline import ConversationPipeline

log = logging.getLogger(__name__)


class Recovery:
    """Commits what waits in a conversation's retry queue, and repairs the copy in memory. Actor's thread only."""

    def __init__(self, pipeline: ConversationPipeline, later: Callable[[int], None]) -> None:
        self._pipeline = pipeline
        self.retry_queue: RetryQueue[Uncommitted] = RetryQueue(pipeline.conversation_id, self._prepare, later)
        """What is not committed yet: results of effects, and repairs of the copy in memory."""

    def record_fault(self) -> None:
        """After a bug, end the run with an error; if that fails as well, reload the conversation from the store.

        Raises NotOwnerError, as `reload` does.
        """
        self._pipeline.executor.stop_everything()
        if self._pipeline.loaded is None:
            return
        fault = InternalFault(self._pipeline.now(), "Bedrock itself failed; its log tells more.")
        try:
            self._pipeline.advance(fault)
        except StoreUnavailableError as error:
            self.retry_queue.requeue(EffectOutcome(fault), first=True, why=error)
        except NotOwnerError:
            raise
        except BaseException:
            log.exception("the fault could not be recorded", extra={"conversation": self._pipeline.conversation_id})
            self.reload()

    def reload(self) -> None:
        """Replace the copy in memory by what the store has; this is tried again later if the store fails."""
        epoch = self._pipeline.loaded.record.epoch if self._pipeline.loaded else 0
        self.retry_queue.clear()
        self.retry_queue.enqueue(ReloadFromStore(epoch))

    def _prepare(self, entries: Sequence[Uncommitted]) -> Prepared:
        """Return the next commit of the retry queue. Raises StoreError.

        If the conversation is not in memory, only ReloadFromStore loads it; all other entries are dropped.
        """
        match first := entries[0]:
            case ReloadFromStore(epoch=epoch):
                return Prepared(1, functools.partial(self._pipeline.reload, epoch))
            case _ if self._pipeline.loaded is None:
                return Prepared(1, functools.partial(self._drop, first))
            case EffectOutcome() | TextDeltaReady():
                return self._pipeline.prepare(sharing_commit(entries) or (first,))
            case KillReceipt():
                return Prepared(1, functools.partial(self._pipeline.record_kill, first))
            case VerifyUncertainCommit():
                return Prepared(1, self._verify_commit)

    def _verify_commit(self) -> None:
        """Reload the conversation unless memory and store have the same version of it. Raises StoreError."""
        if not self._pipeline.matches_store():
            self.reload()

    def _drop(self, entry: Uncommitted) -> None:
        fields = {"conversation": self._pipeline.conversation_id}
        event, deleted = getattr(entry, "event", None), self._pipeline.deleted
        if deleted is not None and isinstance(event, (LlmResponse, LlmError, LlmAborted)) and event.usage is not None:
            self._pipeline.services.quotas.spend_alone(deleted.principal, event.usage)
        log.info("not in memory: dropped %s", type(entry).__name__, extra=fields)
