"""Argument types and options that commands share, and shell completion of names by quick requests to the server."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterable
from functools import partial, reduce, wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
from click.shell_completion import CompletionItem
from msgspec import Struct, convert

from bedrock import Client, Conversation, Generation, Instructions, McpHttp, McpServer, McpStdio
from bedrock._shared.requests import read_file
from bedrock.cli import exit_codes as exits
from bedrock.cli.display.labels import MODES
from bedrock.cli.text.output import print_text
from bedrock.cli.text.safe_text import for_terminal
from bedrock.cli.text.style import one_line
from bedrock.errors import BedrockError, ModelUnavailable
from bedrock.types import ApprovalPolicy, ReasoningEffort

if TYPE_CHECKING:
    NameType = click.ParamType[str]
else:
    NameType = click.ParamType  # before click 8.4 ParamType is not generic at run time

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

# Maximum seconds to wait for each answer from the server during a completion.
PATIENCE = 1.0
# Maximum number of conversations that a completion considers.
MOST = 100


def option(names: str, about: str, **how: Any) -> Callable[[F], F]:
    """An option with its help; `names` are separated by spaces, and can end with the name of the parameter."""
    return click.option(*names.split(), help=about, **how)


# The first words about an unreadable file, by the class of the decoder's error. The error itself says only where the
# file is wrong, not which format was expected.
_FORMATS = {"JSONDecodeError": "not JSON: ", "TOMLDecodeError": "not TOML: ", "UnicodeDecodeError": "not UTF-8: "}


def read_for(option: str, path: str, parse: Callable[[bytes], T]) -> T:
    """Read and parse the file that an option names. Converts OSError and ValueError to BadParameter."""
    try:
        return parse(read_file(path))
    except (OSError, ValueError) as error:
        wrong = _FORMATS.get(type(error).__name__, "")
        text = f"{path}: {wrong}{getattr(error, 'strerror', None) or error}"
        raise click.BadParameter(text, param_hint=option) from None


def text_of(data: bytes) -> str:
    return data.decode("utf-8-sig")


def complete_model(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(ctx, incomplete, _models)


class ConversationName(NameType):
    """The slug or id of a conversation. An empty name, as from an unset variable, is rejected."""

    name = "conversation"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value or self.fail("must not be empty", param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _complete(ctx, incomplete, _conversations)


CONVERSATION = ConversationName()
NAME = click.argument("name", type=CONVERSATION)
POLICY = click.Choice(get_args(ApprovalPolicy))
MODE = click.Choice(list(MODES))


def _together(*options: Callable[[F], F]) -> Callable[[F], F]:
    return lambda command: reduce(lambda decorated, option: option(decorated), reversed(options), command)


_GENERATION = _together(
    option("--effort", "How much the model reasons before it answers.", type=click.Choice(get_args(ReasoningEffort))),
    option("--temperature", "Sampling temperature.", type=click.FloatRange(0, 2)),
    option(
        "--max-output-tokens", "Maximum tokens per answer, including reasoning.", type=click.IntRange(1), metavar="N"
    ),
)


def generation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --effort, --temperature and --max-output-tokens.

    The command gets them as `generation`, or None if none is given.
    """

    @wraps(command)
    def with_generation(
        *args: Any,
        effort: ReasoningEffort | None,
        temperature: float | None,
        max_output_tokens: int | None,
        **others: Any,
    ) -> Any:
        given = Generation(effort or "", temperature, max_output_tokens)
        return command(*args, generation=None if given == Generation() else given, **others)

    return _GENERATION(with_generation)


def _conversations(client: Client) -> Iterable[tuple[str, str]]:
    return ((found.slug, found.title) for found in islice(client.conversations(), MOST))


def _models(client: Client) -> Iterable[tuple[str, str]]:
    return ((model.name.removeprefix("models/"), model.provider) for model in client.models())


def _complete(
    ctx: click.Context, incomplete: str, ask: Callable[[Client], Iterable[tuple[str, str]]]
) -> list[CompletionItem]:
    """The names from `ask` that begin with the typed text; none if no server answers within PATIENCE seconds."""
    try:
        with Client(ctx.find_root().params.get("address"), timeout=PATIENCE) as client:
            found = list(ask(client))
    except (BedrockError, ValueError):
        return []
    return [
        CompletionItem(name, help=one_line(about, 60) or None)
        for name, about in found
        if name.startswith(incomplete) and name.isprintable() and for_terminal(name) == name
    ]


def connect(ctx: click.Context) -> Client:
    """Create the client of a command. The client is closed when the command ends."""
    return ctx.with_resource(Client(ctx.find_root().obj))


def on_conversation(run: Callable[..., None]) -> click.Command:
    """Make a command from a function whose first argument is the conversation that the command line names."""

    @wraps(run)
    def command(name: str, **options: Any) -> None:
        ctx = click.get_current_context()
        ctx.meta[exits.NAME] = name
        run(connect(ctx).conversation(name), **options)

    return click.command(run.__name__.rstrip("_"))(NAME(command))


def address_or_spawned(ctx: click.Context) -> str | None:
    """The address to connect to; if this user has no server running on this machine, start one first."""
    from bedrock.cli.spawned_server import spawn_if_missing  # noqa: PLC0415 -- most commands do without it

    address: str | None = ctx.find_root().obj
    starting = partial(print_text, "No server is running; starting one.", err=True)
    server = spawn_if_missing(address, ctx.with_resource, starting)
    return server.address if server else address


def connect_or_spawn(ctx: click.Context) -> Client:
    """Do the same as `connect`, but start a server as `address_or_spawned` does."""
    return ctx.with_resource(Client(address_or_spawned(ctx)))


class _McpTable(Struct, forbid_unknown_fields=True):
    """An [[mcp_servers]] table."""

    name: str
    command: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    read_only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError(f"{self.name}: set either command (a program) or url")

    @property
    def server(self) -> McpServer:
        if self.url:
            return McpServer(self.name, None, McpHttp(self.url, self.headers), self.read_only)
        return McpServer(self.name, McpStdio(self.command, self.environment), None, self.read_only)


def servers_in(data: bytes) -> list[McpServer]:
    """The [[mcp_servers]] tables of a TOML file. Raises ValueError."""
    tables = tomllib.loads(text_of(data)).get("mcp_servers", [])
    if not isinstance(tables, list) or not tables:
        raise ValueError("it has no [[mcp_servers]] tables")
    return [table.server for table in convert(tables, list[_McpTable])]


# Maximum number of models that are listed when the user is asked to choose one.
_SHOWN = 20

creating_options = _together(
    option(
        "-C --directory",
        "The directory on the server's machine in which tools work. [default: the current one]",
        metavar="DIR",
        default=".",
    ),
    option(
        "-m --model",
        "The model for a new conversation; see `bedrock models`.",
        metavar="MODEL",
        shell_complete=complete_model,
    ),
    option(
        "--mode",
        "What the tools of a new conversation may do. [default: restricted if the server can enforce it]",
        type=MODE,
    ),
    option("--approval-policy", "When tools of a new conversation need approval. [default: the server's]", type=POLICY),
    option(
        "--instructions",
        "Instructions for the agent of a new conversation, besides the server's prompt; @FILE reads them from a file.",
        metavar="TEXT|@FILE",
    ),
    option("--replace-instructions", "Use --instructions instead of the server's prompt.", is_flag=True),
    option(
        "--tools", "Tools for a new conversation (see `bedrock tools`); '' for none. [default: all]", metavar="NAME,…"
    ),
    option(
        "--mcp-servers",
        "A TOML file with MCP servers for a new conversation: [[mcp_servers]] tables as in the settings.",
        metavar="FILE",
    ),
    option(
        "--auto-continue",
        "When the context of a new conversation is used up, continue in a successor that begins with the summary.",
        is_flag=True,
    ),
)
_CONTINUING = _together(
    option(
        "-c --continue latest",
        "Continue the latest conversation of this directory (or -C), or its successor if the context is used up.",
        is_flag=True,
    ),
    option("-r --resume", "Continue this conversation.", metavar="SLUG", type=CONVERSATION),
)


def opening_options(command: F) -> F:
    """Add the options for continuing or creating a conversation, e.g. --resume and --model, to a command."""
    return creating_options(_CONTINUING(command))


def create_conversation(
    client: Client,
    *,
    directory: str,
    model: str | None,
    instructions: str | None,
    replace_instructions: bool,
    tools: str | None,
    mcp_servers: str | None,
    **others: Any,
) -> Conversation:
    """Create a conversation from a command's options. Raises UsageError for contradictory options or a bad file."""
    if replace_instructions and not instructions:
        raise click.UsageError("--replace-instructions requires --instructions")
    create = partial(
        client.create, directory,
        instructions=Instructions(_text(instructions), replace_instructions) if instructions else None,
        tools=None if tools is None else [name.strip() for name in tools.split(",") if name.strip()],
        mcp_servers=read_for("--mcp-servers", mcp_servers, servers_in) if mcp_servers else (), **others,
    )  # fmt: skip
    try:
        return create(model=model)
    except ModelUnavailable:
        if model or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
    return create(model=_asked_model(client))


def _asked_model(client: Client) -> str:
    """Ask which of the server's models to use, because none is the default. Raises click.Abort at the end of input."""
    from bedrock.cli.stdio import asking  # noqa: PLC0415 -- needs a terminal

    models = sorted(client.models(), key=lambda model: model.protocol == "demo")
    names = [model.name.removeprefix("models/") for model in models]
    print_text("The server has no default model. It offers:", err=True)
    for number, model in enumerate(models[:_SHOWN], 1):
        print_text(f"{number:4}  {names[number - 1]} ({model.provider})", err=True)
    if len(models) > _SHOWN:
        print_text(f"      … and {len(models) - _SHOWN:,} more, which `bedrock models` lists", err=True)
    with asking(sys.stdin):
        while True:
            said = click.prompt("Which one (number or name)", err=True).strip()
            place = int(said) - 1 if said.isascii() and said.isdecimal() else -1
            chosen = names[place] if 0 <= place < len(names) else said
            if chosen in names:
                break
            print_text(f"Unknown model {one_line(said, 60)!r}.", err=True)
    print_text(f"To skip this question, pass -m {chosen}, or set default_model in the server's settings.", err=True)
    return chosen


def _text(given: str) -> str:
    """The given string or, if it begins with @, the content of the file that it names.

    Raises BadParameter if that file cannot be read.
    """
    return read_for("--instructions", given[1:], text_of) if given.startswith("@") else given


def open_conversation(client: Client, *, latest: bool, resume: str | None, **creating: Any) -> Conversation:
    """The latest, a named, or a new conversation. Raises UsageError, or CommandError if there is none to continue."""
    if latest and resume:
        raise click.UsageError("-c and -r are mutually exclusive")
    if not latest and not resume:
        return create_conversation(client, **creating)
    if any(value not in (None, False) for name, value in creating.items() if name != "directory"):
        raise click.UsageError(
            "-m, --mode, --approval-policy, --instructions, --auto-continue, --tools and --mcp-servers apply only to "
            "new conversations, as do --effort, --temperature and --max-output-tokens in a chat: use `bedrock update` "
            "or /effort"
        )
    if resume:
        return client.conversation(client.conversation(resume).get().name)
    return _latest(client, creating["directory"])


def _latest(client: Client, directory: str) -> Conversation:
    """The conversation of a directory that changed last, or its successor; archived ones and sub-agents do not count.

    Raises CommandError if there is none.
    """
    for found in client.conversations(working_directory=directory):
        if found.state.kind != "context_exhausted":
            return client.conversation(found.name)
        if not found.continued_by:
            return client.conversation(found.name).continue_()
        # Skip the conversation: its successor has the same directory and is listed, too, unless it is archived or
        # deleted.
    others = "`bedrock list` shows those in other directories; `bedrock chat -r NAME` resumes one."
    where = Path(directory).absolute()
    raise exits.CommandError(f"no conversation in {where} yet", f"Start one: `bedrock chat`. {others}")
