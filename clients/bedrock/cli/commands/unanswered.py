"""`bedrock approvals` and `bedrock questions`: list what waits for a person, in all conversations or in one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import click

from bedrock import v1
from bedrock.cli import exit_codes as exits
from bedrock.cli.arguments import CONVERSATION
from bedrock.cli.connect import connect
from bedrock.cli.display.question_form import clock_time
from bedrock.cli.text.style import one_line
from bedrock.cli.text.tables import JSON_OPTION, ago, print_table, print_values
from bedrock.errors import BedrockError, NotFound
from bedrock.states import Approval, Question

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bedrock import Client

_Asked = TypeVar("_Asked", Approval, Question)

_LIMIT = click.option("-n", "--limit", type=click.IntRange(1), default=50, show_default=True, help="How many at most.")
_NAME = click.argument("name", required=False, type=CONVERSATION)
#: Maximum columns of the input of a tool call that needs approval, or of a question's text.
_ABOUT_COLUMNS = 300


@click.command()
@_NAME
@_LIMIT
@JSON_OPTION
@click.pass_context
def approvals(ctx: click.Context, name: str | None, limit: int, output: str) -> None:
    """List the tool calls that wait for approval: of all conversations, or of one.

    Those of the conversation that has waited longest come first. `bedrock approve` and `bedrock deny` answer them.
    """
    client = connect(ctx)
    found, unreadable = _open_approvals(client, name, limit)
    if output == "json":
        print_values(found)
        return
    _tell_unreadable(unreadable)
    now = datetime.now(UTC)  # noqa: TID251 -- ages are computed with this machine's clock
    slug = _slugs(client, (each.conversation for each in found))
    print_table(
        ("conversation", "call", "tool", "asked", "input"),
        (
            (
                slug(each.conversation),
                each.tool_use_id,
                each.tool,
                ago(each.create_time, now) if each.create_time else "",
                one_line(json.dumps(each.input, ensure_ascii=False), _ABOUT_COLUMNS),
            )
            for each in found
        ),
        none="Nothing waits for approval.",
    )
    if waiting := _number_of_questions(client, name):
        exits.print_message(f"tools ask, too: `bedrock questions` lists {waiting}")


@click.command()
@_NAME
@_LIMIT
@JSON_OPTION
@click.pass_context
def questions(ctx: click.Context, name: str | None, limit: int, output: str) -> None:
    """List what MCP servers ask in the middle of calls: in all conversations, or in one.

    A question has a deadline; without an answer by then, the MCP server gets none. `bedrock answer` answers.
    """
    client = connect(ctx)
    found, unreadable = _open_questions(client, name, limit)
    if output == "json":
        print_values(found)
        return
    _tell_unreadable(unreadable)
    slug = _slugs(client, (each.conversation for each in found))
    print_table(
        ("conversation", "question", "server", "answer by", "message"),
        (
            (
                slug(each.conversation),
                each.name.rpartition("/")[2],
                each.mcp_server,
                clock_time(each.deadline),
                one_line(each.message, _ABOUT_COLUMNS),
            )
            for each in found
        ),
        none="No tool asks anything.",
    )


def _open_approvals(client: Client, name: str | None, limit: int) -> tuple[list[Approval], list[str]]:
    request = v1.ListApprovalsRequest(parent=client.conversation(name or "-").name)
    pages = client.pages(client.conversations_stub.ListApprovals, request)
    return _first(limit, ((map(Approval.from_proto, page.approvals), page.unreadable) for page in pages))


def _open_questions(client: Client, name: str | None, limit: int) -> tuple[list[Question], list[str]]:
    request = v1.ListQuestionsRequest(parent=client.conversation(name or "-").name)
    pages = client.pages(client.conversations_stub.ListQuestions, request)
    return _first(limit, ((map(Question.from_proto, page.questions), page.unreadable) for page in pages))


def _first(limit: int, pages: Iterable[tuple[Iterable[_Asked], Iterable[str]]]) -> tuple[list[_Asked], list[str]]:
    """Return the first `limit` items from pages, and the names of unreadable conversations on the pages read so far."""
    found: list[_Asked] = []
    unreadable: dict[str, None] = {}
    for asked, damaged in pages:
        found.extend(asked)
        unreadable |= dict.fromkeys(damaged)
        if len(found) >= limit:
            break
    return found[:limit], list(unreadable)


def _number_of_questions(client: Client, name: str | None) -> int:
    """Return the number of open questions of tools, at most 50; 0 if the server does not list questions."""
    try:
        return len(_open_questions(client, name, 50)[0])
    except BedrockError as error:
        if error.code != "UNIMPLEMENTED":
            raise
        return 0


def _tell_unreadable(names: Iterable[str]) -> None:
    for each in names:
        what = each.removeprefix("conversations/")
        exits.print_message(
            f"{what} cannot be read, and may have questions: `bedrock verify {what}` says what is wrong"
        )


def _slugs(client: Client, names: Iterable[str]) -> Callable[[str], str]:
    """Return a function that maps the name of a conversation to its slug, or to its id if it was deleted meanwhile."""
    return {name: _slug(client, name) for name in dict.fromkeys(names)}.__getitem__


def _slug(client: Client, name: str) -> str:
    try:
        return client.conversation(name).get().slug
    except NotFound:
        return name.removeprefix("conversations/")
