"""`bedrock completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell. For ~/.bashrc: eval "$(bedrock completion bash)"."""
    found = get_completion_class(shell)
    if found is not None:
        click.echo(found(ctx.find_root().command, {}, "bedrock", "_BEDROCK_COMPLETE").source())
