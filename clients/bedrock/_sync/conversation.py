# Generated from clients/bedrock/_async/conversation.py by `make client-sync`; edit that file.
"""A conversation as an object; most methods are calls of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from bedrock import v1
from bedrock._shared import requests
from bedrock._shared.approvals import QuestionPolicy
from bedrock._shared.client_tools.functions import tool_function
from bedrock._shared.cursor import EventCursor
from bedrock._shared.deadline import Deadline
from bedrock._shared.enum_names import enum_value, resource_name
from bedrock._shared.run_progress import RunProgress, waiting_calls
from bedrock._sync.client_tools import ClientTools
from bedrock._sync.run import Run, ask, question, send
from bedrock._sync.sending import fitting, opened
from bedrock._sync.subscription import RunWatch, follow
from bedrock.answers import Answer, OnApproval, OnQuestion, decider
from bedrock.conversations import (
    Budget,
    CancelConversationResult,
    ClientTool,
    ConversationInfo,
    Generation,
    ReplayStep,
    SetModeResult,
    Task,
)
from bedrock.errors import NotForkable, NotFound
from bedrock.messages import Attachment, Message, QueuedMessage
from bedrock.request_cycles import RequestCycle
from bedrock.states import Approval, ApprovalRule, Question
from bedrock.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import timedelta

    from bedrock._shared.client_tools.functions import ToolFunction
    from bedrock._sync.transport import Transport
    from bedrock.catalog import McpServer
    from bedrock.events import Event
    from bedrock.messages import ToolCall
    from bedrock.types import ApprovalPolicy, CycleView, Delivery, FollowUpPolicy, Mode, RuleAction, ToolGroup

__all__ = ["Conversation"]

FunctionT = TypeVar("FunctionT", bound="Callable[..., Any]")


class Conversation:
    """One conversation. Holds its name and the functions of its tools, and caches nothing: its methods call the server.

    `timeout` is the seconds that a call may take before DeadlineExceeded is raised, the client's if None. For iterators
    it limits each page, for streams the whole stream, which has no limit if None.
    """

    def __init__(self, transport: Transport, name: str, functions: Sequence[ToolFunction] = ()) -> None:
        """Use `Client.conversation` or `Client.create`, whose tools `functions` are for."""
        self.name = name
        """The resource name, ``conversations/{id or slug}``."""
        self._transport = transport
        self._stub = transport.conversations
        self._tools = ClientTools(transport, name, functions)

    def __repr__(self) -> str:
        return f"Conversation({self.name!r})"

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
        """Send a message as a run to iterate or to wait for, which is sent now.

        Args:
            text: What to say.
            delivery: "direct" (refused while the agent is busy; the default), "steer" (into the run in progress) or
                "follow_up" (starts a run when this one has ended).
            images: The path or the bytes of an image for the model to see, or several in a list. PNG, JPEG, GIF or
                WebP, recognized by their content.
            on_approval: Decides about a tool call that needs approval if the loop has not answered before it reads the
                next event: "approve" lets every call run, "deny" none; a function gets the `Approval` and returns True
                or False. If None, the call is denied and a warning is logged.
            on_question: Answers what a running tool asks a person (an MCP server, in the middle of a call) if the loop
                has not: gets the `Question`, and returns a value for each field of its form that is filled in, ``{}``
                for an address that was visited, or None to decline. If None, the question is declined and a warning is
                logged. What does not fit the form is declined, too, and InvalidArgument is raised.
            wait_for_others: Leave approvals and questions open that the loop does not answer, so that other clients can
                answer them.
            expected_run: Refuse with RunOver unless this run is in progress.
            generation: How the model is to answer in this run; what is not set is as the conversation has it.
            output_schema: A JSON Schema of the value that the run is to end with; see `Stop.output` and
                `Answer.output`.
            request_id: The id to reuse if this call is repeated; generated if None. The message is stored once.
            timeout: Time limit of sending in seconds; the client's if None.

        Raises:
            AgentBusy, AwaitingApproval, Cancelling, ContextExhausted, QueueFull, …: The state does not allow it.
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
        """Send a message as a run that is cancelled if the ``with`` block, or the sending, is interrupted.

        Errors of this package do not cancel the run: it has ended, or continues on the server. The arguments and the
        errors raised are those of `send`.
        """
        request = requests.send(self.name, text, images=images, generation=generation, output_schema=output_schema)
        policy = QuestionPolicy(decider(on_approval), on_question, wait_for_others)
        return question(self._transport, request, policy, Deadline(None), self._tools)

    def run(
        self,
        name: str,
        *,
        on_approval: OnApproval | None = None,
        on_question: OnQuestion | None = None,
        wait_for_others: bool = False,
        timeout: float | None = None,
    ) -> Answer:
        """Wait for the end of any run, also one of another client or one that has ended, and return its answer.

        Args:
            name: Its resource name or id; see `Run.name`, `Event.run` and `cycles`.
            on_approval: As for `ask`.
            on_question: As for `ask`.
            wait_for_others: As for `ask`.
            timeout: Seconds to wait; no limit if None. The run is not cancelled after that.

        Raises:
            NotFound: There is no such run, or it belongs to another conversation.
            RunFailed, RunInterrupted: As for `Run.answer`.
            DeadlineExceeded: It has not ended in time.
        """
        policy, deadline = QuestionPolicy(decider(on_approval), on_question, wait_for_others), Deadline(timeout)
        self._check_own_run(name, deadline)
        progress = RunProgress("", f"{self.name}/{resource_name('requestCycles', name.rpartition('/')[2])}")
        watch = RunWatch(self._transport, EventCursor(self.name), progress, policy, deadline, tools=self._tools)
        for _ in watch.events():
            pass
        return progress.outcome()

    def _check_own_run(self, name: str, deadline: Deadline) -> None:
        """Raise NotFound if a name is that of a run of another conversation, given by its id or its slug."""
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

        Begins with a snapshot or, if `after_revision` is given, with the events after it. If the server no longer keeps
        the events missed in a long disconnection, another snapshot follows instead.

        Args:
            after_revision: The last revision seen; zero for all events.
            recent_messages: How many messages the snapshot holds.
            omit_deltas: Omit text while it is being written; messages have all of it.
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

    def get(self, *, timeout: float | None = None) -> ConversationInfo:
        """Read the conversation."""
        request = v1.GetConversationRequest(name=self.name)
        response = self._transport.call(self._stub.GetConversation, request, timeout)
        return ConversationInfo.from_proto(response.conversation)

    def messages(
        self, *, after_sequence: int = 0, newest_first: bool = False, timeout: float | None = None
    ) -> Iterator[Message]:
        """Iterate over the stored messages."""
        request = v1.ListMessagesRequest(parent=self.name, after_sequence=after_sequence, descending=newest_first)
        for page in self._transport.pages(self._stub.ListMessages, request, timeout):
            for message in page.messages:
                yield Message.from_proto(message)

    def message(self, name: str, *, timeout: float | None = None) -> Message:
        """Read a message by its resource name or id; also one that waits in the queue. Raises NotFound."""
        request = v1.GetMessageRequest(name=requests.child_name(self.name, "messages", name))
        response = self._transport.call(self._stub.GetMessage, request, timeout)
        return Message.from_proto(response.message)

    def approvals(self, *, timeout: float | None = None) -> Iterator[Approval]:
        """Iterate over the open approvals, in the order of the model's response."""
        request = v1.ListApprovalsRequest(parent=self.name)
        for page in self._transport.pages(self._stub.ListApprovals, request, timeout):
            for approval in page.approvals:
                yield Approval.from_proto(approval)

    def approval(self, name: str, *, timeout: float | None = None) -> Approval:
        """Read an open approval by its resource name or the id of its tool call.

        Raises:
            NotFound: There is none, or it was answered or withdrawn.
        """
        request = v1.GetApprovalRequest(name=requests.child_name(self.name, "approvals", name))
        response = self._transport.call(self._stub.GetApproval, request, timeout)
        return Approval.from_proto(response.approval)

    def cycles(
        self, *, view: CycleView = "steps", newest_first: bool = False, timeout: float | None = None
    ) -> Iterator[RequestCycle]:
        """Iterate over the request cycles: what was asked and all that was done for it.

        Args:
            view: "steps" (made for people), "rounds" (the requests to the model), "full" (both), or "events" (the
                log that both are made of).
            newest_first: Begin with the latest.
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
        """Read one request cycle.

        Args:
            run: The run, or its resource name or id; see `Run.name` and `Event.run`.
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
        """Wait for the end of a run without following its events, and read its request cycle.

        Nothing is decided about its approvals: they stay open for other clients. `run` decides them, and returns the
        answer.

        Args:
            run: As for `cycle`.
            view: As for `cycles`.
            timeout: Seconds to wait; no limit if None. When they have passed, the cycle is returned as it is then,
                without an `end_time`.

        Raises:
            NotFound: The conversation has no such run, or was deleted meanwhile.
        """
        deadline = Deadline(timeout)
        while True:
            request = requests.wait_for_cycle(self.name, run, view, deadline.left())
            limit = requests.LONGEST_WAIT + self._transport.timeout
            response = self._transport.call(self._stub.WaitRequestCycle, request, limit)
            cycle = RequestCycle.from_proto(response.request_cycle)
            if cycle.end_time is not None or deadline.left() == 0:
                return cycle

    def queue(
        self, *, include_settled: bool = False, newest_first: bool = False, timeout: float | None = None
    ) -> Iterator[QueuedMessage]:
        """Iterate over the queued messages and, on request, over earlier ones and what became of them.

        Args:
            include_settled: Include those that are no longer queued; they come first.
            newest_first: Begin with the one that was accepted last.
            timeout: Time limit of each page in seconds; the client's if None.
        """
        request = v1.ListQueueRequest(parent=self.name, include_settled=include_settled, descending=newest_first)
        for page in self._transport.pages(self._stub.ListQueue, request, timeout):
            for message in page.messages:
                yield QueuedMessage.from_proto(message)

    def withdraw(self, message: Message | QueuedMessage | str, *, timeout: float | None = None) -> QueuedMessage:
        """Withdraw a queued message.

        Raises:
            UnknownOrDecided: It is no longer queued.
        """
        if isinstance(message, QueuedMessage):
            message = message.message
        name = message if isinstance(message, str) else message.name
        response = self._transport.call(self._stub.WithdrawMessage, v1.WithdrawMessageRequest(name=name), timeout)
        return QueuedMessage.from_proto(response.message)

    def cancel(
        self,
        *,
        run: str = "",
        discard_queued: bool = False,
        kill_jobs: bool = False,
        reason: str = "",
        timeout: float | None = None,
    ) -> CancelConversationResult:
        """Cancel the run in progress. Never refused; if there is nothing to cancel, the result has `no_op`.

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

    def approve(
        self,
        approval: Approval | str,
        *,
        rule: ApprovalRule | None = None,
        note: str = "",
        timeout: float | None = None,
    ) -> ConversationInfo:
        """Approve a tool call, or the change to a wider mode.

        Args:
            approval: The approval, its name, or the id of its tool call.
            rule: Allow later calls by this rule, one of `approval.suggestions`.
            note: A note for the record.
            timeout: Time limit of this call in seconds; the client's if None.

        Raises:
            NotAwaitingApproval, UnknownOrDecided: It was answered or withdrawn already.
        """
        request = requests.resolve(self.name, approval, "approve", note, rule)
        response = self._transport.call(self._stub.ResolveApproval, request, timeout)
        return ConversationInfo.from_proto(response.conversation)

    def deny(
        self,
        approval: Approval | str,
        note: str = "",
        *,
        rule: ApprovalRule | None = None,
        timeout: float | None = None,
    ) -> ConversationInfo:
        """Refuse a tool call; the agent reads the refusal and the note. Raises the same as `approve`.

        With a rule, one of `approval.suggestions`, later calls that it names are denied without a question.
        """
        request = requests.resolve(self.name, approval, "deny", note, rule)
        response = self._transport.call(self._stub.ResolveApproval, request, timeout)
        return ConversationInfo.from_proto(response.conversation)

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
    ) -> FunctionT | Callable[[FunctionT], FunctionT]:
        """Give the agent a function of this program as a tool, with ``@conversation.tool``.

        Its parameters, which need types, are the tool's input, and its docstring is what the model reads of it. What it
        returns is the result: a text, a value that becomes JSON, or a `ToolAnswer` with images. What it raises is an
        error that the agent reads. Runs that this object sends or waits for answer its calls, and so does
        `serve_tools`; a call waits until another client answers it, or its time is over. The tool is declared to the
        server with the next message that is sent, which is refused during a run if the conversation does not have it.

        Args:
            function: The function.
            name: The name for the model; the function's if None.
            description: What it does, for the model; the docstring if None.
            group: The kind of work: "read", "write", "search", "execute", … as of the server's own tools.
            timeout: How long a call waits for an answer; five minutes if None.
            read_only: Whether it changes nothing: in restricted mode only such tools are offered.
            requires_approval: Whether a person must approve every call.

        Raises:
            TypeError: A parameter has no type, or one that JSON has no counterpart for.
        """

        def add(wrapped: FunctionT) -> FunctionT:
            made = tool_function(
                fitting(wrapped),
                name=name,
                description=description,
                group=group,
                timeout=timeout,
                read_only=read_only,
                requires_approval=requires_approval,
            )
            self._tools.add(made)
            return wrapped

        return add if function is None else add(function)

    def serve_tools(self, *, timeout: float | None = None) -> None:
        """Answer calls of the functions that `tool` was given, in all runs, until the conversation is deleted.

        For a program that does not follow the runs itself, because others send the messages. Survives broken
        connections and restarts of the server.

        Args:
            timeout: Seconds after which DeadlineExceeded is raised; no limit if None.

        Raises:
            AgentBusy: The conversation does not have the tools yet, and a run is in progress.
            NotFound, DeadlineExceeded, Unavailable: As for `events`.
        """
        deadline = Deadline(timeout)
        self._tools.declare(deadline.shorten(self._transport.timeout))
        cursor = EventCursor(self.name, None, 1, omit_deltas=True)
        with Stream(follow(self._transport, cursor, deadline)) as events:
            for event in events:
                self._tools.answer(list(waiting_calls(event).values()), deadline)

    def submit_tool_result(
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
        """Answer a call of a client's tool, as ``client_tool_call_changed`` events report it; return the result.

        Any client may answer; the first answer counts. The same answer again is accepted.

        Args:
            call: The call or its id.
            output: The result as text.
            json: The result as a JSON object, instead of `output`.
            images: Images that belong to the result, as for `send`.
            error: Why the tool failed, instead of a result.
            request_id: The id to reuse if this call is repeated; generated if None.
            timeout: Time limit of this call in seconds; the client's if None.

        Raises:
            UnknownOrDecided: The call does not, or no longer, wait for an answer.
        """
        request = requests.tool_result(
            self.name, call, output, json=json, images=images, error=error, request_id=request_id
        )
        response = self._transport.call(self._stub.SubmitToolResult, request, timeout)
        return Message.from_proto(response.message)

    def answer_question(
        self,
        question: Question | str,
        content: Mapping[str, Any] | None = None,
        *,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Question:
        """Answer what a running tool asks a person, as ``question_changed`` events report it.

        Any client may answer; the first answer counts.

        Args:
            question: The question, its name or its id.
            content: A value for each field of its form that is filled in. For an address leave it out: to answer
                means to have visited it.
            request_id: The id to reuse if this call is repeated; generated if None.
            timeout: Time limit of this call in seconds; the client's if None.

        Raises:
            InvalidArgument: The content does not fit the form; the question still waits.
            UnknownOrDecided: It does not wait, or no longer; `metadata["cause"]` says why.
        """
        request = requests.answer_question(self.name, question, content, request_id)
        response = self._transport.call(self._stub.AnswerQuestion, request, timeout)
        return Question.from_proto(response.question)

    def tool_questions(self, *, timeout: float | None = None) -> Iterator[Question]:
        """Iterate over what the running tool asks a person, in the order of asking."""
        request = v1.ListQuestionsRequest(parent=self.name)
        for page in self._transport.pages(self._stub.ListQuestions, request, timeout):
            for asked in page.questions:
                yield Question.from_proto(asked)

    def tool_question(self, name: str, *, timeout: float | None = None) -> Question:
        """Read what a running tool asks a person, by the name or the id of the question.

        Raises NotFound, also if it does not wait any more.
        """
        request = v1.GetQuestionRequest(name=requests.child_name(self.name, "questions", name))
        response = self._transport.call(self._stub.GetQuestion, request, timeout)
        return Question.from_proto(response.question)

    def decline_question(
        self, question: Question | str, *, request_id: str | None = None, timeout: float | None = None
    ) -> Question:
        """Refuse to answer what a running tool asks; what becomes of the call is up to it. See `answer_question`."""
        request = requests.decline_question(self.name, question, request_id)
        response = self._transport.call(self._stub.AnswerQuestion, request, timeout)
        return Question.from_proto(response.question)

    def approval_rules(self, *, timeout: float | None = None) -> Iterator[ApprovalRule]:
        """Iterate over the rules that hold in this conversation: those of the operator, then its own."""
        request = v1.ListApprovalRulesRequest(parent=self.name)
        for page in self._transport.pages(self._stub.ListApprovalRules, request, timeout):
            for rule in page.approval_rules:
                yield ApprovalRule.from_proto(rule)

    def approval_rule(self, rule: ApprovalRule | str, *, timeout: float | None = None) -> ApprovalRule:
        """Read a rule: the rule, its name or its id; a rule of the operator by its name. Raises NotFound."""
        request = v1.GetApprovalRuleRequest(name=requests.approval_rule_name(self.name, rule))
        response = self._transport.call(self._stub.GetApprovalRule, request, timeout)
        return ApprovalRule.from_proto(response.approval_rule)

    def create_approval_rule(
        self,
        action: RuleAction,
        *,
        tool: str = "",
        command: str = "",
        command_prefix: str = "",
        path: str = "",
        mcp_server: str = "",
        timeout: float | None = None,
    ) -> ApprovalRule:
        """Make a rule about later tool calls, and return it as it is kept; it replaces one with the same subject.

        Args:
            action: "allow" runs them without a question, "ask" asks a person under every policy, "deny" never runs
                them and tells the agent why.
            tool: The name of a tool. Give exactly one of `tool` and the following ones.
            command: An exact shell command.
            command_prefix: The words that shell commands begin with, e.g. "git status".
            path: An absolute directory on the server, for what tools with a path read and write beneath it.
            mcp_server: The name of an MCP server.
            timeout: Time limit of this call in seconds; the client's if None.

        Raises:
            InvalidArgument: The rule cannot be kept; the error names the field, and says why.
            ValueError: Not exactly one subject is given.
        """
        request = requests.create_approval_rule(
            self.name,
            action,
            tool=tool,
            command=command,
            command_prefix=command_prefix,
            path=path,
            mcp_server=mcp_server,
        )
        response = self._transport.call(self._stub.CreateApprovalRule, request, timeout)
        return ApprovalRule.from_proto(response.approval_rule)

    def delete_approval_rule(self, rule: ApprovalRule | str, *, timeout: float | None = None) -> None:
        """Revoke a rule of this conversation: the rule, its name or its id. Raises NotFound."""
        request = v1.DeleteApprovalRuleRequest(name=requests.approval_rule_name(self.name, rule))
        self._transport.call(self._stub.DeleteApprovalRule, request, timeout)

    def set_mode(self, mode: Mode, *, stop_running: bool = False, timeout: float | None = None) -> SetModeResult:
        """Set what later tool calls may do: "restricted", "workspace" or "unrestricted".

        The result names what keeps running with wider rights than the mode: `surviving_tool_use_ids`, the running tool
        call, and `surviving_jobs`, background jobs. With `stop_running` they are ended instead; the run continues
        without the call.

        Raises:
            ModeUnavailable: The server cannot restrict tools on its machine.
        """
        request = v1.SetModeRequest(name=self.name, mode=enum_value(v1.Mode, mode), stop_running=stop_running)
        response = self._transport.call(self._stub.SetMode, request, timeout)
        return SetModeResult.from_proto(response)

    def update(
        self,
        *,
        slug: str | None = None,
        title: str | None = None,
        model: str | None = None,
        labels: Mapping[str, str] | None = None,
        approval_policy: ApprovalPolicy | None = None,
        follow_up_policy: FollowUpPolicy | None = None,
        budget: Budget | None = None,
        client_tools: Sequence[ClientTool] | None = None,
        generation: Generation | None = None,
        merge_generation: bool = False,
        mcp_servers: Sequence[McpServer] | None = None,
        etag: str = "",
        timeout: float | None = None,
    ) -> ConversationInfo:
        """Change the given settings; None leaves a setting unchanged.

        `generation` replaces what was set about answers; with `merge_generation` what it leaves out stays.

        Raises:
            Aborted: The `etag` is given and outdated.
            AgentBusy: The model, the tools of clients and the MCP servers cannot be changed during a run.
            GenerationUnsupported: The model cannot do what `generation` asks for.
        """
        request = requests.update(
            self.name,
            slug=slug,
            title=title,
            model=model,
            labels=labels,
            approval_policy=approval_policy,
            follow_up_policy=follow_up_policy,
            budget=budget,
            client_tools=client_tools,
            generation=generation,
            merge_generation=merge_generation,
            mcp_servers=mcp_servers,
            etag=etag,
        )
        response = self._transport.call(self._stub.UpdateConversation, request, timeout)
        return ConversationInfo.from_proto(response.conversation)

    def archive(self, *, timeout: float | None = None) -> ConversationInfo:
        """Take the conversation off the list of active ones."""
        request = v1.ArchiveConversationRequest(name=self.name)
        response = self._transport.call(self._stub.ArchiveConversation, request, timeout)
        return ConversationInfo.from_proto(response.conversation)

    def unarchive(self, *, timeout: float | None = None) -> ConversationInfo:
        """Put the conversation back on the list of active ones."""
        request = v1.UnarchiveConversationRequest(name=self.name)
        response = self._transport.call(self._stub.UnarchiveConversation, request, timeout)
        return ConversationInfo.from_proto(response.conversation)

    def delete(
        self, *, force: bool = False, missing_ok: bool = False, etag: str = "", timeout: float | None = None
    ) -> list[str]:
        """Delete the conversation and everything that belongs to it, and return warnings, usually none.

        Args:
            force: Cancel a run in progress first.
            missing_ok: Succeed if it does not exist.
            etag: Delete only if the conversation has this `etag`; whatever it has if empty.
            timeout: Time limit of this call in seconds; the client's if None.

        Raises:
            Aborted: The `etag` is given and outdated.
        """
        request = v1.DeleteConversationRequest(name=self.name, force=force, allow_missing=missing_ok, etag=etag)
        response = self._transport.call(self._stub.DeleteConversation, request, timeout)
        return list(response.warnings)

    def trigger_continuation(self, *, timeout: float | None = None) -> ConversationInfo:
        """Start writing the summary for a successor conversation, as if the context were full."""
        request = v1.TriggerContinuationRequest(name=self.name)
        response = self._transport.call(self._stub.TriggerContinuation, request, timeout)
        return ConversationInfo.from_proto(response.conversation)

    def continue_(
        self, *, include_summary: bool = True, request_id: str | None = None, timeout: float | None = None
    ) -> Conversation:
        """Return the successor of a conversation whose context is used up; the first call creates it."""
        request = v1.ContinueConversationRequest(
            name=self.name, include_summary=include_summary, request_id=request_id or requests.new_request_id()
        )
        response = self._transport.call(self._stub.ContinueConversation, request, timeout)
        return Conversation(self._transport, response.conversation.name)

    def fork(
        self,
        at: RequestCycle | str = "",
        *,
        slug: str = "",
        title: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Conversation:
        """Create a conversation with the history of this one up to the end of a request cycle.

        It has the same settings and goes on from there by itself. Files stay as they are now. What waits in the queue,
        open questions and background jobs are not taken over.

        Args:
            at: The last request cycle of the fork, or its name or id; the last one that has ended if empty.
            slug: Its slug; generated if empty.
            title: Its title; that of this conversation if empty.
            request_id: The id to reuse if this call is repeated; generated if None.
            timeout: Time limit of this call in seconds; the client's if None.

        Raises:
            CycleRunning: That cycle has not ended.
            NotForkable: No cycle has ended, or the context was full or used up by then.
            SubAgent: This conversation belongs to a sub-agent.
            InvalidArgument: There is no such cycle.
        """
        request = v1.ForkConversationRequest(
            name=self.name,
            request_cycle=requests.cycle_name(self.name, at),
            slug=slug,
            title=title,
            request_id=request_id or requests.new_request_id(),
        )
        response = self._transport.call(self._stub.ForkConversation, request, timeout)
        return Conversation(self._transport, response.conversation.name)

    def rewind(self, cycles: int = 1, *, slug: str = "", title: str = "", timeout: float | None = None) -> Conversation:
        """Create a fork without the last `cycles` request cycles, the one in progress included.

        This conversation and its files stay as they are. The arguments and the errors raised are those of `fork`.

        Raises:
            NotForkable: There would be no cycle left.
        """
        found = 0
        for cycle in self.cycles(newest_first=True, timeout=timeout):
            if found == cycles:
                return self.fork(cycle, slug=slug, title=title, timeout=timeout)
            found += 1
        text = f"nothing would be left: the conversation has only {found} request cycle{'' if found == 1 else 's'}"
        raise NotForkable(text, reason="NOT_FORKABLE")

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
            tasks: One to ten, each just its text or a `Task` with limits of its own.
            on_approval: As for `send`.
            on_question: As for `send`.
            wait_for_others: As for `send`.
            request_id: As for `send`.
            timeout: As for `send`.

        Raises:
            AgentBusy, Cancelling, Archived, …: The state does not allow it.
            SubAgent: This conversation belongs to a sub-agent, and those have none themselves.
            InvalidArgument: A task is not acceptable; no sub-agent was started. Also ModelUnavailable and
                WorkingDirectoryInvalid.
        """
        request = requests.spawn(self.name, tasks, request_id)
        sending = self._transport.call(self._stub.SpawnSubAgents, request, timeout)
        policy = QuestionPolicy(decider(on_approval), on_question, wait_for_others)
        return Run(self._transport, self.name, sending, policy, self._tools)

    def sub_agents(self, *, timeout: float | None = None) -> Iterator[ConversationInfo]:
        """Iterate over the conversations of the sub-agents, the latest changed first."""
        request = requests.conversations(archived=None, parent=self.name)
        for page in self._transport.pages(self._stub.ListConversations, request, timeout):
            for conversation in page.conversations:
                yield ConversationInfo.from_proto(conversation)

    def verify(self, *, timeout: float | None = None) -> list[str]:
        """Check the stored conversation and return its defects, one sentence each; usually none."""
        request = v1.VerifyConversationRequest(name=self.name)
        response = self._transport.call(self._stub.VerifyConversation, request, timeout)
        return list(response.violations)

    def replay(self, until_revision: int = 0, *, timeout: float | None = None) -> Stream[ReplayStep]:
        """Replay the log through the state machine; each step has its difference from the stored one."""
        request = v1.ReplayConversationRequest(name=self.name, until_revision=until_revision)
        steps = self._transport.stream(self._stub.ReplayConversation, request, timeout)
        return steps.map(ReplayStep.from_proto)

    def export(self, *, timeout: float | None = None) -> Iterator[str]:
        """Iterate over the conversation, its messages and its events as lines of JSON."""
        request = v1.ExportConversationRequest(name=self.name)
        for piece in self._transport.stream(self._stub.ExportConversation, request, timeout):
            yield piece.line

    def attachment_info(self, name: str, *, timeout: float | None = None) -> Attachment:
        """Return the format and the size of an image by the name that a message holds. Raises NotFound."""
        request = v1.GetAttachmentRequest(name=name)
        response = self._transport.call(self._stub.GetAttachment, request, timeout)
        return Attachment.from_proto(response.attachment)

    def attachment(self, name: str, *, timeout: float | None = None) -> bytes:
        """Read the bytes of an image by the name that a message holds, as they were sent."""
        request = v1.DownloadAttachmentRequest(name=name)
        pieces = self._transport.stream(self._stub.DownloadAttachment, request, timeout)
        return b"".join([piece.data for piece in pieces])
