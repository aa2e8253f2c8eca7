"""`bedrock rules`: lists, makes and revokes approval rules."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import click

from bedrock.cli.arguments import NAME
from bedrock.cli.connect import connect
from bedrock.cli.display.approval_prompt import RULE_KINDS, rule_id, rule_title
from bedrock.cli.text.output import print_text
from bedrock.cli.text.tables import JSON_OPTION, ago, print_table, print_values

if TYPE_CHECKING:
    from bedrock.types import RuleAction

ACTION = click.Choice(["allow", "ask", "deny"])
KIND = click.Choice(list(RULE_KINDS))


@click.command()
@NAME
@click.option("--add", type=(ACTION, KIND, str), multiple=True, metavar="ACTION KIND TEXT", help="Make a rule.")
@click.option("--revoke", multiple=True, metavar="RULE", help="Revoke a rule, by its id.")
@JSON_OPTION
@click.pass_context
def rules(
    ctx: click.Context, name: str, *, add: tuple[tuple[str, str, str], ...], revoke: tuple[str, ...], output: str
) -> None:
    """List, make and revoke the approval rules of a conversation.

    ACTION is `allow`, `ask` or `deny`. KIND is `exact` for one shell command, `prefix` for shell commands that begin
    with TEXT, `path` for files beneath a directory, `tool` or `server` for all calls of a tool or of an MCP server. A
    prefix allows TEXT with operands and harmless options, and denies TEXT wherever it begins in a command. A denial
    comes before a question, and a question before a permission. Rules of the server are in its settings file.

    \b
    bedrock rules NAME --add allow prefix "git status" --add deny prefix "git push"
    bedrock rules NAME --revoke r7
    """
    conversation = connect(ctx).conversation(name)
    for rule in revoke:
        conversation.delete_approval_rule(rule)
        print_text(f"revoked {rule}", err=output == "json")
    for action, kind, text in add:
        subject: dict[str, Any] = {RULE_KINDS[kind]: text}
        made = conversation.create_approval_rule(cast("RuleAction", action), **subject)
        print_text(f"{rule_id(made)}: {made.action} {rule_title(made)}", err=output == "json")
    if add or revoke:
        return
    found = list(conversation.approval_rules())
    if output == "json":
        print_values(found)
        return
    now = datetime.now(UTC)  # noqa: TID251 -- ages are computed with this machine's clock
    print_table(
        ("rule", "action", "made", "by", "about"),
        (
            (
                rule_id(rule),
                rule.action,
                "" if rule.create_time is None else ago(rule.create_time, now),
                rule.creator,
                rule_title(rule),
            )
            for rule in found
        ),
        none="There are no rules; the approval policy decides.",
    )
