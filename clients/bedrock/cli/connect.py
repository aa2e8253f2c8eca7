"""Creates the client with which a command calls the server."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bedrock import Client

if TYPE_CHECKING:
    import click


def connect(ctx: click.Context) -> Client:
    """Create the client of a command. The client is closed when the command ends."""
    return ctx.with_resource(Client(ctx.find_root().obj))


def connect_or_spawn(ctx: click.Context) -> Client:
    """Do the same as `connect`; if this user's server on this machine does not run, start one for the command."""
    # Imported here, because all other commands do without them.
    from bedrock.cli.spawned_server import spawn_if_missing  # noqa: PLC0415
    from bedrock.cli.text.output import print_text  # noqa: PLC0415

    address = ctx.find_root().obj
    told = partial(print_text, "No server is running, so one is started to ask it.", err=True)
    if (server := spawn_if_missing(address, ctx.with_resource, told)) is not None:
        address = server.address
    return ctx.with_resource(Client(address))
