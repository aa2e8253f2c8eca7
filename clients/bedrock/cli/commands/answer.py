"""`bedrock answer`: lets a person answer a running tool's question."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from bedrock.cli import exit_codes as exits
from bedrock.cli.arguments import NAME
from bedrock.cli.connect import connect
from bedrock.cli.display.question_form import QuestionForm, value_of
from bedrock.cli.text.output import print_line, print_text
from bedrock.cli.text.style import Paint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bedrock import Conversation
    from bedrock.states import Question


@click.command()
@NAME
@click.argument("question", required=False)
@click.option("--set", "values", multiple=True, metavar="FIELD=VALUE", help="Fill in a field; can be repeated.")
@click.option("--visited", is_flag=True, help="Say that you have opened the address that is asked for.")
@click.option("--decline", is_flag=True, help="Refuse to answer.")
@click.pass_context
def answer(
    ctx: click.Context, name: str, question: str | None, *, values: tuple[str, ...], visited: bool, decline: bool
) -> None:
    """Answer or decline what an MCP server asks in the middle of a call. QUESTION is needed if it asks several.

    At a terminal, the fields of its form are asked for one after the other (/decline refuses); --set fills them in
    without asking. The answer goes to the MCP server: give it no passwords or keys.
    """
    if decline and (values or visited):
        raise click.UsageError("--decline excludes --set and --visited")
    conversation = connect(ctx).conversation(name)
    asked = _waiting(conversation, question)
    if decline:
        conversation.decline_question(asked)
        print_text("declined")
        return
    if asked.url and values:
        raise exits.CommandError("this question has an address and no form", "Open it; then --visited.", exits.USAGE)
    content = _content(asked, values) if values or visited else _filled_in(asked)
    if content is None:
        conversation.decline_question(asked)
        print_text("declined")
        return
    conversation.answer_question(asked, None if asked.url else content)
    print_text("answered")


def _waiting(conversation: Conversation, question: str | None) -> Question:
    """Return the open question that the command line names; if it names none, the only open one.

    Raises CommandError if there is no such question, or if several are open and none is named.
    """
    now = conversation.get()
    open_ = {asked.name.rpartition("/")[2]: asked for asked in now.state.questions}
    if not open_:
        raise exits.CommandError(f"{now.slug} asks nothing")
    if question is None and len(open_) == 1:
        return next(iter(open_.values()))
    if (found := open_.get((question or "").rpartition("/")[2])) is None:
        what = f"there is no question {question}" if question else f"{now.slug} asks {len(open_)} questions"
        raise exits.CommandError(what, f"Open are: {', '.join(open_)}.", exits.USAGE)
    return found


def _content(asked: Question, values: Iterable[str]) -> dict[str, Any]:
    fields = (asked.requested_schema or {}).get("properties", {})
    content: dict[str, Any] = {}
    for given in values:
        name, separator, text = given.partition("=")
        if not separator or name not in fields:
            wrong = f"there is no field “{name}”" if separator else "not FIELD=VALUE"
            raise exits.CommandError(f"--set {given}: {wrong}", f"Fields: {', '.join(sorted(fields))}.", exits.USAGE)
        try:
            content[name] = value_of(fields[name], text)
        except ValueError as error:
            raise exits.CommandError(f"--set {given}: {error}", exit_code=exits.USAGE) from None
    return content


def _filled_in(asked: Question) -> dict[str, Any] | None:
    """Ask for the fields of a form at the terminal, and return the values; None if the user types /decline.

    Raises CommandError if there is no terminal.
    """
    if not sys.stdin.isatty():
        hint = "Fill in the form with --set FIELD=VALUE, or say --visited or --decline."
        raise exits.CommandError("there is no terminal to ask at", hint, exits.USAGE)
    return fill_in(QuestionForm(asked))


def fill_in(form: QuestionForm, *, err: bool = False) -> dict[str, Any] | None:
    """Ask the user for the fields of a form, and return the values; None if the user types /decline.

    The form is printed to standard output, or to standard error if `err`. Raises click.Abort if the input ends.
    """
    paint = Paint.for_stream(sys.stderr if err else sys.stdout)
    for line in form.lines(paint):
        print_line(line, err=err)
    while not form.complete:
        print_line(form.prompt_line(paint), err=err)
        typed = sys.stdin.readline()
        if not typed:
            raise click.Abort
        if typed.strip() == "/decline":
            return None
        if problem := form.enter(typed):
            print_line(paint.careful(problem), err=err)
    return form.content
