"""Which conversation a command talks in: a new one, the latest one, or one by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from bedrock import Client, Conversation
from bedrock.cli import exits
from bedrock.cli.names import CONVERSATION, complete_model

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "-C",
        "--directory",
        metavar="DIR",
        default=".",
        help="The directory of a new conversation, on the server's machine. [default: the current one]",
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
        type=click.Choice(["restricted", "unrestricted"]),
        help="What the tools of a new conversation may do. [default: restricted where the server can keep it]",
    ),
    click.option(
        "--approval-policy",
        type=click.Choice(["auto", "ask_writes", "ask_all"]),
        help="Which tool calls of a new conversation ask first. [default: the server's]",
    ),
    click.option("-c", "--continue", "latest", is_flag=True, help="Go on with the latest conversation."),
    click.option("-r", "--resume", metavar="SLUG", type=CONVERSATION, help="Go on with this conversation."),
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
    mode: str | None,
    approval_policy: str | None,
    latest: bool,
    resume: str | None,
) -> Conversation:
    """Find or create the conversation.

    Raises:
        UsageError: The options contradict each other.
        Failure: There is no conversation to go on with.
    """
    if latest and resume:
        raise click.UsageError("-c and -r exclude each other")
    if not latest and not resume:
        return client.create(directory, model=model, mode=mode, approval_policy=approval_policy)
    if model or mode or approval_policy:
        raise click.UsageError("-m, --mode and --approval-policy are for new conversations")
    if resume:
        return client.conversation(client.conversation(resume).get().name)
    newest = next(client.conversations(), None)
    if newest is None:
        raise exits.Failure("there is no conversation yet", "Start one: `bedrock chat`.")
    return client.conversation(newest.name)
