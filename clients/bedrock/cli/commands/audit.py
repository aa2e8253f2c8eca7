"""Commands that check or export stored data: verify, replay, export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bedrock import Client, v1
from bedrock.cli import exit_codes as exits
from bedrock.cli.arguments import CONVERSATION, NAME
from bedrock.cli.connect import connect
from bedrock.cli.output_files import write_file
from bedrock.cli.text.output import print_json_line, print_text

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.command()
@click.argument("names", nargs=-1, type=CONVERSATION)
@click.option("--all", "everything", is_flag=True, help="All conversations, archived ones and sub-agents too.")
@click.pass_context
def verify(ctx: click.Context, names: tuple[str, ...], everything: bool) -> None:
    """Check stored conversations and change nothing.

    The check covers the stored rows, gaps, the hash chain, the results of tool calls and the ends of runs.
    """
    client = connect(ctx)
    if not (names or everything):
        raise click.UsageError("name conversations, or use --all")
    broken = 0
    for name in _everything(client) if everything else names:
        violations = client.conversation(name).verify()
        broken += bool(violations)
        print_text(f"{name}: {'ok' if not violations else f'{len(violations)} violation(s)'}")
        for violation in violations:
            print_text(f"  {violation}")
    ctx.exit(exits.FAILED if broken else exits.OK)


def _everything(client: Client) -> Iterator[str]:
    """Yield the slugs of all conversations and sub-agents, each once: lists may repeat those that change.

    Those that are too damaged to be listed are identified by their ids.
    """
    seen: set[str] = set()
    for name, slug in _listed(client):
        for each, shown in ((name, slug), *_listed(client, parent=name)):
            if each not in seen:
                seen.add(each)
                yield shown or each.removeprefix("conversations/")


def _listed(client: Client, *, parent: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and slugs, archived conversations included; an unreadable slug is empty."""
    request = v1.ListConversationsRequest(parent=parent)
    for page in client.pages(client.conversations_stub.ListConversations, request):
        yield from ((found.name, found.slug) for found in page.conversations)
        yield from ((name, "") for name in page.unreadable)


@click.command()
@NAME
@click.option("--until", metavar="REVISION", type=click.IntRange(0), default=0, help="Stop after this revision.")
@click.option("-v", "--verbose", is_flag=True, help="Print every step.")
@click.pass_context
def replay(ctx: click.Context, name: str, until: int, verbose: bool) -> None:
    """Replay a log, and compare each step with what was stored.

    The log is what the state machine was told; nothing is changed, and no model or tool is called.
    """
    steps = differences = 0
    for step in connect(ctx).conversation(name).replay(until):
        steps += 1
        if verbose:
            print_json_line(f"{step.step}\t{step.revision}\t{step.event_json}\t{step.state_json}")
        if step.difference:
            differences += 1
            print_text(f"step {step.step}: {step.difference}")
    print_text(f"{steps} steps, {differences} differences")
    ctx.exit(exits.FAILED if differences else exits.OK)


@click.command()
@NAME
@click.option("-o", "--output", "path", type=click.Path(dir_okay=False, path_type=Path), help="A file to write into.")
@click.option("-f", "--force", is_flag=True, help="Overwrite the file if it exists.")
@click.pass_context
def export(ctx: click.Context, name: str, path: Path | None, force: bool) -> None:
    """Print everything about a conversation as lines of JSON.

    First the conversation, then its messages, then its events. Images are named; `bedrock download` saves them. The
    file appears only once it is complete; an existing file is not overwritten without --force.
    """
    lines = connect(ctx).conversation(name).export()
    if path is None:
        for line in lines:
            print_json_line(line)
        return
    write_file(path, (f"{line}\n".encode() for line in lines), force=force)
