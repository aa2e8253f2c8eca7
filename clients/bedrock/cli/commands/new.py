"""`bedrock new`: a conversation to work with later, for example from a script."""

from __future__ import annotations

from typing import Any

import click

from bedrock.cli.choose_conversation import create_conversation, creating_options
from bedrock.cli.connect import connect
from bedrock.cli.text.output import print_text


@click.command()
@creating_options
@click.pass_context
def new(ctx: click.Context, /, **creating: Any) -> None:
    """Create a conversation and print its slug. Nothing runs before a message is sent: `bedrock ask -r SLUG "…"`."""
    print_text(create_conversation(connect(ctx), **creating).get().slug)
