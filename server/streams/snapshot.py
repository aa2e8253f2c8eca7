"""Builds the first response of a stream: a consistent snapshot of a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bedrock import v1

from actors.core.states import AwaitingContinuation, AwaitingSubAgents, LlmPhase, LlmRequesting
from actors.ports import ConversationReader, ConversationRecord, Snapshot
from server.contract.errors import ConversationNotFoundError, MalformedRequestError
from server.contract.limits import PAGE_BYTES, RECENT_MESSAGES, SNAPSHOT_MESSAGES_BYTES
from server.contract.pagination import Page
from server.queries.queue import waiting, waiting_message
from server.wire.conversations.agents import standing
from server.wire.conversations.conversation_messages import (
    pending_approvals,
    pending_client_tool_calls,
    pending_questions,
    present,
    summary_of,
)
from server.wire.events import text_delta
from server.wire.messages import message

if TYPE_CHECKING:
    from actors.events.hub import TextChunk
    from server.wire.context import ConversionContext


@dataclass(frozen=True)
class InitialSnapshot:
    """The first response of a Subscribe stream, and the revision after which the stream continues."""

    record: ConversationRecord
    snapshot: v1.Event.Snapshot
    """The snapshot without `partial`, the text that the model is streaming, because the store does not contain that."""
    after: int | None
    """The client's last revision, after which its stream resumes; None for a client that starts anew."""

    @property
    def slot(self) -> tuple[str, int] | None:
        """The id and the attempt of the model request that is streaming text; None if there is none."""
        state = self.record.state
        if isinstance(state, LlmRequesting | AwaitingContinuation) and state.phase is LlmPhase.STREAMING:
            return state.request_id, state.attempt
        return None

    def add_partial(self, chunks: tuple[TextChunk, ...]) -> None:
        """Add the text streamed so far to the snapshot: one part for the answer, one for reasoning."""
        if self.slot is None:
            return
        request_id, attempt = self.slot
        for reasoning in (True, False):
            text = "".join(chunk.text for chunk in chunks if chunk.reasoning is reasoning)
            if text:
                self.snapshot.partial.append(text_delta(request_id, attempt, 0, text, reasoning=reasoning))


def open_stream(
    store: ConversationReader, conversion: ConversionContext, conversation_id: str, request: v1.SubscribeRequest
) -> InitialSnapshot:
    """Read the snapshot with which a stream begins. Blocks; called on a thread of `ReadPool`.

    Raises ConversationNotFoundError, and MalformedRequestError for a revision in the future.
    """
    resuming = request.WhichOneof("start") == "after_revision"
    wanted = request.recent_messages if request.WhichOneof("start") == "recent_messages" else RECENT_MESSAGES[0]
    seen = store.snapshot(conversation_id, 0 if resuming else min(wanted, RECENT_MESSAGES[1]))
    if seen is None:
        raise ConversationNotFoundError(request.name)
    if not resuming:
        return InitialSnapshot(seen.record, _snapshot(conversion, seen), None)
    after = request.after_revision
    if after > seen.record.last_seq:
        text = f"is newer than the newest revision, {seen.record.last_seq}: take a fresh snapshot"
        raise MalformedRequestError(("after_revision", text))
    return InitialSnapshot(seen.record, _snapshot(conversion, seen), after)


def _snapshot(conversion: ConversionContext, seen: Snapshot) -> v1.Event.Snapshot:
    """Return the snapshot as an API message, without the oldest messages if they do not fit into a response."""
    record = seen.record
    summary = summary_of(conversion, record.id, record.state)
    answer = v1.Event.Snapshot(
        conversation=present(conversion, record),
        pending_approvals=pending_approvals(conversion, record.id, summary),
        pending_client_tool_calls=pending_client_tool_calls(conversion, summary),
        pending_questions=pending_questions(record.id, summary),
        queue=[waiting_message(record.id, *entry) for entry in waiting(record)],
    )
    if isinstance(record.state, AwaitingSubAgents):
        answer.sub_agents.CopyFrom(standing(record.state))
    room = min(SNAPSHOT_MESSAGES_BYTES, PAGE_BYTES - answer.ByteSize())
    page = Page(len(seen.messages), room)
    recent: list[v1.Message] = []
    for stored in reversed(seen.messages):
        shown = message(conversion, record.id, stored)
        if not page.take(shown.ByteSize()):
            break
        recent.append(shown)
    answer.messages.extend(reversed(recent))
    return answer
