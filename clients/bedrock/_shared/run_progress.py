"""Follows a run through its events, and says what to do with questions that the caller leaves unanswered.

Does no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from bedrock import v1
from bedrock.answers import Answer
from bedrock.errors import ApprovalNeeded, RunFailed, RunInterrupted
from bedrock.events import Event, Snapshot, Stop
from bedrock.messages import Message, ToolCall, Usage
from bedrock.request_cycles import RequestCycle
from bedrock.states import Approval, Question

DecideT = TypeVar("DecideT")
FillInT = TypeVar("FillInT")

_log = logging.getLogger("bedrock")

# The note that an automatic denial carries. The agent and every client that watches the conversation can read it.
DENIED_NOTE = "Denied automatically: the program that sent the message continued without answering."


@dataclass(frozen=True, slots=True)
class QuestionPolicy(Generic[DecideT, FillInT]):
    """What to do about approvals and tools' questions that the caller leaves unanswered."""

    decide: DecideT | None
    """The caller's function that decides an approval; None if unanswered approvals are denied."""
    fill_in: FillInT | None
    """The caller's function that answers a tool's question; None if unanswered questions are declined."""
    wait_for_others: bool
    """Whether unanswered approvals and questions stay open, so that other clients can answer them."""

    def __post_init__(self) -> None:
        if self.fill_in is not None and not callable(self.fill_in):
            raise TypeError(f"on_question must be a function or None, not {self.fill_in!r}")


def log_denied(approval: Approval) -> None:
    """Log a warning that an approval was denied because the caller's loop over the run's events had not answered it."""
    _log.warning(
        "%s was denied because the loop did not answer; answer it there, or pass on_approval= or wait_for_others=True",
        approval.tool,
    )


def log_declined(question: Question) -> None:
    """Log a warning that a tool question was declined because the caller's loop over the events had not answered it."""
    _log.warning(
        "the question from MCP server %s was declined because the loop did not answer; answer it there, or pass "
        "on_question= or wait_for_others=True",
        question.mcp_server,
    )


def question_of_others(approval: Approval) -> ApprovalNeeded:
    """The error for an open approval of an earlier run: a program that waits for this run must not deny it."""
    return ApprovalNeeded(
        f"the previous run is asking whether {approval.tool} may run; answer it first, or pass wait_for_others=True",
        approval,
    )


@dataclass(slots=True)
class RunProgress:
    """The state of the run that one message started or joined, up to the run's end."""

    message: str
    """The resource name of the message that started or joined the run; "" if the run is followed by its own name."""
    run: str
    """The resource name of the message's run; "" while the message waits in the queue as a follow-up."""
    stop: Stop | None = None
    """How the run ended; None while it has not ended."""
    _said: dict[str, str] = field(default_factory=dict)
    """The agent's texts since the last tool call or user message of the run, by the resource name of their message."""
    _usage: dict[str, Usage] = field(default_factory=dict)
    """The token usage of each message of the agent, by the message's resource name."""
    _questions: dict[str, Approval] = field(default_factory=dict)
    _tool_questions: dict[str, Question] = field(default_factory=dict)
    _calls: dict[str, ToolCall] = field(default_factory=dict)
    _shown: set[str] = field(default_factory=set)

    def questions(self) -> list[Approval]:
        """The approvals that are open as far as this client has seen; [] after the end of the run."""
        return [] if self.stop else list(self._questions.values())

    def tool_questions(self) -> list[Question]:
        """The tools' questions that are open as far as this client has seen; [] before and after the run."""
        return list(self._tool_questions.values()) if self.run and not self.stop else []

    def settled(self, asked: Approval | Question) -> None:
        self._questions.pop(asked.name, None)
        self._tool_questions.pop(asked.name, None)

    def waiting_calls(self) -> list[ToolCall]:
        return list(self._calls.values())

    def observe(self, event: Event) -> None:
        """Record an event that came after the message was sent."""
        if event.kind == "deleted":
            self.stop = Stop("deleted")
            return
        message = event.message
        if message is not None and message.name == self.message:
            self.run = message.request_cycle or self.run
            if event.fate == "withdrawn":
                self.stop = Stop("withdrawn")
        if event.kind == "approval_changed":
            self._ask(event)
        if event.question_changed:
            self._ask_person(event.question_changed.question)
        if event.client_tool_call_changed:
            self._calls = waiting_calls(event)
        if event.kind == "message_added" and message is not None and message.request_cycle == self.run:
            self._listen(message)
        if self.run and event.kind == "run_stopped" and event.run == self.run:
            self.stop = event.stop

    def observe_gap(self, snapshot: Snapshot) -> None:
        """Replace the open approvals, questions and calls with those of a snapshot, because events were missed."""
        self._questions = {asked.name: asked for asked in snapshot.pending_approvals}
        self._tool_questions = {asked.name: asked for asked in snapshot.pending_questions}
        self._calls = {each.call.tool_use_id: each.call for each in snapshot.pending_client_tool_calls}
        if self.run:  # `run` may contain the conversation's slug instead of its id
            self.run = f"{snapshot.conversation.name}/requestCycles/{self.run.rpartition('/')[2]}"

    def unasked(self, snapshot: Snapshot) -> Iterator[Event]:
        """Yield an event for each approval and question in a snapshot, unless it was yielded before."""
        for question in snapshot.pending_questions:
            if question.name not in self._shown:
                self._shown.add(question.name)
                changed = v1.Event.QuestionChanged(question=question.proto)
                yield Event.from_proto(v1.Event(time=question.proto.create_time, question_changed=changed))
        for approval in snapshot.pending_approvals:
            if approval.name in self._questions and approval.name not in self._shown:
                self._shown.add(approval.name)
                asked = v1.Event.ApprovalChanged(approval=approval.proto)
                yield Event.from_proto(v1.Event(time=approval.proto.create_time, approval_changed=asked))

    def find(self, cycles: Iterable[RequestCycle]) -> bool:
        """Look for the run among request cycles (view "full") and record its text and end; False if it is not there."""
        for cycle in cycles:
            if cycle.name == self.run or (self.message and _root(cycle) == self.message):
                self.run = cycle.name
                self._catch_up(cycle)
                if cycle.stop_reason:
                    self.stop = Stop(cycle.stop_reason, cycle.stop_detail, output=cycle.output)
                return True
        return False

    def lost(self, snapshot: Snapshot) -> None:
        """Treat a run without a request cycle as interrupted, unless it is in progress or its message is queued."""
        waits = any(entry.message.name == self.message for entry in snapshot.queue)
        if not waits and (not self.run or snapshot.conversation.state.run != self.run):
            self.stop = Stop("interrupted", "unknown")

    def outcome(self) -> Answer:
        """The agent's last text, with usage and output.

        Raises RunFailed or RunInterrupted (also if the run never began).
        """
        stop = self.stop or Stop("interrupted", "unknown")
        if stop.reason == "error":
            reason = (stop.error_kind or stop.detail).upper()
            raise RunFailed(stop.error_message or f"the run failed: {reason}", reason=reason)
        if stop.reason != "completed":
            why = stop.detail or ("cancelled" if stop.reason == "interrupted" else stop.reason)
            raise RunInterrupted(f"the run was cut short: {why}", reason=stop.detail.upper())
        text, usage = "".join(self._said.values()), sum(self._usage.values(), Usage())
        return Answer.of(text, run=self.run, usage=usage, output=stop.output, stop_detail=stop.detail)

    def _ask(self, event: Event) -> None:
        if event.approval:
            self._questions[event.approval.name] = event.approval
            self._shown.add(event.approval.name)
        elif event.approval_changed:
            self.settled(event.approval_changed.approval)

    def _ask_person(self, question: Question) -> None:
        if question.status == "pending":
            self._tool_questions[question.name] = question
            self._shown.add(question.name)
        else:
            self.settled(question)

    def _listen(self, message: Message) -> None:
        if message.role in ("user", "tool"):
            self._said.clear()
        elif message.role == "agent":
            self._usage[message.name] = message.usage or Usage()
            self._said[message.name] = message.text
            if message.tool_calls:
                self._said.clear()

    def _catch_up(self, cycle: RequestCycle) -> None:
        self._usage = {done.output: done.usage for done in cycle.rounds if done.usage}
        self._said.clear()
        for step in cycle.steps:
            block = step.ai_block
            if step.steer:
                self._said.clear()
            if block and block.assistant:
                before = self._said.get(block.message)
                self._said[block.message] = f"{before}\n\n{block.assistant}" if before else block.assistant
            if block and block.tool_call_groups:
                self._said.clear()


def waiting_calls(event: Event) -> dict[str, ToolCall]:
    """The calls that wait for a client's answer, by id, according to a snapshot or an event about such calls."""
    changed = event.client_tool_call_changed
    told = (changed,) if changed else event.snapshot.pending_client_tool_calls if event.snapshot else ()
    return {each.call.tool_use_id: each.call for each in told if each.status == "pending"}


def _root(cycle: RequestCycle) -> str:
    """The name of the message that started a cycle; "" if the cycle was read without its steps."""
    root = cycle.steps[0].root if cycle.steps else None
    return "" if root is None else root.name
