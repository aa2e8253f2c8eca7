"""`bedrock chat`: lets a user talk with an agent at a terminal; without one, plays a demo conversation."""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from bedrock import AsyncClient, Client
from bedrock.cli import exit_codes as exits
from bedrock.cli.arguments import generation, generation_options
from bedrock.cli.chat import demo
from bedrock.cli.chat.attention import NOTIFY_OPTION, Attention
from bedrock.cli.chat.session import ChatSession
from bedrock.cli.chat.typeahead import typing_ahead
from bedrock.cli.choose_conversation import open_conversation, opening_options
from bedrock.cli.display.labels import AGAIN_SPAWNED, counted
from bedrock.cli.spawned_server import SpawnedServer, server_answers
from bedrock.cli.text.line_wrap import folding
from bedrock.cli.text.output import print_line
from bedrock.cli.text.style import PLAIN_OPTION, Paint, columns
from bedrock.errors import Unavailable
from bedrock.local_server import data_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bedrock.conversations import ConversationInfo
    from bedrock.types import ReasoningEffort

#: The name of the file with the input history, in the data directory.
HISTORY = "chat_history"
#: Options that are refused without a terminal, because the demo conversation does not use them.
NOT_FOR_THE_DEMO = (
    "latest",
    "resume",
    "mode",
    "approval_policy",
    "instructions",
    "replace_instructions",
    "tools",
    "mcp_servers",
    "generation",
)
#: At the end of a chat with a server of its own, only this many of the latest conversations are checked for runs that
#: the end of the server stops.
OTHERS = 50


@click.command()
@click.argument("prompt", nargs=-1)
@click.option("--again", metavar="COMMAND", hidden=True, help="What brings the chat back, with {} for its slug.")
@click.option("--spawn", is_flag=True, help="Start a server for this chat if none answers; it ends with the chat.")
@NOTIFY_OPTION
@PLAIN_OPTION
@opening_options
@generation_options
def chat(
    prompt: tuple[str, ...],
    *,
    spawn: bool,
    plain: bool,
    notify: bool,
    again: str | None,
    effort: ReasoningEffort | None,
    temperature: float | None,
    max_output_tokens: int | None,
    **opening: Any,
) -> None:
    """Chat with an agent in a directory. PROMPT, if there is one, is sent first.

    Enter sends; while the agent works, it reads the message at its next step. Tab queues the message instead. Esc or
    Ctrl-C cancels the run, Ctrl-C again exits. A run continues on the server after you exit, unless --spawn started the
    server: then both end. Ctrl-J begins a new line. /help lists all keys and commands. Without a terminal, one sample
    conversation is run and printed, and its questions are answered automatically.
    """
    ctx = click.get_current_context()
    address: str | None = ctx.find_root().obj
    opening["generation"] = generation(effort, temperature, max_output_tokens)
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    paint = Paint.for_stream(sys.stdout, plain=plain)
    if not at_terminal and any(opening[name] for name in NOT_FOR_THE_DEMO):
        raise click.UsageError("without a terminal only -C and -m can be used; `bedrock ask` takes the other options")
    if prompt and not at_terminal:
        raise click.UsageError("there is no terminal to chat at; `bedrock ask` answers a single prompt")
    with ExitStack() as stack:
        if at_terminal:
            stack.enter_context(typing_ahead(sys.stdin))
        spawned = spawn and not server_answers(address)
        if spawned:
            print_line(Paint.for_stream(sys.stderr).dim("starting a server…"), err=True)
            address = stack.enter_context(SpawnedServer()).address
        client = stack.enter_context(Client(address))
        if not at_terminal:
            again = again or (AGAIN_SPAWNED if spawned else "bedrock show {}")
            exit_code = demo.play(client, paint, print_line, opening["directory"], opening["model"], again=again)
        else:
            exit_code = exits.OK
            conversation = open_conversation(client, **opening)
            scripted = demo.is_scripted(client, conversation.get())
            last, slug = asyncio.run(
                _chat(address, conversation.name, paint, scripted=scripted, notify=notify, first=" ".join(prompt))
            )
            try:
                left = client.conversation(last).get()
                others = _other_runs(client, last) if spawned else []
            except Unavailable as error:
                back = _way_back(again, spawns=spawn).replace("{}", slug)
                raise exits.CommandError(
                    f"the server of {slug} does not answer any more", f"To go on: {back}", exits.UNREACHABLE
                ) from error
            say = folding(print_line, columns(sys.stdout))
            for line in _farewell(left, _way_back(again, spawns=spawned), spawned=spawned, others=others):
                say(paint.dim(line))
    ctx.exit(exit_code)


def _way_back(again: str | None, *, spawns: bool) -> str:
    """Return the command that goes on with a chat, with {} for its slug: `again`, if that was given."""
    return again or (AGAIN_SPAWNED if spawns else "bedrock chat -r {}")


def _other_runs(client: Client, left: str) -> list[str]:
    latest = islice(client.conversations(), OTHERS)
    return [found.slug for found in latest if found.state.busy and found.name != left]


def _farewell(left: ConversationInfo, again: str, *, spawned: bool, others: Sequence[str] = ()) -> list[str]:
    """Return lines about what continues after the chat, what the server's end stops, and how to come back.

    `others` are the slugs of other conversations whose runs end with the server.
    """
    lines = _own_farewell(left, again, spawned=spawned)
    if not others:
        return lines
    back = again.replace("{}", others[0])
    return [*lines, f"The server ends with this chat, and so do the runs of {', '.join(others)}. To go on: {back}"]


def _own_farewell(left: ConversationInfo, again: str, *, spawned: bool) -> list[str]:
    work = ["its run"] if left.state.busy else []
    count = len(left.background_jobs)
    work += [counted(count, "background job")] if count else []
    back = again.replace("{}", left.slug)
    if not work:
        return [f"Left {left.slug}. To come back: {back}"]
    if spawned:
        stopped = " and ".join(work)
        return [f"Left {left.slug} and stopped {stopped}, since the server ends with this chat.", f"To go on: {back}"]
    stop = f"bedrock cancel {'--kill-jobs ' if count else ''}{left.slug}"
    return [f"Left {left.slug}. Still running: {', '.join(work)}. To stop: {stop}", f"To come back: {back}"]


async def _chat(
    address: str | None, name: str, paint: Paint, *, scripted: bool, notify: bool, first: str
) -> tuple[str, str]:
    """Run the chat. Its first message is `first`, unless that is empty.

    Returns the name and the slug of the conversation in which the chat has ended.
    """
    from bedrock.cli.chat.input_history import ChatHistory  # noqa: PLC0415
    from bedrock.cli.chat.terminal import chat_at_terminal  # noqa: PLC0415 -- loads prompt_toolkit

    async with AsyncClient(address) as client:
        conversation = client.conversation(name)
        session = ChatSession(client, name, paint, print_line, width=columns(sys.stdout))
        client.on_disconnect = session.disconnected
        now = await conversation.get()
        where = paint.dim(f"in {paint.flat(now.working_directory)} · /help says what can be done")
        session.say(paint.text(paint.bold(now.slug), " ", where))
        if scripted:
            session.say(paint.dim("The demo model answers, by its script: type help to see what it can show."))
        session.enter(first)
        await chat_at_terminal(session, paint, ChatHistory(data_directory() / HISTORY), Attention(enabled=notify))
        return session.conversation.name, session.view.slug or now.slug
