"""The command `bedrock`, which imports a subcommand only when it is used: --help lists one-line summaries from here."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from bedrock import _interrupts
from bedrock.cli import exit_codes as exits
from bedrock.cli.text.output import print_text

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# The module of each command, which is imported only when the command is used, and the first sentence of its help.
OURS = {
    "chat": ("chat", "Chat with an agent in a directory."),
    "ask": ("ask", "Ask one question and print the answer."),
    "console": ("chat", "Open the console: all conversations in a browser."),
    "new": ("manage", "Create a conversation and print its slug."),
    "list": ("inspect", "List conversations, latest first."),
    "show": ("inspect", "Show a conversation: its state and settings, and its latest messages."),
    "cycles": ("inspect", "List the runs of a conversation with their messages and outcomes."),
    "wait": ("inspect", "Wait until a run ends, and print how it ended."),
    "watch": ("inspect", "Follow a conversation until Ctrl-C."),
    "models": ("inspect", "List the models that conversations can use."),
    "tools": ("inspect", "List the tools that agents can call."),
    "mcp": ("inspect", "List the MCP servers with their states and tools."),
    "nodes": ("inspect", "List the servers that share the database, as seen by the one that answers."),
    "quota": ("inspect", "List your quotas and their usage."),
    "approvals": ("approvals", "List the tool calls waiting for approval, in all conversations or in one."),
    "questions": ("approvals", "List the open questions from MCP servers, in all conversations or in one."),
    "answer": ("approvals", "Answer or decline a question from an MCP server."),
    "approve": ("approvals", "Approve a tool call waiting for approval."),
    "deny": ("approvals", "Deny a tool call waiting for approval."),
    "rules": ("approvals", "List, create and revoke the approval rules of a conversation."),
    "cancel": ("manage", "Cancel the run of a conversation."),
    "queue": ("manage", "List the queued messages of a conversation."),
    "withdraw": ("manage", "Withdraw messages from the queue, and print their text."),
    "mode": ("manage", "Show or set the mode of a conversation: what its tools may do."),
    "update": ("manage", "Change the model, the approval policy or the generation settings of a conversation."),
    "compact": ("manage", "Summarize a conversation now, and continue in a new one."),
    "fork": ("manage", "Fork a conversation: create a new one with its history up to the end of a run."),
    "continue": ("manage", "Continue in a new conversation when the context is used up."),
    "rename": ("manage", "Change the slug or title of a conversation."),
    "archive": ("manage", "Archive a conversation: it leaves the list, but can still be read."),
    "rm": ("manage", "Delete a conversation and all its data."),
    "verify": ("audit", "Check that stored conversations are undamaged."),
    "replay": ("audit", "Replay a log and compare each step with the stored one."),
    "log": ("audit", "Print the log of a conversation as JSON lines."),
    "export": ("audit", "Print everything about a conversation as JSON lines."),
    "audit": ("audit", "Print who did what, as JSON lines."),
    "download": ("audit", "Save the images of a conversation."),
    "doctor": ("doctor", "Check the server, the connection to it, and this machine."),
    "completion": ("doctor", "Print the completion script for a shell."),
}

# The headings in the list of commands, by the first command of each section. Commands of plugins come last.
SECTIONS = {
    "chat": "Talk with an agent",
    "list": "Inspect",
    "approvals": "Approve, answer, cancel",
    "mode": "Change a conversation",
    "verify": "Verify and export",
    "doctor": "Server and shell",
}

# Alternative names of commands.
ALIASES = {"ls": "list"}

# Commands that the server's package adds, with their summaries. If that package is not installed, they raise an error
# that says so.
SERVERS = {
    "serve": "Run the Bedrock server until it receives a stop signal.",
    "token": "Manage the tokens of principals.",
    "config": "Inspect the settings of the server on this machine.",
    "backup": "Back up the database to FILE.",
    "restore": "Restore a backup as the database of a stopped server.",
    "move": "Copy all conversations from the data directory to PostgreSQL.",
    "gateway": "Serve the API of a server as JSON over HTTP.",
}

# The first sentences of the commands' help texts. A command that is missing here is imported to get its help text.
SUMMARIES = {**{name: summary for name, (_, summary) in OURS.items()}, **SERVERS}

GROUP = "bedrock.commands"

# A limit longer than any command's summary, so that no summary is truncated.
_WHOLE = 1_000


class Commands(click.Group):
    """The commands of this package and of plugins. This package's commands take precedence if names clash."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the options that precede the command's name. --help and --version print their text and exit."""
        with exits.reported_errors():
            return super().make_context(info_name, args, parent, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        plugged = sorted(name for name in _plugged() if name not in OURS)
        return [*OURS, *plugged]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their summaries, importing only those that are missing from `SUMMARIES`."""
        names = self.list_commands(ctx)
        column = max(map(len, names))
        sections: list[tuple[str, list[tuple[str, str]]]] = []
        for name in names:
            if name in SECTIONS:
                sections.append((SECTIONS[name], []))
            known = click.Command(name, help=SUMMARIES[name]) if name in SUMMARIES else self.get_command(ctx, name)
            if known is not None:
                sections[-1][1].append((name.ljust(column), known.get_short_help_str(_WHOLE)))
        for title, rows in sections:
            with formatter.section(title):
                formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if it does not exist.

        Raises CommandError if it belongs to the server's package, and that package is not installed.
        """
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name in OURS:
            module = import_module(f"bedrock.cli.commands.{OURS[cmd_name][0]}")
            command = getattr(module, cmd_name, None) or getattr(module, f"{cmd_name}_")
            return command if isinstance(command, click.Command) else None
        if plugged := _plugged().get(cmd_name):
            loaded = plugged.load()
            return loaded if isinstance(loaded, click.Command) else None
        if cmd_name in SERVERS:
            raise exits.CommandError(
                f"`bedrock {cmd_name}` belongs to the server, which is not installed here",
                "Install it from a checkout with `pip install ./clients .`, or use a server elsewhere: "
                "set BEDROCK_ADDRESS and BEDROCK_TOKEN.",
                exits.USAGE,
            )
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the typed command, or raise UsageError with similar names.

        From then on, Ctrl-C raises KeyboardInterrupt.
        """
        try:
            found = super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches  # noqa: PLC0415 -- needed only if the command is misspelt

            alike = get_close_matches(args[0], self.list_commands(ctx), n=2)
            hint = f" Did you mean {' or '.join(alike)}?" if alike else ""
            raise click.UsageError(error.message + hint, ctx) from None
        _interrupts.raise_again()
        return found

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. Errors of Bedrock are printed as messages, never as tracebacks."""
        with exits.reported_errors(ctx):
            return super().invoke(ctx)


def _plugged() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 -- most commands do not need it

    return {found.name: found for found in entry_points(group=GROUP)}


@click.command(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--address", metavar="HOST:PORT", help="The server; https://… for TLS. [default: the local server]")
@click.version_option(package_name="phoenix-bedrock-client", message="bedrock %(version)s", help="Print the version.")
@click.pass_context
def bedrock(ctx: click.Context, address: str | None) -> None:
    """Chat with LLM agents on a Bedrock server, and manage their conversations.

    New here? `bedrock` alone opens a chat. If no server is running, it starts one; no key is needed.

    Conversations are named by slug or id. Your own server on this machine is found automatically; for
    another one, set --address or BEDROCK_ADDRESS, and BEDROCK_TOKEN.
    """
    ctx.obj = address
    if ctx.invoked_subcommand is None:
        _open_chat(ctx)


def _open_chat(ctx: click.Context) -> None:
    """Open a chat at a terminal; without one, print the help and raise Exit."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print_text(ctx.get_help())
        ctx.exit(exits.USAGE)
    chat = bedrock.get_command(ctx, "chat")
    assert chat is not None  # noqa: S101 -- `chat` is in OURS
    with chat.make_context("chat", [], parent=ctx) as opened:
        chat.invoke(opened)
