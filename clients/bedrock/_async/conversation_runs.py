"""The methods of `AsyncConversation` that send messages, start, watch and cancel runs, and offer functions as tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, TypeVar, overload

from bedrock import v1
from bedrock._async.client_tools import AsyncClientTools
from bedrock._async.run import AsyncRun, ask, question, send
from bedrock._async.sending import fitting, opened
from bedrock._async.subscription import AsyncRunWatch, follow
from bedrock._async.transport import AsyncTransport
from bedrock._shared import requests
from bedrock._shared.cursor import EventCursor
from bedrock._shared.deadline import Deadline
from bedrock._shared.function_tools import ToolFunction, tool_function
from bedrock._shared.run_progress import QuestionPolicy, RunProgress, waiting_calls
from bedrock._shared.wrapper import resource_name
from bedrock.answers import Answer, AsyncOnApproval, AsyncOnQuestion, decider
from bedrock.conversations import CancelConversationResult, ConversationInfo, Generation, Task
from bedrock.errors import NotFound
from bedrock.events import Event
from bedrock.messages import Message, QueuedMessage, ToolCall
from bedrock.streams import AsyncStream
from bedrock.types import Delivery, ToolGroup


class AsyncConversationBase:
    """A conversation on the server, identified by its name. Subclasses add most of the methods."""

    def __init__(self, transport: AsyncTransport, name: str, functions: Sequence[ToolFunction] = ()) -> None:
        self.name = name
        """The resource name, ``conversations/{id or slug}``."""
        self._transport = transport
        self._stub = transport.conversations
        self._tools = AsyncClientTools(transport, name, functions)
        self._call = transport.call

    def __repr__(self) -> str:
        return f"AsyncConversation({self.name!r})"

    async def get(self, *, timeout: float | None = None) -> ConversationInfo:
        """The conversation as it is now. Raises NotFound if it does not exist."""
        return await self._info(self._stub.GetConversation, v1.GetConversationRequest(name=self.name), timeout)

    async def _info(self, method: Callable[..., Any], request: Any, timeout: float | None) -> ConversationInfo:
        return ConversationInfo.from_proto((await self._call(method, request, timeout)).conversation)


class AsyncConversationRuns(AsyncConversationBase):
    """The methods that send messages, and start, watch and cancel runs."""

    def send(
        self,
        text: str,
        *,
        delivery: Delivery | None = None,
        images: requests.ImageSource | Sequence[requests.ImageSource] = (),
        on_approval: AsyncOnApproval | None = None,
        on_question: AsyncOnQuestion | None = None,
        wait_for_others: bool = False,
        expected_run: str = "",
        generation: Generation | None = None,
        output_schema: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> AsyncRun:
        """The run of a new message; it is sent when the run is awaited or iterated.

        Args:
            text: What to say.
            delivery: "direct" (refused while the agent is busy; the default), "steer" (into the run in progress) or
                "follow_up" (starts a run when the current one has ended).
            images: The path or the bytes of an image for the model to see, or several in a list. PNG, JPEG, GIF or
                WebP, recognized by their content.
            on_approval: Decides about a tool call that needs approval, if the loop over the run's events has not
                decided before it reads the next event. "approve" lets every call run, "deny" none. A function gets the
                `Approval` and returns True or False. If None, the call is denied and a warning is logged.
            on_question: A function that answers a question from a running tool (from an MCP server, in the middle of a
                call), if the loop has not answered before it reads the next event. The function gets the `Question`. It
                returns a value for each field of the form that is filled in, ``{}`` for a URL that was visited, or None
                to decline. Without a function, the question is declined and a warning is logged. If the returned values
                do not fit the form, the question is declined, too, and InvalidArgument is raised.
            wait_for_others: Leave approvals and questions open that the loop does not answer, so that other clients can
                answer them.
            expected_run: The name of a run. RunOver is raised unless this run is in progress; no condition if empty.
            generation: How the model should answer in this run. The conversation's settings apply to everything that is
                left out.
            output_schema: A JSON Schema for the value that the run must end with; see `Stop.output` and
                `Answer.output`.
            request_id: The id to reuse if this call is repeated; generated if None. The message is stored only once.
            timeout: Time limit for sending in seconds; the client's if None.

        Raises:
            AgentBusy, AwaitingApproval, Cancelling, ContextExhausted, QueueFull, …: The state of the conversation does
                not allow this message.
            InvalidArgument: The text or an image is not acceptable.
        """
        request = requests.send(
            self.name, text, delivery=delivery, images=images, expected_run=expected_run, generation=generation,
            output_schema=output_schema, request_id=request_id,
        )  # fmt: skip
        policy = QuestionPolicy(decider(on_approval), on_question, wait_for_others)
        return send(self._transport, request, policy, timeout, self._tools)

    async def ask(
        self,
        text: str,
        *,
        images: requests.ImageSource | Sequence[requests.ImageSource] = (),
        on_approval: AsyncOnApproval | None = None,
        on_question: AsyncOnQuestion | None = None,
        wait_for_others: bool = False,
        generation: Generation | None = None,
        output_schema: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Send a message and wait for the answer, a `str` that also has `run`, `conversation` and `usage`.

        If the wait is interrupted, by a cancelled task, by the time limit or by an error in `on_approval` or
        `on_question`, the run is cancelled, even while the message is still being sent.

        Args:
            text: What to say.
            images: As for `send`.
            on_approval: As for `send`. If None, every call that needs approval is denied immediately.
            on_question: As for `send`. If None, every question from a tool is declined immediately.
            wait_for_others: Leave approvals and questions open, and wait until other clients have answered them.
            generation: As for `send`.
            output_schema: As for `send`.
            request_id: As for `send`. Asking again with the same id waits for the same run.
            timeout: Maximum seconds until the answer is complete; no limit if None.

        Raises:
            RunFailed, RunInterrupted: As for `AsyncRun.answer`.
            DeadlineExceeded: There was no answer within `timeout`; the run was cancelled.
            AgentBusy, InvalidArgument, …: As for `send`.
        """
        request = requests.send(
            self.name, text, images=images, generation=generation, output_schema=output_schema, request_id=request_id
        )
        policy = QuestionPolicy(decider(on_approval), on_question, wait_for_others)
        return await ask(self._transport, request, policy, Deadline(timeout), self._tools)

    def question(
        self,
        text: str,
        *,
        images: requests.ImageSource | Sequence[requests.ImageSource] = (),
        on_approval: AsyncOnApproval | None = None,
        on_question: AsyncOnQuestion | None = None,
        wait_for_others: bool = False,
        generation: Generation | None = None,
        output_schema: Mapping[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[AsyncRun]:
        """A context manager that sends a message and yields its run.

        If an exception ends the ``async with`` block or the sending, the run is cancelled. A BedrockError alone does
        not cancel it: the run has already ended, or continues on the server. The arguments and the errors raised are
        those of `send`.
        """
        request = requests.send(self.name, text, images=images, generation=generation, output_schema=output_schema)
        policy = QuestionPolicy(decider(on_approval), on_question, wait_for_others)
        return question(self._transport, request, policy, Deadline(None), self._tools)

    def spawn(
        self,
        tasks: Sequence[str | Task],
        *,
        on_approval: AsyncOnApproval | None = None,
        on_question: AsyncOnQuestion | None = None,
        wait_for_others: bool = False,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> AsyncRun:
        """Start sub-agents, one for each task, as a run that ends when the agent has processed their results.

        Args:
            tasks: One to ten tasks. A task is a string, or a `Task` with its own limits.
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
        return AsyncRun(self._transport, self.name, sending, policy, self._tools)

    async def run(
        self,
        name: str,
        *,
        on_approval: AsyncOnApproval | None = None,
        on_question: AsyncOnQuestion | None = None,
        wait_for_others: bool = False,
        timeout: float | None = None,
    ) -> Answer:
        """Wait for the end of any run of this conversation, and return its answer.

        The run may have been started by another client, or have ended already.

        Args:
            name: The resource name or id of the run; see `AsyncRun.name`, `Event.run` and `cycles`.
            on_approval: As for `ask`.
            on_question: As for `ask`.
            wait_for_others: As for `ask`.
            timeout: Seconds to wait; no limit if None. Reaching the limit does not cancel the run.

        Raises:
            NotFound: The run does not exist, or it belongs to another conversation.
            RunFailed, RunInterrupted: As for `AsyncRun.answer`.
            DeadlineExceeded: The run did not end within `timeout`.
        """
        policy, deadline = QuestionPolicy(decider(on_approval), on_question, wait_for_others), Deadline(timeout)
        await self._check_own_run(name, deadline)
        progress = RunProgress("", f"{self.name}/{resource_name('requestCycles', name.rpartition('/')[2])}")
        watch = AsyncRunWatch(self._transport, EventCursor(self.name), progress, policy, deadline, tools=self._tools)
        async for _ in watch.events():
            pass
        return progress.outcome()

    async def _check_own_run(self, name: str, deadline: Deadline) -> None:
        owner, separator, _ = name.partition("/requestCycles/")
        if not separator or owner == self.name:
            return
        own = await self.get(timeout=deadline.shorten(self._transport.timeout))
        if owner not in (own.name, f"conversations/{own.slug}"):
            text = f"run {name} belongs to {owner}, not to {self.name}"
            raise NotFound(text, reason="NOT_FOUND")

    def events(
        self,
        after_revision: int | None = None,
        *,
        recent_messages: int | None = None,
        omit_deltas: bool = False,
        until_settled: bool = False,
        timeout: float | None = None,
    ) -> AsyncStream[Event]:
        """The events of the conversation, each one once, even across broken connections and restarts.

        The stream begins with a snapshot or, if `after_revision` is given, with the events after it. If the server no
        longer keeps the events missed in a long disconnection, another snapshot follows instead.

        Args:
            after_revision: The last revision seen; zero for all events.
            recent_messages: How many messages the snapshot contains.
            omit_deltas: Omit the chunks of unfinished texts and tool outputs; the finished messages contain them whole.
            until_settled: End when nothing more will happen without a user: idle with an empty queue, or waiting for an
                approval.
            timeout: Seconds that the whole stream may take; no limit if None.

        Raises:
            NotFound: The conversation does not exist; raised before the first event is read.
            RevisionTooOld: The events after `after_revision` are no longer kept.
            Unavailable: The server is unreachable for longer than the client's `reconnect_for`.
        """
        cursor = EventCursor(
            self.name, after_revision, recent_messages, omit_deltas=omit_deltas, until_settled=until_settled
        )
        return opened(follow(self._transport, cursor, Deadline(timeout)))

    async def cancel(
        self,
        *,
        run: str = "",
        discard_queued: bool = False,
        kill_jobs: bool = False,
        reason: str = "",
        timeout: float | None = None,
    ) -> CancelConversationResult:
        """Cancel the run in progress. The call is never refused; with nothing to cancel, the result has `no_op`.

        If the server cannot store the cancel now, for example because the disk is full, the run is still stopped, and
        the result has `unrecorded`; the cancel is stored as soon as that is possible.

        Args:
            run: Stop only this run, so that a late cancel never hits the next one.
            discard_queued: Drop queued follow-ups as well.
            kill_jobs: End background jobs as well.
            reason: Why, for the log.
            timeout: Time limit for this call in seconds; the client's if None.
        """
        request = v1.CancelConversationRequest(
            name=self.name, run=run, discard_queued=discard_queued, kill_jobs=kill_jobs, reason=reason
        )
        return CancelConversationResult.from_proto(await self._call(self._stub.CancelConversation, request, timeout))

    async def withdraw(self, message: Message | QueuedMessage | str, *, timeout: float | None = None) -> QueuedMessage:
        """Withdraw a message from the queue, and return it. `message` is the message or its resource name.

        Raises:
            UnknownOrDecided: The message is no longer queued.
        """
        if isinstance(message, QueuedMessage):
            message = message.message
        name = message if isinstance(message, str) else message.name
        request = v1.WithdrawMessageRequest(name=name)
        return QueuedMessage.from_proto((await self._call(self._stub.WithdrawMessage, request, timeout)).message)


FunctionT = TypeVar("FunctionT", bound="Callable[..., Any]")


class AsyncConversationTools(AsyncConversationBase):
    """The methods that offer functions of this program to the agent as tools, and answer the calls to these tools."""

    @overload
    def tool(self, function: FunctionT, /) -> FunctionT: ...

    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        group: ToolGroup = "other",
        timeout: timedelta | None = None,
        read_only: bool = False,
        requires_approval: bool = False,
        allow_unoffered: bool = False,
    ) -> Callable[[FunctionT], FunctionT]: ...

    def tool(
        self,
        function: FunctionT | None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        group: ToolGroup = "other",
        timeout: timedelta | None = None,
        read_only: bool = False,
        requires_approval: bool = False,
        allow_unoffered: bool = False,
    ) -> FunctionT | Callable[[FunctionT], FunctionT]:
        """Give the agent a function of this program as a tool, with ``@conversation.tool``.

        The function's parameters, which need types, become the tool's input, and its docstring the description for the
        model. The function returns the result: a string, a value that becomes JSON, or a `ToolAnswer` with images. If
        it raises an exception, the agent reads that as an error.

        Calls to the tool are answered while this program iterates over or awaits a run of this object, and within
        `serve_tools`. At other times a call waits until another client answers it or `timeout` has passed. A new tool
        is declared to the server when the next message is sent; during a run, the server refuses the declaration.

        Args:
            function: The function, if the decorator is used without arguments.
            name: The tool's name for the model; the function's name if None.
            description: The description for the model; the docstring if None.
            group: The kind of work that the tool does: "read", "write", "bash" or "other".
            timeout: How long a call waits for an answer; five minutes if None.
            read_only: Whether the tool changes nothing; in restricted mode, only such tools are offered.
            requires_approval: Whether a user must approve every call.
            allow_unoffered: Whether to declare the tool even if the conversation's mode does not offer it to the
                agent. If False, the next message raises ToolNotOffered in this case, and is not sent.

        Raises:
            TypeError: A parameter has no type, or one whose values cannot be written as JSON.
        """

        def add(wrapped: FunctionT) -> FunctionT:
            made = tool_function(
                fitting(wrapped), name=name, description=description, group=group, timeout=timeout, read_only=read_only,
                requires_approval=requires_approval, allow_unoffered=allow_unoffered,
            )  # fmt: skip
            self._tools.add(made)
            return wrapped

        return add if function is None else add(function)

    async def serve_tools(self, *, timeout: float | None = None) -> None:
        """Answer the agent's calls to this object's functions, in all runs, until the conversation is deleted.

        Use this in a program that does not iterate over runs itself, because other clients send the messages. This
        method survives broken connections and restarts of the server.

        Args:
            timeout: Seconds after which DeadlineExceeded is raised; no limit if None.

        Raises:
            AgentBusy: The conversation does not have the tools yet, and a run is in progress.
            ToolNotOffered: The conversation's mode does not offer one of the tools to the agent.
            NotFound, DeadlineExceeded, Unavailable: As for `events`.
        """
        deadline = Deadline(timeout)
        await self._tools.declare(deadline.shorten(self._transport.timeout))
        cursor = EventCursor(self.name, None, 1, omit_deltas=True)
        async with AsyncStream(follow(self._transport, cursor, deadline)) as events:
            async for event in events:
                await self._tools.answer(list(waiting_calls(event).values()), deadline)

    async def submit_tool_result(
        self,
        call: ToolCall | str,
        output: str = "",
        *,
        json: Mapping[str, Any] | None = None,
        images: requests.ImageSource | Sequence[requests.ImageSource] = (),
        error: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Message:
        """Answer a call to a client tool, and return the stored message with the result.

        Events of kind ``client_tool_call_changed`` report the calls. Any client may answer; the first answer counts.
        Sending the same answer again is accepted.

        Args:
            call: The call or its id.
            output: The result as text.
            json: The result as a JSON object, instead of `output`.
            images: Images that belong to the result, as for `send`.
            error: Why the tool failed, instead of a result.
            request_id: The id to reuse if this call is repeated; generated if None.
            timeout: Time limit for this call in seconds; the client's if None.

        Raises:
            UnknownOrDecided: The call no longer waits for an answer, or never did.
        """
        request = requests.tool_result(
            self.name, call, output, json=json, images=images, error=error, request_id=request_id
        )
        return Message.from_proto((await self._call(self._stub.SubmitToolResult, request, timeout)).message)
