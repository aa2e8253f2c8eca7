"""Commands that look and change nothing: list, show, cycles, watch, models, tools."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from itertools import islice

import click

from bedrock import v1
from bedrock._names import enum_name
from bedrock.cli.connection import connect
from bedrock.cli.paint import Paint, one_line
from bedrock.cli.tables import JSON_OPTION, ago, as_plain, print_json, print_table
from bedrock.cli.transcript import Transcript
from bedrock.messages import Approval, moment


@click.command("list")
@click.option("--archived", is_flag=True, help="Those that are archived.")
@click.option("--parent", metavar="SLUG", default="", help="The sub-agents of this conversation.")
@click.option("-n", "--limit", type=click.IntRange(1), default=30, show_default=True, help="How many at most.")
@JSON_OPTION
@click.pass_context
def list_(ctx: click.Context, archived: bool, parent: str, limit: int, output: str) -> None:
    """List conversations, the latest first."""
    found = list(islice(connect(ctx).conversations(archived=archived, parent=parent), limit))
    if output == "json":
        print_json(found)
        return
    if not found and sys.stdout.isatty():
        click.echo("No conversations. Start one: `bedrock chat`.")
        return
    now = datetime.now(UTC)  # noqa: TID251 -- the age of things is meant for the reader's clock
    print_table(
        ("slug", "state", "mode", "model", "changed", "title"),
        (
            (
                conversation.slug,
                _state(conversation.state),
                enum_name(v1.Mode, conversation.mode),
                conversation.model.removeprefix("models/"),
                ago(moment(conversation.update_time), now),
                conversation.title or conversation.working_directory,
            )
            for conversation in found
        ),
    )


@click.command()
@click.argument("name")
@click.option("-n", "--limit", type=click.IntRange(0), default=50, show_default=True, help="How many messages.")
@JSON_OPTION
@click.pass_context
def show(ctx: click.Context, name: str, limit: int, output: str) -> None:
    """Show a conversation: how it stands, and its latest messages."""
    conversation = connect(ctx).conversation(name)
    now = conversation.get()
    messages = list(islice(conversation.messages(newest_first=True), limit))[::-1]
    if output == "json":
        plain = as_plain(now)
        plain["messages"] = [as_plain(message.proto) for message in messages]
        click.echo(json.dumps(plain, indent=2))
        return
    paint = Paint.for_stream(sys.stdout)
    for label, value in _facts(now):
        click.echo(f"{paint.dim(label.ljust(10))} {value}")
    transcript = Transcript(paint, click.echo)
    for message in messages:
        transcript.message(message)
    for pending in now.state.awaiting_approval.pending:
        click.echo("\n".join(transcript.question(Approval.from_proto(pending), now.working_directory)))
    if now.state.kind == v1.STATE_KIND_AWAITING_TOOL_APPROVAL:
        click.echo(f"Answer with `bedrock approve {now.slug}` or `bedrock deny {now.slug}`.")


@click.command()
@click.argument("name")
@click.option("-n", "--limit", type=click.IntRange(1), default=20, show_default=True, help="How many at most.")
@JSON_OPTION
@click.pass_context
def cycles(ctx: click.Context, name: str, limit: int, output: str) -> None:
    """List what was asked in a conversation, and how each run ended."""
    found = list(islice(connect(ctx).conversation(name).cycles(view="full", newest_first=True), limit))[::-1]
    if output == "json":
        print_json(found)
        return
    print_table(("run", "asked", "requests", "ended"), (_cycle(cycle) for cycle in found))


@click.command()
@click.argument("name", required=False)
@click.option(
    "--output", type=click.Choice(["text", "stream-json"]), default="text", help="For people, or a line per event."
)
@click.pass_context
def watch(ctx: click.Context, name: str | None, output: str) -> None:
    """Follow a conversation, or the list of them, until Ctrl-C. Watching never disturbs."""
    client = connect(ctx)
    if name is None:
        for entry in client.watch():
            if output == "stream-json":
                click.echo(json.dumps(as_plain(entry)))
            elif entry.HasField("conversation_changed"):
                changed = entry.conversation_changed
                click.echo(f"{changed.slug}  {_state(changed.state)}  {one_line(changed.title, 60)}".rstrip())
            elif entry.HasField("conversation_deleted"):
                click.echo(f"{entry.conversation_deleted}  deleted")
        return
    live = output == "text" and sys.stdout.isatty()
    transcript = Transcript(Paint.for_stream(sys.stdout), click.echo, live=live)
    for event in client.conversation(name).events(omit_deltas=not live and output == "text"):
        if output == "stream-json":
            click.echo(json.dumps({"kind": event.kind, **as_plain(event.proto)}))
            continue
        transcript.show(event)
        if event.approval is not None:
            working_directory = client.conversation(name).get().working_directory
            click.echo("\n".join(transcript.question(event.approval, working_directory)))


@click.command()
@JSON_OPTION
@click.pass_context
def models(ctx: click.Context, output: str) -> None:
    """List the models that conversations can use."""
    found = connect(ctx).models()
    if output == "json":
        print_json(found)
        return
    print_table(
        ("model", "provider", "usable window", "images", ""),
        (
            (
                model.name.removeprefix("models/"),
                model.provider,
                f"{model.usable_window_tokens:,}{' (assumed)' if model.limits_assumed else ''}",
                "yes" if model.images else "no",
                "default" if model.default else "",
            )
            for model in found
        ),
    )


@click.command()
@JSON_OPTION
@click.pass_context
def tools(ctx: click.Context, output: str) -> None:
    """List the tools that agents can call."""
    found = connect(ctx).tools()
    if output == "json":
        print_json(found)
        return
    print_table(
        ("tool", "modes", "writes", "what it does"),
        (
            (
                tool.name.removeprefix("tools/"),
                ", ".join(enum_name(v1.Mode, mode) for mode in tool.modes),
                "yes" if tool.writes else "no",
                tool.description.strip().split("\n")[0],
            )
            for tool in found
        ),
    )


def _state(state: v1.ConversationState) -> str:
    return enum_name(v1.StateKind, state.kind).replace("_", " ")


def _facts(conversation: v1.Conversation) -> list[tuple[str, str]]:
    usage = conversation.context_usage
    share = f" ({100 * usage.used_tokens / usage.usable_window_tokens:.0f} %)" if usage.usable_window_tokens else ""
    facts = [
        ("slug", conversation.slug),
        ("id", conversation.name.removeprefix("conversations/")),
        ("title", one_line(conversation.title, 100)),
        ("state", _state(conversation.state)),
        ("error", one_line(conversation.state.error.message, 200)),
        ("directory", conversation.working_directory),
        ("model", conversation.model.removeprefix("models/")),
        ("mode", enum_name(v1.Mode, conversation.mode)),
        ("approval", enum_name(v1.ApprovalPolicy, conversation.approval_policy)),
        ("context", f"{usage.used_tokens:,} of {usage.usable_window_tokens:,} tokens{share}"),
        ("used", _used(conversation.total_usage)),
        ("goes on in", conversation.continued_by.removeprefix("conversations/")),
        ("comes from", conversation.continued_from.removeprefix("conversations/")),
    ]
    return [(label, value) for label, value in facts if value]


def _used(usage: v1.Usage) -> str:
    """Tokens of all answers together, and what they cost where that is known; "" before the first answer."""
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    if not (read or usage.output_tokens):
        return ""
    cached = f" ({usage.cache_read_tokens:,} from cache)" if usage.cache_read_tokens else ""
    cost = f", ${usage.cost_micros / 1_000_000:,.4f}" if usage.cost_micros else ""
    return f"{read:,} tokens in{cached}, {usage.output_tokens:,} out{cost}"


def _cycle(cycle: v1.RequestCycle) -> tuple[str, str, str, str]:
    root = cycle.steps[0].root if cycle.steps else v1.Message()
    asked = " ".join(block.text for block in root.content if block.HasField("text"))
    ended = enum_name(v1.StopReason, cycle.stop_reason) or "under way"
    detail = f" ({cycle.stop_detail})" if cycle.stop_detail else ""
    return cycle.name.rpartition("/")[2], one_line(asked, 60), str(len(cycle.rounds)), ended + detail
