"""`bedrock new`: creates a conversation to work with later, for example from a script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bedrock.cli.arguments import generation, generation_options
from bedrock.cli.choose_conversation import create_conversation, creating_options
from bedrock.cli.connect import connect
from bedrock.cli.text.output import print_text

if TYPE_CHECKING:
    from bedrock.types import ReasoningEffort


@click.command()
@creating_options
@generation_options
@click.pass_context
def new(
    ctx: click.Context,
    /,
    effort: ReasoningEffort | None,
    temperature: float | None,
    max_output_tokens: int | None,
    **creating: Any,
) -> None:
    """Create a conversation and print its slug. Nothing runs before a message is sent: `bedrock ask -r SLUG "…"`."""
    how = generation(effort, temperature, max_output_tokens)
    print_text(create_conversation(connect(ctx), generation=how, **creating).get().slug)
