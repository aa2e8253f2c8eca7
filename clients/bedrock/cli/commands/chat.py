"""`bedrock chat`, which plays a sample conversation if there is no terminal, and `bedrock console`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import subprocess
import sys
import urllib.request
import webbrowser
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import click

from bedrock import AsyncClient, Client, Conversation
from bedrock._interrupts import as_ctrl_c
from bedrock._shared.settings import Settings, resolve
from bedrock.answers import ANSWERED
from bedrock.cli import exit_codes as exits
from bedrock.cli import stdio as streams
from bedrock.cli.arguments import address_or_spawned, generation_options, open_conversation, opening_options, option
from bedrock.cli.chat.session import ChatSession
from bedrock.cli.chat.slash_commands import run_command
from bedrock.cli.display.follower import Drawing
from bedrock.cli.display.labels import counted
from bedrock.cli.spawned_server import spawn_if_missing
from bedrock.cli.stdio import typing_ahead
from bedrock.cli.text.output import Write, folding, print_line, print_text
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import Paint, columns
from bedrock.conversations import ConversationInfo
from bedrock.errors import Unauthenticated, Unavailable
from bedrock.local_server import GATEWAY_FILE, NotPrivateError, data_directory, read_believed, server_process
from bedrock.states import Approval

# Maximum seconds to wait until a running gateway has made a link.
ASK_SECONDS = 5.0
_READY = re.compile(r"\bready on (\S+)")


@click.command()
@option("--no-open quiet", "Print the URL without opening it.", is_flag=True)
@click.pass_context
def console(ctx: click.Context, *, quiet: bool) -> None:
    """Open the console: all conversations in a browser.

    The link signs in one browser, and is valid for one minute. If the server on this machine serves HTTP, its gateway
    is used. Otherwise, this command runs a gateway until Ctrl-C, and a server if there is none.
    """
    if not exits.address_source(ctx) and (link := link_of_running()):
        _show(link, quiet=quiet)
        return
    address = address_or_spawned(ctx)
    settings = resolve(address)
    with Client(address) as client, suppress(*() if settings.token else (Unauthenticated,)):
        client.server_info()  # the page itself could not say why the server does not answer
    _serve(settings, quiet=quiet)


def link_of_running(address: str | None = None) -> str:
    """A link for signing in to the gateway of this machine's server; "" if the server has no gateway.

    `address` is the server's address, if it is not the usual one.
    """
    folder = data_directory()
    if not server_process(folder):  # another program may listen at the address by now
        return ""
    with suppress(OSError, NotPrivateError, ValueError, KeyError):
        url = read_believed(folder / GATEWAY_FILE, most=4096).decode().strip()
        headers = {"Authorization": f"Bearer {resolve(address).token}"}
        request = urllib.request.Request(f"{url}/console/links", b"", headers)  # noqa: S310 -- the server's own file names it
        with urllib.request.urlopen(request, timeout=ASK_SECONDS) as answer:  # noqa: S310
            return f"{url}/#link={json.load(answer)['link']}"
    return ""


def _serve(settings: Settings, *, quiet: bool) -> None:
    """Run a gateway until Ctrl-C. Raises CommandError if it cannot be started."""
    scheme = "https://" if settings.tls else ""
    command = [sys.executable, "-P", "-m", "server.gateway.command", "--listen", "127.0.0.1:0", "--until-eof"]
    command += ["--log-level", "warning", "--upstream", f"{scheme}{settings.target}"]
    if settings.tls and (authorities := os.environ.get("BEDROCK_CA_FILE")):
        command += ["--upstream-ca", authorities]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as gateway:
        assert gateway.stdin is not None  # noqa: S101 -- both are pipes
        assert gateway.stdout is not None  # noqa: S101
        if (ready := _READY.search(gateway.stdout.readline())) is None:
            raise exits.CommandError("the gateway could not be started", exit_code=exits.UNREACHABLE)
        code = secrets.token_urlsafe(24)
        if settings.token:
            gateway.stdin.write(f"{code} {settings.token}\n")
            gateway.stdin.flush()
        _show(f"{ready[1]}/#link={code}" if settings.token else ready[1], quiet=quiet)
        print_text("Ctrl-C stops the console; runs continue.", err=True)
        with suppress(KeyboardInterrupt):
            gateway.wait()
        gateway.stdin.close()


def _show(link: str, *, quiet: bool) -> None:
    print_text(link)
    screen = sys.platform == "darwin" or any(os.environ.get(each) for each in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if screen and not quiet:
        webbrowser.open(link)


PROMPT = "Hello! Use bash to list the files in this directory, then say in one sentence what you found."

REAL_MODEL = """\
This was the scripted demo model. To talk to a real one, set one of these and start again:
  ANTHROPIC_API_KEY=…                         Anthropic
  OPENAI_API_KEY=…                            OpenAI
  OPENAI_BASE_URL=http://… OPENAI_MODEL=…     any OpenAI-compatible server
At a terminal, the same command opens a chat."""


def play(client: Client, paint: Paint, write: Write, directory: str, model: str | None, *, again: str) -> int:
    """Send a demo message, answer its approval requests, print everything, and return the exit code.

    `again` is the command that shows the conversation later, with {} for its slug. An interrupt cancels the run.
    """
    conversation = client.create(directory, model=model, approval_policy="ask_writes")
    made = conversation.get()
    scripted = is_scripted(client, made)
    write(paint.bold(f"No terminal, so Bedrock plays one demo conversation: {made.slug}"))
    write(paint.dim(f"model {made.model.removeprefix('models/')} · in {made.working_directory}"))
    drawing = Drawing(paint, write)
    drawing.view.info = made
    with as_ctrl_c(), conversation.question(PROMPT) as run:
        for event in run:
            streams.ensure_read(sys.stdout)
            drawing.show(event)
            if event.approval is not None:
                with suppress(*ANSWERED):
                    _decide(conversation, event.approval, scripted, paint, write)
    write(SafeText())
    if run.stop is None or run.stop.reason != "completed":
        write(paint.bad("The run did not complete."))
        return exits.FAILED
    write(paint.good(f"Completed. To read it again: {again.replace('{}', made.slug)}"))
    if scripted:
        write(SafeText(REAL_MODEL))
    return exits.OK


def is_scripted(client: Client, conversation: ConversationInfo) -> bool:
    """Whether a conversation uses the demo model."""
    demos = (model.name for model in client.models() if model.protocol == "demo")
    return conversation.model in demos


def _decide(conversation: Conversation, approval: Approval, scripted: bool, paint: Paint, write: Write) -> None:
    """Answer an approval in place of a user: yes in restricted mode and for the demo model's calls, otherwise no."""
    is_safe = conversation.get().mode == "restricted" or scripted
    if is_safe and approval.tool != "request_mode_upgrade":
        write(paint.careful("  answered automatically, because there is no terminal: yes"))
        conversation.approve(approval)
    else:
        write(paint.careful("  answered automatically, because there is no terminal: no"))
        conversation.deny(approval, "no terminal to approve this on")


# The name of the file with the input history, in the data directory.
HISTORY = "chat_history"
# The notice about a server that a chat has started and leaves running.
ENDS = "The server and its background jobs stop when no client is connected and no run is in progress."


@click.command()
@click.argument("prompt", nargs=-1)
@option("--again", "The command that resumes the chat, with {} for its slug.", metavar="COMMAND", hidden=True)
@option("--spawn", "Start a server if none answers, even if an address is given.", is_flag=True)
@option(
    "--notify/--no-notify",
    "Ring the terminal bell when the agent is waiting for you; also set by BEDROCK_NOTIFY.",
    envvar="BEDROCK_NOTIFY",
    default=True,
)
@opening_options
@generation_options
def chat(prompt: tuple[str, ...], *, spawn: bool, notify: bool, again: str | None, **opening: Any) -> None:
    """Chat with an agent in a directory. PROMPT, if given, is sent first.

    Enter sends; while the agent works, it reads the message at its next step. Tab queues the message instead. Esc or
    Ctrl-C cancels the run, Ctrl-C again exits. A run continues on the server after you exit. Ctrl-J inserts a line
    break. /help lists all keys and commands. If no server is running on this machine and no address is given, one is
    started; it ends when no client is connected and no run is in progress. Without a terminal, one sample conversation
    is run and printed, and its questions are answered automatically.
    """
    ctx = click.get_current_context()
    address: str | None = ctx.find_root().obj
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    paint = Paint.for_stream(sys.stdout)
    if not at_terminal and any(given for name, given in opening.items() if name not in ("directory", "model")):
        raise click.UsageError("without a terminal, only -C and -m can be used; `bedrock ask` has the other options")
    if prompt and not at_terminal:
        raise click.UsageError("a chat needs a terminal; use `bedrock ask` for a single prompt")
    with ExitStack() as stack:
        if at_terminal:
            stack.enter_context(typing_ahead(sys.stdin))
        starting = partial(print_line, Paint.for_stream(sys.stderr).dim("starting a server…"), err=True)
        server = spawn_if_missing(address, stack.enter_context, starting, insist=spawn)
        address = server.address if server else address
        client = stack.enter_context(Client(address))
        if not at_terminal:
            back = again or ("bedrock chat -r {}" if server else "bedrock show {}")
            exit_code = play(client, paint, print_line, opening["directory"], opening["model"], again=back)
        else:
            exit_code = exits.OK
            if spawn and not server:
                print_line(paint.dim("using the running server; keys and settings in this environment have no effect"))
            if (server or spawn) and os.environ.get("BEDROCK_HTTP_LISTEN") and (link := link_of_running(address)):
                print_line(paint.dim(f"console: {link} (single use, valid for 1 minute)"))
            conversation = open_conversation(client, **opening)
            scripted = is_scripted(client, conversation.get())
            last, slug = asyncio.run(
                _chat(address, conversation.name, paint, scripted=scripted, notify=notify, first=" ".join(prompt))
            )
            back = again or "bedrock chat -r {}"
            try:
                left, ends = client.conversation(last).get(), client.server_info().ends_when_unused
            except Unavailable as error:
                raise exits.CommandError(
                    f"the server of {slug} no longer answers",
                    f"To resume: {back.replace('{}', slug)}",
                    exits.UNREACHABLE,
                ) from error
            client.close()
            goes_on = server.leave() if server else None
            say = folding(print_line, columns(sys.stdout))
            program = sys.argv[0] if again else "bedrock"  # a wrapper of this command starts the program by its path
            for line in _farewell(left, back, program, ends=ends, goes_on=goes_on):
                say(paint.dim(line))
    ctx.exit(exit_code)


def _farewell(left: ConversationInfo, again: str, program: str, *, ends: bool, goes_on: bool | None) -> list[str]:
    count = len(left.background_jobs)
    jobs = [counted(count, "background job")] if count else []
    back = f"To come back: {again.replace('{}', left.slug)}"
    if goes_on is False:
        stopped = f" and stopped {jobs[0]}, because the server has stopped" if jobs else ""
        return [f"Left {left.slug}{stopped}. {back}"]
    rest = [ENDS] if ends and (goes_on or jobs or left.state.busy) else []
    if not (work := [*(["its run"] if left.state.busy else []), *jobs]):
        return [f"Left {left.slug}. {back}", *rest]
    stop = f"{program} cancel {'--kill-jobs ' if count else ''}{left.slug}"
    return [f"Left {left.slug}. Still running: {', '.join(work)}. To stop: {stop}", back, *rest]


async def _chat(
    address: str | None, name: str, paint: Paint, *, scripted: bool, notify: bool, first: str
) -> tuple[str, str]:
    """Run the chat, after sending `first` if it is not empty; return the name and slug of its last conversation."""
    from bedrock.cli.chat.completion import ChatHistory  # noqa: PLC0415 -- loads prompt_toolkit
    from bedrock.cli.chat.prompt import Attention, chat_at_terminal  # noqa: PLC0415 -- so does this

    async with AsyncClient(address) as client:
        conversation = client.conversation(name)
        session = ChatSession(client, name, paint, print_line, run_command, width=columns(sys.stdout))
        client.on_disconnect = session.disconnected
        now = await conversation.get()
        where = paint.dim(f"in {paint.flat(now.working_directory)} · /help lists keys and commands")
        session.say(paint.text(paint.bold(now.slug), " ", where))
        if scripted:
            session.say(paint.dim("The scripted demo model answers; type help to see what it can show."))
        session.enter(first)
        await chat_at_terminal(session, paint, ChatHistory(data_directory() / HISTORY), Attention(enabled=notify))
        return session.conversation.name, session.view.info.slug or now.slug
