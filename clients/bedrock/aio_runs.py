"""Runs of a conversation, as the client for asyncio follows them.

Methods without a word about their arguments take those of their twins in `bedrock.runs`, and raise the same.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from bedrock import _requests, v1
from bedrock._cursor import EventCursor
from bedrock._progress import RunProgress
from bedrock._reconnection import Reconnection
from bedrock.answers import ANSWERED, Answer, AsyncApprove, decider
from bedrock.errors import ApprovalNeeded, BedrockError, Unavailable
from bedrock.events import Event, Stop
from bedrock.messages import Approval, Message
from bedrock.streams import AsyncStream

if TYPE_CHECKING:
    from bedrock.aio import AsyncClient

__all__ = ["AsyncRun"]


class AsyncRun(AsyncStream[Event]):
    """What one message does: ``await`` it to have the message accepted, iterate it to see the run to its end.

    Iterating sends the message too, if it was not awaited before. Otherwise it is as `Run`.
    """

    message: Message
    """The message as it was stored or queued, once it was accepted."""
    disposition: str
    """"direct", "steer_queued", "follow_up_queued" or "duplicate", once it was accepted."""
    sub_agents: list[str]
    """The names of the sub-agents that `AsyncConversation.spawn` started, once it was accepted."""

    def __init__(self, client: AsyncClient, conversation: str, sending: Coroutine[Any, Any, Any]) -> None:
        super().__init__(self._follow())
        self._client = client
        self._conversation = conversation
        self._sending: Coroutine[Any, Any, Any] | None = sending
        self._progress = RunProgress("", "")
        self._revision = 0

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

    async def __aenter__(self) -> Self:
        return await self._sent()

    async def wait(self) -> Stop | None:
        """Wait for the end of the run and return how it ended; None if the iterator was closed before."""
        async for _ in self:
            pass
        return self.stop

    async def answer(self, *, approve: AsyncApprove | None = None) -> Answer:
        """Wait for the end of the run and return what the agent said last. Takes and raises the same as `Run.answer`;
        the function that decides may be asynchronous.
        """
        decide = decider(approve)
        await self._settle(decide)
        async for _ in self:
            await self._settle(decide)
        return self._progress.outcome()

    async def _settle(self, decide: Callable[[Approval], bool | Awaitable[bool]] | None) -> None:
        """Decide the questions that were asked."""
        for approval in self._progress.questions():
            if await self._waits(approval):
                if decide is None or not self.name:
                    raise ApprovalNeeded(f"the agent asks whether {approval.tool} may run", approval)
                decided = decide(approval)
                await self._resolve(approval, approved=await decided if inspect.isawaitable(decided) else decided)
            self._progress.settled(approval)

    async def _resolve(self, approval: Approval, *, approved: bool) -> None:
        request = _requests.resolve(self._conversation, approval, "approve" if approved else "deny", "")
        with suppress(*ANSWERED):
            await self._client.call(self._client.conversations_stub.ResolveApproval, request)

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
            self.sub_agents = _requests.sub_agents(response)
            self._progress = RunProgress(response.message.name, response.run)
            self._revision = response.revision
        return self

    async def _follow(self) -> AsyncGenerator[Event]:
        await self._sent()
        cursor = EventCursor(self._conversation, self._revision)
        async with AsyncStream(follow(self._client, cursor, resuming=True)) as events:
            async for event in events:
                if event.kind == "snapshot":
                    request = _requests.latest_cycles(cursor.name)
                    page = await self._client.call(self._client.conversations_stub.ListRequestCycles, request)
                    self._progress.observe_gap(event.proto.snapshot, page.request_cycles)
                self._progress.observe(event)
                yield event
                if self._progress.stop:
                    return


@asynccontextmanager
async def question(client: AsyncClient, request: v1.SendMessageRequest) -> AsyncGenerator[AsyncRun]:
    """Send a message, and cancel its run if the block, or already the sending, is broken off; see its twin."""
    run = _prepared(client, request)
    try:
        async with run:
            yield run
    except BedrockError:
        raise
    except BaseException:
        with suppress(BedrockError):
            if not run.name:  # was perhaps accepted: under its id it names the same run again
                run = await _prepared(client, request)
            await client.call(client.conversations_stub.CancelConversation, _requests.give_up(request.name, run.name))
        raise


def _prepared(client: AsyncClient, request: v1.SendMessageRequest) -> AsyncRun:
    return AsyncRun(client, request.name, client.call(client.conversations_stub.SendMessage, request))


async def follow(client: AsyncClient, cursor: EventCursor, *, resuming: bool = False) -> AsyncGenerator[Event]:
    """Yield what the cursor has not shown, over as many streams as it takes.

    Args:
        client: Whose connection to use.
        cursor: Where to begin; it is moved on.
        resuming: Whether the server is known to be there, so that even the first stream may be tried again.
    """
    reconnection = Reconnection(cursor, client.reconnect_for, resuming=resuming)
    while True:
        try:
            async with client.stream(client.conversations_stub.Subscribe, cursor.request()) as responses:
                async for response in responses:
                    for event in reconnection.receive(response):
                        yield event
            if cursor.finished:
                return
            error: BedrockError = Unavailable("the server ended the stream")
        except BedrockError as failure:
            error = failure
        if delay := reconnection.delay_after(error):
            if client.on_disconnect is not None:
                client.on_disconnect(error, delay)
            await client.pause(delay)
