"""A conversation and its runs, for the blocking client."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Self

from bedrock import _requests, v1
from bedrock._backoff import Backoff
from bedrock._cursor import EventCursor, RunProgress
from bedrock._names import enum_value
from bedrock._status import is_gap, may_resume
from bedrock.errors import ApprovalNeeded, BedrockError, Unavailable
from bedrock.events import Event, Stop
from bedrock.messages import Approval, Message

if TYPE_CHECKING:
    from bedrock.client import Client

__all__ = ["Conversation", "Run"]


class Run:
    """What one message does, from the moment it was accepted: an iterator of events that ends with the run.

    All events of the conversation are shown meanwhile, also those of a run that a follow-up waits for. Broken
    connections and restarts of the server are bridged. When an approval is asked the iterator waits for the answer,
    however long it takes; answer it in the loop. Leaving the loop leaves the run alone.
    """

    def __init__(
        self, client: Client, conversation: str, response: v1.SendMessageResponse | v1.SpawnSubAgentsResponse
    ) -> None:
        self.message = Message(response.message)
        """The message as it was stored or queued."""
        self.disposition = _requests.disposition(response)
        """"direct", "steer_queued", "follow_up_queued", or "duplicate" if the call had been accepted before."""
        self._client = client
        self._conversation = conversation
        self._progress = RunProgress(response.message.name, response.run)
        self._events = self._follow(EventCursor(conversation, response.revision))

    @property
    def name(self) -> str:
        """The resource name of the run; empty while a follow-up waits."""
        return self._progress.run

    @property
    def stop(self) -> Stop | None:
        """How the run ended; None until the iterator has seen the end."""
        return self._progress.stop

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        return next(self._events)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching. The run goes on."""
        self._events.close()

    def wait(self) -> Stop | None:
        """Wait for the end of the run and return how it ended; None if the iterator was closed before."""
        for _ in self:
            pass
        return self.stop

    def answer(self) -> str:
        """Wait for the end of the run and return what the agent said last.

        Raises:
            ApprovalNeeded: The run waits for a person. Answer, then call this again.
            RunFailed: The run ended in an error.
            RunInterrupted: The run was cancelled or cut short.
        """
        for event in self:
            if event.approval and self._waits(event.approval):
                raise ApprovalNeeded(f"the agent asks whether {event.approval.tool} may run", event.approval)
        return self._progress.outcome()

    def _waits(self, approval: Approval) -> bool:
        """Whether a question is still open: one answer may have settled others that were asked with it."""
        request = v1.GetConversationRequest(name=self._conversation)
        now = self._client.call(self._client.conversations_stub.GetConversation, request).conversation
        return any(pending.name == approval.name for pending in now.state.awaiting_approval.pending)

    def _follow(self, cursor: EventCursor) -> Generator[Event]:
        with closing(follow(self._client, cursor, resuming=True)) as events:
            for event in events:
                if event.kind == "snapshot":
                    request = v1.ListRequestCyclesRequest(parent=cursor.name, descending=True)
                    page = self._client.call(self._client.conversations_stub.ListRequestCycles, request)
                    self._progress.observe_gap(event.proto.snapshot, page.request_cycles)
                self._progress.observe(event)
                yield event
                if self._progress.stop:
                    return


class Conversation:
    """One conversation. Holds nothing but its name, so it never goes stale; every method is a call."""

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        """The resource name, ``conversations/{id or slug}``."""
        self._client = client
        self._stub = client.conversations_stub

    def __repr__(self) -> str:
        return f"Conversation({self.name!r})"

    def send(
        self,
        text: str,
        *,
        delivery: str | None = None,
        images: Sequence[_requests.ImageSource] = (),
        expected_run: str = "",
        request_id: str | None = None,
    ) -> Run:
        """Send a message, now, and return the run to iterate or to wait for.

        Args:
            text: What to say.
            delivery: "direct" (refused while the agent is busy; the default), "steer" (into the run under way) or
                "follow_up" (starts a run when this one has ended).
            images: Bytes or paths of images for the model to see.
            expected_run: Refuse with RunOver unless this run is under way.
            request_id: The id to use again if this call is repeated; made up if None. The message is stored once.

        Raises:
            AgentBusy, AwaitingApproval, Cancelling, ContextExhausted, QueueFull, …: The state does not allow it.
            InvalidArgument: The text or an image cannot be taken.
        """
        request = _requests.send(
            self.name, text, delivery=delivery, images=images, expected_run=expected_run, request_id=request_id
        )
        return Run(self._client, self.name, self._client.call(self._stub.SendMessage, request))

    def events(
        self,
        after_revision: int | None = None,
        *,
        recent_messages: int | None = None,
        omit_deltas: bool = False,
        until_settled: bool = False,
    ) -> Generator[Event]:
        """Follow the conversation across broken connections and restarts, each event once.

        Begins with a snapshot or, if `after_revision` is given, with the events after it. Should the server no longer
        keep what was missed during a long disconnection, another snapshot shows the present.

        Args:
            after_revision: The last revision seen; zero for everything there ever was.
            recent_messages: How many messages the snapshot holds.
            omit_deltas: Leave out text as it is being written.
            until_settled: End when nothing happens by itself any more: at rest with nothing queued, or waiting for a
                person.

        Raises:
            RevisionTooOld: The events after `after_revision` are no longer kept.
            Unavailable: The server cannot be reached for longer than the client's `reconnect_for`.
        """
        cursor = EventCursor(
            self.name, after_revision, recent_messages, omit_deltas=omit_deltas, until_settled=until_settled
        )
        return follow(self._client, cursor)

    def get(self) -> v1.Conversation:
        """Read the conversation."""
        request = v1.GetConversationRequest(name=self.name)
        return self._client.call(self._stub.GetConversation, request).conversation

    def messages(self, *, after_sequence: int = 0, newest_first: bool = False) -> Iterator[Message]:
        """Iterate over the stored messages."""
        request = v1.ListMessagesRequest(parent=self.name, after_sequence=after_sequence, descending=newest_first)
        while True:
            page = self._client.call(self._stub.ListMessages, request)
            yield from map(Message, page.messages)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def cycles(self, *, view: str = "steps", newest_first: bool = False) -> Iterator[v1.RequestCycle]:
        """Iterate over the request cycles: what was asked and all that was done for it.

        Args:
            view: "steps" (made for people), "rounds" (how the model was served) or "full".
            newest_first: Begin with the latest.
        """
        request = v1.ListRequestCyclesRequest(
            parent=self.name,
            view=enum_value(v1.ListRequestCyclesRequest.View, view),
            descending=newest_first,
        )
        while True:
            page = self._client.call(self._stub.ListRequestCycles, request)
            yield from page.request_cycles
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def queue(self, *, include_settled: bool = False) -> list[v1.QueuedMessage]:
        """Return the steers and follow-ups that wait and, if asked for, what became of earlier ones."""
        request = v1.ListQueueRequest(parent=self.name, include_settled=include_settled)
        return list(self._client.call(self._stub.ListQueue, request).messages)

    def withdraw(self, message: Message | str) -> Message:
        """Take back a message that still waits.

        Raises:
            UnknownOrDecided: It waits no more.
        """
        name = message if isinstance(message, str) else message.name
        return Message(self._client.call(self._stub.WithdrawMessage, v1.WithdrawMessageRequest(name=name)).message)

    def cancel(
        self, *, run: str = "", discard_queued: bool = False, kill_jobs: bool = False, reason: str = ""
    ) -> v1.CancelConversationResponse:
        """Stop what is under way. Never refused; if there is nothing to stop, the receipt says `no_op`.

        Args:
            run: Stop only this run, so that a late cancel never hits the next one.
            discard_queued: Drop queued follow-ups as well.
            kill_jobs: End background jobs as well.
            reason: Why, for the log.
        """
        request = v1.CancelConversationRequest(
            name=self.name, run=run, discard_queued=discard_queued, kill_jobs=kill_jobs, reason=reason
        )
        return self._client.call(self._stub.CancelConversation, request)

    def approve(self, approval: Approval | str, *, always: bool = False, note: str = "") -> v1.Conversation:
        """Let a tool call run, or the mode be widened.

        Args:
            approval: The question, its name, or the id of its tool call.
            always: Ask no more for this tool in this conversation.
            note: A note for the record.

        Raises:
            NotAwaitingApproval, UnknownOrDecided: It was answered or withdrawn already.
        """
        request = _requests.resolve(self.name, approval, "approve_always" if always else "approve", note)
        return self._client.call(self._stub.ResolveApproval, request).conversation

    def deny(self, approval: Approval | str, note: str = "") -> v1.Conversation:
        """Refuse a tool call; the agent is told, with the note. Raises the same as `approve`."""
        request = _requests.resolve(self.name, approval, "deny", note)
        return self._client.call(self._stub.ResolveApproval, request).conversation

    def set_mode(self, mode: str) -> v1.SetModeResponse:
        """Set what tools may do that start from now on: "restricted" or "unrestricted".

        Returns the conversation, and the background jobs that go on with the rights that they were started with.

        Raises:
            ModeUnavailable: The server cannot restrict tools on its machine.
        """
        request = v1.SetModeRequest(name=self.name, mode=enum_value(v1.Mode, mode))
        return self._client.call(self._stub.SetMode, request)

    def update(
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
        """Change what is not None.

        Raises:
            Aborted: The `etag` is given and outdated.
            AgentBusy: The model cannot be changed during a run.
        """
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
        return self._client.call(self._stub.UpdateConversation, request).conversation

    def archive(self) -> v1.Conversation:
        """Take the conversation off the list of active ones."""
        request = v1.ArchiveConversationRequest(name=self.name)
        return self._client.call(self._stub.ArchiveConversation, request).conversation

    def unarchive(self) -> v1.Conversation:
        """Put the conversation back on the list of active ones."""
        request = v1.UnarchiveConversationRequest(name=self.name)
        return self._client.call(self._stub.UnarchiveConversation, request).conversation

    def delete(self, *, force: bool = False, missing_ok: bool = False) -> list[str]:
        """Delete the conversation and everything that belongs to it; returns warnings, as a rule none.

        Args:
            force: Cancel first what is under way.
            missing_ok: Succeed if it does not exist.
        """
        request = v1.DeleteConversationRequest(name=self.name, force=force, allow_missing=missing_ok)
        return list(self._client.call(self._stub.DeleteConversation, request).warnings)

    def trigger_continuation(self) -> v1.Conversation:
        """Have the summary written that a successor starts with, as if the context were full."""
        request = v1.TriggerContinuationRequest(name=self.name)
        return self._client.call(self._stub.TriggerContinuation, request).conversation

    def continue_(self, *, include_summary: bool = True, request_id: str | None = None) -> Conversation:
        """Return the successor of a conversation whose context is used up; made by the first call."""
        request = v1.ContinueConversationRequest(
            name=self.name, include_summary=include_summary, request_id=request_id or _requests.new_request_id()
        )
        successor = self._client.call(self._stub.ContinueConversation, request).conversation
        return Conversation(self._client, successor.name)

    def spawn_sub_agents(
        self, tasks: Sequence[str | v1.SpawnSubAgentsRequest.Task], *, request_id: str | None = None
    ) -> Run:
        """Start sub-agents, one for each task, as a run that ends when the agent has dealt with their results."""
        request = _requests.spawn(self.name, tasks, request_id)
        return Run(self._client, self.name, self._client.call(self._stub.SpawnSubAgents, request))

    def verify(self) -> list[str]:
        """Check the stored conversation and return what is wrong with it, as a rule nothing."""
        request = v1.VerifyConversationRequest(name=self.name)
        return list(self._client.call(self._stub.VerifyConversation, request).violations)

    def replay(self, until_revision: int = 0) -> Generator[v1.ReplayConversationResponse]:
        """Run the log through the state machine again; each step says how it differs from what was stored."""
        request = v1.ReplayConversationRequest(name=self.name, until_revision=until_revision)
        return self._client.stream(self._stub.ReplayConversation, request)

    def export(self) -> Iterator[str]:
        """Iterate over everything there is, as lines of JSON."""
        request = v1.ExportConversationRequest(name=self.name)
        return (piece.line for piece in self._client.stream(self._stub.ExportConversation, request))

    def attachment(self, name: str) -> bytes:
        """Read an image as it was sent, by the name that a message holds."""
        request = v1.DownloadAttachmentRequest(name=name)
        return b"".join(piece.data for piece in self._client.stream(self._stub.DownloadAttachment, request))


def follow(client: Client, cursor: EventCursor, *, resuming: bool = False) -> Generator[Event]:
    """Yield what the cursor has not shown, over as many streams as it takes.

    Args:
        client: Whose connection to use.
        cursor: Where to begin; it is moved on.
        resuming: Whether the server is known to be there, so that even the first stream may be tried again.
    """
    backoff = Backoff(client.reconnect_for)
    while True:
        try:
            with closing(client.stream(client.conversations_stub.Subscribe, cursor.request())) as responses:
                for response in responses:
                    events = cursor.receive(response)
                    if cursor.progressed:
                        resuming = True
                        backoff.progress()
                    yield from events
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
        client.pause(delay)
