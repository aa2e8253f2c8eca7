"""`bedrock mcp`: lists the operator's MCP servers. The commands for logging in belong to the server's package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bedrock.cli.connect import connect
from bedrock.cli.display.labels import tool_left_out
from bedrock.cli.exit_codes import USAGE, CommandError
from bedrock.cli.text.output import print_text
from bedrock.cli.text.style import one_line
from bedrock.cli.text.tables import JSON_OPTION, print_table, print_values

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Commands of the server's package. If that package is not installed, these commands raise an error that says so.
SERVERS = ("login", "logout")


class _WithTheServers(click.Group):
    """A command group whose commands belong to the server's package, which need not be installed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_of_the_server(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = _of_the_server(ctx).get(cmd_name)
        if found is None and cmd_name in SERVERS:
            raise CommandError(
                f"`bedrock mcp {cmd_name}` belongs to the server, which is not installed here",
                "Run it on the server's machine.",
                USAGE,
            )
        loaded = found.load() if found else None
        return loaded if isinstance(loaded, click.Command) else None


def _of_the_server(ctx: click.Context) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 -- most commands do not need it

    return {found.name: found for found in entry_points(group=f"bedrock.commands.{ctx.info_name}")}


@click.group(cls=_WithTheServers, invoke_without_command=True)
@JSON_OPTION
@click.pass_context
def mcp(ctx: click.Context, output: str) -> None:
    """List the MCP servers, whether they work, and their tools.

    They are set up in the server's settings, as [[mcp_servers]]. One that needs a login gets it
    on the server's machine, with the command login.
    """
    if ctx.invoked_subcommand is not None:
        return
    found = connect(ctx).server_info().mcp_servers
    if output == "json":
        print_values(found)
        return
    print_table(
        ("server", "state", "tools", "command or URL", ""),
        (
            (
                server.name,
                server.state.replace("_", " "),
                str(len(server.tools)),
                server.http.url if server.http else " ".join(server.stdio.command if server.stdio else ()),
                one_line(server.error, 300),
            )
            for server in found
        ),
        none="There are no MCP servers: the settings name them in tables [[mcp_servers]].",
    )
    for server in found:
        for left_out in server.tools_left_out:
            print_text(f"{server.name}: {tool_left_out(left_out)}")
