"""Formats the timeline of a run as lines of text: model requests with their times, tool calls with their durations."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from itertools import groupby, islice
from textwrap import wrap
from typing import IO, TYPE_CHECKING, Any

import click

from bedrock._interrupts import ending_at_once
from bedrock._shared.deadline import Deadline
from bedrock._shared.requests import MAX_REQUEST_BYTES
from bedrock.cli import exit_codes as exits
from bedrock.cli.arguments import CONVERSATION, NAME, connect
from bedrock.cli.display.labels import APPROVAL, NO_RUNS, counted, ending, waits_for
from bedrock.cli.text.output import (
    JSON_OPTION,
    print_json_line,
    print_line,
    print_none,
    print_table,
    print_text,
    print_values,
)
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import Paint, Width, columns, one_line
from bedrock.request_cycles import RequestCycle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from bedrock import Conversation, ConversationInfo
    from bedrock.messages import Message, ToolCall, ToolResult
    from bedrock.request_cycles import AiBlock, InferenceRound
    from bedrock.types import CycleView

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


#: The entry point group in which the server's package registers the function that computes cycles from events.
GROUP = "bedrock.offline"

COLUMNS = ("run", "asked", "requests", "ended")

#: Seconds between checks of what the run waits for.
LOOK_SECONDS = 5.0

#: Default number of cycles shown.
LIMIT = 20


@click.command()
@click.argument("source", metavar="NAME|FILE.jsonl", type=CONVERSATION)
@click.option("-n", "--limit", type=click.IntRange(1), help=f"How many of the latest. [{LIMIT}; of events: all]")
@click.option("--timeline", is_flag=True, help="Show requests and tool calls in their order.")
@click.option("--events", is_flag=True, help="Print the events of the runs as lines of JSON.")
@click.option("--strict/--lenient", help="In a file: refuse events that are out of order. [skip them]")
@JSON_OPTION
@click.pass_context
def cycles(
    ctx: click.Context, source: str, *, limit: int | None, timeline: bool, events: bool, strict: bool, output: str
) -> None:
    """List the runs of a conversation: what was asked, and how each run ended.

    A path with a slash or that ends in .jsonl, or - for standard input, is read as a file of events, as --events prints
    them, without a server.
    """
    view: CycleView = "events" if events else "full"
    if source == "-" or source.endswith(".jsonl") or ("/" in source and not source.startswith("conversations/")):
        found = _of_file(source, strict=strict)
    else:
        newest_first = connect(ctx).conversation(source).cycles(view=view, newest_first=True)
        found = list(islice(newest_first, limit or (None if events else LIMIT)))[::-1]
    found = found[-limit:] if limit else found
    if output == "json" and not events:
        print_values(found)
    elif not found:
        print_none(NO_RUNS)
    elif events:
        for line in event_list(found):
            print_json_line(line)
    elif timeline:
        for line in timeline_of(found, Paint.for_stream(sys.stdout), columns(sys.stdout)):
            print_line(line)
    else:
        print_table(COLUMNS, map(_row, found), none=NO_RUNS)


@click.command()
@NAME
@click.option("--run", default="", metavar="RUN", help="The run to wait for. [the one in progress, else the last one]")
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Wait no longer than this. [no limit]")
@JSON_OPTION
@click.pass_context
def wait(ctx: click.Context, name: str, *, run: str, timeout: float | None, output: str) -> None:
    """Wait until a run has ended, and print how.

    Nothing is changed, and a question stays open for others to answer; standard error says so. The exit code is 0 if
    the run has completed, 1 if it failed, was interrupted or has not ended in time, 3 if it waits for approval then.
    `bedrock cycles` lists the ids of runs.
    """
    conversation = connect(ctx).conversation(name)
    chosen = run or conversation.get().state.run or _latest(conversation)
    cycle, waits = _waited(conversation, chosen, Deadline(timeout))
    if output == "json":
        print_values([cycle])
    else:
        *about, ended = _row(cycle)
        print_table(COLUMNS, [(*about, waits or ended)], none=NO_RUNS)
    if cycle.stop_reason != "completed":
        ctx.exit(exits.NEEDS_APPROVAL if waits == APPROVAL else exits.FAILED)


def _waited(conversation: Conversation, run: str, deadline: Deadline) -> tuple[RequestCycle, str]:
    """Wait for the end of a run, and print meanwhile what it waits for.

    Returns the run's request cycle, and what the run waits for when the time is up; "" if it waits for nothing or has
    ended.
    """
    told = ""
    while True:
        now = conversation.get()
        is_its = now.state.run.rpartition("/")[2] == run.rpartition("/")[2]
        waits = waits_for(now.state) if is_its else ""
        if waits and waits != told:
            exits.print_message(f"{now.slug} {waits}{_what_answers(now)}")
        told = waits
        cycle = conversation.wait_for_cycle(run, view="full", timeout=deadline.shorten(LOOK_SECONDS))
        if cycle.end_time is not None:
            return cycle, ""
        if deadline.left() == 0:
            return cycle, waits


def _what_answers(now: ConversationInfo) -> str:
    if now.state.questions:
        return f": `bedrock answer {now.slug}`"
    return f": `bedrock approve {now.slug}` or `bedrock deny {now.slug}`" if waits_for(now.state) == APPROVAL else ""


def _latest(conversation: Conversation) -> str:
    latest = next(iter(conversation.cycles(newest_first=True)), None)
    if latest is None:
        raise exits.CommandError("the conversation has no runs yet")
    return latest.name


def event_list(cycles: Iterable[RequestCycle]) -> Iterator[str]:
    """Yield the events of several cycles in one sequence, in the order in which they happened.

    A follow-up is accepted before the end of the run that it waits for, so its first event precedes that run's last
    one.
    """
    stop: str | None = None
    for cycle in cycles:
        if not cycle.events:
            continue
        root, *following = cycle.events
        if cycle.root_delivery == "follow_up" or stop is None:
            yield root
            if stop is not None:
                yield stop
        else:
            yield stop
            yield root
        stop = following.pop() if cycle.stop_reason and following else None
        yield from following
    if stop is not None:
        yield stop


def _of_file(source: str, *, strict: bool) -> list[RequestCycle]:
    try:
        with click.open_file(source, "rb") as file:
            found, skipped = _fold()(_lines(file), strict=strict)
    except (OSError, ValueError) as error:
        name = "standard input" if source == "-" else source
        raise exits.CommandError(f"{name}: {getattr(error, 'strerror', None) or error}") from None
    if skipped:
        what = "event was" if skipped == 1 else "events were"
        print_text(f"{skipped} {what} skipped: out of order (--strict says which)", err=True)
    return [RequestCycle.from_proto(cycle) for cycle in found]


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file. Raises ValueError for a line that is longer than any event."""
    number = 0
    while line := file.readline(MAX_REQUEST_BYTES):
        number += 1
        if len(line) == MAX_REQUEST_BYTES:
            raise ValueError(f"line {number} is longer than any event")
        yield line


def _fold() -> Any:
    """Return the server package's function that computes request cycles from lines of events; it needs no server.

    Raises CommandError if the package is not installed.
    """
    for plugged in entry_points(group=GROUP, name="cycles"):
        with ending_at_once():
            return plugged.load()
    raise exits.CommandError(
        "cycles of a file are made by the server's program, which is not installed here",
        "Install it from a checkout with `pip install ./clients .`; no server has to run.",
        exits.USAGE,
    )


def _row(cycle: RequestCycle) -> tuple[str, str, str, str]:
    root = cycle.steps[0].root if cycle.steps else None
    asked = " ".join(block.text for block in root.content if block.text) if root else ""
    return cycle.name.rpartition("/")[2], asked, str(len(cycle.rounds)), ending(cycle)
