"""`bedrock nodes`: lists the servers that share a database."""

from __future__ import annotations

import click

from bedrock.cli.connect import connect
from bedrock.cli.text.output import print_json
from bedrock.cli.text.tables import JSON_OPTION, print_table

#: The values to print for fields that protobuf's JSON format omits if they are zero; 64-bit integers are strings.
_ZEROS = {
    "incarnation": "0",
    "name": "",
    "address": "",
    "draining": False,
    "activeConversations": "0",
    "answering": False,
    "workspaces": [],
}


@click.command()
@JSON_OPTION
@click.pass_context
def nodes(ctx: click.Context, output: str) -> None:
    """List the servers that share a database, as the one that is asked sees them.

    Those that have ended are not listed. Needs the role of an operator.
    """
    found = connect(ctx).nodes()
    if output == "json":
        print_json([_ZEROS | each.to_dict() for each in found], indent=2)
        return
    sharing = found if any(each.address for each in found) else []
    titles = ["workspaces"] if any(each.workspaces for each in found) else []
    print_table(
        ("node", "address", "number", "version", "active", "state", "", *titles),
        (
            (
                each.name,
                each.address,
                str(each.incarnation),
                each.version,
                f"{each.active_conversations:,}",
                "stopping" if each.draining else "running",
                "answers" if each.answering else "",
                *([" ".join(each.workspaces)] if titles else []),
            )
            for each in sharing
        ),
        none="This server shares its conversations with no other.",
    )
