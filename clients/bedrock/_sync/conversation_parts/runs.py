# Generated from clients/bedrock/_async/conversation_parts/runs.py by `make client-sync`; edit that file.
"""The methods of `Conversation` that send messages and start, watch and cancel runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bedrock import v1
from bedrock._shared import requests
from bedrock._shared.approvals import QuestionPolicy
from bedrock._shared.cursor import EventCursor
from bedrock._shared.deadline import Deadline
from bedrock._shared.enum_names import resource_name
from bedrock._shared.run_progress import RunProgress
from bedrock._sync.conversation_parts.base import ConversationBase
from bedrock._sync.run import Run, ask, question, send
from bedrock._sync.sending import opened
from bedrock._sync.subscription import RunWatch, follow
from bedrock.answers import Answer, OnApproval, OnQuestion, decider
from bedrock.conversations import CancelConversationResult, Generation, Task
from bedrock.errors import NotFound
from bedrock.messages import Message, QueuedMessage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from bedrock.events import Event
    from bedrock.streams import Stream
    from bedrock.types import Delivery

__all__ = ["ConversationRuns"]


class ConversationRuns(ConversationBase):
    """The methods that send messages, and start, watch and cancel runs."""

    def send(
        self,
        text: str,
        *,
        delivery: Delivery | None = None,
        images: requests.ImageSource | Sequence[requests.ImageSource] = (),
        on_approval: OnApproval | None = None,
        on_question: OnQuestion | None = None,
        wait_for_others: bool = False,
        expected_run: str = "",
        generation: Generation | None = None,
        output_schema: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Run:
        """Return the run of a new message, which is sent now.

        Args:
            text: What to say.
            delivery: "direct" (refused while the agent is busy; the default), "steer" (into the run in progress) or
                "follow_up" (starts a run when the present one has ended).
            images: The path or the bytes of an image for the model to see, or several in a list. PNG, JPEG, GIF or
                WebP, recognized by their content.
            on_approval: Decides about a tool call that needs approval, if the loop over the run's events has not
                decided before it reads the next event. "approve" lets every call run, "deny" none. A function gets the
                `Approval` and returns True or False. If None, the call is denied and a warning is logged.
            on_question: A function that answers a question of a running tool (of an MCP server, in the middle of a
                call), if the loop has not answered before it reads the next event. The function gets the `Question`. It
                returns a value for each field of the form that is filled in, ``{}`` for an address that was visited, or
                None to decline. Without a function, the question is declined and a warning is logged. If the returned
                values do not fit the form, the question is declined, too, and InvalidArgument is raised.
            wait_for_others: Leave approvals and questions open that the loop does not answer, so that other clients can
                answer them.
            expected_run: The name of a run. RunOver is raised unless this run is in progress; no condition if empty.
            generation: How the model is to answer in this run; the conversation's settings apply to what is not set.
            output_schema: A JSON Schema of the value that the run is to end with; see `Stop.output` and
                `Answer.output`.
            request_id: The id to reuse if this call is repeated; generated if None. The message is stored once.
            timeout: Time limit of sending in seconds; the client's if None.

        Raises:
            AgentBusy, AwaitingApproval, Cancelling, ContextExhausted, QueueFull, …: The state of the conversation does
                not allow this message.
            InvalidArgument: The text or an image is not acceptable.
        """
        request = requests.send(
            self.name,
            text,
            delivery=delivery,
            images=images,
            expected_run=expected_run,
            generation=generation,
            output_schema=output_schema,
            request_id=request_id,
        )
        policy = QuestionPolicy(decider(on_approval), on_question, wait_for_others)
        return send(self._transport, request, policy, timeout, self._tools)

    def ask(
        self,
        text: str,
        *,
        images: requests.ImageSource | Sequence[requests.ImageSource] = (),
        on_approval: OnApproval | None = None,
        on_question: OnQuestion | None = None,
        wait_for_others: bool = False,
        generation: Generation | None = None,
        output_schema: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Send a message and wait for the answer, a `str` that also has `run`, `conversation` and `usage`.

        If the wait is interrupted, by Ctrl-C, by the time limit or by an error in `on_approval` or
        `on_question`, the run is cancelled, even while the message is still being sent.

        Args:
            text: What to say.
            images: As for `send`.
            on_approval: As for `send`. If None, every call that needs approval is denied at once.
            on_question: As for `send`. If None, every question of a tool is declined at once.
            wait_for_others: Leave approvals and questions open, and wait until other clients have answered them.
            generation: As for `send`.
            output_schema: As for `send`.
            request_id: As for `send`. Asking again with the same id waits for the same run.
            timeout: Seconds until the answer must be there; no limit if None.

        Raises:
            RunFailed, RunInterrupted: As for `Run.answer`.
            DeadlineExceeded: There was no answer in time; the run was cancelled.
            AgentBusy, InvalidArgument, …: As for `send`.
        """
        request = requests.send(
            self.name, text, images=images, generation=generation, output_schema=output_schema, request_id=request_id
        )
        policy = QuestionPolicy(decider(on_approval), on_question, wait_for_others)
        return ask(self._transport, request, policy, Deadline(timeout), self._tools)

    def question(
        self,
        text: str,
        *,
        images: requests.ImageSource | Sequence[requests.ImageSource] = (),
        on_approval: OnApproval | None = None,
        on_question: OnQuestion | None = None,
        wait_for_others: bool = False,
        generation: Generation | None = None,
        output_schema: Mapping[str, Any] | None = None,
    ) -> AbstractContextManager[Run]:
        """Return a context manager that sends a message and yields its run.

        If an exception ends the ``with`` block or the sending, the run is cancelled. Only a BedrockError does not
        cancel it: the run has ended already, or continues on the server. The arguments and the errors raised are those
        of `send`.
        """
        request = requests.send(self.name, text, images=images, generation=generation, output_schema=output_schema)
        policy = QuestionPolicy(decider(on_approval), on_question, wait_for_others)
        return question(self._transport, request, policy, Deadline(None), self._tools)

    def spawn(
        self,
        tasks: Sequence[str | Task],
        *,
        on_approval: OnApproval | None = None,
        on_question: OnQuestion | None = None,
        wait_for_others: bool = False,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Run:
        """Start sub-agents, one for each task, as a run that ends when the agent has processed their results.

        Args:
            tasks: One to ten tasks. A task is a text, or a `Task` with limits of its own.
            on_approval: As for `send`.
            on_question: As for `send`.
            wait_for_others: As for `send`.
            request_id: As for `send`.
            timeout: As for `send`.

        Raises:
            AgentBusy, Cancelling, Archived, …: The state of the conversation does not allow a new run.
            SubAgent: This conversation belongs to a sub-agent; sub-agents cannot start sub-agents.
            InvalidArgument: A task is not acceptable; no sub-agent was started. Also ModelUnavailable and
                WorkingDirectoryInvalid.
        """
        request = requests.spawn(self.name, tasks, request_id)
        sending = self._transport.call(self._stub.SpawnSubAgents, request, timeout)
        policy = QuestionPolicy(decider(on_approval), on_question, wait_for_others)
        return Run(self._transport, self.name, sending, policy, self._tools)

    def run(
        self,
        name: str,
        *,
        on_approval: OnApproval | None = None,
        on_question: OnQuestion | None = None,
        wait_for_others: bool = False,
        timeout: float | None = None,
    ) -> Answer:
        """Wait for the end of any run of this conversation, and return its answer.

        The run may have been started by another client, or have ended already.

        Args:
            name: The resource name or id of the run; see `Run.name`, `Event.run` and `cycles`.
            on_approval: As for `ask`.
            on_question: As for `ask`.
            wait_for_others: As for `ask`.
            timeout: Seconds to wait; no limit if None. The run is not cancelled after that.

        Raises:
            NotFound: There is no such run, or it belongs to another conversation.
            RunFailed, RunInterrupted: As for `Run.answer`.
            DeadlineExceeded: The run has not ended in time.
        """
        policy, deadline = QuestionPolicy(decider(on_approval), on_question, wait_for_others), Deadline(timeout)
        self._check_own_run(name, deadline)
        progress = RunProgress("", f"{self.name}/{resource_name('requestCycles', name.rpartition('/')[2])}")
        watch = RunWatch(self._transport, EventCursor(self.name), progress, policy, deadline, tools=self._tools)
        for _ in watch.events():
            pass
        return progress.outcome()

    def _check_own_run(self, name: str, deadline: Deadline) -> None:
        """Raise NotFound if `name` is the full name of a run of another conversation."""
        owner, separator, _ = name.partition("/requestCycles/")
        if not separator or owner == self.name:
            return
        own = self.get(timeout=deadline.shorten(self._transport.timeout))
        if owner not in (own.name, f"conversations/{own.slug}"):
            text = f"the run {name} belongs to another conversation, {owner}, not to {self.name}"
            raise NotFound(text, reason="NOT_FOUND")

    def events(
        self,
        after_revision: int | None = None,
        *,
        recent_messages: int | None = None,
        omit_deltas: bool = False,
        until_settled: bool = False,
        timeout: float | None = None,
    ) -> Stream[Event]:
        """Return the events of the conversation, each one once, also across broken connections and restarts.

        The stream begins with a snapshot or, if `after_revision` is given, with the events after it. If the server no
        longer keeps the events missed in a long disconnection, another snapshot follows instead.

        Args:
            after_revision: The last revision seen; zero for all events.
            recent_messages: How many messages the snapshot holds.
            omit_deltas: Omit the chunks of unfinished texts and tool outputs; the finished messages contain them whole.
            until_settled: End when nothing more will happen without a user: idle with an empty queue, or waiting for an
                approval.
            timeout: Seconds that the whole stream may take; no limit if None.

        Raises:
            NotFound: There is no such conversation. Raised before the first event is read.
            RevisionTooOld: The events after `after_revision` are no longer kept.
            Unavailable: The server is unreachable for longer than the client's `reconnect_for`.
        """
        cursor = EventCursor(
            self.name, after_revision, recent_messages, omit_deltas=omit_deltas, until_settled=until_settled
        )
        return opened(follow(self._transport, cursor, Deadline(timeout)))

    def cancel(
        self,
        *,
        run: str = "",
        discard_queued: bool = False,
        kill_jobs: bool = False,
        reason: str = "",
        timeout: float | None = None,
    ) -> CancelConversationResult:
        """Cancel the run in progress. The call is never refused; with nothing to cancel, the result has `no_op`.

        If the server cannot store the cancel now, for example on a full disk, the run is stopped all the same and the
        result has `unrecorded`; the cancel is stored as soon as that is possible.

        Args:
            run: Stop only this run, so that a late cancel never hits the next one.
            discard_queued: Drop queued follow-ups as well.
            kill_jobs: End background jobs as well.
            reason: Why, for the log.
            timeout: Time limit of this call in seconds; the client's if None.
        """
        request = v1.CancelConversationRequest(
            name=self.name, run=run, discard_queued=discard_queued, kill_jobs=kill_jobs, reason=reason
        )
        response = self._transport.call(self._stub.CancelConversation, request, timeout)
        return CancelConversationResult.from_proto(response)

    def withdraw(self, message: Message | QueuedMessage | str, *, timeout: float | None = None) -> QueuedMessage:
        """Withdraw a message from the queue, and return it. `message` is the message or its resource name.

        Raises:
            UnknownOrDecided: The message is no longer queued.
        """
        if isinstance(message, QueuedMessage):
            message = message.message
        name = message if isinstance(message, str) else message.name
        response = self._transport.call(self._stub.WithdrawMessage, v1.WithdrawMessageRequest(name=name), timeout)
        return QueuedMessage.from_proto(response.message)
