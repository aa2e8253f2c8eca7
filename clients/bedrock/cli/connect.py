"""The connection of a command to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock import Client

if TYPE_CHECKING:
    import click


def connect(ctx: click.Context) -> Client:
    """Create the client of this command; it is closed when the command ends."""
    return ctx.with_resource(Client(ctx.find_root().obj))
