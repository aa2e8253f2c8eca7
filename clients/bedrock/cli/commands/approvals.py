"""`bedrock approve`, `deny`, `answer` and `rules`: respond to pending approvals and questions, and manage rules."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar, cast

import click

from bedrock import Client, Conversation, ConversationInfo, v1
from bedrock.cli import exit_codes as exits
from bedrock.cli.arguments import CONVERSATION, connect, on_conversation, option
from bedrock.cli.display.labels import counted
from bedrock.cli.display.questions import RULE_KINDS, QuestionForm, clock_time, rule_id, rule_title
from bedrock.cli.stdio import read_line
from bedrock.cli.text.output import JSON_OPTION, ago, print_line, print_listing, print_text
from bedrock.cli.text.style import Paint, one_line
from bedrock.errors import NotFound
from bedrock.states import Approval, ApprovalRule, Question
from bedrock.types import RuleAction

Asked = TypeVar("Asked", Approval, Question)

ACTION = click.Choice(["allow", "ask", "deny"])
KIND = click.Choice(list(RULE_KINDS))


@on_conversation
@click.argument("call", required=False)
@option("--all everything", "Approve all waiting calls.", is_flag=True)
def approve(conversation: Conversation, call: str | None, everything: bool) -> None:
    """Approve a tool call waiting for approval. CALL, an id from `bedrock approvals`, is required if several are open.

    Calls in one response run once all of them are approved; one denial skips them all. `bedrock rules --add` creates a
    rule that decides later calls.
    """
    for approval in _open_approvals(conversation, call, everything=everything):
        now = conversation.approve(approval)
        waits = f"; waiting for {counted(left, 'other answer')}" if (left := len(now.state.approvals)) else ""
        print_text(f"approved {approval.tool} ({approval.tool_use_id}){waits}")


@on_conversation
@click.argument("call", required=False)
@option("--note", "The reason, shown to the agent.", default="")
def deny(conversation: Conversation, call: str | None, note: str) -> None:
    """Deny a tool call waiting for approval. No other call in the same response runs, and the agent is informed."""
    (approval,) = _open_approvals(conversation, call)
    conversation.deny(approval, note)
    print_text(f"denied {approval.tool} ({approval.tool_use_id})")


@on_conversation
@click.argument("question", required=False)
@option("--decline", "Decline to answer.", is_flag=True)
def answer(conversation: Conversation, question: str | None, *, decline: bool) -> None:
    """Answer or decline a question from an MCP server. QUESTION is required if several are open.

    The fields of its form are prompted for one by one, and read from standard input, one line each; /decline refuses.
    The answer goes to the MCP server; do not send passwords or keys.
    """
    asked = _open_question(conversation, question)
    content = None if decline else asyncio.run(fill_in(QuestionForm(asked)))
    if content is None:
        conversation.decline_question(asked)
    else:
        conversation.answer_question(asked, None if asked.url else content)
    print_text("declined" if content is None else "answered")


def _open_question(conversation: Conversation, question: str | None) -> Question:
    now = conversation.get()
    found = {asked.name.rpartition("/")[2]: asked for asked in now.state.questions}
    return _chosen(now, "question", found, found, question and question.rpartition("/")[2], unknown=exits.USAGE)[0]


def _open_approvals(conversation: Conversation, call: str | None, *, everything: bool = False) -> list[Approval]:
    now = conversation.get()
    found = {approval.tool_use_id: approval for approval in now.state.approvals}
    named = [f"{approval.tool_use_id} ({approval.tool})" for approval in now.state.approvals]
    return _chosen(now, "approval", found, named, call, everything=everything)


def _chosen(
    now: ConversationInfo,
    what: str,
    found: Mapping[str, Asked],
    named: Iterable[str],
    wanted: str | None,
    *,
    everything: bool = False,
    unknown: int = exits.FAILED,
) -> list[Asked]:
    """The pending request named `wanted`. Without a name: the only request, or all with `everything`.

    Raises CommandError.
    """
    if not found:
        raise exits.CommandError(f"{now.slug} has no pending {what}")
    if wanted is not None and wanted not in found:
        pending = f"Pending: {', '.join(found)}."
        raise exits.CommandError(f"{what} {wanted} is not pending in {now.slug}", pending, unknown)
    if wanted is None and len(found) > 1 and not everything:
        several = f"{len(found)} {what}s are pending in {now.slug}"
        raise exits.CommandError(several, f"Name one: {', '.join(named)}.", exits.USAGE)
    return list(found.values()) if wanted is None else [found[wanted]]


async def fill_in(form: QuestionForm, *, err: bool = False) -> dict[str, Any] | None:
    """Ask for the fields of a form, on stderr if `err`; None for /decline. Raises click.Abort at the end of input."""
    paint = Paint.for_stream(sys.stderr if err else sys.stdout)
    for line in form.lines(paint):
        print_line(line, err=err)
    while not form.complete:
        print_line(form.prompt_line(paint), err=err)
        typed = await read_line(sys.stdin)
        if not typed:
            raise click.Abort
        if typed.strip() == "/decline":
            return None
        if problem := form.enter(typed):
            print_line(paint.careful(problem), err=err)
    return form.content


#: Maximum columns for the input of a tool call that needs approval, or for a question's text.
_ABOUT_COLUMNS = 300


def _listing(print_open: Callable[..., None]) -> click.Command:
    """Make a command from a function that prints what is open in all conversations, or in one."""
    named = click.argument("name", required=False, type=CONVERSATION)
    limit = option("-n --limit", "Maximum number to list.", type=click.IntRange(1), default=50, show_default=True)
    return click.command()(named(limit(JSON_OPTION(click.pass_context(print_open)))))


@_listing
def approvals(ctx: click.Context, name: str | None, limit: int, output: str) -> None:
    """List the tool calls waiting for approval, in all conversations or in one.

    The longest-waiting conversation comes first. Decide with `bedrock approve` and `bedrock deny`.
    `bedrock questions` lists what tools ask.
    """
    client = connect(ctx)
    pages = client.pages(client.conversations_stub.ListApprovals, v1.ListApprovalsRequest(parent=_parent(client, name)))
    columns: dict[str, Callable[[Approval], str]] = {
        "call": lambda each: each.tool_use_id,
        "tool": lambda each: each.tool,
        "asked": lambda each: ago(each.create_time),
        "input": lambda each: one_line(json.dumps(each.input, ensure_ascii=False), _ABOUT_COLUMNS),
    }
    found = ((map(Approval.from_proto, page.approvals), page.unreadable) for page in pages)
    _print_open(client, found, limit, output, columns, none="No approvals are pending.")


@_listing
def questions(ctx: click.Context, name: str | None, limit: int, output: str) -> None:
    """List the open questions from MCP servers, in all conversations or in one.

    Questions expire at their deadline. Answer with `bedrock answer`.
    """
    client = connect(ctx)
    pages = client.pages(client.conversations_stub.ListQuestions, v1.ListQuestionsRequest(parent=_parent(client, name)))
    columns: dict[str, Callable[[Question], str]] = {
        "question": lambda each: each.name.rpartition("/")[2],
        "server": lambda each: each.mcp_server,
        "answer by": lambda each: clock_time(each.deadline),
        "message": lambda each: one_line(each.message, _ABOUT_COLUMNS),
    }
    found = ((map(Question.from_proto, page.questions), page.unreadable) for page in pages)
    _print_open(client, found, limit, output, columns, none="No questions are open.")


def _parent(client: Client, name: str | None) -> str:
    return client.conversation(name or "-").name


def _print_open(
    client: Client,
    pages: Iterable[tuple[Iterable[Asked], Iterable[str]]],
    limit: int,
    output: str,
    columns: dict[str, Callable[[Asked], str]],
    *,
    none: str,
) -> None:
    """Print the first `limit` items, and the names of unreadable conversations on the pages that were read for that."""
    found: list[Asked] = []
    unreadable: dict[str, None] = {}
    for asked, damaged in pages:
        found.extend(asked)
        unreadable |= dict.fromkeys(damaged)
        if len(found) >= limit:
            break
    for each in unreadable if output == "text" else ():
        what = each.removeprefix("conversations/")
        exits.print_message(f"{what} cannot be read and may have open questions: see `bedrock verify {what}`")
    slug = _slugs(client)
    conversation: dict[str, Callable[[Asked], str]] = {"conversation": lambda each: slug(each.conversation)}
    print_listing(found[:limit], output, conversation | columns, none=none)


def _slugs(client: Client) -> Callable[[str], str]:
    """A function that maps the name of a conversation to its slug, or to its id if it has been deleted."""

    @cache
    def slug(name: str) -> str:
        try:
            return client.conversation(name).get().slug
        except NotFound:
            return name.removeprefix("conversations/")

    return slug


@on_conversation
@option("--add", "Create a rule.", type=(ACTION, KIND, str), multiple=True, metavar="ACTION KIND TEXT")
@option("--revoke", "Revoke the rule with this id.", multiple=True, metavar="RULE")
@JSON_OPTION
def rules(
    conversation: Conversation, *, add: tuple[tuple[str, str, str], ...], revoke: tuple[str, ...], output: str
) -> None:
    """List, create and revoke the approval rules of a conversation.

    ACTION is `allow`, `ask` or `deny`. KIND is `exact` for one shell command, `prefix` for shell commands that begin
    with TEXT, `path` for files below a directory, `tool` or `server` for all calls of a tool or of an MCP server. A
    prefix allows TEXT with operands and harmless options, and denies TEXT wherever it begins in a command. Denials take
    precedence over questions, and questions over permissions. The server's own rules are in its settings file.

    \b
    bedrock rules NAME --add allow prefix "git status" --add deny prefix "git push"
    bedrock rules NAME --revoke r7
    """
    for rule in revoke:
        conversation.delete_approval_rule(rule)
        print_text(f"revoked {rule}", err=output == "json")
    for action, kind, text in add:
        subject: dict[str, Any] = {RULE_KINDS[kind]: text}
        made = conversation.create_approval_rule(cast("RuleAction", action), **subject)
        print_text(f"{rule_id(made)}: {made.action} {rule_title(made)}", err=output == "json")
    if add or revoke:
        return
    columns: dict[str, Callable[[ApprovalRule], str]] = {
        "rule": rule_id,
        "action": lambda rule: rule.action,
        "made": lambda rule: ago(rule.create_time),
        "by": lambda rule: rule.creator,
        "about": rule_title,
    }
    none = "No rules; the approval policy decides."
    print_listing(list(conversation.approval_rules()), output, columns, none=none)
