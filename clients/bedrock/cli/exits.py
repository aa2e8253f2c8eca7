"""The exit codes of the program, and the errors that lead to them."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager, suppress

import click

from bedrock.cli import streams
from bedrock.errors import ApprovalNeeded, BedrockError, InvalidArgument, Misconfigured, Unavailable

OK = 0
#: The run ended in an error, or the command failed.
FAILED = 1
#: The command line, or something that the server says about an argument, is wrong.
USAGE = 2
#: The run waits for a person.
NEEDS_APPROVAL = 3
#: No server can be reached.
UNREACHABLE = 4
#: Cancelled, by Ctrl-C or by somebody else.
CANCELLED = 130
#: Whoever read the output has gone; the same as of a program that SIGPIPE ends.
CLOSED_PIPE = 141

START_A_SERVER = "Start one with `bedrock serve`, or chat with one of your own: `bedrock chat --spawn`."


class Failure(Exception):
    """An error that ends the program with a text, what to do next, and an exit code."""

    def __init__(self, message: str, hint: str = "", exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    @classmethod
    def of(cls, error: BedrockError) -> Failure:
        """Make the failure that a client's error means for somebody at a terminal."""
        message = error.message
        for field, description in error.fields.items():
            if description not in message:
                message += f"\n  {field}: {description}"
        if isinstance(error, Unavailable):
            return cls(message, error.hint if error.reason else START_A_SERVER, UNREACHABLE)
        if isinstance(error, ApprovalNeeded):
            return cls(message, error.hint, NEEDS_APPROVAL)
        return cls(message, error.hint, USAGE if isinstance(error, InvalidArgument | Misconfigured) else FAILED)

    def show(self) -> None:
        """Print the error and what to do next to standard error."""
        click.echo(f"error: {self.message}", err=True)
        if self.hint:
            click.echo(self.hint, err=True)


@contextmanager
def told() -> Generator[None]:
    """Turn the errors of the block into a text on standard error and the exit code of the program."""
    try:
        yield
    except BrokenPipeError:
        exit_code = CLOSED_PIPE
    except KeyboardInterrupt:
        exit_code = CANCELLED
    except (Failure, BedrockError, OSError, UnicodeEncodeError) as error:
        ended = _failure(error)
        with suppress(OSError):
            ended.show()
        exit_code = ended.exit_code
    else:
        return
    streams.give_up()
    raise click.exceptions.Exit(exit_code)


def _failure(error: Failure | BedrockError | OSError | UnicodeEncodeError) -> Failure:
    """What an error means for somebody at a terminal."""
    match error:
        case Failure():
            return error
        case BedrockError():
            return Failure.of(error)
        case OSError(errno=errno.EBADF):
            return Failure("standard output is closed")
        case OSError():
            return Failure(": ".join(str(part) for part in (error.filename, error.strerror) if part) or str(error))
        case _:
            return Failure("what is to be sent is no UTF-8 text", "Look at the command line.", USAGE)
