"""`AsyncConversation`: one conversation on the server, as an object whose methods call the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from bedrock import v1
from bedrock._async.conversation_runs import AsyncConversationBase, AsyncConversationRuns, AsyncConversationTools
from bedrock._shared import requests
from bedrock._shared.deadline import Deadline
from bedrock._shared.wrapper import enum_value
from bedrock.catalog import McpServer
from bedrock.conversations import (
    Budget,
    ClientTool,
    ConversationInfo,
    Generation,
    ReplayStep,
    SetModeResult,
    Transition,
)
from bedrock.errors import NotForkable
from bedrock.messages import Attachment, Message, QueuedMessage
from bedrock.request_cycles import RequestCycle
from bedrock.states import Approval, ApprovalRule, Question
from bedrock.streams import AsyncStream
from bedrock.types import ApprovalPolicy, CycleView, FollowUpPolicy, Mode, RuleAction


class AsyncConversationRecords(AsyncConversationBase):
    """The methods that read what the server has stored about a conversation."""

    def messages(
        self, *, after_sequence: int = 0, newest_first: bool = False, timeout: float | None = None
    ) -> AsyncIterator[Message]:
        """Iterate over the stored messages whose `sequence` is greater than `after_sequence`.

        The oldest message comes first, or the newest with `newest_first`. `timeout` is the time limit for each page in
        seconds.
        """
        request = v1.ListMessagesRequest(parent=self.name, after_sequence=after_sequence, descending=newest_first)
        return self._transport.items(self._stub.ListMessages, request, "messages", Message, timeout)

    async def message(self, name: str, *, timeout: float | None = None) -> Message:
        """A message by its resource name or id, even if it still waits in the queue.

        Raises NotFound if the message does not exist.
        """
        request = v1.GetMessageRequest(name=requests.child_name(self.name, "messages", name))
        return Message.from_proto((await self._call(self._stub.GetMessage, request, timeout)).message)

    def queue(
        self, *, include_settled: bool = False, newest_first: bool = False, timeout: float | None = None
    ) -> AsyncIterator[QueuedMessage]:
        """Iterate over the queued messages and, with `include_settled`, over those that have left the queue.

        Args:
            include_settled: Include messages that are no longer queued, and what became of each.
            newest_first: Begin with the message that was accepted last.
            timeout: Time limit for each page in seconds; the client's if None.
        """
        request = v1.ListQueueRequest(parent=self.name, include_settled=include_settled, descending=newest_first)
        return self._transport.items(self._stub.ListQueue, request, "messages", QueuedMessage, timeout)

    def cycles(
        self, *, view: CycleView = "steps", newest_first: bool = False, timeout: float | None = None
    ) -> AsyncIterator[RequestCycle]:
        """Iterate over the request cycles. A cycle is a message that started a run, and everything done for it.

        Args:
            view: "steps" (made for users), "rounds" (the requests to the model), "full" (both), or "events" (the events
                of the log from which both are computed).
            newest_first: Begin with the latest cycle.
            timeout: Time limit for each page in seconds; the client's if None.
        """
        request = v1.ListRequestCyclesRequest(
            parent=self.name, view=enum_value(v1.ListRequestCyclesRequest.View, view), descending=newest_first
        )
        return self._transport.items(self._stub.ListRequestCycles, request, "request_cycles", RequestCycle, timeout)

    async def cycle(
        self, run: RequestCycle | str, *, view: CycleView = "steps", timeout: float | None = None
    ) -> RequestCycle:
        """One request cycle.

        Args:
            run: The request cycle, or the resource name or id of the run; see `AsyncRun.name` and `Event.run`.
            view: As for `cycles`.
            timeout: Time limit for this call in seconds; the client's if None.

        Raises:
            NotFound: The run does not exist.
        """
        request = v1.GetRequestCycleRequest(
            name=requests.cycle_name(self.name, run), view=enum_value(v1.ListRequestCyclesRequest.View, view)
        )
        return RequestCycle.from_proto((await self._call(self._stub.GetRequestCycle, request, timeout)).request_cycle)

    async def wait_for_cycle(
        self, run: RequestCycle | str, *, view: CycleView = "steps", timeout: float | None = None
    ) -> RequestCycle:
        """Wait for the end of a run without following its events, and return its request cycle.

        This method answers no approvals: they stay open for other clients. `AsyncConversation.run` also waits, but
        decides approvals, and returns the answer.

        Args:
            run: As for `cycle`.
            view: As for `cycles`.
            timeout: Seconds to wait; no limit if None. After that, the cycle is returned as it is, without an
                `end_time`.

        Raises:
            NotFound: The run does not exist, or the conversation was deleted during the wait.
        """
        deadline = Deadline(timeout)
        while True:
            request = requests.wait_for_cycle(self.name, run, view, deadline.left())
            limit = requests.LONGEST_WAIT + self._transport.timeout
            response = await self._call(self._stub.WaitRequestCycle, request, limit)
            cycle = RequestCycle.from_proto(response.request_cycle)
            if cycle.end_time is not None or deadline.left() == 0:
                return cycle

    def sub_agents(self, *, timeout: float | None = None) -> AsyncIterator[ConversationInfo]:
        """Iterate over the conversations of the sub-agents. The one that changed last comes first."""
        request = requests.conversations(archived=None, parent=self.name)
        return self._transport.items(self._stub.ListConversations, request, "conversations", ConversationInfo, timeout)

    async def verify(self, *, timeout: float | None = None) -> list[str]:
        """Have the server check the conversation for damage, such as lost or altered rows or a broken hash chain.

        Nothing is repaired or changed. Returns a sentence for each defect; an empty list if there is none.
        """
        request = v1.VerifyConversationRequest(name=self.name)
        return list((await self._call(self._stub.VerifyConversation, request, timeout)).violations)

    def replay(self, until_revision: int = 0, *, timeout: float | None = None) -> AsyncStream[ReplayStep]:
        """Have the server replay the log through its state machine, up to `until_revision` (0: to the end).

        The stream yields one item for each step of the log, with the difference between the replayed and the stored
        result.
        """
        request = v1.ReplayConversationRequest(name=self.name, until_revision=until_revision)
        steps = self._transport.stream(self._stub.ReplayConversation, request, timeout)
        return steps.map(ReplayStep.from_proto)

    def transitions(
        self, *, after_step: int = 0, newest_first: bool = False, timeout: float | None = None
    ) -> AsyncIterator[Transition]:
        """Iterate over the log: each step with its event, what it changed, and its digest.

        Args:
            after_step: Begin after this step. Steps that were pruned are left out.
            newest_first: Begin with the last step.
            timeout: Time limit for each page in seconds; the client's if None.
        """
        request = v1.ListTransitionsRequest(parent=self.name, after_step=after_step, descending=newest_first)
        return self._transport.items(self._stub.ListTransitions, request, "transitions", Transition, timeout)

    async def export(self, *, timeout: float | None = None) -> AsyncIterator[str]:
        """Iterate over the lines of an export: JSON objects for the conversation, its messages and its events."""
        request = v1.ExportConversationRequest(name=self.name)
        async for piece in self._transport.stream(self._stub.ExportConversation, request, timeout):
            yield piece.line

    async def attachment_info(self, name: str, *, timeout: float | None = None) -> Attachment:
        """An image's format, width, height and size in bytes. `name` is the `attachment` of an image in a message.

        Raises NotFound if the image does not exist.
        """
        request = v1.GetAttachmentRequest(name=name)
        return Attachment.from_proto((await self._call(self._stub.GetAttachment, request, timeout)).attachment)

    async def attachment(self, name: str, *, timeout: float | None = None) -> bytes:
        """The bytes of an image, as they were sent. `name` is the `attachment` of an image in a message.

        Raises NotFound if the image does not exist.
        """
        request = v1.DownloadAttachmentRequest(name=name)
        pieces = self._transport.stream(self._stub.DownloadAttachment, request, timeout)
        return b"".join([piece.data async for piece in pieces])


class AsyncConversationDecisions(AsyncConversationBase):
    """The methods for answering approvals and questions, and for managing approval rules."""

    def approvals(self, *, timeout: float | None = None) -> AsyncIterator[Approval]:
        """Iterate over the open approvals, in the order in which the model asked for the tool calls."""
        request = v1.ListApprovalsRequest(parent=self.name)
        return self._transport.items(self._stub.ListApprovals, request, "approvals", Approval, timeout)

    async def approval(self, name: str, *, timeout: float | None = None) -> Approval:
        """An open approval by its resource name or by the id of its tool call.

        Raises:
            NotFound: The approval does not exist, or it was answered or withdrawn.
        """
        request = v1.GetApprovalRequest(name=requests.child_name(self.name, "approvals", name))
        return Approval.from_proto((await self._call(self._stub.GetApproval, request, timeout)).approval)

    async def approve(
        self,
        approval: Approval | str,
        *,
        rule: ApprovalRule | None = None,
        note: str = "",
        timeout: float | None = None,
    ) -> ConversationInfo:
        """Approve a tool call, or the change to a wider mode that the agent has asked for.

        Args:
            approval: The approval, its name, or the id of its tool call.
            rule: One of `approval.suggestions`: later calls that match this rule are allowed without asking.
            note: A note for the record.
            timeout: Time limit for this call in seconds; the client's if None.

        Raises:
            NotAwaitingApproval, UnknownOrDecided: The approval has already been answered or withdrawn.
        """
        request = requests.resolve(self.name, approval, "approve", note, rule)
        return await self._info(self._stub.ResolveApproval, request, timeout)

    async def deny(
        self,
        approval: Approval | str,
        note: str = "",
        *,
        rule: ApprovalRule | None = None,
        timeout: float | None = None,
    ) -> ConversationInfo:
        """Refuse a tool call, or a requested change to a wider mode; the agent reads the refusal and the note.

        If `rule` is given, one of `approval.suggestions`, later calls that match it are denied without asking. Raises
        the same errors as `approve`.
        """
        request = requests.resolve(self.name, approval, "deny", note, rule)
        return await self._info(self._stub.ResolveApproval, request, timeout)

    def approval_rules(self, *, timeout: float | None = None) -> AsyncIterator[ApprovalRule]:
        """Iterate over the approval rules that apply to this conversation: first the operator's, then its own."""
        request = v1.ListApprovalRulesRequest(parent=self.name)
        return self._transport.items(self._stub.ListApprovalRules, request, "approval_rules", ApprovalRule, timeout)

    async def approval_rule(self, rule: ApprovalRule | str, *, timeout: float | None = None) -> ApprovalRule:
        """An approval rule. `rule` is the rule, its name or, for a rule of this conversation, its id.

        Raises NotFound if the rule does not exist.
        """
        request = v1.GetApprovalRuleRequest(name=requests.approval_rule_name(self.name, rule))
        return ApprovalRule.from_proto((await self._call(self._stub.GetApprovalRule, request, timeout)).approval_rule)

    async def create_approval_rule(
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
        """Create a rule about later tool calls and return it. It replaces any older rule about the same subject.

        Args:
            action: "allow" runs matching calls without asking, "ask" asks a user regardless of the approval policy, and
                "deny" never runs them and tells the agent why.
            tool: The name of a tool. Give exactly one of `tool`, `command`, `command_prefix`, `path`, `mcp_server`.
            command: An exact shell command.
            command_prefix: The words that shell commands begin with, e.g. "git status".
            path: An absolute directory on the server: tool calls with a path in or beneath it match.
            mcp_server: The name of an MCP server.
            timeout: Time limit for this call in seconds; the client's if None.

        Raises:
            InvalidArgument: The server does not accept the rule; the error contains the field and the reason.
            ValueError: None, or more than one, of `tool`, `command`, `command_prefix`, `path`, `mcp_server` is given.
        """
        request = requests.create_approval_rule(
            self.name, action, tool=tool, command=command, command_prefix=command_prefix, path=path,
            mcp_server=mcp_server,
        )  # fmt: skip
        return ApprovalRule.from_proto(
            (await self._call(self._stub.CreateApprovalRule, request, timeout)).approval_rule
        )

    async def delete_approval_rule(self, rule: ApprovalRule | str, *, timeout: float | None = None) -> None:
        """Delete an approval rule of this conversation. `rule` is the rule, its name or its id.

        Raises NotFound if the rule does not exist.
        """
        request = v1.DeleteApprovalRuleRequest(name=requests.approval_rule_name(self.name, rule))
        await self._call(self._stub.DeleteApprovalRule, request, timeout)

    def tool_questions(self, *, timeout: float | None = None) -> AsyncIterator[Question]:
        """Iterate over the open questions of the running tool, oldest first."""
        request = v1.ListQuestionsRequest(parent=self.name)
        return self._transport.items(self._stub.ListQuestions, request, "questions", Question, timeout)

    async def tool_question(self, name: str, *, timeout: float | None = None) -> Question:
        """A tool's open question. `name` is its resource name or its id.

        Raises NotFound if the question does not exist, or if it no longer waits for an answer.
        """
        request = v1.GetQuestionRequest(name=requests.child_name(self.name, "questions", name))
        return Question.from_proto((await self._call(self._stub.GetQuestion, request, timeout)).question)

    async def answer_question(
        self,
        question: Question | str,
        content: Mapping[str, Any] | None = None,
        *,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Question:
        """Answer a question that a running tool has asked. Events of kind ``question_changed`` report questions.

        Any client may answer; the first answer counts.

        Args:
            question: The question, its name or its id.
            content: The values of the form's fields that are filled in. None if the question is a URL to visit: the
                answer then says that the user has visited it.
            request_id: The id to reuse if this call is repeated; generated if None.
            timeout: Time limit for this call in seconds; the client's if None.

        Raises:
            InvalidArgument: The content does not fit the form; the question stays open.
            UnknownOrDecided: The question no longer waits for an answer, or never did; `metadata["cause"]` says why.
        """
        request = requests.answer_question(self.name, question, content, request_id)
        return Question.from_proto((await self._call(self._stub.AnswerQuestion, request, timeout)).question)

    async def decline_question(
        self, question: Question | str, *, request_id: str | None = None, timeout: float | None = None
    ) -> Question:
        """Refuse to answer a tool's question. The tool decides how its call continues.

        Raises the same errors as `answer_question`.
        """
        request = requests.decline_question(self.name, question, request_id)
        return Question.from_proto((await self._call(self._stub.AnswerQuestion, request, timeout)).question)


__all__ = ["AsyncConversation"]


class AsyncConversation(
    AsyncConversationRuns, AsyncConversationRecords, AsyncConversationDecisions, AsyncConversationTools
):
    """One conversation. The object holds the conversation's name and the functions of its tools, and caches nothing.

    Most methods call the server. `timeout` is the number of seconds after which a call raises DeadlineExceeded; if
    None, the client's time limit applies. Iterators apply `timeout` to each page. Streams apply it to the whole stream,
    and have no time limit if it is None.
    """

    async def set_mode(self, mode: Mode, *, stop_running: bool = False, timeout: float | None = None) -> SetModeResult:
        """Set what later tool calls may do: "restricted", "workspace" or "unrestricted".

        A tool call, background jobs and MCP servers' programs that already run with wider rights keep running. The
        result lists them in `surviving_tool_use_ids`, `surviving_jobs` and `surviving_mcp_servers`. With
        `stop_running`, all of these are ended instead, and the run continues without the call.

        Raises:
            ModeUnavailable: The server cannot enforce this mode, or a setting disables it.
        """
        request = v1.SetModeRequest(name=self.name, mode=enum_value(v1.Mode, mode), stop_running=stop_running)
        return SetModeResult.from_proto(await self._call(self._stub.SetMode, request, timeout))

    async def update(
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
        allow_unoffered: bool = False,
        generation: Generation | None = None,
        merge_generation: bool = False,
        mcp_servers: Sequence[McpServer] | None = None,
        auto_continue: bool | None = None,
        etag: str = "",
        timeout: float | None = None,
    ) -> ConversationInfo:
        """Change the given settings; None leaves a setting unchanged. Return the changed conversation.

        `generation` replaces all earlier generation settings; with `merge_generation`, settings that it does not
        mention are kept. `allow_unoffered` permits `client_tools` that the conversation's mode does not offer to the
        agent; the result's `unoffered_tools` lists them.

        Raises:
            Aborted: The `etag` is given and outdated.
            ToolNotOffered: The mode does not offer one of `client_tools`; nothing was changed.
            AgentBusy: A run is in progress, during which the model, client tools and MCP servers cannot be changed.
            GenerationUnsupported: The model cannot do what `generation` asks for.
        """
        request = requests.update(
            self.name, slug=slug, title=title, model=model, labels=labels, approval_policy=approval_policy,
            follow_up_policy=follow_up_policy, budget=budget, client_tools=client_tools,
            allow_unoffered=allow_unoffered, generation=generation, merge_generation=merge_generation,
            mcp_servers=mcp_servers, auto_continue=auto_continue, etag=etag,
        )  # fmt: skip
        return await self._info(self._stub.UpdateConversation, request, timeout)

    async def archive(self, *, timeout: float | None = None) -> ConversationInfo:
        """Archive the conversation, so that the list of active conversations omits it."""
        request = v1.ArchiveConversationRequest(name=self.name)
        return await self._info(self._stub.ArchiveConversation, request, timeout)

    async def unarchive(self, *, timeout: float | None = None) -> ConversationInfo:
        """Undo `archive`: put the conversation back on the list of active ones."""
        request = v1.UnarchiveConversationRequest(name=self.name)
        return await self._info(self._stub.UnarchiveConversation, request, timeout)

    async def delete(
        self, *, force: bool = False, missing_ok: bool = False, etag: str = "", timeout: float | None = None
    ) -> list[str]:
        """Delete the conversation and everything that belongs to it, and return warnings, usually none.

        Args:
            force: Cancel a run in progress first.
            missing_ok: Succeed if the conversation does not exist.
            etag: Delete only if the conversation has this `etag`; unconditionally if empty.
            timeout: Time limit for this call in seconds; the client's if None.

        Raises:
            Aborted: The `etag` is given and outdated.
            AgentBusy: A run is in progress, and `force` is False.
            NotFound: The conversation does not exist, and `missing_ok` is False.
        """
        request = v1.DeleteConversationRequest(name=self.name, force=force, allow_missing=missing_ok, etag=etag)
        return list((await self._call(self._stub.DeleteConversation, request, timeout)).warnings)

    async def trigger_continuation(self, *, timeout: float | None = None) -> ConversationInfo:
        """Have the server write a summary for a successor conversation, which `continue_` then returns.

        The call does not wait for the summary. If none is written, the conversation gets a message with the role
        "error" that says why, and stays as it was, unless its context is full.
        """
        request = v1.TriggerContinuationRequest(name=self.name)
        return await self._info(self._stub.TriggerContinuation, request, timeout)

    async def continue_(
        self, *, include_summary: bool = True, request_id: str | None = None, timeout: float | None = None
    ) -> AsyncConversation:
        """The successor of a conversation whose context is used up. The first call creates the successor.

        With `include_summary` the successor begins with the summary of this conversation. Raises NotExhausted if the
        context is not used up.
        """
        request = v1.ContinueConversationRequest(
            name=self.name, include_summary=include_summary, request_id=request_id or requests.new_request_id()
        )
        response = await self._call(self._stub.ContinueConversation, request, timeout)
        return AsyncConversation(self._transport, response.conversation.name)

    async def fork(
        self,
        at: RequestCycle | str = "",
        *,
        slug: str = "",
        title: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> AsyncConversation:
        """Create a conversation with the history of this one up to the end of a request cycle.

        A request cycle is a message that started a run, and everything done for it. The new conversation has the same
        settings, and is independent of this one. Files stay as they are now. Queued messages, open questions and
        background jobs are not copied.

        Args:
            at: The last request cycle to copy: the object, its name or its id. If empty, the last cycle that has ended.
            slug: The slug of the fork; generated if empty.
            title: The title of the fork; this conversation's title if empty.
            request_id: The id to reuse if this call is repeated; generated if None.
            timeout: Time limit for this call in seconds; the client's if None.

        Raises:
            CycleRunning: The cycle that `at` names has not ended.
            NotForkable: No cycle has ended, or the context was full or used up at the end of that cycle.
            SubAgent: This conversation belongs to a sub-agent.
            InvalidArgument: The cycle does not exist.
        """
        request = v1.ForkConversationRequest(
            name=self.name, request_cycle=requests.cycle_name(self.name, at), slug=slug, title=title,
            request_id=request_id or requests.new_request_id(),
        )  # fmt: skip
        response = await self._call(self._stub.ForkConversation, request, timeout)
        return AsyncConversation(self._transport, response.conversation.name)

    async def rewind(
        self, cycles: int = 1, *, slug: str = "", title: str = "", timeout: float | None = None
    ) -> AsyncConversation:
        """Create a fork without the last `cycles` request cycles, counting one that is still in progress.

        This conversation and its files stay as they are. The arguments and the errors raised are those of `fork`.

        Raises:
            NotForkable: The fork would have no request cycle.
        """
        found = 0
        async for cycle in self.cycles(newest_first=True, timeout=timeout):
            if found == cycles:
                return await self.fork(cycle, slug=slug, title=title, timeout=timeout)
            found += 1
        text = f"nothing would be left: the conversation has only {found} request cycle{'' if found == 1 else 's'}"
        raise NotForkable(text, reason="NOT_FORKABLE")
