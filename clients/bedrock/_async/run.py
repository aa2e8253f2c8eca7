"""Runs of a conversation: what a message does."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from bedrock._async.sending import AsyncSending, Sent
from bedrock._async.watch import AsyncRunWatch
from bedrock._shared import requests
from bedrock._shared.approvals import QuestionPolicy
from bedrock._shared.cursor import EventCursor
from bedrock._shared.deadline import Deadline
from bedrock.errors import BedrockError, DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable

    from bedrock import v1
    from bedrock._async.transport import AsyncTransport
    from bedrock.answers import Answer, AsyncDecide
    from bedrock.events import Event, Stop

__all__ = ["AsyncRun"]


class AsyncRun(AsyncSending):
    """What one message does, from the moment it was accepted: an iterator of events that ends with the run.

    All events of the conversation are shown meanwhile, also those of a run that a follow-up waits for. Broken
    connections and restarts of the server are bridged. Leaving the loop leaves the run alone.

    A question, ``event.approval``, is shown first. If it is still open when the next event is asked for, it goes to
    `on_approval`; without one it is denied, which the agent is told and the next events show: one with
    ``event.decision == "deny"``, and ``event.note``. With `wait_for_others` it is left to somebody else.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        conversation: str,
        sending: Awaitable[Sent],
        policy: QuestionPolicy[AsyncDecide],
    ) -> None:
        super().__init__(self._events(), sending)
        self._transport = transport
        self._conversation = conversation
        self._policy = policy
        self._cursor: EventCursor | None = None
        self._deadline = Deadline(None)

    @property
    def name(self) -> str:
        """The resource name of the run; empty while a follow-up waits."""
        return self._progress.run

    @property
    def stop(self) -> Stop | None:
        """How the run ended; None until the iterator has seen the end."""
        return self._progress.stop

    async def __anext__(self) -> Event:
        try:
            return await super().__anext__()
        except BedrockError:
            self._items = self._events()  # what failed may be tried again from here
            raise

    async def wait(self, *, timeout: float | None = None) -> Stop | None:
        """Wait for the end of the run and return how it ended; None if the iterator was closed before.

        A question is answered by `on_approval`, or denied at once.

        Args:
            timeout: Seconds to wait; without end if None. The run goes on after that, and may be waited for again.

        Raises:
            ApprovalNeeded: The run before asks something, so that this one does not begin.
            DeadlineExceeded: The run has not ended in time.
        """
        if timeout is not None:
            await self._begin_again(Deadline(timeout))
        try:
            async for _ in self:
                pass
        except DeadlineExceeded as error:
            if timeout is None:
                raise
            raise DeadlineExceeded(f"the run has not ended within {timeout:g} s", code=error.code) from None
        finally:
            self._deadline = Deadline(None)
        return self.stop

    async def answer(self, *, timeout: float | None = None) -> Answer:
        """Wait for the end of the run as `wait` does, and return what the agent said last.

        Raises:
            RunFailed: The run ended in an error.
            RunInterrupted: The run was cancelled or cut short.
            ApprovalNeeded, DeadlineExceeded: As for `wait`.
        """
        await self.wait(timeout=timeout)
        return self._progress.outcome()

    async def _begin_again(self, deadline: Deadline) -> None:
        """Open another stream that ends in time, where the one so far stands."""
        await self.close()
        self._deadline = deadline
        self._items = self._events()

    async def _events(self) -> AsyncGenerator[Event]:
        await self._sent()
        if self._cursor is None:
            self._cursor = EventCursor(self._conversation, self._revision)
        if self._progress.stop:
            return
        watch = AsyncRunWatch(self._transport, self._cursor, self._progress, self._policy, self._deadline)
        async for event in watch.events():
            yield event


@asynccontextmanager
async def question(
    transport: AsyncTransport,
    request: v1.SendMessageRequest,
    policy: QuestionPolicy[AsyncDecide],
    deadline: Deadline,
) -> AsyncGenerator[AsyncRun]:
    """Send a message, and cancel its run if the block, or already the sending, is broken off or takes too long.

    Other errors of this package leave the run alone: it has ended, or goes on without us.
    """
    run: AsyncRun | None = None
    timeout = deadline.shorten(transport.timeout)
    try:
        run = send(transport, request, policy, timeout)
        async with run:
            yield run
    except BedrockError as error:
        if isinstance(error, DeadlineExceeded) and deadline.seconds is not None:
            await _cancel(transport, request, run)
            text = f"no answer within {deadline.seconds:g} s; the run was cancelled"
            raise DeadlineExceeded(text, code=error.code) from None
        raise
    except BaseException:
        await _cancel(transport, request, run)
        raise


async def ask(
    transport: AsyncTransport,
    request: v1.SendMessageRequest,
    policy: QuestionPolicy[AsyncDecide],
    deadline: Deadline,
) -> Answer:
    """Send a message and wait for the answer; see `AsyncConversation.ask`."""
    async with question(transport, request, policy, deadline) as run:
        return await run.answer(timeout=deadline.left())


async def _cancel(transport: AsyncTransport, request: v1.SendMessageRequest, run: AsyncRun | None) -> None:
    """Cancel what a message has started, which was perhaps accepted without our knowledge."""
    with suppress(BedrockError):
        if run is None or not run.name:  # under its id it names the same run again
            run = send(transport, request, QuestionPolicy(None, wait_for_others=False), None)
            await run._sent()
        cancel = requests.give_up(request.name, run.name)
        await transport.call(transport.conversations.CancelConversation, cancel)


def send(
    transport: AsyncTransport,
    request: v1.SendMessageRequest,
    policy: QuestionPolicy[AsyncDecide],
    timeout: float | None,
) -> AsyncRun:
    """Send a message."""
    sending = transport.call(transport.conversations.SendMessage, request, timeout)
    return AsyncRun(transport, request.name, sending, policy)
