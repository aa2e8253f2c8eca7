"""Argument types and options that commands share, and shell completion of names by quick requests to the server."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
from click.shell_completion import CompletionItem

from bedrock import Client, Generation
from bedrock.cli.text.safe_text import for_terminal
from bedrock.cli.text.style import one_line
from bedrock.errors import BedrockError
from bedrock.types import ApprovalPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bedrock.types import ReasoningEffort

    NameType = click.ParamType[str]
else:
    NameType = click.ParamType  # before click 8.4 ParamType is not generic at run time

F = TypeVar("F", bound=Callable[..., Any])

#: Maximum seconds to wait for the server during a completion.
PATIENCE = 1.0
#: Maximum number of conversations that a completion considers.
MOST = 100


def unreadable(path: str, error: Exception, option: str) -> click.BadParameter:
    """Return the error for a file that an option names and that cannot be read."""
    return click.BadParameter(f"{path}: {getattr(error, 'strerror', None) or error}", param_hint=option)


def complete_model(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return completions: the models whose names begin with the typed text."""
    return _complete(ctx, incomplete, _models)


class ConversationName(NameType):
    """The type of an argument that names a conversation by slug or id.

    An empty name, e.g. of an unset variable, is invalid.
    """

    name = "conversation"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name unchanged.

        Raises:
            BadParameter: The name is empty.
        """
        return value or self.fail("it is empty", param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return completions: the slugs that begin with the typed text, the latest conversation first."""
        return _complete(ctx, incomplete, _conversations)


CONVERSATION = ConversationName()
NAME = click.argument("name", type=CONVERSATION)
POLICY = click.Choice(get_args(ApprovalPolicy))
FILTER_OPTION = click.option("--filter", "filter_", metavar="FILTER", default="", help="Only those that match.")

_GENERATION_OPTIONS = (
    click.option(
        "--effort",
        type=click.Choice(["none", "low", "medium", "high", "max"]),
        help="How much the model is to think before an answer.",
    ),
    click.option("--temperature", type=click.FloatRange(0, 2), help="How freely the model is to choose words."),
    click.option(
        "--max-output-tokens", type=click.IntRange(1), metavar="N", help="Tokens of one answer at most, with reasoning."
    ),
)


def generation_options(command: F) -> F:
    """Add the options --effort, --temperature and --max-output-tokens to a command."""
    for option in reversed(_GENERATION_OPTIONS):
        command = option(command)
    return command


def generation(
    effort: ReasoningEffort | None, temperature: float | None, max_output_tokens: int | None
) -> Generation | None:
    """Return the settings for the model's answers from a command's options; None if no option is given."""
    given = Generation(effort or "", temperature, max_output_tokens)
    return None if given == Generation() else given


def _conversations(client: Client) -> Iterable[tuple[str, str]]:
    return ((found.slug, found.title) for found in islice(client.conversations(), MOST))


def _models(client: Client) -> Iterable[tuple[str, str]]:
    return ((model.name.removeprefix("models/"), model.provider) for model in client.models())


def _complete(
    ctx: click.Context, incomplete: str, ask: Callable[[Client], Iterable[tuple[str, str]]]
) -> list[CompletionItem]:
    """Return completions for the typed text: those names from `ask` that begin with it.

    The list is empty if no server answers within PATIENCE seconds.
    """
    address = ctx.find_root().params.get("address")
    answers: queue.SimpleQueue[list[tuple[str, str]]] = queue.SimpleQueue()

    def read() -> None:
        try:
            with Client(address, timeout=PATIENCE) as client:
                answers.put(list(ask(client)))
        except (BedrockError, ValueError):
            answers.put([])

    threading.Thread(target=read, daemon=True, name="completion").start()
    try:
        found = answers.get(timeout=PATIENCE)
    except queue.Empty:
        return []
    return [
        CompletionItem(name, help=one_line(about, 60) or None)
        for name, about in found
        if name.startswith(incomplete) and name.isprintable() and for_terminal(name) == name
    ]
