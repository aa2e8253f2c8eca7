"""Streams the events of a conversation, or of one of its runs, and reconnects when a stream breaks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

from bedrock import v1
from bedrock._async.client_tools import AsyncClientTools
from bedrock._async.retries import insist, pause
from bedrock._async.sending import decided, filled_in
from bedrock._async.transport import AsyncTransport
from bedrock._shared import requests, run_progress
from bedrock._shared.cursor import EventCursor
from bedrock._shared.deadline import Deadline
from bedrock._shared.reconnection import Reconnection
from bedrock._shared.run_progress import QuestionPolicy, RunProgress
from bedrock.answers import ANSWERED, AsyncDecide, AsyncOnQuestion
from bedrock.errors import BedrockError, InvalidArgument, NotFound, Unavailable
from bedrock.events import Event, Snapshot
from bedrock.request_cycles import RequestCycle
from bedrock.states import Approval, Question
from bedrock.streams import AsyncStream
from bedrock.types import ApprovalDecision


class AsyncRunWatch:
    """Follows one run to its end. Decides approvals, and answers tools' questions and client tool calls."""

    def __init__(
        self,
        transport: AsyncTransport,
        cursor: EventCursor,
        progress: RunProgress,
        policy: QuestionPolicy[AsyncDecide, AsyncOnQuestion],
        deadline: Deadline,
        *,
        tools: AsyncClientTools | None = None,
    ) -> None:
        """Prepare to follow a run from the cursor's position.

        `progress` is the known state of the run. `tools` answers client tool calls; it is None if this program has no
        tools. At the deadline, DeadlineExceeded is raised.
        """
        self._transport = transport
        self._cursor = cursor
        self._progress = progress
        self._policy = policy
        self._deadline = deadline
        self._tools = tools

    async def events(self) -> AsyncGenerator[Event]:
        """Yield events until the run ends; answer open approvals, questions and calls before the next event.

        Raises ApprovalNeeded (an earlier run waits for an approval), DeadlineExceeded (the run continues; another
        `AsyncRunWatch` can resume at this cursor) or NotFound.
        """
        resuming = self._cursor.revision is not None
        await self._settle()
        async with AsyncStream(follow(self._transport, self._cursor, self._deadline, resuming=resuming)) as events:
            async for event in events:
                if event.snapshot:
                    await self._look_up(event.snapshot)
                self._progress.observe(event)
                yield event
                if event.snapshot:
                    for question in self._progress.unasked(event.snapshot):
                        yield question
                if self._progress.stop:
                    return
                await self._settle()

    async def _look_up(self, snapshot: Snapshot) -> None:
        """Read how the run ended from its request cycle, because its events are not available. Raises NotFound."""
        self._progress.observe_gap(snapshot)
        recent = bool(self._progress.message) or snapshot.conversation.state.run == self._progress.run
        request = requests.latest_cycles(self._cursor.name)
        async for page in self._transport.pages(self._transport.conversations.ListRequestCycles, request):
            if self._progress.find(map(RequestCycle.from_proto, page.request_cycles)):
                return
            if recent:
                break
        if not recent:
            raise NotFound(f"{self._cursor.name} has no run named {self._progress.run}", reason="NOT_FOUND")
        self._progress.lost(snapshot)

    async def _settle(self) -> None:
        """Answer open client tool calls, and approvals and questions unless they are left to others."""
        if self._tools is not None:
            await self._tools.answer(self._progress.waiting_calls(), self._deadline)
        if self._policy.wait_for_others:
            return
        for approval in self._progress.questions():
            if await self._waits(approval):
                await self._answer(approval)
            self._progress.settled(approval)
        for question in self._progress.tool_questions():
            if await self._is_asked(question):
                await self._fill_in(question)
            self._progress.settled(question)

    async def _answer(self, approval: Approval) -> None:
        """Decide an approval by the policy, which denies by default.

        Raises ApprovalNeeded if an earlier run needs it.
        """
        if not self._progress.run:
            raise run_progress.question_of_others(approval)
        if self._policy.decide is None:
            await self._resolve(approval, "deny", run_progress.DENIED_NOTE)
            run_progress.log_denied(approval)
        else:
            approved = await decided(self._policy.decide(approval))
            await self._resolve(approval, "approve" if approved else "deny", "")

    async def _resolve(self, approval: Approval, decision: ApprovalDecision, note: str) -> None:
        request = requests.resolve(self._cursor.name, approval, decision, note)
        with suppress(*ANSWERED, NotFound):  # another client answered, or the conversation was deleted
            await self._insist(self._transport.conversations.ResolveApproval, request)

    async def _fill_in(self, question: Question) -> None:
        """Answer a tool's question by the policy, which declines by default.

        If the answer does not fit the form, declines the question and raises InvalidArgument.
        """
        content = None
        if self._policy.fill_in is None:
            run_progress.log_declined(question)
        else:
            content = await filled_in(self._policy.fill_in(question))
        if content is None:
            await self._reply(requests.decline_question(self._cursor.name, question, None))
            return
        try:
            filled = None if question.url else content
            await self._reply(requests.answer_question(self._cursor.name, question, filled, None))
        except InvalidArgument:
            await self._reply(requests.decline_question(self._cursor.name, question, None))
            raise

    async def _reply(self, request: v1.AnswerQuestionRequest) -> None:
        with suppress(*ANSWERED, NotFound):  # another client answered, or the conversation was deleted
            await self._insist(self._transport.conversations.AnswerQuestion, request)

    async def _is_asked(self, question: Question) -> bool:
        try:
            await self._insist(self._transport.conversations.GetQuestion, v1.GetQuestionRequest(name=question.name))
        except NotFound:
            return False
        return True

    async def _waits(self, approval: Approval) -> bool:
        """Whether an approval is still open: the answer to another approval may have decided it, too."""
        request = v1.GetConversationRequest(name=self._cursor.name)
        try:
            response = await self._insist(self._transport.conversations.GetConversation, request)
        except NotFound:  # the conversation was deleted; the next event reports that
            return False
        return any(each.name == approval.name for each in response.conversation.state.awaiting_approval.pending)

    async def _insist(self, method: Callable[..., Any], request: Any) -> Any:
        return await insist(self._transport, method, request, self._deadline)


async def follow(
    transport: AsyncTransport, cursor: EventCursor, deadline: Deadline, *, resuming: bool = False
) -> AsyncGenerator[Event]:
    """Yield the events after the cursor's position, and open another stream whenever one breaks.

    `resuming` means that the server was reached before: even a failure of the first stream is then retried.
    """
    reconnection = Reconnection(cursor, transport.reconnect_for, resuming=resuming)
    while True:
        while cursor.due:  # the cursor's previous reader may have left events unread
            yield cursor.due.popleft()
        try:
            request = cursor.request()
            async with transport.stream(transport.conversations.Subscribe, request, deadline.left()) as responses:
                async for response in responses:
                    reconnection.receive(response)
                    while cursor.due:
                        yield cursor.due.popleft()
            if cursor.finished:
                return
            error: BedrockError = Unavailable("the server ended the stream")
        except BedrockError as failure:
            error = failure
        if delay := reconnection.delay_after(error):
            await pause(transport, error, deadline.shorten(delay))
