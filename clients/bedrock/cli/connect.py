"""The connection of a command to the server."""

from __future__ import annotations

import click

from bedrock import Client


def connect(ctx: click.Context) -> Client:
    """Make the client of this command; it is closed when the command ends."""
    return ctx.with_resource(Client(ctx.find_root().obj))
