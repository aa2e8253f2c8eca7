"""Runs as they went, line by line: requests and when their answers came, tools by group with durations, ends."""

from __future__ import annotations

from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING

from bedrock import v1
from bedrock._shared.enum_names import enum_name
from bedrock.cli.display.labels import counted, ending
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import Paint, Width, one_line
from bedrock.messages import Message, moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

#: Columns that a line takes at most where nobody looks at a terminal.
WIDTH = 80
#: Columns before a text, and before the tools.
_BEFORE_TEXT, _BEFORE_TOOLS = 15, 17
#: Columns that a text has, however narrow the terminal.
_LEAST = 20


def timeline_of(cycles: Iterable[v1.RequestCycle], paint: Paint, width: Width | None = None) -> Iterator[SafeText]:
    """Yield the lines of cycles that have both views, a blank one before each cycle. What is too long is cut."""
    for cycle in cycles:
        yield SafeText()
        yield from _Timeline(cycle, paint, width() if width else WIDTH).lines()


class _Timeline:
    """One cycle."""

    def __init__(self, cycle: v1.RequestCycle, paint: Paint, width: int) -> None:
        self._cycle = cycle
        self._paint = paint
        self._width = width
        self._text = max(_LEAST, width - _BEFORE_TEXT)
        self._said: dict[str, v1.Message] = {}
        self._texts: dict[str, str] = {}
        self._calls: dict[str, tuple[str, v1.ToolCall, v1.ToolResult | None]] = {}
        for step in cycle.steps:
            match step.WhichOneof("step"):
                case "root":
                    self._said[step.root.name] = step.root
                case "steer":
                    self._said[step.steer.name] = step.steer
                case _:
                    self._take(step.ai_block)

    def _take(self, block: v1.AiBlock) -> None:
        if block.message and block.assistant:
            self._texts.setdefault(block.message, block.assistant)
        for group in block.tool_call_groups:
            kind = enum_name(v1.ToolGroup, group.group)
            for call in group.calls:
                result = group.results.get(call.tool_use_id)
                self._calls[call.tool_use_id] = kind, call, result

    def lines(self) -> Iterator[SafeText]:
        """Yield the head, what people said and what requests brought, in order, and the end."""
        yield self._head()
        shown: set[str] = set()
        for number, served in enumerate(self._cycle.rounds, 1):
            for name in served.inputs:
                if name in self._said:
                    shown.add(name)
                    yield self._user(self._said[name])
            yield self._round(number, served)
            yield from self._tools(served)
        for name, said in self._said.items():
            if name not in shown:
                yield self._user(said)
        yield from self._end()

    def _head(self) -> SafeText:
        cycle = self._cycle
        began = moment(cycle.start_time).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        parts = [cycle.name.rpartition("/")[2] or "run", began if cycle.HasField("start_time") else ""]
        if cycle.root_delivery == v1.DELIVERY_FOLLOW_UP:
            parts.append("follow-up")
        return self._paint.bold(one_line(" ".join(filter(None, parts)), self._width))

    def _user(self, said: v1.Message) -> SafeText:
        steer = " (steer)" if said.delivery == v1.DELIVERY_STEER else ""
        text = Message(said).text or ("an image" if Message(said).images else "")
        shown = self._paint.name(one_line(text, self._text - len(steer)))
        return self._paint.text(f"{'   >':{_BEFORE_TEXT}}", shown, self._paint.dim(steer))

    def _round(self, number: int, served: v1.InferenceRound) -> SafeText:
        at = self._after_start(moment(served.output_time)) if served.HasField("output_time") else ""
        text = one_line(self._texts.get(served.output, ""), self._text)
        shown = text or self._paint.dim("no text")
        return self._paint.text(f"{number:>4} ", self._paint.dim(f"{at:>9}"), " ", shown)

    def _after_start(self, then: datetime) -> str:
        start = self._cycle.start_time
        return f"+{_seconds((then - moment(start)).total_seconds())}" if self._cycle.HasField("start_time") else ""

    def _tools(self, served: v1.InferenceRound) -> Iterator[SafeText]:
        calls = [self._calls[call] for call in served.tool_use_ids if call in self._calls]
        for kind, entries in groupby(calls, key=lambda entry: entry[0]):
            group = list(entries)
            names = ", ".join(_counted([call.tool for _, call, _ in group]))
            took = sum(result.duration.ToTimedelta().total_seconds() for _, _, result in group if result)
            notes = [_seconds(took)] if took else []
            notes += _counted([_outcome(result) for _, _, result in group if _outcome(result) != "ok"])
            tail = f"  {', '.join(notes)}" if notes else ""
            line = one_line(f"{kind}: {names}", max(8, self._width - _BEFORE_TOOLS - len(tail)))
            yield self._paint.text(f"{'- ':>{_BEFORE_TOOLS}}", line, self._paint.dim(tail))

    def _end(self) -> Iterator[SafeText]:
        cycle = self._cycle
        reason = enum_name(v1.StopReason, cycle.stop_reason)
        parts = [ending(cycle)]
        if cycle.HasField("start_time") and cycle.HasField("end_time"):
            parts.append(_seconds((moment(cycle.end_time) - moment(cycle.start_time)).total_seconds()))
        parts.append(counted(len(cycle.rounds), "request"))
        parts += _tokens(cycle)
        paint = {"completed": self._paint.good, "error": self._paint.bad}.get(reason, self._paint.careful)
        ended = self._paint.flat(", ".join(parts))
        for number, line in enumerate(wrap(ended, self._text, max_lines=3, placeholder="…")):
            yield self._paint.text(f"{'' if number else '   =':{_BEFORE_TEXT}}", paint(line))


def _outcome(result: v1.ToolResult | None) -> str:
    return enum_name(v1.ToolOutcome, result.outcome) if result else "open"


def _counted(values: list[str]) -> list[str]:
    """Each value once, in the order of the first ones, with how often it is there."""
    return [value if values.count(value) == 1 else f"{value} x{values.count(value)}" for value in dict.fromkeys(values)]


def _seconds(value: float) -> str:
    """For people: 0.12 s, 3.4 s, 75 s, 12 min."""
    if value < 1:
        return f"{max(0.0, value):.2f} s"
    if value < 10:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < 600 else f"{value / 60:.0f} min"


def _tokens(cycle: v1.RequestCycle) -> list[str]:
    usages = [served.usage for served in cycle.rounds]
    read = sum(usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens for usage in usages)
    written = sum(usage.output_tokens for usage in usages)
    return [f"{read:,} tokens in", f"{written:,} out"] if read or written else []
