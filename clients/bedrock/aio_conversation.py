"""A conversation and its runs, for the client for asyncio.

Methods without a word about their arguments take those of their twins in `bedrock.conversation`, and raise the same.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from bedrock import _requests, v1
from bedrock._backoff import Backoff
from bedrock._cursor import EventCursor, RunProgress
from bedrock._names import enum_value
from bedrock._status import is_gap, may_resume
from bedrock.errors import ApprovalNeeded, BedrockError, Unavailable
from bedrock.events import Event, Stop
from bedrock.messages import Approval, Message

if TYPE_CHECKING:
    from bedrock.aio import AsyncClient

__all__ = ["AsyncConversation", "AsyncRun"]


class AsyncRun:
    """What one message does: ``await`` it to have the message accepted, iterate it to see the run to its end.

    Iterating sends the message too, if it was not awaited before. Otherwise it is as `Run`.
    """

    message: Message
    """The message as it was stored or queued, once it was accepted."""
    disposition: str
    """"direct", "steer_queued", "follow_up_queued" or "duplicate", once it was accepted."""

    def __init__(self, client: AsyncClient, conversation: str, sending: Coroutine[Any, Any, Any]) -> None:
        self._client = client
        self._conversation = conversation
        self._sending: Coroutine[Any, Any, Any] | None = sending
        self._progress = RunProgress("", "")
        self._events: AsyncGenerator[Event] | None = None

    @property
    def name(self) -> str:
        """The resource name of the run; empty while a follow-up waits."""
        return self._progress.run

    @property
    def stop(self) -> Stop | None:
        """How the run ended; None until the iterator has seen the end."""
        return self._progress.stop

    def __await__(self) -> Generator[Any, Any, Self]:
        return self._sent().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._events is None:
            await self._sent()
        if self._events is None:
            raise StopAsyncIteration
        return await anext(self._events)

    async def __aenter__(self) -> Self:
        return await self._sent()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop watching. The run goes on."""
        if self._events is not None:
            await self._events.aclose()

    async def wait(self) -> Stop | None:
        """Wait for the end of the run and return how it ended; None if the iterator was closed before."""
        async for _ in self:
            pass
        return self.stop

    async def answer(self) -> str:
        """Wait for the end of the run and return what the agent said last. Raises the same as `Run.answer`."""
        async for event in self:
            if event.approval and await self._waits(event.approval):
                raise ApprovalNeeded(f"the agent asks whether {event.approval.tool} may run", event.approval)
        return self._progress.outcome()

    async def _waits(self, approval: Approval) -> bool:
        """Whether a question is still open: one answer may have settled others that were asked with it."""
        request = v1.GetConversationRequest(name=self._conversation)
        now = (await self._client.call(self._client.conversations_stub.GetConversation, request)).conversation
        return any(pending.name == approval.name for pending in now.state.awaiting_approval.pending)

    async def _sent(self) -> Self:
        if self._sending is not None:
            sending, self._sending = self._sending, None
            response = await sending
            self.message = Message(response.message)
            self.disposition = _requests.disposition(response)
            self._progress = RunProgress(response.message.name, response.run)
            self._events = self._follow(EventCursor(self._conversation, response.revision))
        return self

    async def _follow(self, cursor: EventCursor) -> AsyncGenerator[Event]:
        async with aclosing(follow(self._client, cursor, resuming=True)) as events:
            async for event in events:
                if event.kind == "snapshot":
                    request = v1.ListRequestCyclesRequest(parent=cursor.name, descending=True)
                    page = await self._client.call(self._client.conversations_stub.ListRequestCycles, request)
                    self._progress.observe_gap(event.proto.snapshot, page.request_cycles)
                self._progress.observe(event)
                yield event
                if self._progress.stop:
                    return


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
        images: Sequence[_requests.ImageSource] = (),
        expected_run: str = "",
        request_id: str | None = None,
    ) -> AsyncRun:
        """Prepare a message; it is sent when the run that is returned is awaited or iterated."""
        request = _requests.send(
            self.name, text, delivery=delivery, images=images, expected_run=expected_run, request_id=request_id
        )
        return AsyncRun(self._client, self.name, self._client.call(self._stub.SendMessage, request))

    def events(
        self,
        after_revision: int | None = None,
        *,
        recent_messages: int | None = None,
        omit_deltas: bool = False,
        until_settled: bool = False,
    ) -> AsyncGenerator[Event]:
        """Follow the conversation across broken connections and restarts, each event once."""
        cursor = EventCursor(
            self.name, after_revision, recent_messages, omit_deltas=omit_deltas, until_settled=until_settled
        )
        return follow(self._client, cursor)

    async def get(self) -> v1.Conversation:
        """Read the conversation."""
        request = v1.GetConversationRequest(name=self.name)
        return (await self._client.call(self._stub.GetConversation, request)).conversation

    async def messages(self, *, after_sequence: int = 0, newest_first: bool = False) -> AsyncIterator[Message]:
        """Iterate over the stored messages."""
        request = v1.ListMessagesRequest(parent=self.name, after_sequence=after_sequence, descending=newest_first)
        while True:
            page = await self._client.call(self._stub.ListMessages, request)
            for message in page.messages:
                yield Message(message)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def cycles(self, *, view: str = "steps", newest_first: bool = False) -> AsyncIterator[v1.RequestCycle]:
        """Iterate over the request cycles: what was asked and all that was done for it."""
        request = v1.ListRequestCyclesRequest(
            parent=self.name,
            view=enum_value(v1.ListRequestCyclesRequest.View, view),
            descending=newest_first,
        )
        while True:
            page = await self._client.call(self._stub.ListRequestCycles, request)
            for cycle in page.request_cycles:
                yield cycle
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def queue(self, *, include_settled: bool = False) -> list[v1.QueuedMessage]:
        """Return the steers and follow-ups that wait and, if asked for, what became of earlier ones."""
        request = v1.ListQueueRequest(parent=self.name, include_settled=include_settled)
        return list((await self._client.call(self._stub.ListQueue, request)).messages)

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

    async def set_mode(self, mode: str) -> v1.SetModeResponse:
        """Set what tools may do that start from now on: "restricted" or "unrestricted"; see the other client."""
        request = v1.SetModeRequest(name=self.name, mode=enum_value(v1.Mode, mode))
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

    def spawn_sub_agents(
        self, tasks: Sequence[str | v1.SpawnSubAgentsRequest.Task], *, request_id: str | None = None
    ) -> AsyncRun:
        """Start sub-agents, one for each task, as a run that ends when the agent has dealt with their results."""
        request = _requests.spawn(self.name, tasks, request_id)
        return AsyncRun(self._client, self.name, self._client.call(self._stub.SpawnSubAgents, request))

    async def verify(self) -> list[str]:
        """Check the stored conversation and return what is wrong with it, as a rule nothing."""
        request = v1.VerifyConversationRequest(name=self.name)
        return list((await self._client.call(self._stub.VerifyConversation, request)).violations)

    def replay(self, until_revision: int = 0) -> AsyncGenerator[v1.ReplayConversationResponse]:
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


async def follow(client: AsyncClient, cursor: EventCursor, *, resuming: bool = False) -> AsyncGenerator[Event]:
    """Yield what the cursor has not shown, over as many streams as it takes.

    Args:
        client: Whose connection to use.
        cursor: Where to begin; it is moved on.
        resuming: Whether the server is known to be there, so that even the first stream may be tried again.
    """
    backoff = Backoff(client.reconnect_for)
    while True:
        try:
            async with aclosing(client.stream(client.conversations_stub.Subscribe, cursor.request())) as responses:
                async for response in responses:
                    events = cursor.receive(response)
                    if cursor.progressed:
                        resuming = True
                        backoff.progress()
                    for event in events:
                        yield event
            if cursor.finished:
                return
            error: BedrockError = Unavailable("the server ended the stream")
        except BedrockError as failure:
            error = failure
            if resuming and is_gap(error):
                cursor.start_afresh()
                continue
            if not (resuming and may_resume(error)):
                raise
        delay = backoff.next(error.retry_after or 0.0)
        if delay is None:
            raise error
        if client.on_disconnect is not None:
            client.on_disconnect(error, delay)
        await client.pause(delay)
