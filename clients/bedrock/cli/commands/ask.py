"""`bedrock ask`: sends one message and prints the answer, for scripts and for interactive use."""

from __future__ import annotations

import json
import os
import select
import stat
import sys
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass
from typing import Any

import click

from bedrock import AsyncClient, AsyncConversation, AsyncRun, Conversation, Generation
from bedrock._shared.requests import MAX_REQUEST_BYTES, image
from bedrock.answers import ANSWERED
from bedrock.cli import exit_codes as exits
from bedrock.cli import stdio as streams
from bedrock.cli.arguments import (
    connect,
    generation_options,
    open_conversation,
    opening_options,
    option,
    read_for,
    text_of,
)
from bedrock.cli.commands.approvals import fill_in
from bedrock.cli.display.follower import TRYING_AGAIN, Drawing, Outage
from bedrock.cli.display.labels import NOT_WHOLE, interruption
from bedrock.cli.display.live_block import LiveBlock
from bedrock.cli.display.questions import QuestionForm
from bedrock.cli.text.output import flow_of, print_json, print_line, print_text
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import Paint, columns
from bedrock.errors import BedrockError, InvalidArgument, RunEnded
from bedrock.states import Question

# After this many seconds without input, the command says that it is reading standard input.
NOTICE_SECONDS = 1.0

# After this many seconds without a byte, standard input is ignored if the arguments contain a prompt.
SILENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run, as the command reports it."""

    exit_code: int
    text: str = ""
    error: str = ""
    needs_approval: str = ""
    """The id of the tool call that waits for approval; empty if no call does."""
    value: Any = None
    """The JSON value of a run with an output schema; None for other runs."""


@click.command()
@click.argument("prompt", nargs=-1)
@option(
    "--output",
    "The answer as text, as one JSON object, or every event as a JSON line.",
    type=click.Choice(["text", "json", "stream-json"]),
    default="text",
)
@option(
    "--approve",
    "Approve every tool call that needs it, or exit with code 3 at the first one (the default).",
    type=click.Choice(["all", "none"]),
    default="none",
)
@option(
    "--image images",
    "An image file to attach (repeatable).",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
)
@option("-q --quiet", "Show no progress on standard error.", is_flag=True)
@option(
    "--output-schema schema",
    "A JSON Schema; only a matching value is printed, as JSON.",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
)
@opening_options
@generation_options
def ask(
    prompt: tuple[str, ...],
    *,
    output: str,
    approve: str,
    images: tuple[str, ...],
    quiet: bool,
    schema: str | None,
    generation: Generation | None,
    **opening: Any,
) -> None:
    """Ask one question and print the answer. The prompt is the arguments, followed by standard input if it is piped.

    The answer goes to standard output, progress to standard error. Exit codes: 0 answered, 1 the run failed, 2 usage
    error, 3 a tool call needs approval, 4 no server, 5 the answer is incomplete (cut off, refused or empty), 130
    cancelled (Ctrl-C, SIGTERM and SIGHUP cancel the run), 141 standard output was closed by its reader (which cancels
    the run too). Questions from MCP servers are asked at the terminal; without one, they are declined.
    """
    ctx = click.get_current_context()
    streams.ensure_read(sys.stdout)
    text = _prompt(prompt, quiet=quiet)
    attached = [read_for("--image", path, image) for path in images]
    output_schema = read_for("--output-schema", schema, _schema) if schema else None
    client = connect(ctx)
    conversation = open_conversation(client, **opening)
    ctx.meta[exits.NAME] = opening["resume"] or conversation.name.removeprefix("conversations/")
    is_new = not (opening["latest"] or opening["resume"])
    run: AsyncRun | None = None

    async def converse() -> Outcome:
        nonlocal run
        async with AsyncClient(ctx.find_root().obj) as connection:
            asked = connection.conversation(conversation.name)
            async with asked.question(
                text, images=attached, wait_for_others=True, generation=generation, output_schema=output_schema
            ) as run:
                shown = None if quiet else Paint.for_stream(sys.stderr)
                return await _follow(
                    connection, asked, run, shown, approve=approve == "all", stream=output == "stream-json"
                )

    try:
        if is_new and not quiet:
            for message in conversation.messages():  # the warning from creating the conversation
                if message.role == "system":
                    exits.print_message(message.text)
        outcome = streams.run(converse())
    except KeyboardInterrupt:
        outcome = Outcome(exits.CANCELLED, error="cancelled")
    except InvalidArgument:
        if run is None and is_new:
            with suppress(BedrockError):
                conversation.delete()  # the conversation is empty: it was created for the rejected message alone
        raise
    if schema and output == "text" and outcome.exit_code == exits.OK:
        print_json(outcome.value)
    else:
        _report(conversation, run, outcome, output)
    ctx.exit(outcome.exit_code)


def _prompt(arguments: tuple[str, ...], *, quiet: bool = False) -> str:
    given = " ".join(arguments)
    wanted = _is_piped() or not (given or sys.stdin.isatty())
    piped = _input(beside_words=bool(given), quiet=quiet) if wanted else ""
    text = "\n\n".join(part for part in (given, piped) if part)
    if not text:
        raise click.UsageError('no prompt; try: bedrock ask "What is in this directory?"')
    text.encode()  # raises UnicodeEncodeError for invalid input, before anything is sent
    return text


def _input(*, beside_words: bool, quiet: bool) -> str:
    """The text of standard input; "" if no text comes for SILENCE_SECONDS and the arguments contain a prompt."""
    leave_out = "; </dev/null skips it" if beside_words else ""
    try:
        if not quiet and _is_silent(NOTICE_SECONDS):
            exits.print_message(f"Reading standard input until it ends{leave_out}.")
        if beside_words and _is_silent(SILENCE_SECONDS):
            exits.print_message("No data on standard input, so it is ignored.")
            return ""
        text = sys.stdin.read(MAX_REQUEST_BYTES + 1)
        if len(text) > MAX_REQUEST_BYTES:
            raise click.UsageError(f"standard input is larger than {MAX_REQUEST_BYTES >> 20} MiB")
        return text.strip()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"standard input is not valid {error.encoding.upper()}") from None


def _is_silent(seconds: float) -> bool:
    """Whether standard input neither provides data nor ends within this many seconds."""
    with suppress(OSError, ValueError):
        return not select.select([sys.stdin], [], [], seconds)[0]
    return False


def _schema(data: bytes) -> dict[str, Any]:
    if isinstance(schema := json.loads(text_of(data)), dict):
        return schema
    raise ValueError("not a JSON object")


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file. Other kinds, e.g. a terminal, may never reach their end."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(kind) or stat.S_ISREG(kind)


async def _follow(
    client: AsyncClient,
    conversation: AsyncConversation,
    run: AsyncRun,
    paint: Paint | None,
    *,
    approve: bool,
    stream: bool,
) -> Outcome:
    """Follow a run, printing its progress unless `paint` is None; without `approve`, stop at an approval request."""
    block, quiet, asking = LiveBlock(sys.stderr), paint is None, False
    width, paint = columns(sys.stderr) if os.environ.get("TERM") != "dumb" else None, paint or Paint(False)
    drawing = Drawing(paint, block.write, width=width)
    outage = Outage(lambda: conversation, lambda text: block.write(paint.careful(f"· {text}")))

    def status() -> list[SafeText]:
        return [] if asking else [paint.dim(TRYING_AGAIN if outage.lasts else drawing.status("Ctrl-C cancels"))]

    async with AsyncExitStack() as stack:
        stack.enter_context(closing(outage))
        if not quiet:
            client.on_disconnect = outage.begin
            if width is not None:
                drawing.view.info = await conversation.get()
                await stack.enter_async_context(block.updated(status))
        async for event in run:
            streams.ensure_read(sys.stdout)
            outage.end()
            if not quiet:
                drawing.show_progress(event)
            if stream:
                print_json(event.to_dict())
            if event.approval is not None:
                if not approve:
                    return Outcome(exits.NEEDS_APPROVAL, needs_approval=event.approval.tool_use_id)
                with suppress(*ANSWERED):
                    await conversation.approve(event.approval)
            if event.question is not None:
                asking = True
                block.show(())
                await _reply(conversation, event.question)
                asking = False
    return await _outcome(run)


async def _reply(conversation: AsyncConversation, asked: Question) -> None:
    """Let the user answer an MCP server's question, and retry a rejected answer.

    Without input, decline the question.
    """
    at_terminal, form = sys.stdin.isatty() and sys.stderr.isatty(), QuestionForm(asked)
    try:
        while at_terminal and (content := await _filled_in(form)) is not None:
            try:
                await conversation.answer_question(asked, None if asked.url else content)
            except InvalidArgument as error:
                exits.print_message(f"error: {error.message}")
                form.begin_again()
            else:
                return
        await conversation.decline_question(asked)
        if not at_terminal:
            who = f"MCP server {asked.mcp_server}"
            exits.print_message(f"No terminal to ask on, so this question from {who} was declined: {asked.message}")
    except ANSWERED:
        exits.print_message("The question is no longer open.")


async def _filled_in(form: QuestionForm) -> dict[str, Any] | None:
    with suppress(click.Abort):
        return await fill_in(form, err=True)
    return None


async def _outcome(run: AsyncRun) -> Outcome:
    try:
        answer = await run.answer()
        lacks = NOT_WHOLE.get(answer.stop_detail, "")
        return Outcome(exits.NOT_WHOLE if lacks else exits.OK, text=answer, error=lacks, value=answer.output)
    except RunEnded as error:
        if run.stop is None or run.stop.reason != "interrupted":
            return Outcome(exits.FAILED, error=error.message)
        return Outcome(exits.FAILED if run.stop.detail else exits.CANCELLED, error=interruption(run.stop.detail))


def _report(conversation: Conversation, run: AsyncRun | None, outcome: Outcome, output: str) -> None:
    if output == "text":
        if outcome.exit_code == exits.OK or outcome.text:
            _answer(outcome.text, Paint.for_stream(sys.stdout))
    else:
        result = _result(conversation, run, outcome)
        print_json(result if output == "json" else {"kind": "result", "result": result})
    if outcome.error:
        exits.print_message(f"error: {outcome.error}")
    if outcome.needs_approval:
        slug = conversation.get().slug
        exits.print_message(
            f"A tool call needs approval: `bedrock approve {slug}` or `bedrock deny {slug}`,"
            f" then `bedrock show {slug}`.\nTo approve all tool calls in advance, pass --approve all."
        )


def _answer(text: str, paint: Paint) -> None:
    if not sys.stdout.isatty():
        print_text(text)
        return
    for line in flow_of(paint, columns(sys.stdout)).finish(text):
        print_line(line)


def _result(conversation: Conversation, run: AsyncRun | None, outcome: Outcome) -> dict[str, Any]:
    latest, stop = conversation.get(), run.stop if run else None
    return {
        "conversation": latest.name, "slug": latest.slug, "run": run.name if run else None,
        "stop_reason": stop.reason if stop else None, "stop_detail": stop.detail if stop else None,
        "text": outcome.text, "error": outcome.error or None, "needs_approval": outcome.needs_approval or None,
        "output": outcome.value, "exit_code": outcome.exit_code, "usage": latest.total_usage.to_dict(),
    }  # fmt: skip
