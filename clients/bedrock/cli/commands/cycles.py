"""`bedrock cycles` lists the runs of a conversation, `bedrock wait` waits for one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import isfinite

import click

from bedrock import Conversation, ConversationInfo
from bedrock._shared.deadline import Deadline
from bedrock.cli import exit_codes as exits
from bedrock.cli.arguments import on_conversation
from bedrock.cli.display.labels import APPROVAL, ending, waits_for
from bedrock.cli.text.output import JSON_OPTION, print_listing
from bedrock.request_cycles import RequestCycle


def _asked(cycle: RequestCycle) -> str:
    root = cycle.steps[0].root if cycle.steps else None
    return " ".join(block.text for block in root.content if block.text) if root else ""


COLUMNS: dict[str, Callable[[RequestCycle], str]] = {
    "run": lambda cycle: cycle.name.rpartition("/")[2],
    "asked": _asked,
    "requests": lambda cycle: str(len(cycle.rounds)),
    "ended": ending,
}

#: Seconds between checks of what the run waits for.
LOOK_SECONDS = 5.0


@on_conversation
@click.option("-n", "--limit", type=click.IntRange(1), default=20, show_default=True, help="Number of the latest.")
@JSON_OPTION
def cycles(conversation: Conversation, *, limit: int, output: str) -> None:
    """List the runs of a conversation with their messages and outcomes.

    With --output json: also the steps and the requests to the model, with their times, tool calls and tokens.
    """
    found = list(islice(conversation.cycles(view="full", newest_first=True), limit))[::-1]
    print_listing(found, output, COLUMNS, none="It has no runs yet.")


@on_conversation
@click.option("--run", default="", metavar="RUN", help="The run to wait for. [the one in progress, else the last one]")
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Wait no longer than this. [no limit]")
@JSON_OPTION
def wait(conversation: Conversation, *, run: str, timeout: float | None, output: str) -> None:
    """Wait until a run has ended, and print how.

    Nothing is changed; open questions are left to others and reported on standard error. The exit code is 0 if
    the run has completed, 1 if it failed, was interrupted or has not ended in time, 3 if it waits for approval then.
    `bedrock cycles` lists the ids of runs.
    """
    if timeout is not None and not isfinite(timeout):
        raise click.BadParameter("must be a number of seconds", param_hint="--timeout")
    chosen = run or conversation.get().state.run or _latest(conversation)
    cycle, waits = _waited(conversation, chosen, Deadline(timeout))
    print_listing([cycle], output, COLUMNS | {"ended": lambda cycle: waits or ending(cycle)}, none="")
    if cycle.stop_reason != "completed":
        click.get_current_context().exit(exits.NEEDS_APPROVAL if waits == APPROVAL else exits.FAILED)


def _waited(conversation: Conversation, run: str, deadline: Deadline) -> tuple[RequestCycle, str]:
    """Wait for a run's end, and print what it waits for.

    Returns its request cycle, and what it waits for at the deadline, or "".
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
