"""`bedrock cycles`: lists the runs of a conversation, or of a file of events. `bedrock wait`: waits for a run."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import click

from bedrock._interrupts import ending_at_once
from bedrock._shared.deadline import Deadline
from bedrock._shared.requests import MAX_REQUEST_BYTES
from bedrock.cli import exit_codes as exits
from bedrock.cli.arguments import CONVERSATION, NAME
from bedrock.cli.connect import connect
from bedrock.cli.display.labels import APPROVAL, NO_RUNS, ending, waits_for
from bedrock.cli.display.timeline import timeline_of
from bedrock.cli.text.output import print_json_line, print_line, print_text
from bedrock.cli.text.style import Paint, columns
from bedrock.cli.text.tables import JSON_OPTION, print_none, print_table, print_values
from bedrock.request_cycles import RequestCycle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bedrock import Conversation, ConversationInfo
    from bedrock.types import CycleView

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
