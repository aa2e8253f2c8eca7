"""The progress of a run, derived from its events: the agent's text, what waits for an answer, how it ended. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bedrock import v1
from bedrock.answers import Answer
from bedrock.errors import RunFailed, RunInterrupted
from bedrock.events import Event, Snapshot, Stop
from bedrock.messages import Message, ToolCall, Usage
from bedrock.states import Approval, Question

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bedrock.request_cycles import RequestCycle


@dataclass(slots=True)
class RunProgress:
    """Tracks the run that one message started or steered, up to its end."""

    message: str
    """The resource name of the message."""
    run: str
    """The resource name of its run; empty while a follow-up waits."""
    stop: Stop | None = None
    """How the run ended; None before that."""
    _said: dict[str, str] = field(default_factory=dict)
    """The texts of the agent since the last tool or user message of the run, by the name of the message."""
    _usage: dict[str, Usage] = field(default_factory=dict)
    """The token usage of each message of the agent, by the name of the message."""
    _questions: dict[str, Approval] = field(default_factory=dict)
    """The approvals that were asked and not decided, by name."""
    _tool_questions: dict[str, Question] = field(default_factory=dict)
    """What running tools asked a person, as far as it was not answered, by name."""
    _calls: dict[str, ToolCall] = field(default_factory=dict)
    """The calls that wait for the answer of a client, by id."""
    _shown: set[str] = field(default_factory=set)
    """The names of the approvals and questions that were shown as events."""

    def questions(self) -> list[Approval]:
        """Return the approvals that were asked and, as far as is known, not decided; none after the end."""
        return [] if self.stop else list(self._questions.values())

    def tool_questions(self) -> list[Question]:
        """Return what running tools asked and, as far as is known, nobody answered; nothing before the run begins.

        Until then, and after its end, questions are those of another run.
        """
        return list(self._tool_questions.values()) if self.run and not self.stop else []

    def settled(self, asked: Approval | Question) -> None:
        """Record that an approval is decided, or a question over."""
        self._questions.pop(asked.name, None)
        self._tool_questions.pop(asked.name, None)

    def waiting_calls(self) -> list[ToolCall]:
        """Return the calls that, as far as is known, wait for the answer of a client."""
        return list(self._calls.values())

    def observe(self, event: Event) -> None:
        """Record an event that follows the message."""
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
        """Take the open approvals and questions from a snapshot, because their events are no longer available."""
        self._questions = {asked.name: asked for asked in snapshot.pending_approvals}
        self._tool_questions = {asked.name: asked for asked in snapshot.pending_questions}
        self._calls = {each.call.tool_use_id: each.call for each in snapshot.pending_client_tool_calls}
        if self.run:  # it may have been given by the slug of the conversation
            self.run = f"{snapshot.conversation.name}/requestCycles/{self.run.rpartition('/')[2]}"

    def unasked(self, snapshot: Snapshot) -> Iterator[Event]:
        """Yield the approvals and questions of a snapshot that were not yielded before, as events that report them."""
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
        """Look for the run, and its end, among request cycles with steps and rounds; False if it is not there."""
        for cycle in cycles:
            if cycle.name == self.run or (self.message and _root(cycle) == self.message):
                self.run = cycle.name
                self._catch_up(cycle)
                if cycle.stop_reason:
                    self.stop = Stop(cycle.stop_reason, cycle.stop_detail, output=cycle.output)
                return True
        return False

    def lost(self, snapshot: Snapshot) -> None:
        """Record that no request cycle belongs to the run: its message still waits, or its end is unknown."""
        waits = any(entry.message.name == self.message for entry in snapshot.queue)
        if not waits and (not self.run or snapshot.conversation.state.run != self.run):
            self.stop = Stop("interrupted", "unknown")

    def outcome(self) -> Answer:
        """Return the agent's last text.

        Raises:
            RunFailed: The run ended in an error.
            RunInterrupted: It was cut short, or there was no run.
        """
        stop = self.stop or Stop("interrupted", "unknown")
        if stop.reason == "error":
            reason = (stop.error_kind or stop.detail).upper()
            raise RunFailed(stop.error_message or f"the run failed: {reason}", reason=reason)
        if stop.reason != "completed":
            why = stop.detail or ("cancelled" if stop.reason == "interrupted" else stop.reason)
            raise RunInterrupted(f"the run was cut short: {why}", reason=stop.detail.upper())
        text, usage = "".join(self._said.values()), sum(self._usage.values(), Usage())
        return Answer.of(text, run=self.run, usage=usage, output=stop.output)

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
        """Take the texts and the usage from a request cycle instead of from messages."""
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
    """Return the calls that wait for the answer of a client after an event that tells of them, by id."""
    changed = event.client_tool_call_changed
    told = (changed,) if changed else event.snapshot.pending_client_tool_calls if event.snapshot else ()
    return {each.call.tool_use_id: each.call for each in told if each.status == "pending"}


def _root(cycle: RequestCycle) -> str:
    """Return the name of the message that started a cycle; empty if its steps were not requested."""
    root = cycle.steps[0].root if cycle.steps else None
    return "" if root is None else root.name
