"""`bedrock quota`: lists quotas and their usage."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from bedrock.cli.connect import connect
from bedrock.cli.text.output import print_json
from bedrock.cli.text.tables import JSON_OPTION, print_table

#: The values to print for fields that protobuf's JSON format omits if they are zero; 64-bit integers are strings.
_ZEROS = {"principal": "", "limit": "0", "used": "0"}


@click.command()
@JSON_OPTION
@click.pass_context
def quota(ctx: click.Context, output: str) -> None:
    """List your quotas and what is used of them.

    An operator sees those of all principals, and of all together ("server"). Days and months are those of UTC.
    """
    found = connect(ctx).quotas()
    if output == "json":
        print_json([_ZEROS | each.to_dict() for each in found], indent=2)
        return
    print_table(
        ("quota", "principal", "used", "limit", "counted anew"),
        (
            (
                each.quota,
                each.principal or "server",
                _amount(each.quota, each.used),
                _amount(each.quota, each.limit),
                _local(each.reset_time),
            )
            for each in found
        ),
        none="You have no quotas.",
    )


def _amount(name: str, value: int) -> str:
    return f"${value / 1_000_000:,.2f}" if name.startswith("cost_") else f"{value:,}"


def _local(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
