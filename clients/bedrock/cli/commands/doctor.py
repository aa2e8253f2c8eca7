"""`bedrock doctor`: reports problems with the server, the connection and this machine, and their remedies."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points

import click
from click.shell_completion import get_completion_class

from bedrock import Client
from bedrock._shared.settings import is_local, resolve
from bedrock.catalog import Model, Sandbox
from bedrock.cli import exit_codes as exits
from bedrock.cli.arguments import option
from bedrock.cli.display.labels import MODES, counted
from bedrock.cli.text.output import folding, print_json, print_line, print_text
from bedrock.cli.text.style import Paint, columns
from bedrock.errors import BedrockError, PermissionDenied, Unauthenticated, Unavailable
from bedrock.local_server import TOKEN_FILE, NotPrivateError, data_directory, open_believed

# The entry point group of the server package's check functions. Each function takes the path of the settings file, or
# None, and returns tuples with the arguments of a `Finding`.
GROUP = "bedrock.doctor"

NO_MODELS = "Set ANTHROPIC_API_KEY or OPENAI_API_KEY, or OPENAI_BASE_URL, and start the server again."
NO_MODELS_ELSEWHERE = "The server's operator decides which models you can use, and sets their keys."


@dataclass(frozen=True, slots=True)
class Finding:
    level: str
    subject: str
    text: str
    advice: str = ""
    """What to do about the problem; empty if nothing is wrong."""


@click.command()
@option("--config", "The settings file of the server on this machine.", type=click.Path())
@option("--output", "Text for people, or JSON for programs.", type=click.Choice(["text", "json"]), default="text")
@click.pass_context
def doctor(ctx: click.Context, config: str | None, output: str) -> None:
    """Check the server, the connection to it, and this machine. Exit code 0 if nothing fails.

    On the server's machine, the database in the settings is checked too.
    """
    findings = list(_examine(ctx.find_root().obj, config))
    if output == "json":
        print_json([asdict(finding) for finding in findings], indent=2)
    else:
        paint = Paint.for_stream(sys.stdout)
        marks = {"ok": paint.good("ok  "), "warn": paint.careful("warn"), "fail": paint.bad("fail")}
        say = folding(print_line, columns(sys.stdout))
        for finding in findings:
            say(paint.text(marks[finding.level], f"  {finding.subject}: {finding.text}"), indent=6)
            if finding.advice:
                say(paint.text(f"      → {finding.advice}"), indent=8)
    failed = [finding.subject for finding in findings if finding.level == "fail"]
    ctx.exit(exits.UNREACHABLE if "server" in failed else exits.FAILED if failed else exits.OK)


def _examine(address: str | None, config: str | None) -> Iterator[Finding]:
    yield _versions()
    try:
        with Client(address) as client:
            yield _token(address)
            yield from _server(client)
            if not is_local(client.address):
                return  # checks of this machine do not concern a server elsewhere
    except BedrockError as error:
        yield Finding("fail", "connection", error.message, error.hint)
    yield from _checks_of_server(config)
    if git := shutil.which("git"):
        yield Finding("ok", "git", git)
    else:
        yield Finding("warn", "git", "not found on PATH", "Install Git: agents use it to inspect changes.")


def _versions() -> Finding:
    parts = [f"Python {sys.version.split()[0]}"]
    parts += [f"{name} {importlib.metadata.version(name)}" for name in ("grpcio", "protobuf")]
    return Finding("ok", "this program", ", ".join(parts))


def _token(address: str | None) -> Finding:
    if os.environ.get("BEDROCK_TOKEN"):
        return Finding("ok", "token", "from BEDROCK_TOKEN")
    if (address or os.environ.get("BEDROCK_ADDRESS")) and not resolve(address).token:
        return Finding("warn", "token", "none: an address is given, but no BEDROCK_TOKEN", Unauthenticated.hint)
    path = data_directory() / TOKEN_FILE
    try:
        with os.fdopen(open_believed(path)) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except NotPrivateError as error:
        return Finding("fail", "token", str(error))
    except OSError:
        return Finding("warn", "token", f"none: {path} does not exist", "The first `bedrock serve` creates it.")
    if mode & 0o077:
        return Finding("warn", "token", f"others can read {path}", f"chmod 600 {path}")
    return Finding("ok", "token", f"from {path}")


def _server(client: Client) -> Iterator[Finding]:
    try:
        info = client.server_info()
    except Unavailable as error:
        advice = exits.way_to_a_server(error, exits.address_source(click.get_current_context()))
        yield Finding("fail", "server", error.message, advice)
        advice = "The server probes this machine when it starts. Run this again while a server is running."
        yield Finding("warn", "sandbox", "not checked: the server is unreachable", advice)
        return
    except (Unauthenticated, PermissionDenied) as error:
        yield Finding("ok", "server", f"answers at {client.address}")
        yield Finding("fail", "auth", error.message, error.hint)
        return
    yield Finding("ok", "server", f"version {info.version} answers at {client.address}")
    yield Finding("ok", "auth", "the server accepts this token")
    yield _sandbox(info.sandbox)
    yield from _modes(info.sandbox)
    yield _tool_limits(info.sandbox)
    if not info.sandbox.hides_server_files:
        advice = "They are hidden if the server can create mount namespaces. Restricted mode always hides them."
        yield Finding("warn", "sandbox", "unrestricted tools can read the server's token, keys and data", advice)
    yield _models(client.models(), NO_MODELS if is_local(client.address) else NO_MODELS_ELSEWHERE)


_TIERS = {"a": "tier A (namespaces, Landlock {} and seccomp)", "b": "tier B (Landlock {} and seccomp, no namespaces)"}


def _sandbox(sandbox: Sandbox) -> Finding:
    """Report how well the sandbox restricts tools. A level that the operator has chosen counts as ok."""
    text = _TIERS.get(sandbox.tier, "none: tools are not confined").format(sandbox.landlock_abi)
    if sandbox.by_setting:
        return Finding("ok", "sandbox", f"{text}: {sandbox.reason}" if sandbox.reason else f"{text}, as configured")
    if sandbox.tier == "a":
        return Finding("ok", "sandbox", text)
    return Finding("warn", "sandbox", text, sandbox.reason)


def _modes(sandbox: Sandbox) -> Iterator[Finding]:
    """Report what tools can do in each mode, or why the mode is not available."""
    lacking = {
        "restricted": "" if sandbox.restricted_available else sandbox.reason,
        "workspace": "" if sandbox.workspace_available else sandbox.workspace_reason,
    }
    for mode, rights in MODES.items():
        if why := lacking.get(mode):
            yield Finding("ok" if sandbox.by_setting else "warn", f"{mode} mode", f"not available: {why}")
        else:
            yield Finding("ok", f"{mode} mode", rights)


def _tool_limits(sandbox: Sandbox) -> Finding:
    """Report what limits a tool's processes and memory: the kernel, or the server, which notices violations later."""
    keepers = {True: "limited by the kernel", False: "limited by the server, which kills a tool that exceeds the limit"}
    bounded = {"processes": sandbox.kernel_bounds_processes, "memory": sandbox.kernel_bounds_memory}
    by = {keeper: [name for name, kernel in bounded.items() if kernel is which] for which, keeper in keepers.items()}
    text = "; ".join(f"{' and '.join(names)} {keeper}" for keeper, names in by.items() if names)
    return Finding("ok", "tool limits", text)


def _models(models: list[Model], advice: str) -> Finding:
    if not models:
        return Finding("fail", "models", "the server has none", advice)
    names = [model.name.removeprefix("models/") for model in models]
    default = next((model.name.removeprefix("models/") for model in models if model.default), "none")
    if all(model.protocol == "demo" for model in models):
        return Finding("warn", "models", "only the scripted demo model", advice)
    return Finding("ok", "models", f"{counted(len(names), 'model')}; a new conversation uses {default}")


def _checks_of_server(config: str | None) -> Iterator[Finding]:
    """Report the results of the server package's own checks of this machine's settings, if the package is installed."""
    for check in entry_points(group=GROUP):
        yield from (Finding(*found) for found in check.load()(config))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash   eval "$(bedrock completion bash)"   in ~/.bashrc
    zsh    eval "$(bedrock completion zsh)"    in ~/.zshrc
    fish   bedrock completion fish | source    in ~/.config/fish/config.fish

    It completes commands, options, and the names of conversations and models if the server answers within a second.
    """
    found = get_completion_class(shell)
    if found is not None:
        print_text(found(ctx.find_root().command, {}, "bedrock", "_BEDROCK_COMPLETE").source())
