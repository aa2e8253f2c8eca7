"""Selects the conversation of a command: a new one, the latest one of a directory, or one by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bedrock import Instructions
from bedrock._shared.requests import read_file
from bedrock.cli import exit_codes as exits
from bedrock.cli.arguments import CONVERSATION, POLICY, complete_model, unreadable
from bedrock.cli.mcp_server_file import servers_in
from bedrock.cli.text.output import print_text
from bedrock.cli.text.style import one_line
from bedrock.errors import ModelUnavailable

if TYPE_CHECKING:
    from bedrock import Client, Conversation, Generation
    from bedrock.types import ApprovalPolicy, Mode

F = TypeVar("F", bound=Callable[..., Any])

#: Maximum models that are listed when the user is asked for one.
_SHOWN = 20

_NEW_OPTIONS = (
    click.option(
        "-C",
        "--directory",
        metavar="DIR",
        default=".",
        help="The directory on the server's machine in which tools work. [default: the current one]",
    ),
    click.option(
        "-m",
        "--model",
        metavar="MODEL",
        shell_complete=complete_model,
        help="The model of a new conversation; see `bedrock models`.",
    ),
    click.option(
        "--mode",
        type=click.Choice(["restricted", "workspace", "unrestricted"]),
        help="What the tools of a new conversation may do. [default: restricted if the server can enforce it]",
    ),
    click.option(
        "--approval-policy",
        type=POLICY,
        help="Which tool calls of a new conversation ask first. [default: the server's]",
    ),
    click.option(
        "--instructions",
        metavar="TEXT|@FILE",
        help="What to tell the agent of a new conversation beside the server's prompt; @FILE reads a file.",
    ),
    click.option(
        "--replace-instructions", is_flag=True, help="With --instructions: tell that instead of the server's prompt."
    ),
    click.option(
        "--tools",
        metavar="NAME,…",
        help="The tools that a new conversation is offered, see `bedrock tools`; '' for none. [default: all]",
    ),
    click.option(
        "--mcp-servers",
        metavar="FILE",
        help="A TOML file with MCP servers for a new conversation: tables [[mcp_servers]] as in the settings.",
    ),
    click.option(
        "--auto-continue",
        is_flag=True,
        help="When the context of a new conversation is used up, go on in a successor that begins with the summary.",
    ),
)
_CONTINUING_OPTIONS = (
    click.option(
        "-c",
        "--continue",
        "latest",
        is_flag=True,
        help="Continue the latest conversation of this directory, or of -C; if its context is used up, its successor.",
    ),
    click.option("-r", "--resume", metavar="SLUG", type=CONVERSATION, help="Continue this conversation."),
)


def creating_options(command: F) -> F:
    """Add the options for a new conversation, e.g. --model and --mode, to a command."""
    for option in reversed(_NEW_OPTIONS):
        command = option(command)
    return command


def opening_options(command: F) -> F:
    """Add the options for continuing or creating a conversation, e.g. --resume and --model, to a command."""
    for option in reversed(_CONTINUING_OPTIONS):
        command = option(command)
    return creating_options(command)


def create_conversation(
    client: Client,
    *,
    directory: str,
    model: str | None,
    mode: Mode | None,
    approval_policy: ApprovalPolicy | None,
    instructions: str | None,
    replace_instructions: bool,
    tools: str | None,
    generation: Generation | None = None,
    mcp_servers: str | None,
    auto_continue: bool = False,
) -> Conversation:
    """Create a conversation from the options of a command.

    Raises:
        UsageError: The options contradict each other, or a file that they name cannot be read.
    """
    if replace_instructions and not instructions:
        raise click.UsageError("--replace-instructions needs --instructions")
    told = Instructions(_text(instructions), replace_instructions) if instructions else None
    create = partial(
        client.create,
        directory,
        mode=mode,
        approval_policy=approval_policy,
        instructions=told,
        generation=generation,
        tools=None if tools is None else [name.strip() for name in tools.split(",") if name.strip()],
        mcp_servers=servers_in(Path(mcp_servers)) if mcp_servers else (),
        auto_continue=auto_continue,
    )
    try:
        return create(model=model)
    except ModelUnavailable:
        if model or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
    return create(model=_asked_model(client))


def _asked_model(client: Client) -> str:
    """Ask which of the server's models to use, because none is the default. Raises click.Abort at the end of input."""
    from bedrock.cli.chat.typeahead import asking  # noqa: PLC0415 -- needs a terminal

    models = sorted(client.models(), key=lambda model: model.protocol == "demo")
    names = [model.name.removeprefix("models/") for model in models]
    print_text("No model is the default here. There are:", err=True)
    for number, model in enumerate(models[:_SHOWN], 1):
        print_text(f"{number:4}  {names[number - 1]} ({model.provider})", err=True)
    if len(models) > _SHOWN:
        print_text(f"      … and {len(models) - _SHOWN:,} more, which `bedrock models` lists", err=True)
    with asking(sys.stdin):
        while True:
            said = click.prompt("Which one (number or name)", err=True).strip()
            place = int(said) - 1 if said.isascii() and said.isdecimal() else -1
            chosen = names[place] if 0 <= place < len(names) else said
            if chosen in names:
                break
            print_text(f"There is no model {one_line(said, 60)!r}.", err=True)
    provider = models[names.index(chosen)].provider
    if provider in ("anthropic", "openai"):  # the names of those that environment variables describe
        print_text(f"Without being asked: -m {chosen}, or {provider.upper()}_MODEL={chosen} for the server.", err=True)
    return chosen


def _text(given: str) -> str:
    """Return a text given on the command line or, if it begins with @, the content of the file that it names.

    Raises BadParameter if the file cannot be read.
    """
    if not given.startswith("@"):
        return given
    try:
        return read_file(given[1:]).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise unreadable(given[1:], error, "--instructions") from None


def open_conversation(client: Client, *, latest: bool, resume: str | None, **creating: Any) -> Conversation:
    """Return the conversation that a command's options select: the latest one, a named one, or a new one.

    Raises:
        UsageError: The options contradict each other.
        CommandError: There is no conversation to continue.
    """
    if latest and resume:
        raise click.UsageError("-c and -r exclude each other")
    if not latest and not resume:
        return create_conversation(client, **creating)
    if any(value not in (None, False) for name, value in creating.items() if name != "directory"):
        raise click.UsageError(
            "-m, --mode, --approval-policy, --instructions, --auto-continue, --tools and --mcp-servers are for new "
            "conversations; in a chat --effort, --temperature and --max-output-tokens are, too: `bedrock update` and "
            "/effort change them"
        )
    if resume:
        return client.conversation(client.conversation(resume).get().name)
    return _latest(client, creating["directory"])


def _latest(client: Client, directory: str) -> Conversation:
    """Return the conversation of a directory that has changed last, ignoring archived ones and sub-agents.

    If the context of that conversation is used up, return its successor instead, and create the successor if there is
    none.

    Raises:
        CommandError: The directory has no such conversation.
    """
    for found in client.conversations(working_directory=directory):
        if found.state.kind != "context_exhausted":
            return client.conversation(found.name)
        if not found.continued_by:
            return client.conversation(found.name).continue_()
        # The conversation is skipped: its successor has the same directory and is listed, too, unless it is archived or
        # deleted.
    others = "`bedrock list` shows those of other directories, and `bedrock chat -r NAME` goes on with one."
    where = Path(directory).absolute()
    raise exits.CommandError(f"there is no conversation in {where} yet", f"Start one: `bedrock chat`. {others}")
