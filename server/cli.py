"""The commands `bedrock serve`, also run by `python -m server`, and `bedrock config check`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import click
from bedrock._interrupts import ending_at_once
from bedrock.cli.text.output import print_text

from server.settings.config import NO_TEXT, NO_VALUE, SETTINGS, Config, load, shown_database
from server.settings.setting_values import LOG_LEVELS, SANDBOXES, ConfigError

CANNOT_START = 1
USAGE = 2
CONFIG = click.option(
    "--config", "file", type=click.Path(path_type=Path), help="A TOML file with the server's settings."
)
DATA_DIR = click.option("--data-dir", type=str, help="Directory to keep conversations in. [~/.local/state/bedrock]")


def loaded(file: Path | None, **flags: str | None) -> Config:
    try:
        return load({name: value for name, value in flags.items() if value is not None}, file=file)
    except ConfigError as error:
        fail(str(error), USAGE)


@click.command()
@CONFIG
@DATA_DIR
@click.option("--database", type=str, help="URL of a PostgreSQL database, or none for SQLite in --data-dir. [none]")
@click.option("--listen", type=str, help="host:port (port 0 picks a free one), unix:/path, or none. [127.0.0.1:7421]")
@click.option("--http", "http_listen", type=str, help="host:port for JSON over HTTP, or none. [none]")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), help="Minimum log level on stderr. [info]")
@click.option("--default-model", type=str, help="Model for conversations that do not specify one.")
@click.option("--small-model", type=str, help="Model for side queries such as titles, or none.")
@click.option("--titles/--no-titles", default=None, help="Generate titles for conversations. [on]")
@click.option("--drain-seconds", type=float, help="Seconds that runs may continue after a stop signal. [10]")
@click.option("--idle-seconds", type=float, help="Seconds that an idle conversation keeps its threads. [30]")
@click.option("--max-streams", type=int, help="Maximum number of open streams. [10000]")
@click.option("--retention-events-days", type=float, help="Days to keep events; messages are always kept. [no limit]")
@click.option("--retention-events-min", type=int, help="Latest events to keep per conversation, however old. [10000]")
@click.option("--retention-archived-days", type=float, help="Days to keep archived conversations. [no limit]")
@click.option("--retention-audit-days", type=float, help="Days to keep refused calls in the audit trail. [90]")
@click.option("--reflection/--no-reflection", default=None, help="Enable gRPC reflection for tools like grpcurl. [off]")
@click.option("--tls-certificate", type=str, help="Certificate as PEM; required for remote clients.")
@click.option("--tls-key", type=str, help="Private key for --tls-certificate, as PEM.")
@click.option(
    "--insecure-behind-proxy",
    is_flag=True,
    default=None,
    help="Accept remote clients without TLS; only behind a mesh or proxy that encrypts all traffic.",
)
@click.option("--metrics-listen", type=str, help="Port or host:port for Prometheus metrics, or none. [none]")
@click.option("--otlp-endpoint", type=str, help="URL of an OTLP collector for traces and metrics. [none]")
@click.option("--otlp-contents", type=str, help="Content attributes to include in spans, comma-separated. [none]")
@click.option(
    "--sandbox",
    type=click.Choice(SANDBOXES),
    help="Sandbox tier; the server does not start if the machine cannot enforce it. [auto]",
)
@click.option(
    "--workspace-protected",
    type=str,
    help="Names of files and directories that tools in workspace mode cannot change, in addition to .git; "
    "comma-separated. "
    "[.envrc,.vscode,.idea,node_modules/.bin,.husky,.githooks,.devcontainer,.zed,.cursor,.claude,.mcp.json]",
)
@click.option(
    "--deny-read",
    type=str,
    help="Files and directories that tools cannot read, comma-separated, or none. [common locations of keys]",
)
@click.option(
    "--system-paths",
    type=str,
    help="Paths that the tools of all principals can read, in addition to the principal's roots; comma-separated. "
    "[/usr, /lib and other system paths that programs need]",
)
@click.option("--cpus", type=str, help="CPUs for the server itself, such as 1 or 0,2-3; tools may use all. [all]")
@click.option("--until-eof", is_flag=True, help="Also stop when standard input (a pipe) is closed by its writer.")
@click.option(
    "--until-unused",
    is_flag=True,
    help="Also stop once standard input is closed, no client is connected and no run is in progress.",
)
def serve(file: Path | None, until_eof: bool, until_unused: bool, **options: Any) -> None:
    """Run the Bedrock server until it receives a stop signal.

    Every option can also be set by an environment variable (BEDROCK_DATA_DIR and so on) and in a settings file.
    This user's clients on this machine need no address or token: they find a Unix socket and the token in the data
    directory. Others connect to --listen and must send the token. The first SIGTERM, SIGHUP or Ctrl-C lets runs
    continue for the drain time; a second SIGTERM or Ctrl-C does not wait for them.
    """
    try:
        config = load({name: value for name, value in options.items() if value is not None}, file=file)
        _serve(config, until_eof=until_eof, until_unused=until_unused)
    except ConfigError as error:
        fail(str(error), USAGE)


def _serve(config: Config, *, until_eof: bool, until_unused: bool) -> None:
    from server.operating_system import collection_paused, tune_process  # noqa: PLC0415 -- before gRPC, not for --help

    tune_process()
    with ending_at_once(), collection_paused():
        from server.app.sandbox_choice import probing  # noqa: PLC0415

        report = probing(config)  # a thread probes the sandbox while the modules below are imported
        from server import json_logs as logs  # noqa: PLC0415
        from server.app.adapter_choice import CannotStartError  # noqa: PLC0415
        from server.app.serving import run  # noqa: PLC0415

    logs.set_up(config.log_level)
    try:
        run(config, print_text, report=report, until_eof=until_eof, until_unused=until_unused)
    except CannotStartError as error:
        fail(str(error), CANNOT_START)


def fail(text: str, code: int) -> NoReturn:
    """Print an error line to standard error and exit with `code`."""
    print_text(f"error: {' '.join(text.splitlines())}", err=True)
    sys.exit(code)


@click.group()
def config() -> None:
    """Inspect the settings of the server on this machine."""


@config.command()
@CONFIG
@DATA_DIR
def check(file: Path | None, data_dir: str | None) -> None:
    """Check the settings of a server without starting it.

    Prints every setting in the format of the settings file, with its origin, then the findings. Keys are never shown.
    Exit code 2: a setting is invalid; 1: the server could not start on this machine. The database is checked for a few
    seconds; no provider is contacted.
    """
    settings = loaded(file, data_dir=data_dir)
    try:
        for line in described(settings):
            print_text(line)
        with ending_at_once():
            from server.app.adapter_choice import CannotStartError  # noqa: PLC0415 -- not for --help
            from server.app.start_checks import checked  # noqa: PLC0415
        try:
            for line in checked(settings):
                print_text(line)
        except CannotStartError as error:
            fail(str(error), CANNOT_START)
    except ConfigError as error:
        fail(str(error), USAGE)
    print_text("the server can start with these settings")


def described(settings: Config) -> Iterator[str]:
    listen = ", ".join(each.target for each in settings.listen_tables)
    for name in SETTINGS:
        if name == "listen" and listen:
            yield f"# listen is set by [[listen]] tables: {listen}"
            continue
        value, origin = _toml(_plain(name, getattr(settings, name))), settings.origins.get(name, "default")
        yield f"{name} = {value}  # {origin}" if value else f"# {name} is not set"


def _plain(name: str, value: Any) -> Any:
    match value:
        case None | "":
            return {**NO_VALUE, **NO_TEXT}.get(name, value)
        case str() if name == "database":
            return shown_database(value)
        case Path():
            return str(value)
        case frozenset():
            return ",".join(map(str, sorted(value)))
        case _:
            return value


def _toml(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            # JSON's escapes are valid in TOML, but TOML also requires DEL to be escaped.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case _:
            return json.dumps(value)
