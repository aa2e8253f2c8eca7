"""Commands that check and print what is stored: verify, replay, log, export, audit and download."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from bedrock import Client, Conversation, v1
from bedrock.cli import exit_codes as exits
from bedrock.cli.arguments import CONVERSATION, connect, on_conversation, option
from bedrock.cli.display.labels import SHOWN, kind, short
from bedrock.cli.text.output import print_json_line, print_text
from bedrock.messages import Image
from bedrock.types import AuditOutcome

UNITS = {"m": "minutes", "h": "hours", "d": "days"}
# Seconds between two reads of the audit trail with --follow.
FOLLOW_SECONDS = 1.0
# With --follow, each read goes back this far, because an entry may be stored later than the time that it states.
LATE = timedelta(seconds=30)


@click.command()
@click.argument("names", nargs=-1, type=CONVERSATION)
@option("--all everything", "Check all your conversations, including archived ones and sub-agents.", is_flag=True)
@click.pass_context
def verify(ctx: click.Context, names: tuple[str, ...], everything: bool) -> None:
    """Check that stored conversations are undamaged.

    The check covers the stored rows, gaps, the hash chain, the results of tool calls and the ends of runs.

    Conversations of other principals are not checked: `bedrock restore` into an empty directory checks those of all
    principals in a backup.
    """
    client = connect(ctx)
    if not (names or everything):
        raise click.UsageError("name one or more conversations, or pass --all")
    broken = checked = 0
    for name in _everything(client) if everything else names:
        violations = client.conversation(name).verify()
        broken, checked = broken + bool(violations), checked + 1
        print_text(f"{name}: {'ok' if not violations else f'{len(violations)} violation(s)'}")
        for violation in violations:
            print_text(f"  {violation}")
    if not checked:
        print_text("You have no conversations; those of other principals are not checked.", err=True)
    ctx.exit(exits.FAILED if broken else exits.OK)


def _everything(client: Client) -> Iterator[str]:
    """Yield the slug or id of each conversation and sub-agent once."""
    seen: set[str] = set()
    for name, slug in _listed(client):
        for each, shown in ((name, slug), *_listed(client, parent=name)):
            if each not in seen:
                seen.add(each)
                yield shown or each.removeprefix("conversations/")


def _listed(client: Client, *, parent: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and slugs ("" if unreadable) of all conversations, archived or not, or of `parent`'s sub-agents."""
    request = v1.ListConversationsRequest(parent=parent)
    for page in client.pages(client.conversations_stub.ListConversations, request):
        yield from ((found.name, found.slug) for found in page.conversations)
        yield from ((name, "") for name in page.unreadable)


@on_conversation
@option("--until", "Stop after this revision.", metavar="REVISION", type=click.IntRange(0), default=0)
def replay(conversation: Conversation, until: int) -> None:
    """Replay a log and compare each step with the stored one.

    The log contains the inputs of the state machine; nothing is changed, and no model or tool is called.
    """
    steps = differences = 0
    for step in conversation.replay(until):
        steps += 1
        if step.difference:
            differences += 1
            print_text(f"step {step.step}: {step.difference}")
    print_text(f"{steps} steps, {differences} differences")
    click.get_current_context().exit(exits.FAILED if differences else exits.OK)


@on_conversation
@option("--after", "Start after this step.", metavar="STEP", type=click.IntRange(0), default=0)
@option("-r --reverse", "Print the last step first.", is_flag=True)
def log(conversation: Conversation, after: int, reverse: bool) -> None:
    """Print the log of a conversation as JSON lines.

    Each line is a step of the state machine: its event, the facts that have changed, the effects that are stored, the
    revision and the digest. Steps that were pruned are missing.
    """
    for step in conversation.transitions(after_step=after, newest_first=reverse):
        values = step.to_dict()
        for name in [name for name in values if name.endswith("_json")]:
            with suppress(ValueError, RecursionError):  # in that case, the value stays a string
                values[name.removesuffix("_json")] = json.loads(values[name])
                del values[name]
        print_json_line(json.dumps(values, ensure_ascii=False))


@on_conversation
def export(conversation: Conversation) -> None:
    """Print everything about a conversation as JSON lines.

    First the conversation, then its messages, then its events. Images are included by name only; `bedrock
    download` saves them.
    """
    for line in conversation.export():
        print_json_line(line)


def _time(value: str) -> datetime:
    """Convert a time in RFC 3339, or an age such as 30m, 12h or 7d."""
    if ago := re.fullmatch(r"([0-9]{1,6})([mhd])", value):
        return datetime.now(UTC) - timedelta(**{UNITS[ago[2]]: int(ago[1])})  # noqa: TID251 -- this machine's clock
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        wanted = "a time, such as 2026-11-23T10:00:00Z, or an age, such as 12h"
        raise click.BadParameter(f"{value!r} is not {wanted}") from None
    return found if found.tzinfo else found.astimezone()


@click.command()
@option("--since", "Only entries since this time: 12h, 7d, or a date.", type=_time, metavar="TIME")
@option("--until", "Only entries before this time.", type=_time, metavar="TIME")
@option("--principal", "Only entries for this principal.", default="")
@option("--refused", "Only refused calls.", is_flag=True)
@option("-f --follow", "Follow new entries until Ctrl-C.", is_flag=True)
@click.pass_context
def audit(
    ctx: click.Context, *, since: datetime | None, until: datetime | None, principal: str, refused: bool, follow: bool
) -> None:
    """Print who did what, as JSON lines.

    One entry for each accepted command, decision about a tool call and refused call, oldest first. Entries contain no
    text of conversations. Requires an operator's token.
    """
    client = connect(ctx)
    seen: dict[str, datetime] = {}
    found = False
    while True:
        latest = since
        outcome: AuditOutcome | None = "refused" if refused else None
        entries = client.audit(since=since, until=until, principal=principal, outcome=outcome)
        for entry in entries:
            found = True
            line = json.dumps(entry.to_dict(), ensure_ascii=False)
            if line not in seen:
                print_json_line(line)
            if follow:
                seen[line] = latest = entry.time
        if not follow:
            if not found:
                print_text("No matching entries.", err=True)
            return
        if latest is not None:
            since = latest - LATE
            seen = {line: at for line, at in seen.items() if at >= since}
        time.sleep(FOLLOW_SECONDS)


@on_conversation
@click.argument("images", metavar="[IMAGE]...", nargs=-1)
@option(
    "-o --directory",
    "Directory to save the images in.",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default="the current one",
)
def download(conversation: Conversation, images: tuple[str, ...], directory: Path) -> None:
    """Save the images of a conversation.

    They are saved unmodified. IMAGE is the name that `bedrock show` prints after an image; without it, all are saved.
    Existing files are not overwritten.
    """
    refused = []
    for identity, image in _chosen(_all(conversation), images).items():
        file = directory / f"{identity}.{kind(image)}"
        data = conversation.attachment(image.attachment)
        try:
            _save(file, data)
        except FileExistsError:
            if not _holds(file, data):
                refused.append(str(file))
                continue
        print_text(str(file))
    if refused:
        there = f"{', '.join(refused)}: a different file is already there"
        raise exits.CommandError(there, "Remove it, or choose another directory with -o.", exits.USAGE)


def _save(file: Path, data: bytes) -> None:
    """Write a new file, whole or not at all. Raises FileExistsError, or another OSError."""
    saved = file.open("xb")
    try:
        with saved:
            saved.write(data)
    except OSError:
        file.unlink(missing_ok=True)  # the disk is full, and a partial file would be in the way of the next download
        raise


def _holds(file: Path, data: bytes) -> bool:
    try:
        return file.stat().st_size == len(data) and file.read_bytes() == data
    except OSError:
        return False


def _all(conversation: Conversation) -> dict[str, Image]:
    return {short(image): image for message in conversation.messages() for image in message.images}


def _chosen(found: dict[str, Image], wanted: tuple[str, ...]) -> dict[str, Image]:
    if not found:
        raise exits.CommandError("this conversation has no images", exit_code=exits.FAILED)
    for name in wanted:
        if name[:SHOWN] not in found:
            there = ", ".join(found)
            raise exits.CommandError(f"this conversation has no image {name!r}", f"Its images: {there}.", exits.FAILED)
    return {name[:SHOWN]: found[name[:SHOWN]] for name in wanted} if wanted else found
