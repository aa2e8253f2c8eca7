"""Select the conversation of a command: a new one, the latest one of a directory, or one by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bedrock.cli import exit_codes as exits
from bedrock.cli.arguments import CONVERSATION, complete_model

if TYPE_CHECKING:
    from bedrock import Client, Conversation
    from bedrock.types import ApprovalPolicy, Mode

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "-C",
        "--directory",
        metavar="DIR",
        default=".",
        help="The directory, on the server's machine, of a new conversation or of -c. [default: the current one]",
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
        type=click.Choice(["auto", "ask_writes", "ask_all"]),
        help="Which tool calls of a new conversation ask first. [default: the server's]",
    ),
    click.option(
        "-c",
        "--continue",
        "latest",
        is_flag=True,
        help="Continue the latest conversation of this directory, or of -C; if it is full, its successor.",
    ),
    click.option("-r", "--resume", metavar="SLUG", type=CONVERSATION, help="Continue this conversation."),
)


def opening_options(command: F) -> F:
    """Add the options that `open_conversation` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def open_conversation(
    client: Client,
    *,
    directory: str,
    model: str | None,
    mode: Mode | None,
    approval_policy: ApprovalPolicy | None,
    latest: bool,
    resume: str | None,
) -> Conversation:
    """Find or create the conversation.

    Raises:
        UsageError: The options contradict each other.
        CommandError: There is no conversation to continue.
    """
    if latest and resume:
        raise click.UsageError("-c and -r exclude each other")
    if not latest and not resume:
        return client.create(directory, model=model, mode=mode, approval_policy=approval_policy)
    if model or mode or approval_policy:
        raise click.UsageError("-m, --mode and --approval-policy are for new conversations")
    if resume:
        return client.conversation(client.conversation(resume).get().name)
    return _latest(client, directory)


def _latest(client: Client, directory: str) -> Conversation:
    """Return the latest changed conversation of a directory, without archived ones and sub-agents.

    One whose context is exhausted is continued in its successor, which is created if there is none.

    Raises:
        CommandError: There is none.
    """
    for found in client.conversations(working_directory=directory):
        if found.state.kind != "context_exhausted":
            return client.conversation(found.name)
        if not found.continued_by:
            return client.conversation(found.name).continue_()
        # its successor is in the same directory: it is listed itself, unless it is archived or deleted
    others = "`bedrock list` shows those of other directories, and `bedrock chat -r NAME` goes on with one."
    where = Path(directory).absolute()
    raise exits.CommandError(f"there is no conversation in {where} yet", f"Start one: `bedrock chat`. {others}")
