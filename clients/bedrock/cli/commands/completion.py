"""`bedrock completion`: prints shell scripts that complete commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from bedrock.cli.text.output import print_text


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash   eval "$(bedrock completion bash)"   in ~/.bashrc
    zsh    eval "$(bedrock completion zsh)"    in ~/.zshrc
    fish   bedrock completion fish | source    in ~/.config/fish/config.fish

    It completes commands, options, and the names of conversations and models if the server answers within a second.
    """
    found = get_completion_class(shell)
    if found is not None:
        print_text(found(ctx.find_root().command, {}, "bedrock", "_BEDROCK_COMPLETE").source())
