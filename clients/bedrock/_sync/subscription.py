# Generated from clients/bedrock/_async/subscription.py by `make client-sync`; edit that file.
"""Streams the events of a conversation, or of one of its runs, and reconnects when a stream breaks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from bedrock import v1
from bedrock._shared import requests, run_progress
from bedrock._shared.cursor import EventCursor
from bedrock._shared.deadline import Deadline
from bedrock._shared.reconnection import Reconnection
from bedrock._shared.run_progress import QuestionPolicy, RunProgress
from bedrock._sync.client_tools import ClientTools
from bedrock._sync.retries import insist, pause
from bedrock._sync.sending import decided, filled_in
from bedrock._sync.transport import Transport
from bedrock.answers import ANSWERED, Decide, OnQuestion
from bedrock.errors import BedrockError, InvalidArgument, NotFound, Unavailable
from bedrock.events import Event, Snapshot
from bedrock.request_cycles import RequestCycle
from bedrock.states import Approval, Question
from bedrock.streams import Stream
from bedrock.types import ApprovalDecision


class RunWatch:
    """Follows one run to its end. Decides approvals, and answers tools' questions and client tool calls."""

    def __init__(
        self,
        transport: Transport,
        cursor: EventCursor,
        progress: RunProgress,
        policy: QuestionPolicy[Decide, OnQuestion],
        deadline: Deadline,
        *,
        tools: ClientTools | None = None,
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

    def events(self) -> Generator[Event]:
        """Yield events until the run ends; answer open approvals, questions and calls before the next event.

        Raises ApprovalNeeded (an earlier run waits for an approval), DeadlineExceeded (the run continues; another
        `RunWatch` can resume at this cursor) or NotFound.
        """
        resuming = self._cursor.revision is not None
        self._settle()
        with Stream(follow(self._transport, self._cursor, self._deadline, resuming=resuming)) as events:
            for event in events:
                if event.snapshot:
                    self._look_up(event.snapshot)
                self._progress.observe(event)
                yield event
                if event.snapshot:
                    yield from self._progress.unasked(event.snapshot)
                if self._progress.stop:
                    return
                self._settle()

    def _look_up(self, snapshot: Snapshot) -> None:
        """Read how the run ended from its request cycle, because its events are not available. Raises NotFound."""
        self._progress.observe_gap(snapshot)
        recent = bool(self._progress.message) or snapshot.conversation.state.run == self._progress.run
        request = requests.latest_cycles(self._cursor.name)
        for page in self._transport.pages(self._transport.conversations.ListRequestCycles, request):
            if self._progress.find(map(RequestCycle.from_proto, page.request_cycles)):
                return
            if recent:
                break
        if not recent:
            raise NotFound(f"{self._cursor.name} has no run named {self._progress.run}", reason="NOT_FOUND")
        self._progress.lost(snapshot)

    def _settle(self) -> None:
        """Answer open client tool calls, and approvals and questions unless they are left to others."""
        if self._tools is not None:
            self._tools.answer(self._progress.waiting_calls(), self._deadline)
        if self._policy.wait_for_others:
            return
        for approval in self._progress.questions():
            if self._waits(approval):
                self._answer(approval)
            self._progress.settled(approval)
        for question in self._progress.tool_questions():
            if self._is_asked(question):
                self._fill_in(question)
            self._progress.settled(question)

    def _answer(self, approval: Approval) -> None:
        """Decide an approval by the policy, which denies by default.

        Raises ApprovalNeeded if an earlier run needs it.
        """
        if not self._progress.run:
            raise run_progress.question_of_others(approval)
        if self._policy.decide is None:
            self._resolve(approval, "deny", run_progress.DENIED_NOTE)
            run_progress.log_denied(approval)
        else:
            approved = decided(self._policy.decide(approval))
            self._resolve(approval, "approve" if approved else "deny", "")

    def _resolve(self, approval: Approval, decision: ApprovalDecision, note: str) -> None:
        request = requests.resolve(self._cursor.name, approval, decision, note)
        with suppress(*ANSWERED, NotFound):  # another client answered, or the conversation was deleted
            self._insist(self._transport.conversations.ResolveApproval, request)

    def _fill_in(self, question: Question) -> None:
        """Answer a tool's question by the policy, which declines by default.

        If the answer does not fit the form, declines the question and raises InvalidArgument.
        """
        content = None
        if self._policy.fill_in is None:
            run_progress.log_declined(question)
        else:
            content = filled_in(self._policy.fill_in(question))
        if content is None:
            self._reply(requests.decline_question(self._cursor.name, question, None))
            return
        try:
            filled = None if question.url else content
            self._reply(requests.answer_question(self._cursor.name, question, filled, None))
        except InvalidArgument:
            self._reply(requests.decline_question(self._cursor.name, question, None))
            raise

    def _reply(self, request: v1.AnswerQuestionRequest) -> None:
        with suppress(*ANSWERED, NotFound):  # another client answered, or the conversation was deleted
            self._insist(self._transport.conversations.AnswerQuestion, request)

    def _is_asked(self, question: Question) -> bool:
        try:
            self._insist(self._transport.conversations.GetQuestion, v1.GetQuestionRequest(name=question.name))
        except NotFound:
            return False
        return True

    def _waits(self, approval: Approval) -> bool:
        """Whether an approval is still open: the answer to another approval may have decided it, too."""
        request = v1.GetConversationRequest(name=self._cursor.name)
        try:
            response = self._insist(self._transport.conversations.GetConversation, request)
        except NotFound:  # the conversation was deleted; the next event reports that
            return False
        return any(each.name == approval.name for each in response.conversation.state.awaiting_approval.pending)

    def _insist(self, method: Callable[..., Any], request: Any) -> Any:
        return insist(self._transport, method, request, self._deadline)


def follow(
    transport: Transport, cursor: EventCursor, deadline: Deadline, *, resuming: bool = False
) -> Generator[Event]:
    """Yield the events after the cursor's position, and open another stream whenever one breaks.

    `resuming` means that the server was reached before: even a failure of the first stream is then retried.
    """
    reconnection = Reconnection(cursor, transport.reconnect_for, resuming=resuming)
    while True:
        while cursor.due:  # the cursor's previous reader may have left events unread
            yield cursor.due.popleft()
        try:
            request = cursor.request()
            with transport.stream(transport.conversations.Subscribe, request, deadline.left()) as responses:
                for response in responses:
                    reconnection.receive(response)
                    while cursor.due:
                        yield cursor.due.popleft()
            if cursor.finished:
                return
            error: BedrockError = Unavailable("the server ended the stream")
        except BedrockError as failure:
            error = failure
        if delay := reconnection.delay_after(error):
            pause(transport, error, deadline.shorten(delay))
