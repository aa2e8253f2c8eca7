"""Runs of a conversation, as the blocking client follows them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from bedrock import _requests, v1
from bedrock._cursor import EventCursor
from bedrock._progress import RunProgress
from bedrock._reconnection import Reconnection
from bedrock.answers import ANSWERED, Answer, Approve, decider
from bedrock.errors import ApprovalNeeded, BedrockError, Unavailable
from bedrock.events import Event, Stop
from bedrock.messages import Approval, Message
from bedrock.streams import Stream

if TYPE_CHECKING:
    from bedrock.client import Client

__all__ = ["Run"]


class Run(Stream[Event]):
    """What one message does, from the moment it was accepted: an iterator of events that ends with the run.

    All events of the conversation are shown meanwhile, also those of a run that a follow-up waits for. Broken
    connections and restarts of the server are bridged. When an approval is asked the iterator waits for the answer,
    however long it takes; answer it in the loop. Leaving the loop leaves the run alone.
    """

    def __init__(
        self, client: Client, conversation: str, response: v1.SendMessageResponse | v1.SpawnSubAgentsResponse
    ) -> None:
        super().__init__(self._follow(EventCursor(conversation, response.revision)))
        self.message = Message(response.message)
        """The message as it was stored or queued."""
        self.disposition = _requests.disposition(response)
        """"direct", "steer_queued", "follow_up_queued", or "duplicate" if the call had been accepted before."""
        self.sub_agents = _requests.sub_agents(response)
        """The resource names of the sub-agents that `Conversation.spawn` started, in the order of the tasks."""
        self._client = client
        self._conversation = conversation
        self._progress = RunProgress(response.message.name, response.run)

    @property
    def name(self) -> str:
        """The resource name of the run; empty while a follow-up waits."""
        return self._progress.run

    @property
    def stop(self) -> Stop | None:
        """How the run ended; None until the iterator has seen the end."""
        return self._progress.stop

    def wait(self) -> Stop | None:
        """Wait for the end of the run and return how it ended; None if the iterator was closed before."""
        for _ in self:
            pass
        return self.stop

    def answer(self, *, approve: Approve | None = None) -> Answer:
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
        self._settle(decide)
        for _ in self:
            self._settle(decide)
        return self._progress.outcome()

    def _settle(self, decide: Callable[[Approval], bool] | None) -> None:
        """Decide the questions that were asked."""
        for approval in self._progress.questions():
            if self._waits(approval):
                if decide is None or not self.name:
                    raise ApprovalNeeded(f"the agent asks whether {approval.tool} may run", approval)
                self._resolve(approval, approved=decide(approval))
            self._progress.settled(approval)

    def _resolve(self, approval: Approval, *, approved: bool) -> None:
        request = _requests.resolve(self._conversation, approval, "approve" if approved else "deny", "")
        with suppress(*ANSWERED):
            self._client.call(self._client.conversations_stub.ResolveApproval, request)

    def _waits(self, approval: Approval) -> bool:
        """Whether a question is still open: one answer may have settled others that were asked with it."""
        request = v1.GetConversationRequest(name=self._conversation)
        now = self._client.call(self._client.conversations_stub.GetConversation, request).conversation
        return any(pending.name == approval.name for pending in now.state.awaiting_approval.pending)

    def _follow(self, cursor: EventCursor) -> Generator[Event]:
        with Stream(follow(self._client, cursor, resuming=True)) as events:
            for event in events:
                if event.kind == "snapshot":
                    request = _requests.latest_cycles(cursor.name)
                    page = self._client.call(self._client.conversations_stub.ListRequestCycles, request)
                    self._progress.observe_gap(event.proto.snapshot, page.request_cycles)
                self._progress.observe(event)
                yield event
                if self._progress.stop:
                    return


@contextmanager
def question(client: Client, request: v1.SendMessageRequest) -> Generator[Run]:
    """Send a message, and cancel its run if the block, or already the sending, is broken off.

    Errors of this package leave the run alone: it has ended, or waits for an approval, or goes on without us.
    """
    run: Run | None = None
    try:
        with _sent(client, request) as run:
            yield run
    except BedrockError:
        raise
    except BaseException:
        with suppress(BedrockError):
            run = run or _sent(client, request)  # was perhaps accepted: under its id it names the same run again
            client.call(client.conversations_stub.CancelConversation, _requests.give_up(request.name, run.name))
        raise


def _sent(client: Client, request: v1.SendMessageRequest) -> Run:
    return Run(client, request.name, client.call(client.conversations_stub.SendMessage, request))


def follow(client: Client, cursor: EventCursor, *, resuming: bool = False) -> Generator[Event]:
    """Yield what the cursor has not shown, over as many streams as it takes.

    Args:
        client: Whose connection to use.
        cursor: Where to begin; it is moved on.
        resuming: Whether the server is known to be there, so that even the first stream may be tried again.
    """
    reconnection = Reconnection(cursor, client.reconnect_for, resuming=resuming)
    while True:
        try:
            with client.stream(client.conversations_stub.Subscribe, cursor.request()) as responses:
                for response in responses:
                    yield from reconnection.receive(response)
            if cursor.finished:
                return
            error: BedrockError = Unavailable("the server ended the stream")
        except BedrockError as failure:
            error = failure
        if delay := reconnection.delay_after(error):
            if client.on_disconnect is not None:
                client.on_disconnect(error, delay)
            client.pause(delay)
