"""Creates the client with which a command calls the server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bedrock import Client

if TYPE_CHECKING:
    import click


def connect(ctx: click.Context) -> Client:
    """Create the client of a command. The client is closed when the command ends."""
    return ctx.with_resource(Client(ctx.find_root().obj))


def connect_or_spawn(ctx: click.Context) -> Client:
    """Do the same; if this user's server on this machine does not run, start one that ends with the command."""
    # Imported here, because all other commands do without them.
    from bedrock.cli.spawned_server import SpawnedServer, server_answers  # noqa: PLC0415
    from bedrock.cli.text.output import print_text  # noqa: PLC0415

    address = ctx.find_root().obj
    if not (address or os.environ.get("BEDROCK_ADDRESS")) and not server_answers(None):
        print_text("No server is running, so one is started to ask it.", err=True)
        address = ctx.with_resource(SpawnedServer()).address
    return ctx.with_resource(Client(address))
