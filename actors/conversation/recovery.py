"""Recover the in-memory copy of a conversation after a bug, or after a commit with an unknown result."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from actors.conversation.retry_queue import ReloadFromStore, RetryQueue, Uncommitted
from actors.core.events import InternalFault
from actors.messages.outcomes import EffectOutcome
from actors.ports import StoreUnavailableError

if TYPE_CHECKING:
    from actors.conversation.pipeline import ConversationPipeline

log = logging.getLogger(__name__)


class Recovery:
    """Recovers one conversation. Actor's thread only."""

    def __init__(self, pipeline: ConversationPipeline, retry_queue: RetryQueue[Uncommitted]) -> None:
        self._pipeline = pipeline
        self._retry_queue = retry_queue

    def record_fault(self) -> None:
        """End the run as an error; if that fails, too, reload the conversation from the store."""
        self._pipeline.executor.stop_everything()
        if self._pipeline.loaded is None:
            return
        fault = InternalFault(self._pipeline.now(), "Bedrock itself failed; its log tells more.")
        try:
            self._pipeline.advance(fault)
        except StoreUnavailableError:
            self._retry_queue.requeue(EffectOutcome(fault), first=True)
        except BaseException:
            log.exception("conversation %s could not record its fault", self._pipeline.conversation_id)
            self.reload()

    def verify_commit(self) -> None:
        """Reload the conversation unless the store has the same step. Raises StoreError."""
        if not self._pipeline.matches_store():
            self.reload()

    def reload(self) -> None:
        """Replace the state in memory by the stored one; retried if the store fails."""
        epoch = self._pipeline.loaded.record.epoch if self._pipeline.loaded else 0
        self._retry_queue.clear()
        self._retry_queue.enqueue(ReloadFromStore(epoch))
