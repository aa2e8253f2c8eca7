"""Converts errors to messages and hints for a command line or a chat, and to exit codes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial

import click

from bedrock import errors
from bedrock.cli import stdio as streams
from bedrock.cli.text.output import folding, print_line
from bedrock.cli.text.style import Paint, columns

# The end of some of the server's error messages. It is meant for programs, so it is removed for users.
FOR_PROGRAMS = ": retry with the same request_id"
RUNS_END = "A run must end first: `bedrock list --filter 'busy = true'` lists yours, `bedrock cancel NAME` ends one."

_COMMAND_LINE: dict[type[errors.BedrockError], str] = {
    errors.AgentBusy: "Wait until the run ends, or end it with `bedrock cancel NAME`; then try again.",
    errors.AwaitingApproval: "Answer with `bedrock approve NAME` or `bedrock deny NAME`, or cancel; then try again.",
    errors.ApprovalNeeded: "Answer with `bedrock approve NAME` or `bedrock deny NAME`.",
    errors.ModelUnavailable: "Choose one with -m; `bedrock models` lists them.",
    errors.Archived: "`bedrock archive --undo NAME` does that.",
    errors.ContextExhausted: "`bedrock continue NAME` does that.",
    errors.Terminal: "If its context is used up, `bedrock continue NAME` continues in a new one.",
    errors.NotForkable: "`bedrock cycles NAME` lists its runs.",
    errors.RevisionTooOld: "",
    errors.Aborted: "See `bedrock show NAME`.",
    errors.UnknownOrDecided: "See `bedrock show NAME`.",
    errors.RunOver: "See `bedrock show NAME`.",
}
_CHAT: dict[type[errors.BedrockError], str] = {
    **_COMMAND_LINE,
    **dict.fromkeys((errors.Aborted, errors.UnknownOrDecided, errors.RunOver), ""),
    errors.AgentBusy: "Wait until the run ends, or cancel it with Esc; then enter it again.",
    errors.ModelUnavailable: errors.ModelUnavailable.hint,
    errors.AwaitingApproval: "Answer the question, or cancel with Esc; then enter it again.",
    errors.ContextExhausted: "/continue does that.",
    errors.Terminal: "If its context is used up, /continue continues in a new one.",
}


# The commands to suggest when something is not found, by its collection: each lists the objects that exist.
_LISTS = {"conversations": "list", "models": "models", "approvalRules": "rules NAME"}
_MALFORMED_NAME = "must be conversations/{conversation}; ListConversations lists them"


def what_happened(error: errors.BedrockError) -> str:
    """The message of an error for users. A missing conversation or model is named as the user typed it."""
    collection, _, missing = error.resource.rpartition("/")
    if isinstance(error, errors.NotFound) and collection in _LISTS:
        return f"{collection.removesuffix('s')} '{missing}' not found"
    if error.message.endswith(_MALFORMED_NAME):
        return "that is not the slug or id of a conversation"
    return error.message.removesuffix(FOR_PROGRAMS)


def what_to_do(error: errors.BedrockError, *, in_chat: bool = False, name: str = "NAME") -> str:
    """A hint about what to do next: a command for the conversation `name` or, in a chat, a key; "" for no hint."""
    collection = "conversations" if error.message.endswith(_MALFORMED_NAME) else error.resource.rpartition("/")[0]
    listing = _LISTS.get(collection.rpartition("/")[2], "")
    if listing and not (in_chat and "NAME" in listing):
        return f"See `bedrock {listing.replace('NAME', name)}`."
    if "request_cycle" in error.fields:
        return _COMMAND_LINE[errors.NotForkable].replace("NAME", name)
    if isinstance(error, errors.ModeUnavailable) and error.metadata.get("cause") == "directory":
        return "Choose a conversation in another directory (-C)."
    if isinstance(error, errors.QuotaExceeded) and error.metadata.get("quota") == "concurrent_runs":
        return RUNS_END
    if error.reason == "STORE_UNAVAILABLE":
        return "Try again later. The server log says why, for example a full disk."
    told = (_CHAT if in_chat else _COMMAND_LINE).get(type(error))
    hint = error.hint if told is None else told.replace("NAME", name)
    return "" if hint.rstrip(".").casefold() in error.message.casefold() else hint


OK = 0
# The run ended in an error, or the command failed.
FAILED = 1
# The command line is wrong, or the server has refused one of its arguments.
USAGE = 2
# The run waits for an approval.
NEEDS_APPROVAL = 3
# No server can be reached.
UNREACHABLE = 4
# The answer is incomplete: it was cut off, refused or is empty.
NOT_WHOLE = 5
# The command or the run was cancelled, by Ctrl-C or by another client.
CANCELLED = 130
# The reader of the output has closed the pipe. A program killed by SIGPIPE has the same exit code.
CLOSED_PIPE = 141

START_A_SERVER = "Start one with `bedrock serve`, or chat with one of your own: `bedrock`."
SPEAK_TLS = "A server is listening there. If it uses TLS, begin the address with https://."
TRUST = "Set BEDROCK_CA_FILE to the CA certificates to trust, or leave out https:// if the server does not use TLS."
AROUND_THE_PROXY = "If the server can be reached without the proxy, add its host to `no_proxy`."
# Hints for errors without a reason, by words in the error message.
_NOT_REACHED = {" through the proxy ": AROUND_THE_PROXY, "TLS handshake": TRUST, "Socket closed": SPEAK_TLS}

CHECK_ADDRESS = (
    "No server responds there. Check {source}, and that `bedrock serve` on that machine is listening on that address. "
    "Without an address, this machine's server is used."
)


# The key in a command's context for the conversation's name, which is inserted into hints.
NAME = "bedrock.conversation"


def address_source(ctx: click.Context) -> str:
    """Where the address was set: "--address" or "BEDROCK_ADDRESS"; "" if it was set in neither."""
    if ctx.find_root().params.get("address"):
        return "--address"
    return "BEDROCK_ADDRESS" if os.environ.get("BEDROCK_ADDRESS") else ""


def way_to_a_server(error: errors.Unavailable, source: str = "") -> str:
    """A hint for a call that no server answered.

    If the error has a `reason`, a server refused the call, and the error's own hint is used. `source`: see
    `address_source`.
    """
    for words, hint in _NOT_REACHED.items():
        if not error.reason and words in error.message:
            return hint
    if not error.reason and "is an HTTP port" in error.message:
        return f"Use the gRPC port in {source or 'the address'}. JSON over HTTP and the console are served here."
    # Errors with a reason have their own hint. Of these, only ServerNotRunning may be due to a wrong address.
    if source and (type(error) is errors.ServerNotRunning or not error.reason):
        return CHECK_ADDRESS.format(source=source)
    return error.hint if error.reason else START_A_SERVER


# The exception that recent versions of click raise to show a command group's help, if no command is named.
_HELP = getattr(click.exceptions, "NoArgsIsHelpError", ())


class CommandError(Exception):
    """An error that ends the program. It has a message, a hint about what to do next, and an exit code."""

    def __init__(self, message: str, hint: str = "", exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    @classmethod
    def of(cls, error: errors.BedrockError, ctx: click.Context | None = None) -> CommandError:
        """The CommandError for a client error; `ctx` contains the address and the conversation that the user named."""
        source, name = (address_source(ctx), ctx.meta.get(NAME, "NAME")) if ctx else ("", "NAME")
        message, hint = what_happened(error), what_to_do(error, name=name)
        for field, description in error.fields.items():
            if description not in error.message:
                message += f"\n  {field}: {description}"
        if isinstance(error, errors.Unavailable):
            return cls(message, way_to_a_server(error, source), UNREACHABLE)
        if isinstance(error, errors.ApprovalNeeded):
            return cls(message, hint, NEEDS_APPROVAL)
        return cls(message, hint, USAGE if isinstance(error, errors.InvalidArgument | errors.Misconfigured) else FAILED)

    def show(self) -> None:
        print_message(f"error: {self.message}")
        if self.hint:
            print_message(self.hint)


def print_message(text: str) -> None:
    say = folding(partial(print_line, err=True), columns(sys.stderr))
    for line in Paint.for_stream(sys.stderr).clean(text).lines():
        say(line)


@contextmanager
def reported_errors(ctx: click.Context | None = None) -> Generator[None]:
    """Report errors in the ``with`` block on standard error, and raise click's Exit with the exit code of the error."""
    try:
        yield
    except BrokenPipeError:
        exit_code = CLOSED_PIPE
    except KeyboardInterrupt:
        exit_code = CANCELLED
    except _HELP:  # click prints the help
        raise
    except (CommandError, click.ClickException, click.Abort, errors.BedrockError, OSError, UnicodeEncodeError) as error:
        ended = _failure(error, ctx)
        with suppress(OSError):
            ended.show()
        exit_code = ended.exit_code
    else:
        return
    streams.discard_output()
    raise click.exceptions.Exit(exit_code)


def _failure(error: Exception, ctx: click.Context | None) -> CommandError:
    match error:
        case CommandError():
            return error
        case click.UsageError(ctx=click.Context(command_path=path)):
            return CommandError(error.format_message(), f"See `{path} --help`.", error.exit_code)
        case click.BadOptionUsage():  # an option's value is missing; click does not say for which command
            path = f"bedrock {ctx.invoked_subcommand}" if ctx and ctx.invoked_subcommand else "bedrock"
            return CommandError(error.format_message(), f"See `{path} --help`.", error.exit_code)
        case click.ClickException():
            return CommandError(error.format_message(), exit_code=error.exit_code)
        case click.Abort():
            return CommandError("aborted")
        case errors.BedrockError():
            return CommandError.of(error, ctx)
        case OSError(errno=errno.EBADF):
            return CommandError("standard output is closed")
        case OSError():
            return CommandError(": ".join(str(part) for part in (error.filename, error.strerror) if part) or str(error))
        case _:
            return CommandError("the command line is not valid UTF-8", exit_code=USAGE)
