"""Runs of a conversation, as they are followed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager, suppress

from bedrock import v1
from bedrock._async.sending import AsyncSending, Sent, decided
from bedrock._async.transport import AsyncTransport
from bedrock._shared import requests
from bedrock._shared.cursor import EventCursor
from bedrock._shared.reconnection import Reconnection
from bedrock.answers import ANSWERED, Answer, AsyncApprove, AsyncDecide, decider
from bedrock.errors import ApprovalNeeded, BedrockError, Unavailable
from bedrock.events import Event, Stop
from bedrock.messages import Approval
from bedrock.streams import AsyncStream

__all__ = ["AsyncRun"]


class AsyncRun(AsyncSending):
    """What one message does, from the moment it was accepted: an iterator of events that ends with the run.

    All events of the conversation are shown meanwhile, also those of a run that a follow-up waits for. Broken
    connections and restarts of the server are bridged. When an approval is asked the iterator waits for the answer,
    however long it takes; answer it in the loop. Leaving the loop leaves the run alone.
    """

    def __init__(self, transport: AsyncTransport, conversation: str, sending: Awaitable[Sent]) -> None:
        super().__init__(self._follow(), sending)
        self._transport = transport
        self._conversation = conversation

    @property
    def name(self) -> str:
        """The resource name of the run; empty while a follow-up waits."""
        return self._progress.run

    @property
    def stop(self) -> Stop | None:
        """How the run ended; None until the iterator has seen the end."""
        return self._progress.stop

    async def wait(self) -> Stop | None:
        """Wait for the end of the run and return how it ended; None if the iterator was closed before."""
        async for _ in self:
            pass
        return self.stop

    async def answer(self, *, approve: AsyncApprove | None = None) -> Answer:
        """Wait for the end of the run and return what the agent said last.

        Args:
            approve: Who answers when the run asks for an approval: "all" to approve everything, or a function that
                takes the `Approval` and returns True to approve and False to deny.

        Raises:
            ApprovalNeeded: An approval is asked that `approve` is not there for, or that belongs to the run before.
                Answer it, then call this again.
            RunFailed: The run ended in an error.
            RunInterrupted: The run was cancelled or cut short.
        """
        decide = decider(approve)
        await self._settle(decide)
        async for _ in self:
            await self._settle(decide)
        return self._progress.outcome()

    async def _settle(self, decide: AsyncDecide | None) -> None:
        """Decide the questions that were asked."""
        for approval in self._progress.questions():
            if await self._waits(approval):
                if decide is None or not self.name:
                    raise ApprovalNeeded(f"the agent asks whether {approval.tool} may run", approval)
                await self._resolve(approval, approved=await decided(decide(approval)))
            self._progress.settled(approval)

    async def _resolve(self, approval: Approval, *, approved: bool) -> None:
        request = requests.resolve(self._conversation, approval, "approve" if approved else "deny", "")
        with suppress(*ANSWERED):
            await self._transport.call(self._transport.conversations.ResolveApproval, request)

    async def _waits(self, approval: Approval) -> bool:
        """Whether a question is still open: one answer may have settled others that were asked with it."""
        request = v1.GetConversationRequest(name=self._conversation)
        response = await self._transport.call(self._transport.conversations.GetConversation, request)
        return any(each.name == approval.name for each in response.conversation.state.awaiting_approval.pending)

    async def _follow(self) -> AsyncGenerator[Event]:
        await self._sent()
        cursor = EventCursor(self._conversation, self._revision)
        async with AsyncStream(follow(self._transport, cursor, resuming=True)) as events:
            async for event in events:
                if event.kind == "snapshot":
                    request = requests.latest_cycles(cursor.name)
                    page = await self._transport.call(self._transport.conversations.ListRequestCycles, request)
                    self._progress.observe_gap(event.proto.snapshot, page.request_cycles)
                self._progress.observe(event)
                yield event
                if self._progress.stop:
                    return


@asynccontextmanager
async def question(transport: AsyncTransport, request: v1.SendMessageRequest) -> AsyncGenerator[AsyncRun]:
    """Send a message, and cancel its run if the block, or already the sending, is broken off.

    Errors of this package leave the run alone: it has ended, or waits for an approval, or goes on without us.
    """
    run: AsyncRun | None = None
    try:
        run = send(transport, request)
        async with run:
            yield run
    except BedrockError:
        raise
    except BaseException:
        with suppress(BedrockError):
            if run is None or not run.name:  # was perhaps accepted: under its id it names the same run again
                run = send(transport, request)
                await run._sent()
            cancel = requests.give_up(request.name, run.name)
            await transport.call(transport.conversations.CancelConversation, cancel)
        raise


def send(transport: AsyncTransport, request: v1.SendMessageRequest) -> AsyncRun:
    """Send a message."""
    return AsyncRun(transport, request.name, transport.call(transport.conversations.SendMessage, request))


async def follow(transport: AsyncTransport, cursor: EventCursor, *, resuming: bool = False) -> AsyncGenerator[Event]:
    """Yield what the cursor has not shown, over as many streams as it takes.

    Args:
        transport: Makes the calls.
        cursor: Where to begin; it is moved on.
        resuming: Whether the server is known to be there, so that even the first stream may be tried again.
    """
    reconnection = Reconnection(cursor, transport.reconnect_for, resuming=resuming)
    while True:
        try:
            async with transport.stream(transport.conversations.Subscribe, cursor.request()) as responses:
                async for response in responses:
                    for event in reconnection.receive(response):
                        yield event
            if cursor.finished:
                return
            error: BedrockError = Unavailable("the server ended the stream")
        except BedrockError as failure:
            error = failure
        if delay := reconnection.delay_after(error):
            if transport.on_disconnect is not None:
                transport.on_disconnect(error, delay)
            await transport.pause(delay)
