"""A conversation, for the client for asyncio.

Methods without a word about their arguments take those of their twins in `bedrock.conversation`, and raise the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from bedrock import _requests, v1
from bedrock._cursor import EventCursor
from bedrock._names import enum_value
from bedrock.aio_runs import AsyncRun, follow, question
from bedrock.answers import Answer, AsyncApprove, decider
from bedrock.events import Event
from bedrock.messages import Approval, Message, Task
from bedrock.streams import AsyncStream

if TYPE_CHECKING:
    from bedrock.aio import AsyncClient

__all__ = ["AsyncConversation"]


class AsyncConversation:
    """One conversation. Holds nothing but its name, so it never goes stale; every method is a call."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.name = name
        """The resource name, ``conversations/{id or slug}``."""
        self._client = client
        self._stub = client.conversations_stub

    def __repr__(self) -> str:
        return f"AsyncConversation({self.name!r})"

    def send(
        self,
        text: str,
        *,
        delivery: str | None = None,
        images: _requests.ImageSource | Sequence[_requests.ImageSource] = (),
        expected_run: str = "",
        request_id: str | None = None,
    ) -> AsyncRun:
        """Prepare a message; it is sent when the run that is returned is awaited or iterated."""
        request = _requests.send(
            self.name, text, delivery=delivery, images=images, expected_run=expected_run, request_id=request_id
        )
        return AsyncRun(self._client, self.name, self._client.call(self._stub.SendMessage, request))

    async def ask(
        self,
        text: str,
        *,
        images: _requests.ImageSource | Sequence[_requests.ImageSource] = (),
        approve: AsyncApprove | None = None,
        request_id: str | None = None,
    ) -> Answer:
        """Send a message and wait for the answer. If the task is cancelled meanwhile, so is the run."""
        decide = decider(approve)
        request = _requests.send(self.name, text, images=images, request_id=request_id)
        async with question(self._client, request) as run:
            return await run.answer(approve=decide)

    def events(
        self,
        after_revision: int | None = None,
        *,
        recent_messages: int | None = None,
        omit_deltas: bool = False,
        until_settled: bool = False,
    ) -> AsyncStream[Event]:
        """Follow the conversation across broken connections and restarts, each event once."""
        cursor = EventCursor(
            self.name, after_revision, recent_messages, omit_deltas=omit_deltas, until_settled=until_settled
        )
        return AsyncStream(follow(self._client, cursor))

    async def get(self) -> v1.Conversation:
        """Read the conversation."""
        request = v1.GetConversationRequest(name=self.name)
        return (await self._client.call(self._stub.GetConversation, request)).conversation

    async def messages(self, *, after_sequence: int = 0, newest_first: bool = False) -> AsyncIterator[Message]:
        """Iterate over the stored messages."""
        request = v1.ListMessagesRequest(parent=self.name, after_sequence=after_sequence, descending=newest_first)
        async for page in self._client.pages(self._stub.ListMessages, request):
            for message in page.messages:
                yield Message(message)

    async def cycles(self, *, view: str = "steps", newest_first: bool = False) -> AsyncIterator[v1.RequestCycle]:
        """Iterate over the request cycles: what was asked and all that was done for it."""
        request = v1.ListRequestCyclesRequest(
            parent=self.name,
            view=enum_value(v1.ListRequestCyclesRequest.View, view),
            descending=newest_first,
        )
        async for page in self._client.pages(self._stub.ListRequestCycles, request):
            for cycle in page.request_cycles:
                yield cycle

    async def queue(
        self, *, include_settled: bool = False, newest_first: bool = False
    ) -> AsyncIterator[v1.QueuedMessage]:
        """Iterate over the steers and follow-ups that wait and, if asked for, what became of earlier ones."""
        request = v1.ListQueueRequest(parent=self.name, include_settled=include_settled, descending=newest_first)
        async for page in self._client.pages(self._stub.ListQueue, request):
            for message in page.messages:
                yield message

    async def withdraw(self, message: Message | str) -> Message:
        """Take back a message that still waits."""
        name = message if isinstance(message, str) else message.name
        return Message(
            (await self._client.call(self._stub.WithdrawMessage, v1.WithdrawMessageRequest(name=name))).message
        )

    async def cancel(
        self, *, run: str = "", discard_queued: bool = False, kill_jobs: bool = False, reason: str = ""
    ) -> v1.CancelConversationResponse:
        """Stop what is under way. Never refused; if there is nothing to stop, the receipt says `no_op`."""
        request = v1.CancelConversationRequest(
            name=self.name, run=run, discard_queued=discard_queued, kill_jobs=kill_jobs, reason=reason
        )
        return await self._client.call(self._stub.CancelConversation, request)

    async def approve(self, approval: Approval | str, *, always: bool = False, note: str = "") -> v1.Conversation:
        """Let a tool call run, or the mode be widened."""
        request = _requests.resolve(self.name, approval, "approve_always" if always else "approve", note)
        return (await self._client.call(self._stub.ResolveApproval, request)).conversation

    async def deny(self, approval: Approval | str, note: str = "") -> v1.Conversation:
        """Refuse a tool call; the agent is told, with the note. Raises the same as `approve`."""
        request = _requests.resolve(self.name, approval, "deny", note)
        return (await self._client.call(self._stub.ResolveApproval, request)).conversation

    async def set_mode(self, mode: str, *, stop_running: bool = False) -> v1.SetModeResponse:
        """Set what tools may do that start from now on: "restricted" or "unrestricted"; see the other client."""
        request = v1.SetModeRequest(name=self.name, mode=enum_value(v1.Mode, mode), stop_running=stop_running)
        return await self._client.call(self._stub.SetMode, request)

    async def update(
        self,
        *,
        slug: str | None = None,
        title: str | None = None,
        model: str | None = None,
        labels: Mapping[str, str] | None = None,
        approval_policy: str | None = None,
        always_approved_tools: Sequence[str] | None = None,
        follow_up_policy: str | None = None,
        budget: v1.Budget | None = None,
        etag: str = "",
    ) -> v1.Conversation:
        """Change what is not None."""
        request = _requests.update(
            self.name,
            slug=slug,
            title=title,
            model=model,
            labels=labels,
            approval_policy=approval_policy,
            always_approved_tools=always_approved_tools,
            follow_up_policy=follow_up_policy,
            budget=budget,
            etag=etag,
        )
        return (await self._client.call(self._stub.UpdateConversation, request)).conversation

    async def archive(self) -> v1.Conversation:
        """Take the conversation off the list of active ones."""
        request = v1.ArchiveConversationRequest(name=self.name)
        return (await self._client.call(self._stub.ArchiveConversation, request)).conversation

    async def unarchive(self) -> v1.Conversation:
        """Put the conversation back on the list of active ones."""
        request = v1.UnarchiveConversationRequest(name=self.name)
        return (await self._client.call(self._stub.UnarchiveConversation, request)).conversation

    async def delete(self, *, force: bool = False, missing_ok: bool = False) -> list[str]:
        """Delete the conversation and everything that belongs to it; returns warnings, as a rule none."""
        request = v1.DeleteConversationRequest(name=self.name, force=force, allow_missing=missing_ok)
        return list((await self._client.call(self._stub.DeleteConversation, request)).warnings)

    async def trigger_continuation(self) -> v1.Conversation:
        """Have the summary written that a successor starts with, as if the context were full."""
        request = v1.TriggerContinuationRequest(name=self.name)
        return (await self._client.call(self._stub.TriggerContinuation, request)).conversation

    async def continue_(self, *, include_summary: bool = True, request_id: str | None = None) -> AsyncConversation:
        """Return the successor of a conversation whose context is used up; made by the first call."""
        request = v1.ContinueConversationRequest(
            name=self.name, include_summary=include_summary, request_id=request_id or _requests.new_request_id()
        )
        successor = (await self._client.call(self._stub.ContinueConversation, request)).conversation
        return AsyncConversation(self._client, successor.name)

    def spawn(self, tasks: Sequence[str | Task], *, request_id: str | None = None) -> AsyncRun:
        """Start sub-agents, one for each task, as a run that ends when the agent has dealt with their results."""
        request = _requests.spawn(self.name, tasks, request_id)
        return AsyncRun(self._client, self.name, self._client.call(self._stub.SpawnSubAgents, request))

    def sub_agents(self) -> AsyncIterator[v1.Conversation]:
        """Iterate over the conversations of the sub-agents, the latest changed first."""
        return self._client.conversations(parent=self.name)

    async def verify(self) -> list[str]:
        """Check the stored conversation and return what is wrong with it, as a rule nothing."""
        request = v1.VerifyConversationRequest(name=self.name)
        return list((await self._client.call(self._stub.VerifyConversation, request)).violations)

    def replay(self, until_revision: int = 0) -> AsyncStream[v1.ReplayConversationResponse]:
        """Run the log through the state machine again; each step says how it differs from what was stored."""
        request = v1.ReplayConversationRequest(name=self.name, until_revision=until_revision)
        return self._client.stream(self._stub.ReplayConversation, request)

    async def export(self) -> AsyncIterator[str]:
        """Iterate over everything there is, as lines of JSON."""
        request = v1.ExportConversationRequest(name=self.name)
        async for piece in self._client.stream(self._stub.ExportConversation, request):
            yield piece.line

    async def attachment(self, name: str) -> bytes:
        """Read an image as it was sent, by the name that a message holds."""
        request = v1.DownloadAttachmentRequest(name=name)
        pieces = self._client.stream(self._stub.DownloadAttachment, request)
        return b"".join([piece.data async for piece in pieces])
