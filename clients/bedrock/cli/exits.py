"""The exit codes of the program, and the errors that lead to them."""

from __future__ import annotations

import click

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
