# Generated from clients/bedrock/_async/conversation_parts/records.py by `make client-sync`; edit that file.
"""The methods of `Conversation` that read stored data: messages, queue, request cycles, log and images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock import v1
from bedrock._shared import requests
from bedrock._shared.deadline import Deadline
from bedrock._shared.enum_names import enum_value
from bedrock._sync.conversation_parts.base import ConversationBase
from bedrock.conversations import ConversationInfo, ReplayStep
from bedrock.messages import Attachment, Message, QueuedMessage
from bedrock.request_cycles import RequestCycle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bedrock.streams import Stream
    from bedrock.types import CycleView

__all__ = ["ConversationRecords"]


class ConversationRecords(ConversationBase):
    """The methods that read what the server has stored about a conversation."""

    def messages(
        self, *, after_sequence: int = 0, newest_first: bool = False, timeout: float | None = None
    ) -> Iterator[Message]:
        """Iterate over the stored messages whose `sequence` is greater than `after_sequence`.

        The oldest message comes first, or the newest with `newest_first`. `timeout` is the time limit of each page in
        seconds.
        """
        request = v1.ListMessagesRequest(parent=self.name, after_sequence=after_sequence, descending=newest_first)
        for page in self._transport.pages(self._stub.ListMessages, request, timeout):
            for message in page.messages:
                yield Message.from_proto(message)

    def message(self, name: str, *, timeout: float | None = None) -> Message:
        """Return a message by its resource name or id, also if it still waits in the queue.

        Raises NotFound if there is no such message.
        """
        request = v1.GetMessageRequest(name=requests.child_name(self.name, "messages", name))
        response = self._transport.call(self._stub.GetMessage, request, timeout)
        return Message.from_proto(response.message)

    def queue(
        self, *, include_settled: bool = False, newest_first: bool = False, timeout: float | None = None
    ) -> Iterator[QueuedMessage]:
        """Iterate over the queued messages and, with `include_settled`, over those that have left the queue.

        Args:
            include_settled: Include messages that are no longer queued, and what became of each.
            newest_first: Begin with the message that was accepted last.
            timeout: Time limit of each page in seconds; the client's if None.
        """
        request = v1.ListQueueRequest(parent=self.name, include_settled=include_settled, descending=newest_first)
        for page in self._transport.pages(self._stub.ListQueue, request, timeout):
            for message in page.messages:
                yield QueuedMessage.from_proto(message)

    def cycles(
        self, *, view: CycleView = "steps", newest_first: bool = False, timeout: float | None = None
    ) -> Iterator[RequestCycle]:
        """Iterate over the request cycles. A cycle is a message that started a run, and everything done for it.

        Args:
            view: "steps" (made for people), "rounds" (the requests to the model), "full" (both), or "events" (the
                events of the log from which both are computed).
            newest_first: Begin with the latest cycle.
            timeout: Time limit of each page in seconds; the client's if None.
        """
        request = v1.ListRequestCyclesRequest(
            parent=self.name,
            view=enum_value(v1.ListRequestCyclesRequest.View, view),
            descending=newest_first,
        )
        for page in self._transport.pages(self._stub.ListRequestCycles, request, timeout):
            for cycle in page.request_cycles:
                yield RequestCycle.from_proto(cycle)

    def cycle(
        self, run: RequestCycle | str, *, view: CycleView = "steps", timeout: float | None = None
    ) -> RequestCycle:
        """Return one request cycle.

        Args:
            run: The request cycle, or the resource name or id of the run; see `Run.name` and `Event.run`.
            view: As for `cycles`.
            timeout: Time limit of this call in seconds; the client's if None.

        Raises:
            NotFound: The conversation has no such run.
        """
        request = v1.GetRequestCycleRequest(
            name=requests.cycle_name(self.name, run), view=enum_value(v1.ListRequestCyclesRequest.View, view)
        )
        response = self._transport.call(self._stub.GetRequestCycle, request, timeout)
        return RequestCycle.from_proto(response.request_cycle)

    def wait_for_cycle(
        self, run: RequestCycle | str, *, view: CycleView = "steps", timeout: float | None = None
    ) -> RequestCycle:
        """Wait for the end of a run without following its events, and return its request cycle.

        This method answers no approvals: they stay open for other clients. `Conversation.run` also waits, but
        decides approvals, and returns the answer.

        Args:
            run: As for `cycle`.
            view: As for `cycles`.
            timeout: Seconds to wait; no limit if None. When they have passed, the cycle is returned as it is then,
                without an `end_time`.

        Raises:
            NotFound: The conversation has no such run, or was deleted during the wait.
        """
        deadline = Deadline(timeout)
        while True:
            request = requests.wait_for_cycle(self.name, run, view, deadline.left())
            limit = requests.LONGEST_WAIT + self._transport.timeout
            response = self._transport.call(self._stub.WaitRequestCycle, request, limit)
            cycle = RequestCycle.from_proto(response.request_cycle)
            if cycle.end_time is not None or deadline.left() == 0:
                return cycle

    def sub_agents(self, *, timeout: float | None = None) -> Iterator[ConversationInfo]:
        """Iterate over the conversations of the sub-agents. The one that changed last comes first."""
        request = requests.conversations(archived=None, parent=self.name)
        for page in self._transport.pages(self._stub.ListConversations, request, timeout):
            for conversation in page.conversations:
                yield ConversationInfo.from_proto(conversation)

    def verify(self, *, timeout: float | None = None) -> list[str]:
        """Let the server check the stored conversation for damage, such as lost or altered rows or a broken hash chain.

        Nothing is repaired or changed. Returns a sentence for each defect; an empty list if there is none.
        """
        request = v1.VerifyConversationRequest(name=self.name)
        response = self._transport.call(self._stub.VerifyConversation, request, timeout)
        return list(response.violations)

    def replay(self, until_revision: int = 0, *, timeout: float | None = None) -> Stream[ReplayStep]:
        """Let the server replay the log through its state machine, up to `until_revision`; to the end if 0.

        The stream yields one item for each step of the log, with the difference between the replayed and the stored
        result.
        """
        request = v1.ReplayConversationRequest(name=self.name, until_revision=until_revision)
        steps = self._transport.stream(self._stub.ReplayConversation, request, timeout)
        return steps.map(ReplayStep.from_proto)

    def export(self, *, timeout: float | None = None) -> Iterator[str]:
        """Iterate over the lines of an export: JSON objects for the conversation, its messages and its events."""
        request = v1.ExportConversationRequest(name=self.name)
        for piece in self._transport.stream(self._stub.ExportConversation, request, timeout):
            yield piece.line

    def attachment_info(self, name: str, *, timeout: float | None = None) -> Attachment:
        """Return an image's format, width, height and length in bytes. `name` is an image's `attachment` in a message.

        Raises NotFound if there is no such image.
        """
        request = v1.GetAttachmentRequest(name=name)
        response = self._transport.call(self._stub.GetAttachment, request, timeout)
        return Attachment.from_proto(response.attachment)

    def attachment(self, name: str, *, timeout: float | None = None) -> bytes:
        """Return the bytes of an image, as they were sent. `name` is the `attachment` of an image in a message.

        Raises NotFound if there is no such image.
        """
        request = v1.DownloadAttachmentRequest(name=name)
        pieces = self._transport.stream(self._stub.DownloadAttachment, request, timeout)
        return b"".join([piece.data for piece in pieces])
