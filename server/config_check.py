"""The command `bedrock config check`, which tells whether the server would start, and shows its settings."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from bedrock._interrupts import ending_at_once
from bedrock.cli.text.output import print_text

from server.cli import CANNOT_START, USAGE, fail
from server.config import Config, shown_database
from server.settings.loading import SETTINGS, load
from server.settings.setting_values import ConfigError, Listen

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.group()
def config() -> None:
    """Look at the settings of the server on this machine."""


@config.command()
@click.option("--config", "file", type=click.Path(path_type=Path), help="The server's file with settings.")
@click.option("--data-dir", type=str, help="Where conversations are kept. [~/.local/state/bedrock]")
def check(file: Path | None, data_dir: str | None) -> None:
    """Check the settings of a server without starting it.

    Prints every setting as the settings file would have it, with its origin, then what was found. Keys are never
    shown. Exits with 2 if a setting is wrong, and with 1 if the server could not start on this machine. A database is
    looked at for a few seconds, no provider is contacted.
    """
    try:
        settings = load({"data_dir": data_dir} if data_dir else {}, file=file)
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
    """Yield a line of TOML for each setting, with its value and its origin; a comment if the setting has no value."""
    known = {field.name for field in fields(settings)} & SETTINGS.keys()
    listen = ", ".join(each.target for each in settings.listen_tables)
    for name in (each for each in SETTINGS if each in known):
        if name == "listen" and listen:
            yield f"# listen is in tables [[listen]]: {listen}"
            continue
        value, origin = _toml(_plain(name, getattr(settings, name))), settings.origins.get(name, "default")
        yield f"{name} = {value}  # {origin}" if value else f"# {name} is not set"


def _plain(name: str, value: Any) -> Any:
    """Return a setting's value as it is written in the settings file; None if the file has no way to write it."""
    match value:
        case None:
            return {"cpus": "all", "listen": "none", "metrics_listen": "none"}.get(name)
        case "" if name in ("otlp_endpoint", "database"):
            return "none"
        case str() if name == "database":
            return shown_database(value)
        case Listen():
            return value.target
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
            # The escapes of JSON are valid in TOML, but TOML demands that DEL is escaped, too.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case _:
            return json.dumps(value)
