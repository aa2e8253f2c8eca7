"""Formats the timeline of a run as lines of text: model requests with their times, tool calls with their durations."""

from __future__ import annotations

from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING

from bedrock.cli.display.labels import counted, ending
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import Paint, Width, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from bedrock.messages import Message, ToolCall, ToolResult
    from bedrock.request_cycles import AiBlock, InferenceRound, RequestCycle

#: Maximum columns of a line if the output is not a terminal.
WIDTH = 80
#: The width, in columns, of what precedes the text: in a line about a model request, and in a line about tool calls.
_BEFORE_TEXT, _BEFORE_TOOLS = 15, 17
#: The minimum width of a text, in columns, even if the terminal is too narrow for it.
_LEAST = 20


def timeline_of(cycles: Iterable[RequestCycle], paint: Paint, width: Width | None = None) -> Iterator[SafeText]:
    """Yield the timelines of runs (request cycles) as lines; an empty line precedes each run.

    The `cycles` must contain their steps and model requests (the view "full" in the gRPC API). `width` returns the
    maximum columns of a line. Long texts are truncated.
    """
    for cycle in cycles:
        yield SafeText()
        yield from _Timeline(cycle, paint, width() if width else WIDTH).lines()


class _Timeline:
    def __init__(self, cycle: RequestCycle, paint: Paint, width: int) -> None:
        self._cycle = cycle
        self._paint = paint
        self._width = width
        self._text = max(_LEAST, width - _BEFORE_TEXT)
        self._said: dict[str, Message] = {}
        self._texts: dict[str, str] = {}
        self._calls: dict[str, tuple[str, ToolCall, ToolResult | None]] = {}
        for step in cycle.steps:
            if said := step.root or step.steer:
                self._said[said.name] = said
            if step.ai_block:
                self._take(step.ai_block)

    def _take(self, block: AiBlock) -> None:
        if block.message and block.assistant:
            self._texts.setdefault(block.message, block.assistant)
        for group in block.tool_call_groups:
            kind = group.group
            for call in group.calls:
                result = group.results.get(call.tool_use_id)
                self._calls[call.tool_use_id] = kind, call, result

    def lines(self) -> Iterator[SafeText]:
        """Yield the lines: a heading, the users' messages and the model requests in order, and how the run ended."""
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
        began = _local(cycle.start_time).strftime("%Y-%m-%d %H:%M:%S")
        parts = [cycle.name.rpartition("/")[2] or "run", began if _is_timed(cycle) else ""]
        if cycle.root_delivery == "follow_up":
            parts.append("follow-up")
        return self._paint.bold(one_line(" ".join(filter(None, parts)), self._width))

    def _user(self, said: Message) -> SafeText:
        steer = " (steer)" if said.delivery == "steer" else ""
        text = said.text or ("an image" if said.images else "")
        shown = self._paint.name(one_line(text, self._text - len(steer)))
        return self._paint.text(f"{'   >':{_BEFORE_TEXT}}", shown, self._paint.dim(steer))

    def _round(self, number: int, served: InferenceRound) -> SafeText:
        at = self._after_start(served.output_time) if served.output_time else ""
        text = one_line(self._texts.get(served.output, ""), self._text)
        shown = text or self._paint.dim("no text")
        return self._paint.text(f"{number:>4} ", self._paint.dim(f"{at:>9}"), " ", shown)

    def _after_start(self, then: datetime) -> str:
        start = self._cycle.start_time
        return f"+{_seconds((then - start).total_seconds())}" if _is_timed(self._cycle) else ""

    def _tools(self, served: InferenceRound) -> Iterator[SafeText]:
        calls = [self._calls[call] for call in served.tool_use_ids if call in self._calls]
        for kind, entries in groupby(calls, key=lambda entry: entry[0]):
            group = list(entries)
            names = ", ".join(_counted([call.tool for _, call, _ in group]))
            took = sum(result.duration.total_seconds() for _, _, result in group if result and result.duration)
            notes = [_seconds(took)] if took else []
            notes += _counted([_outcome(result) for _, _, result in group if _outcome(result) != "ok"])
            tail = f"  {', '.join(notes)}" if notes else ""
            line = one_line(f"{kind}: {names}", max(8, self._width - _BEFORE_TOOLS - len(tail)))
            yield self._paint.text(f"{'- ':>{_BEFORE_TOOLS}}", line, self._paint.dim(tail))

    def _end(self) -> Iterator[SafeText]:
        cycle = self._cycle
        reason = cycle.stop_reason
        parts = [ending(cycle)]
        if _is_timed(cycle) and cycle.end_time:
            parts.append(_seconds((cycle.end_time - cycle.start_time).total_seconds()))
        parts.append(counted(len(cycle.rounds), "request"))
        parts += _tokens(cycle)
        paint = {"completed": self._paint.good, "error": self._paint.bad}.get(reason, self._paint.careful)
        ended = self._paint.flat(", ".join(parts))
        for number, line in enumerate(wrap(ended, self._text, max_lines=3, placeholder="…")):
            yield self._paint.text(f"{'' if number else '   =':{_BEFORE_TEXT}}", paint(line))


def _local(time: datetime) -> datetime:
    """Return a time in the time zone of this machine; unchanged if the result were not within the years 1 to 9999."""
    try:
        return time.astimezone()
    except (OverflowError, ValueError):
        return time


def _is_timed(cycle: RequestCycle) -> bool:
    """Return whether the start of a run is known. A run that was read from an exported file may have no start time."""
    return cycle.proto.HasField("start_time")


def _outcome(result: ToolResult | None) -> str:
    return result.outcome if result else "open"


def _counted(values: list[str]) -> list[str]:
    return [value if values.count(value) == 1 else f"{value} x{values.count(value)}" for value in dict.fromkeys(values)]


def _seconds(value: float) -> str:
    if value < 1:
        return f"{max(0.0, value):.2f} s"
    if value < 10:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < 600 else f"{value / 60:.0f} min"


def _tokens(cycle: RequestCycle) -> list[str]:
    usages = [served.usage for served in cycle.rounds if served.usage]
    read = sum(usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens for usage in usages)
    written = sum(usage.output_tokens for usage in usages)
    return [f"{read:,} tokens in", f"{written:,} out"] if read or written else []
