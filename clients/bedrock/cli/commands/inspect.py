"""Read-only commands: list, show, cycles, wait, watch, models, tools and others."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, aclosing, closing
from importlib.metadata import entry_points
from itertools import islice
from math import isfinite
from typing import cast

import click

from bedrock import AsyncClient, Conversation
from bedrock._shared.deadline import Deadline
from bedrock.catalog import McpServer, Model, Node, Quota, Tool
from bedrock.cli import arguments
from bedrock.cli import exit_codes as exits
from bedrock.cli import stdio as streams
from bedrock.cli.arguments import connect, on_conversation, option
from bedrock.cli.display import labels
from bedrock.cli.display.follower import Drawing, Outage
from bedrock.cli.display.live_block import LiveBlock, tail_room
from bedrock.cli.display.transcript import Fate, Transcript, fates_among
from bedrock.cli.text.output import (
    JSON_OPTION,
    ago,
    folding,
    print_json,
    print_line,
    print_listing,
    print_none,
    print_text,
)
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import Paint, columns, one_line
from bedrock.conversations import ConversationInfo
from bedrock.messages import Message, Usage
from bedrock.request_cycles import RequestCycle
from bedrock.states import ConversationState

# The width in columns of the labels that precede facts about a conversation or a model.
_LABEL = 12


@click.command("list")
@option("--archived", "List archived conversations instead.", is_flag=True)
@option("--here", "Only conversations in the current directory.", is_flag=True)
@option("--parent", "List the sub-agents of this conversation instead.", metavar="SLUG", type=arguments.CONVERSATION)
@option("--filter filter_", "Only conversations that match.", metavar="FILTER", default="")
@option("-n --limit", "Maximum number to list.", type=click.IntRange(1), default=30, show_default=True)
@JSON_OPTION
@click.pass_context
def list_(
    ctx: click.Context, *, archived: bool, here: bool, parent: str | None, filter_: str, limit: int, output: str
) -> None:
    """List conversations, latest first.

    By default, those in all directories; --here lists those in the current one. FILTER names fields of conversations:
    --filter 'busy = true', 'title:"draft" AND labels.team = "docs"', 'update_time > "2026-01-31T00:00:00Z" AND NOT
    model:opus'. docs/api/conversations.md lists them. Archived conversations are left out unless FILTER names archived
    or archive_time.
    """
    listed = connect(ctx).conversations(
        archived=archived or (None if re.search(r"\barchive(d|_time)\b", filter_) else False),
        parent=parent or "",
        working_directory="." if here else None,
        filter=filter_,
        order_by="create_time" if parent else "",
    )
    columns: dict[str, Callable[[ConversationInfo], str]] = {
        "slug": lambda each: each.slug or _id(each),
        "state": lambda each: _state(each.state),
        "mode": lambda each: each.mode,
        "model": lambda each: each.model.removeprefix("models/"),
        "changed": lambda each: ago(each.update_time),
        "directory": lambda each: each.working_directory,
        "title": lambda each: each.title,
    }
    found = list(islice(listed, limit))
    chosen = archived or here or parent or filter_
    none = "No matching conversations." if chosen else "No conversations. Start one: `bedrock chat`."
    print_listing(found, output, columns, paths="directory", none=none)


@on_conversation
@option("-n --limit", "Show only the latest N messages.", type=click.IntRange(0), default=50, show_default=True)
@JSON_OPTION
def show(conversation: Conversation, *, limit: int, output: str) -> None:
    """Show a conversation: its state and settings, and its latest messages."""
    now = conversation.get()
    messages = list(islice(conversation.messages(newest_first=True), limit))[::-1]
    agents = list(conversation.sub_agents())
    if output == "json":
        shown = now.to_dict()
        shown["sub_agents"] = [agent.to_dict() for agent in agents]
        shown["messages"] = [message.to_dict() for message in messages]
        print_json(shown, indent=2)
        return
    paint = Paint.for_stream(sys.stdout)
    children = [("sub-agents", f"{len(agents)} (`bedrock list --parent {now.slug or _id(now)}` lists them)")]
    _print_facts([*_facts(now), *(children if agents else ())], paint)
    transcript = Transcript(paint, print_line, width=columns(sys.stdout))
    transcript.history(
        messages, asyncio.run(_fates(click.get_current_context().find_root().obj, conversation.name, messages))
    )
    if limit and not messages:
        print_none("No messages yet.")
    for pending in now.state.approvals:
        transcript.ask(pending, now.working_directory)
    if now.state.kind == "awaiting_tool_approval":
        print_text(f"Answer with `bedrock approve {now.slug}` or `bedrock deny {now.slug}`.")
    for question in now.state.questions:
        transcript.ask_person(question)
        print_text(f"Answer with `bedrock answer {now.slug}`, or add --decline.")


async def _fates(address: str | None, name: str, messages: list[Message]) -> list[Fate]:
    async with AsyncClient(address) as client:
        return await fates_among(client.conversation(name), messages)


@click.command()
@click.argument("name", required=False, metavar="[MODEL]", shell_complete=arguments.complete_model)
@JSON_OPTION
@click.pass_context
def models(ctx: click.Context, name: str | None, output: str) -> None:
    """List the models that conversations can use. With MODEL, print everything about it as JSON.

    If no server is running on this machine, one is started with the same settings.
    """
    if name is not None:
        print_json(arguments.connect_or_spawn(ctx).model(name).to_dict(), indent=2)
        return
    columns: dict[str, Callable[[Model], str]] = {
        "model": lambda model: model.name.removeprefix("models/"),
        "provider": lambda model: model.provider,
        "usable window": lambda model: f"{model.usable_window_tokens:,}{' (assumed)' if model.limits_assumed else ''}",
        "images": _images,
        "": lambda model: "default" if model.default else "",
    }
    print_listing(arguments.connect_or_spawn(ctx).models(), output, columns, none="No models.")


def _images(model: Model) -> str:
    return "unknown" if model.images_assumed else "yes" if model.images else "no"


@click.command()
@JSON_OPTION
@click.pass_context
def tools(ctx: click.Context, output: str) -> None:
    """List the tools that agents can call."""
    columns: dict[str, Callable[[Tool], str]] = {
        "tool": lambda tool: tool.name.removeprefix("tools/"),
        "modes": lambda tool: ", ".join(tool.modes),
        "writes": lambda tool: "yes" if tool.writes else "no",
        "what it does": lambda tool: tool.description.strip().split("\n")[0],
    }
    print_listing(connect(ctx).tools(), output, columns, none="No tools.")


def _state(state: ConversationState) -> str:
    waits = labels.waits_for(state)
    return labels.state_in_words(state.kind) + (f", {waits}" if waits not in ("", labels.APPROVAL) else "")


def _print_facts(facts: Iterable[tuple[str, str]], paint: Paint) -> None:
    say = folding(print_line, columns(sys.stdout))
    for label, value in facts:
        say(paint.text(paint.dim(label.ljust(_LABEL)), " ", value), indent=_LABEL + 1)


def _facts(conversation: ConversationInfo) -> list[tuple[str, str]]:
    usage = conversation.context_usage
    share = f" ({100 * usage.used_tokens / usage.usable_window_tokens:.0f}%)" if usage.usable_window_tokens else ""
    failure, completed = conversation.state.failure, conversation.state.completed
    facts = [
        ("slug", conversation.slug),
        ("id", _id(conversation)),
        ("title", one_line(conversation.title, 100)),
        ("state", _state(conversation.state)),
        ("parent", conversation.parent.removeprefix("conversations/")),
        ("error", one_line(failure.message, 200) if failure else ""),
        ("result", one_line(completed.result, 200) if completed else ""),
        ("directory", conversation.working_directory),
        ("model", conversation.model.removeprefix("models/") + labels.in_words(conversation.generation)),
        ("mode", conversation.mode),
        ("tools", _offered(conversation)),
        ("client tools", ", ".join(tool.name for tool in conversation.client_tools)),
        *(("not offered", f"{tool.name}: {tool.text}") for tool in conversation.unoffered_tools),
        ("instructions", _instructions(conversation)),
        ("MCP servers", _mcp_servers(conversation)),
        ("jobs", _jobs(conversation)),
        ("approval", conversation.approval_policy),
        ("rules", _rules(conversation)),
        ("context", f"{usage.used_tokens:,} of {usage.usable_window_tokens:,} tokens{share}"),
        ("window", labels.assumed_window(usage, conversation.model)),
        ("each request", f"about {usage.fixed_tokens:,} tokens of system prompt and tools" * bool(usage.fixed_tokens)),
        ("used", _used(conversation.total_usage)),
        ("side queries", _used(conversation.aside_usage)),
        ("when full", "continues automatically" * conversation.auto_continue),
        ("continued in", conversation.continued_by.removeprefix("conversations/")),
        ("continues", conversation.continued_from.removeprefix("conversations/")),
        ("forked from", conversation.forked_from.removeprefix("conversations/")),
    ]
    return [(label, value) for label, value in facts if value]


def _id(conversation: ConversationInfo) -> str:
    return conversation.name.removeprefix("conversations/")


def _offered(conversation: ConversationInfo) -> str:
    if conversation.tools is None:
        return ""
    return ", ".join(tool.removeprefix("tools/") for tool in conversation.tools.tools) or "none"


def _instructions(conversation: ConversationInfo) -> str:
    told = conversation.instructions
    if told is None:
        return ""
    return one_line(told.text, 200) + (" (instead of the server's prompt)" if told.replace else "")


def _rules(conversation: ConversationInfo) -> str:
    rules, name = len(conversation.approval_rules), conversation.slug or _id(conversation)
    return f"{rules} (`bedrock rules {name}` lists them)" if rules else ""


def _mcp_servers(conversation: ConversationInfo) -> str:
    return ", ".join(
        f"{server.name} ({'; '.join((state, *map(labels.tool_left_out, server.tools_left_out)))})"
        for server in conversation.mcp_servers
        for state in (f"{server.state}: {one_line(server.error, 200)}" if server.error else server.state,)
    )


def _jobs(conversation: ConversationInfo) -> str:
    name = conversation.slug or _id(conversation)
    jobs = ", ".join(conversation.background_jobs)
    return jobs and f"{jobs} (`bedrock cancel --kill-jobs {name}` ends them)"


def _used(usage: Usage) -> str:
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    if not (read or usage.output_tokens):
        return ""
    cached = f" ({usage.cache_read_tokens:,} from cache)" if usage.cache_read_tokens else ""
    cost = f", ${usage.cost_micros / 1_000_000:,.4f}" if usage.cost_micros else ""
    return f"{read:,} tokens in{cached}, {usage.output_tokens:,} out{cost}"


class _OfTheServer(click.Group):
    """A command group whose commands are in the server's package, which need not be installed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [entry.name for entry in entry_points(group="bedrock.commands.mcp")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = next(iter(entry_points(group="bedrock.commands.mcp", name=cmd_name)), None)
        return None if found is None else cast("click.Command", found.load())


@click.group(cls=_OfTheServer, invoke_without_command=True)
@JSON_OPTION
@click.pass_context
def mcp(ctx: click.Context, output: str) -> None:
    """List the MCP servers with their states and tools.

    They are configured in the server's settings, as [[mcp_servers]]. Log in to those that require it with
    `bedrock mcp login`, on the server's machine.
    """
    if ctx.invoked_subcommand is not None:
        return
    found = connect(ctx).server_info().mcp_servers
    columns: dict[str, Callable[[McpServer], str]] = {
        "server": lambda server: server.name,
        "state": lambda server: server.state.replace("_", " "),
        "tools": lambda server: str(len(server.tools)),
        "command or URL": lambda server: (
            server.http.url if server.http else " ".join(server.stdio.command if server.stdio else ())
        ),
        "": lambda server: one_line(server.error, 300),
    }
    print_listing(found, output, columns, none="No MCP servers; configure them as [[mcp_servers]] in the settings.")
    for server in found if output == "text" else ():
        for left_out in server.tools_left_out:
            print_text(f"{server.name}: {labels.tool_left_out(left_out)}")


@click.command()
@JSON_OPTION
@click.pass_context
def nodes(ctx: click.Context, output: str) -> None:
    """List the servers that share the database, as seen by the one that answers.

    Stopped servers are not listed. Requires the operator role.
    """
    found = connect(ctx).nodes()
    columns: dict[str, Callable[[Node], str]] = {
        "node": lambda node: node.name,
        "address": lambda node: node.address,
        "number": lambda node: str(node.incarnation),
        "version": lambda node: node.version,
        "active": lambda node: f"{node.active_conversations:,}",
        "state": lambda node: "stopping" if node.draining else "running",
        "": lambda node: "answers" if node.answering else "",
    }
    if any(node.workspaces for node in found):
        columns["workspaces"] = lambda node: " ".join(node.workspaces)
    if output == "text" and not any(node.address for node in found):
        found = []
    none = "This server does not share its conversations with other servers."
    print_listing(found, output, columns, none=none, zeros=True)


@click.command()
@JSON_OPTION
@click.pass_context
def quota(ctx: click.Context, output: str) -> None:
    """List your quotas and their usage.

    Operators see those of all principals, and the totals ("server"). Days and months are UTC.
    """
    columns: dict[str, Callable[[Quota], str]] = {
        "quota": lambda each: each.quota,
        "principal": lambda each: each.principal or "server",
        "used": lambda each: _amount(each.quota, each.used),
        "limit": lambda each: _amount(each.quota, each.limit),
        "resets": lambda each: "" if each.reset_time is None else f"{each.reset_time:%Y-%m-%d %H:%M} UTC",
    }
    print_listing(connect(ctx).quotas(), output, columns, none="You have no quotas.", zeros=True)


def _amount(name: str, value: int) -> str:
    return f"${value / 1_000_000:,.2f}" if name.startswith("cost_") else f"{value:,}"


def _asked(cycle: RequestCycle) -> str:
    root = cycle.steps[0].root if cycle.steps else None
    return " ".join(block.text for block in root.content if block.text) if root else ""


CYCLE_COLUMNS: dict[str, Callable[[RequestCycle], str]] = {
    "run": lambda cycle: cycle.name.rpartition("/")[2],
    "asked": _asked,
    "requests": lambda cycle: str(len(cycle.rounds)),
    "ended": labels.ending,
}

# Seconds between checks of what the run waits for.
LOOK_SECONDS = 5.0


@on_conversation
@option("-n --limit", "Show only the latest N runs.", type=click.IntRange(1), default=20, show_default=True)
@JSON_OPTION
def cycles(conversation: Conversation, *, limit: int, output: str) -> None:
    """List the runs of a conversation with their messages and outcomes.

    With --output json: also the steps and the requests to the model, with their times, tool calls and tokens.
    """
    found = list(islice(conversation.cycles(view="full", newest_first=True), limit))[::-1]
    print_listing(found, output, CYCLE_COLUMNS, none="No runs yet.")


@on_conversation
@option("--run", "The run to wait for. [the one in progress, else the last one]", default="", metavar="RUN")
@option("--timeout", "Maximum time to wait. [no limit]", type=click.FloatRange(0), metavar="SECONDS")
@JSON_OPTION
def wait(conversation: Conversation, *, run: str, timeout: float | None, output: str) -> None:
    """Wait until a run ends, and print how it ended.

    Nothing is changed; open questions are left to others and reported on standard error. The exit code is 0 if
    the run has completed, 1 if it failed, was interrupted or has not ended in time, 3 if it is waiting for approval.
    `bedrock cycles` lists the ids of runs.
    """
    if timeout is not None and not isfinite(timeout):
        raise click.BadParameter("must be a number of seconds", param_hint="--timeout")
    chosen = run or conversation.get().state.run or _latest_run(conversation)
    cycle, waits = _waited(conversation, chosen, Deadline(timeout))
    print_listing([cycle], output, CYCLE_COLUMNS | {"ended": lambda cycle: waits or labels.ending(cycle)}, none="")
    if cycle.stop_reason != "completed":
        click.get_current_context().exit(exits.NEEDS_APPROVAL if waits == labels.APPROVAL else exits.FAILED)


def _waited(conversation: Conversation, run: str, deadline: Deadline) -> tuple[RequestCycle, str]:
    """Wait for a run's end; while the run waits for something, print for what.

    Returns the run's request cycle, and what the run waits for at the deadline ("" if it has ended).
    """
    told = ""
    while True:
        now = conversation.get()
        is_its = now.state.run.rpartition("/")[2] == run.rpartition("/")[2]
        waits = labels.waits_for(now.state) if is_its else ""
        if waits and waits != told:
            exits.print_message(f"{now.slug} {waits}; see `bedrock show {now.slug}`")
        told = waits
        cycle = conversation.wait_for_cycle(run, view="full", timeout=deadline.shorten(LOOK_SECONDS))
        if cycle.end_time is not None:
            return cycle, ""
        if deadline.left() == 0:
            return cycle, waits


def _latest_run(conversation: Conversation) -> str:
    latest = next(iter(conversation.cycles(newest_first=True)), None)
    if latest is None:
        raise exits.CommandError("the conversation has no runs yet")
    return latest.name


@on_conversation
@option("--output", "Text for people, or JSON lines.", type=click.Choice(["text", "stream-json"]), default="text")
def watch(conversation: Conversation, output: str) -> None:
    """Follow a conversation until Ctrl-C. Watching changes nothing.

    A terminal also shows which sub-agents are at work. To follow one, watch it by its own name: `bedrock list --parent
    NAME` lists them. To follow the list of conversations: `watch bedrock list`.
    """
    streams.run(_watch(click.get_current_context().find_root().obj, conversation.name, output))


async def _watch(address: str | None, name: str, output: str) -> None:
    text = output == "text"
    live = text and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    paint, block = Paint.for_stream(sys.stdout), LiveBlock(sys.stdout)
    width = columns(sys.stdout) if live else None
    drawing = Drawing(paint, block.write if live else print_line, live=live, width=width)

    def below() -> list[SafeText]:
        return [*drawing.transcript.unfinished(tail_room(shutil.get_terminal_size().lines)), *drawing.agent_lines()]

    def say(text: str) -> None:
        if live:
            block.write(paint.careful(f"· {text}"))
        else:
            exits.print_message(text)

    async with AsyncClient(address) as client, AsyncExitStack() as stack:
        conversation = client.conversation(name)
        outage = stack.enter_context(closing(Outage(lambda: conversation, say)))
        client.on_disconnect = outage.begin
        if live:
            await stack.enter_async_context(block.updated(below))
        events = await stack.enter_async_context(aclosing(conversation.events(omit_deltas=text and not live)))
        async for event in drawing.follow(events, client.conversation) if text else events:
            outage.end()
            if not text:
                print_json(event.to_dict())
            elif live:
                block.show(below())
