"""Prints the events of a conversation: messages, tool calls with their outputs, and how sub-agents proceed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from bedrock import AsyncConversation, Event, SubAgentStatus, events
from bedrock.cli.display import labels
from bedrock.cli.display.questions import QuestionForm, call_title, headline, question_lines, question_title, telling
from bedrock.cli.text.output import Write, flow_of, folding
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import LineFlow, Paint, Width, cells, cut, diff_lines, extent, one_line
from bedrock.conversations import ContextUsage, ConversationInfo
from bedrock.messages import Message, QueuedMessage, ToolCall, ToolResult
from bedrock.request_cycles import RequestCycle
from bedrock.states import Approval, ConversationState, Question

# How many of the last lines of a tool's output are shown: they usually contain the result.
OUTPUT_LINES = 12
# How many of the latest outputs are kept in full, so that the user can ask to see them.
OUTPUTS = 20

HOW_TO_SEE = "Ctrl-O or /output shows all"


@dataclass(frozen=True, slots=True)
class Output:
    """A tool call and its whole output."""

    call: ToolCall | None
    text: SafeText


class ToolOutput:
    """Prints the outputs of the tools of one conversation, one tool after the other."""

    def __init__(self, paint: Paint, write: Write, width: Width | None, hint: str = "") -> None:
        """`width` returns the columns of a line, None for no limit; `hint` tells how to see omitted lines."""
        self._paint = paint
        self._write = write
        self._width = None if width is None else lambda: max(width() - len("  │ "), 1)
        self._hint = f" ({hint})" if hint else ""
        self._outputs: deque[Output] = deque(maxlen=OUTPUTS)
        self._begin()

    def _begin(self) -> None:
        self._flow = LineFlow(self._width, self._paint.clean)
        self._latest: deque[SafeText] = deque(maxlen=OUTPUT_LINES)
        self._count = 0

    def unfinished(self, room: int) -> list[SafeText]:
        """The end of the output of the running tool call, in at most `room` lines."""
        lines = [*self._latest, *self._flow.tail]
        total = self._count + len(self._flow.tail)
        return self._end(lines, total, room if total <= room else room - 1)

    def feed(self, piece: str) -> None:
        """Add a piece of output of the running tool call."""
        lines = self._flow.feed(piece)
        self._latest.extend(lines)
        self._count += len(lines)

    def result(self, result: ToolResult, call: ToolCall | None, *, known: bool = False) -> None:
        """Print how a call ended, and the end of its output. With `known`, the user already knows why it ended."""
        diff = result.display.get("diff")
        text = self._with_streamed(self._paint.clean(labels.for_people(result)))
        self._outputs.append(Output(call, text))
        if isinstance(diff, str) and diff:
            for line in diff_lines(diff, self._paint):
                self._write(self._paint.text(self._paint.dim("  │"), " ", line))
        elif self._flow.text or not known:
            self._whole(text)
        self._begin()
        tool = call.tool if call else "tool"
        if result.outcome == "ok":
            changed = f", {extent(diff)}" if isinstance(diff, str) and diff else ""
            took = f", {result.duration.total_seconds():.1f} s" if result.duration else ""
            self._write(self._paint.dim(f"  └ {tool}{changed}{took}"))
        else:
            self._write(self._paint.careful(f"  └ {tool}: {result.outcome}"))

    def beginning(self, text: str) -> None:
        """Print the first lines of a text, and how many more lines there are."""
        lines = _lines(self._paint.clean(text))
        for line in lines[:OUTPUT_LINES]:
            self._write(self._paint.dim(f"  │ {line}"))
        if len(lines) > OUTPUT_LINES:
            self._write(self._paint.dim(f"  │ … {labels.counted(len(lines) - OUTPUT_LINES, 'more line')}"))

    def all(self, number: int, running: ToolCall | None) -> list[SafeText]:
        """A call and its whole output. Number 1 is the latest call, possibly still running.

        [] if there is no such output.
        """
        outputs = [*self._outputs, *([Output(running, self._paint.clean(self._flow.text))] if self._flow.text else [])]
        if not 1 <= number <= len(outputs):
            return []
        found = outputs[-number]
        paint, call = self._paint, found.call
        about = telling(call.input, paint.clean, call.raw_input) if call else ""
        title = call_lines(call.tool if call else "tool", about, paint)
        return [*title, *(paint.dim(f"  │ {line}") for line in _lines(found.text))]

    def _whole(self, text: SafeText) -> None:
        lines = _lines(text)
        for line in self._end(lines, len(lines), OUTPUT_LINES):
            self._write(line)

    def _with_streamed(self, text: SafeText) -> SafeText:
        """The output of an ended call: `text`, after the streamed output if that is missing there (cancelled call)."""
        streamed = _lines(self._paint.clean(self._flow.text))
        complete = not streamed or streamed[-1] in _lines(text)
        return text if complete else self._paint.text(*(f"{line}\n" for line in streamed), text)

    def _end(self, lines: list[SafeText], total: int, room: int) -> list[SafeText]:
        """The last `room` lines, below a line that says how many of all `total` lines are hidden."""
        shown = lines[-room:] if room > 0 else []
        hidden = total - len(shown)
        above = [f"  │ … {labels.counted(hidden, 'line')} above{self._hint}"] if hidden > 0 else []
        return [self._paint.dim(line) for line in (*above, *(f"  │ {line}" for line in shown))]


def call_lines(tool: str, about: str, paint: Paint) -> list[SafeText]:
    first, *rest = paint.clean(about).lines()
    return [paint.text(paint.name(f"● {tool}"), " ", first), *(paint.text("    ", line) for line in rest)]


def _lines(text: SafeText) -> list[SafeText]:
    return SafeText(text.rstrip("\n")).lines() if text else []


# The minimum width in columns for a sub-agent's task, even if the terminal is too narrow for that.
LEAST_TASK = 12


@dataclass(slots=True)
class AgentView:
    """The latest known state of one sub-agent."""

    status: SubAgentStatus
    began: datetime | None
    """When the sub-agent was announced; None if that was before this program began to watch."""
    ended: datetime | None = None
    end_printed: bool = False

    def figures(self, until: datetime) -> list[str]:
        """How long the sub-agent has worked, as a list of one item, such as ["12 s"]; [] if that is unknown."""
        return [f"{max(0.0, (until - self.began).total_seconds()):.0f} s"] if self.began else []


class AgentTree:
    """The tree of a conversation's sub-agents, computed from the events of the conversation."""

    def __init__(self) -> None:
        self.waiting = False
        self._agents: dict[int, AgentView] = {}

    def observe(self, event: Event) -> None:
        if event.state is not None and event.kind != "conversation_updated":
            waiting = self._waits(event, event.state)
            if waiting and not self.waiting:
                self._agents.clear()
            self.waiting = waiting
        began = None if event.kind == "snapshot" else event.time
        for status in event.sub_agents:
            agent = self._agents.setdefault(status.index, AgentView(replace(status, outcome=""), began))
            if status.outcome and not agent.status.outcome:
                agent.status, agent.ended = status, event.time

    def _waits(self, event: Event, state: ConversationState) -> bool:
        if state.kind == "cancelling":
            return self.waiting or bool(event.sub_agents)
        return state.kind == "awaiting_sub_agents"

    def endings(self, paint: Paint) -> Iterator[SafeText]:
        """Yield a line for each ended sub-agent whose end has not been printed yet, and mark the end as printed."""
        for agent in self._in_order():
            if agent.status.outcome and not agent.end_printed:
                agent.end_printed = True
                yield _ending(agent, paint)

    def lines(self, paint: Paint, wall: datetime, width: int) -> list[SafeText]:
        """A line of at most `width` columns for each sub-agent; [] unless the parent waits for sub-agents."""
        if not self.waiting:
            return []
        agents = list(self._in_order())
        return [
            _painter(agent.status.outcome, paint)(_line(agent, "└" if agent is agents[-1] else "├", wall, width))
            for agent in agents
        ]

    def _in_order(self) -> Iterator[AgentView]:
        return (self._agents[index] for index in sorted(self._agents))


def _line(agent: AgentView, branch: str, wall: datetime, width: int) -> str:
    outcome = {"": "at work", "completed": "done"}.get(agent.status.outcome, "failed")
    details = " · ".join([outcome, *agent.figures(agent.ended or wall)])
    mark = _mark(agent.status.outcome)
    room = max(LEAST_TASK, width - cells(f"{branch} {mark}  · {details}"))
    return cut(f"{branch} {mark} {one_line(agent.status.task, room)} · {details}", width)


def _ending(agent: AgentView, paint: Paint) -> SafeText:
    status, figures = agent.status, agent.figures(agent.ended) if agent.ended else []
    why = "" if status.outcome == "completed" else f": {one_line(status.error_message, 120)}"
    about = " · ".join([one_line(status.task, 50), *figures])
    return _painter(status.outcome, paint)(f"  {_mark(status.outcome)} {about}{why}")


def _mark(outcome: str) -> str:
    return {"": "◦", "completed": "✓"}.get(outcome, "✗")


def _painter(outcome: str, paint: Paint) -> Callable[[str], SafeText]:
    return {"": paint.dim, "completed": paint.good}.get(outcome, paint.bad)


# The prefix of a user's message.
USER_MARK = "> "

# If a user's message has more than LONG_LINES lines, a chat shows the first FIRST_LINES of them.
LONG_LINES, FIRST_LINES = 20, 5

SUMMED_UP = "summary of the conversation"
GO_ON = "the conversation ends here; use `bedrock continue` (/continue in a chat) to continue in a new one"

_JOB_ENDS = {"killed": "was killed", "lost": "ended with the server"}
_QUESTION_ENDS = {"timed_out": "no answer in time", "withdrawn": "the question was withdrawn"}
_SUMMARIES = ("summary", "summary_fallback")


class Transcript:
    """Prints the events of a conversation: with `live`, text while it is being written, otherwise when it is complete.

    The agent's text is rendered as Markdown if there are colours and a `width`.
    """

    def __init__(
        self, paint: Paint, write: Write, *, live: bool = False, width: Width | None = None, hint: str = ""
    ) -> None:
        """Prepare to print. `hint` says how to show the omitted part of a long output; "" for no hint."""
        self._paint = paint
        self._print = write
        self._write = folding(write, width)
        self._live = live
        self._answer = flow_of(paint, width)
        self._reasoning = LineFlow(width, paint.clean)
        self._output = ToolOutput(paint, self._write, width, hint)
        self._hint = hint
        self._calls: dict[str, ToolCall] = {}
        self._approvals: dict[str, Approval] = {}
        self._denied: set[str] = set()
        """The ids of denied tool calls. The denials are already printed, so the results of these calls are not."""
        self._summing = False
        """Whether the model is writing the summary of a full conversation, below a heading that is already printed."""
        self._warned_of_window = False
        self.goes_on = False
        """Whether the chat continues in a successor conversation once the conversation is summarized."""
        self.agents = AgentTree()

    def unfinished(self, room: int) -> list[SafeText]:
        """The end of the text or tool output that is streaming in, in at most `room` lines."""
        text = self._answer.tail or [self._paint.dim(line) for line in self._reasoning.tail]
        return text[-room:] if text else self._output.unfinished(room)

    def call_title(self, call: str) -> SafeText:
        """A short title of the tool call with the id `call`: only the id if the call is unknown or has ended."""
        known = self._calls.get(call)
        return call_title(known.tool, known.input) if known else self._paint.clean(f"tool call {call}")

    def output(self, number: int) -> list[SafeText]:
        """The whole output of a tool call as lines. `number` 1 is the latest call. Empty if there is no such output."""
        running = next(iter(self._calls.values()), None)
        return self._output.all(number, running)

    def print_agent_ends(self) -> None:
        """Print how sub-agents have ended, one line for each end that has not been printed yet."""
        for line in self.agents.endings(self._paint):
            self._write(line)

    def history(self, messages: Sequence[Message], fates: Sequence[Fate]) -> None:
        """Print stored messages; after each run, its outcome and those of its messages; at the end, queued messages."""
        last = {message.request_cycle: message for message in messages}
        runs = {fate.name: fate for fate in fates if isinstance(fate, RequestCycle)}
        undelivered = deque(fate for fate in fates if isinstance(fate, QueuedMessage))
        for message in messages:
            self.message(message)
            run = runs.get(message.request_cycle) if last[message.request_cycle] is message else None
            while run and undelivered and _decided(undelivered[0]) <= _decided(run):
                self._write(fate_line(undelivered.popleft(), self._paint))
            if run and run.stop_reason == "interrupted":
                self._write(self._paint.careful(f"■ {labels.interruption(run.stop_detail)}"))
        for entry in undelivered:
            self._write(fate_line(entry, self._paint))

    def show(self, event: Event, fates: Sequence[Fate] = ()) -> None:
        """Print an event; many kinds print nothing. `fates` are printed among the messages of a snapshot."""
        self.agents.observe(event)
        if event.kind == "snapshot":
            self._snapshot(event, fates)
            return
        self.print_agent_ends()
        match event:
            case Event(message_added=Message() as message):
                self.message(message)
            case Event(state_changed=events.StateChanged() as changed):
                self._state(changed.state.kind)
            case Event(text_delta=events.TextDelta() as delta, kind="text_delta") if self._live:
                self._dim(self._reasoning.flush())
                for line in self._answer.feed(delta.text):
                    self._print(line)
            case Event(kind="reasoning_delta") if self._live:
                self._dim(self._reasoning.feed(event.text))
            case Event(tool_output_delta=events.ToolOutputDelta() as delta) if self._live:
                self._output.feed(delta.text)
            case Event(stream_discarded=events.StreamDiscarded()):
                self._discard()
            case Event(approval_changed=events.ApprovalChanged() as changed):
                self._approval(changed)
            case Event(conversation_updated=ConversationInfo() as updated):
                self._warn_of_assumed_window(updated)
            case _:
                if notice := _notice(event, self._paint):
                    self._write(notice)

    def message(self, message: Message) -> None:
        match message.role:
            case "user":
                self._write(SafeText())
                text = "\n".join((*filter(None, [message.text]), *map(labels.described, message.images)))
                lines = text.split("\n")
                folded = self._live and len(lines) > LONG_LINES
                self._block(
                    self._paint.bold(USER_MARK), "\n".join(lines[:FIRST_LINES]) if folded else text, self._paint.bold
                )
                if folded:
                    self._write(self._paint.dim(f"  … and {len(lines) - FIRST_LINES} more lines"))
            case "agent":
                self._agent(message)
            case "tool":
                for result in message.tool_results:
                    known = result.outcome == "denied" and result.tool_use_id in self._denied
                    self._output.result(result, self._calls.pop(result.tool_use_id, None), known=known)
                    self._denied.discard(result.tool_use_id)
                for image in message.images:
                    self._write(self._paint.dim(f"    {labels.described(image)}"))
            case "system" if not message.meta:
                self._system(message)
            case "error":
                self._block(self._paint.bad("✗ "), message.text, self._paint.bad)
            case _:
                pass

    def ask(self, approval: Approval, working_directory: str) -> None:
        """Print an approval request, and what a denial does to the other calls of the same response."""
        for line in question_lines(approval, working_directory, self._paint):
            self._write(line)
        if (count := len(self._calls)) > 1:
            self._write(
                self._paint.dim(f"  one of {count} calls: all run once each is approved; denying one skips them all")
            )

    def ask_person(self, question: Question) -> None:
        for line in QuestionForm(question).lines(self._paint):
            self._write(line)

    def _agent(self, message: Message) -> None:
        self._dim(self._reasoning.finish(message.reasoning if self._live else ""))
        for line in self._answer.finish(message.text):
            self._print(line)
        for call in message.tool_calls:
            self._calls[call.tool_use_id] = call
            clean = self._paint.clean
            about = (
                headline(call.input, clean) if "patches" in call.input else telling(call.input, clean, call.raw_input)
            )
            lines = call_lines(call.tool, about, self._paint)
            for line in lines[:OUTPUT_LINES]:
                self._write(line)
            if (hidden := len(lines) - OUTPUT_LINES) > 0:
                hint = f" ({self._hint})" if self._hint else ""
                self._write(self._paint.dim(f"    … {labels.counted(hidden, 'more line')}{hint}"))

    def _system(self, message: Message) -> None:
        text, kind = message.text, message.system_kind
        if kind == "sub_agent_results":
            self._write(self._paint.dim("· reports from the sub-agents"))
            self._output.beginning(text)
        elif kind in _SUMMARIES:
            self._summary(text, of_another=message.sequence == 1)
        else:
            self._block(self._paint.dim("· "), labels.mode_notice(kind) or text, self._paint.dim)

    def _summary(self, text: str, *, of_another: bool) -> None:
        """Print the summary of a full conversation, either in that conversation or as its successor's first message."""
        if not self._summing:
            self._heading("summary of the previous conversation" if of_another else SUMMED_UP)
        for line in self._answer.finish(text):
            self._print(line)
        if not (of_another or self.goes_on):
            self._write(self._paint.careful(f"■ {GO_ON}"))

    def _heading(self, text: str) -> None:
        self._write(SafeText())
        self._write(self._paint.bold(f"── {text} ──"))

    def _snapshot(self, event: Event, fates: Sequence[Fate]) -> None:
        self.history(event.messages, fates)
        self.print_agent_ends()

    def _state(self, kind: str) -> None:
        summing = self._live and kind == "awaiting_continuation"
        if summing and not self._summing:
            self._heading(SUMMED_UP)
        self._summing = summing

    def _discard(self) -> None:
        unfinished = self._answer.text or self._reasoning.text
        self._dim((*self._reasoning.finish(), *self._answer.drop()))
        if unfinished:
            self._write(self._paint.dim("· the unfinished text above was discarded"))

    def _approval(self, changed: events.ApprovalChanged) -> None:
        if not changed.decision:
            self._approvals[changed.approval.name] = changed.approval
            return
        several = len(self._approvals) > 1
        asked = self._approvals.pop(changed.approval.name, None)
        decision = {"approve": "approved", "deny": "denied"}.get(changed.decision, "withdrawn")
        paint = self._paint.good if decision == "approved" else self._paint.careful
        if decision == "denied":
            self._denied.add(changed.approval.tool_use_id)
        note = f": {changed.note}" if changed.note else ""
        about = "" if asked is None else question_title(asked) if several else asked.tool
        waits = "; waiting for the remaining answers" if decision == "approved" and self._approvals else ""
        self._write(paint(f"  {decision} {about}".rstrip() + note + waits))

    def _warn_of_assumed_window(self, updated: ConversationInfo) -> None:
        """Print once, after the first answer, that the window is assumed: until then, the provider was not asked."""
        assumed = updated.context_usage.used_tokens and labels.assumed_window(updated.context_usage, updated.model)
        if assumed and not self._warned_of_window:
            self._warned_of_window = True
            self._write(self._paint.careful(f"· {assumed}"))

    def _dim(self, lines: Iterable[SafeText]) -> None:
        for line in lines:
            self._write(self._paint.dim(line))

    def _block(self, mark: SafeText, text: str, paint: Callable[[str], SafeText]) -> None:
        first, *rest = self._paint.clean(text).lines()
        self._write(mark + paint(first))
        for line in rest:
            self._write(self._paint.text("  ", paint(line)))


def _notice(event: Event, paint: Paint) -> SafeText | None:
    match event:
        case Event(question_changed=events.QuestionChanged(question=question)) if question.status != "pending":
            colour = paint.good if question.status == "answered" else paint.careful
            return colour(f"  {_QUESTION_ENDS.get(question.status, question.status)}")
        case Event(queue_changed=QueuedMessage() as queued) if queued.fate not in ("delivered", "discarded"):
            return fate_line(queued, paint)  # the message or the end of its run shows those two fates
        case Event(retrying=events.Retrying() as retrying):
            seconds = max(0.0, (retrying.retry_time - event.time).total_seconds())
            attempt = f"attempt {retrying.attempt}/{retrying.max_attempts} in {seconds:.0f} s"
            return paint.careful(f"↻ {attempt}: {one_line(retrying.error.message, 120)}")
        case Event(run_stopped=events.RunStopped(reason="interrupted", detail=detail)):
            return paint.careful(f"■ {labels.interruption(detail)}")
        case Event(run_stopped=events.RunStopped(reason="completed", detail=detail)) if detail in labels.NOT_WHOLE:
            return paint.careful(f"■ {labels.NOT_WHOLE[detail]}")
        case Event(context_warning=ContextUsage() as usage) if usage.usable_window_tokens:
            share = f"{100 * usage.used_tokens / usage.usable_window_tokens:.0f}% of the context is used"
            return paint.careful(f"· {share}; the conversation is summarized when it is nearly full")
        case Event(background_job_changed=events.BackgroundJobChanged() as job) if job.status != "running":
            end = _JOB_ENDS.get(job.status, f"exited with code {job.exit_code}")
            return paint.dim(f"· background job {job.handle} {end}: {one_line(job.command, 100)}")
        case Event(tool_tree_reaped=events.ToolTreeReaped(leaked=True)):
            return paint.bad("· some processes could not be confirmed dead; see the server log")
        case Event(tool_tree_reaped=events.ToolTreeReaped(pids=pids, duration=duration)):
            ended = labels.counted(len(pids), "process", "processes")
            return paint.dim(f"· {ended} ended in {duration // timedelta(milliseconds=1)} ms")
        case Event(kind="deleted"):
            return paint.careful("■ the conversation was deleted")
        case _:
            return None


Fate: TypeAlias = QueuedMessage | RequestCycle
"""A queued message with its outcome, or a run."""

NEVER = datetime.max.replace(tzinfo=UTC)


async def fates_among(
    conversation: AsyncConversation, messages: Sequence[Message], until: datetime = NEVER
) -> list[Fate]:
    """The entries to print among `messages`: queued messages, and runs and undelivered ones that ended by `until`."""
    if not messages:
        return []
    found: list[Fate] = []
    async for entry in conversation.queue(include_settled=True, newest_first=True):
        if _decided(entry) < messages[0].create_time:
            break
        if entry.fate in ("queued", "returned"):
            found.insert(0, entry)
    runs = {message.request_cycle for message in messages} - {""}
    async for cycle in conversation.cycles(view="rounds", newest_first=True):
        if not runs:
            break
        if cycle.name in runs:
            found.append(cycle)
        runs.discard(cycle.name)
    return [entry for entry in found if _decided(entry) <= until]


def fate_line(entry: QueuedMessage, paint: Paint) -> SafeText:
    """Describe the outcome of an undelivered message, or that it is still queued."""
    match entry.fate:
        case "queued":
            text = f"waits ({entry.message.delivery.replace('_', '-')})"
        case "returned":
            text = f"was {labels.fate('returned')}; send it again if it still matters"
        case other:
            text = f"was {labels.fate(other)}"
    return paint.dim(f"⋯ “{one_line(entry.message.text, 60)}” {text}")


def _decided(entry: Fate) -> datetime:
    """When a run ended or a message left the queue; the latest possible time if that has not happened."""
    decided = entry.end_time if isinstance(entry, RequestCycle) else entry.settle_time
    return decided or NEVER
