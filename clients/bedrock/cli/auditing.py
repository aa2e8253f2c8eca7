"""Commands that check or take out what is stored: verify, replay, export."""

from __future__ import annotations

import click

from bedrock.cli import exits
from bedrock.cli.connection import connect


@click.command()
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All active conversations.")
@click.pass_context
def verify(ctx: click.Context, names: tuple[str, ...], everything: bool) -> None:
    """Check stored conversations and change nothing.

    Looked at are gaps, the results of calls, the ends of runs, and the hash chain.
    """
    client = connect(ctx)
    chosen = [found.slug for found in client.conversations()] if everything else list(names)
    if not chosen:
        raise click.UsageError("name conversations, or use --all")
    broken = 0
    for name in chosen:
        violations = client.conversation(name).verify()
        broken += bool(violations)
        click.echo(f"{name}: {'ok' if not violations else f'{len(violations)} violation(s)'}")
        for violation in violations:
            click.echo(f"  {violation}")
    ctx.exit(exits.FAILED if broken else exits.OK)


@click.command()
@click.argument("name")
@click.option("--until", metavar="REVISION", type=click.IntRange(0), default=0, help="Stop after this revision.")
@click.option("-v", "--verbose", is_flag=True, help="Print every step.")
@click.pass_context
def replay(ctx: click.Context, name: str, until: int, verbose: bool) -> None:
    """Run a log through the state machine again. Each step is compared with what was stored."""
    steps = differences = 0
    for step in connect(ctx).conversation(name).replay(until):
        steps += 1
        if verbose:
            click.echo(f"{step.step}\t{step.revision}\t{step.event_json}\t{step.state_json}")
        if step.difference:
            differences += 1
            click.echo(f"step {step.step}: {step.difference}")
    click.echo(f"{steps} steps, {differences} differences")
    ctx.exit(exits.FAILED if differences else exits.OK)


@click.command()
@click.argument("name")
@click.pass_context
def export(ctx: click.Context, name: str) -> None:
    """Print everything about a conversation as lines of JSON."""
    for line in connect(ctx).conversation(name).export():
        click.echo(line)
