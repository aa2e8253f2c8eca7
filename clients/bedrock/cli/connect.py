"""Creates the client with which a command calls the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock import Client

if TYPE_CHECKING:
    import click


def connect(ctx: click.Context) -> Client:
    """Create the client of a command. The client is closed when the command ends."""
    return ctx.with_resource(Client(ctx.find_root().obj))
